// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/verbs/ends.h"

#include <poll.h>

#include <algorithm>
#include <utility>

namespace kvcove::transport::verbs {
namespace {

wire::LaneEnd HelloOf(const PairAddress& own) {
  return {.gid = own.gid,
          .lid = own.lid,
          .number = own.number,
          .first_packet = own.first_packet,
          .mtu = own.mtu,
          .reads = own.reads};
}

PairAddress AddressOf(const wire::LaneEnd& peer) {
  return {.gid = peer.gid,
          .lid = peer.lid,
          .number = peer.number,
          .first_packet = peer.first_packet,
          .mtu = peer.mtu,
          .reads = peer.reads};
}

// Slot of the receive that takes the requester's first message, or the owner's immediate.
constexpr std::uint32_t kSlot = 0;

// Of completions, that one call of OwnerEnd::Advance takes.
constexpr int kBatchesInARow = 32;

Status SleepUntilReadable(int descriptor, std::int64_t until_ns, const Clock& clock) {
  const std::int64_t left_ns = LeftNs(until_ns, clock);
  if (left_ns <= 0) return Fail(Code::kTimeout, "no packet of the peer's device arrives here");
  pollfd waits{.fd = descriptor, .events = POLLIN, .revents = 0};
  const timespec limit{.tv_sec = left_ns / kSecond, .tv_nsec = left_ns % kSecond};
  (void)ppoll(&waits, 1, &limit, nullptr);
  return {};
}

}  // namespace

// ---- RequesterEnd

Result<std::unique_ptr<RequesterEnd>> RequesterEnd::Open(Fabric& fabric) {
  KVCOVE_ASSIGN(auto lane, fabric.OpenLane(Access::kRemote));
  return std::unique_ptr<RequesterEnd>(new RequesterEnd(fabric, std::move(lane)));
}

wire::LaneEnd RequesterEnd::hello() const { return HelloOf(lane_->own()); }

Status RequesterEnd::Connect(const wire::LaneEnd& owner, std::int64_t until_ns,
                             const Clock& clock) {
  KVCOVE_TRY(lane_->Connect(AddressOf(owner)));
  // No bytes, and no receive of this end: the acknowledgement alone shows that both ways are open.
  const std::int64_t sent_ns = clock.NowNs();
  KVCOVE_TRY(lane_->Post({.operation = Operation::kSend}));
  while (true) {
    KVCOVE_TRY(Take());
    if (lane_->idle()) {
      round_trip_ns_ = clock.NowNs() - sent_ns;
      return {};
    }
    KVCOVE_ASSIGN(const bool more, ArmAndLook());
    if (more) continue;
    KVCOVE_TRY(SleepUntilReadable(descriptor(), until_ns, clock));
    TakeEvents();
  }
}

template <typename AnyPiece>
std::optional<std::vector<wire::LanePiece>> RequesterEnd::KeysTo(
    std::span<const AnyPiece> pieces) const {
  // All pieces or none: payload moves one way as a whole, so that one completion announces it.
  std::vector<Keyed> parts;
  for (const AnyPiece& piece : pieces) {
    if (piece.size == 0) continue;
    if (piece.data == nullptr) return std::nullopt;
    if (!fabric_.Cover(piece.data, piece.size, Access::kRemote, parts)) return std::nullopt;
  }
  if (parts.size() > wire::kMaxLanePieces) return std::nullopt;
  std::vector<wire::LanePiece> keyed;
  keyed.reserve(parts.size());
  for (const Keyed& part : parts) {
    keyed.push_back({.address = reinterpret_cast<std::uintptr_t>(part.data),
                     .size_bytes = part.bytes,
                     .key = part.remote_key});
  }
  return keyed;
}
template std::optional<std::vector<wire::LanePiece>> RequesterEnd::KeysTo(
    std::span<const Piece> pieces) const;
template std::optional<std::vector<wire::LanePiece>> RequesterEnd::KeysTo(
    std::span<const ConstPiece> pieces) const;

Status RequesterEnd::Expect(std::uint64_t exchange) {
  arrived_ = false;
  // A receive is posted as long as an immediate is expected: that of an exchange whose reply took
  // the connection instead serves this one.
  if (!expected_) KVCOVE_TRY(lane_->PostReceive(kSlot, {}));
  expected_ = static_cast<std::uint32_t>(exchange);
  return {};
}

Status RequesterEnd::Take() {
  while (true) {
    KVCOVE_ASSIGN(const bool taken, lane_->Advance(received_));
    for (const Received& one : std::exchange(received_, {})) {
      // The owner has one message at a time to send, and only while one is expected.
      if (one.immediate != expected_ || !expected_) {
        return Fail(Code::kCorrupt, "an owner wrote the payload of another exchange");
      }
      expected_.reset();
      arrived_ = true;
    }
    if (!taken) return {};
  }
}

Result<bool> RequesterEnd::Advance() {
  KVCOVE_TRY(Take());
  return arrived_;
}

Result<bool> RequesterEnd::ArmAndLook() {
  // Looks behind the arming: a completion that came before it wakes nobody.
  KVCOVE_TRY(lane_->Arm());
  const bool had_arrived = arrived_;
  const bool was_idle = lane_->idle();
  KVCOVE_TRY(Take());
  return arrived_ != had_arrived || lane_->idle() != was_idle;
}

void RequesterEnd::End(std::unique_ptr<RequesterEnd> end, std::function<void()> on_quiet) {
  end->fabric_.reaper().Take(std::move(end->lane_), std::move(on_quiet));
}

// ---- OwnerEnd

Result<std::unique_ptr<OwnerEnd>> OwnerEnd::Accept(Fabric& fabric, const wire::LaneEnd& requester) {
  KVCOVE_ASSIGN(auto lane, fabric.OpenLane(Access::kLocal));
  // Before the requester learns of this end: a message that finds no receive is repeated every
  // 0.64 ms, and fails in the end.
  KVCOVE_TRY(lane->PostReceive(kSlot, {}));
  if (Status s = lane->Connect(AddressOf(requester)); !s) {
    fabric.reaper().Take(std::move(lane), nullptr);
    return std::unexpected(std::move(s).error());
  }
  return std::unique_ptr<OwnerEnd>(new OwnerEnd(fabric, std::move(lane)));
}

wire::LaneEnd OwnerEnd::hello() const { return HelloOf(lane_->own()); }

void OwnerEnd::Begin(wire::LanePieces pieces) {
  pieces_ = std::move(pieces);
  at_ = 0;
  within_ = 0;
  marks_.clear();
}

bool OwnerEnd::Takes(std::span<const ConstPiece> out) const {
  std::uint64_t bytes = 0;
  for (const ConstPiece& piece : out) bytes += piece.size;
  if (bytes < kLeastBytes) return false;
  std::vector<Keyed> parts;
  return std::ranges::all_of(out, [&](const ConstPiece& piece) {
    return piece.size == 0 || fabric_.Cover(piece.data, piece.size, Access::kLocal, parts);
  });
}

// The requester's sizes are its own word: a sum that overflows is too small, which refuses steps,
// and never too large. Each piece by itself ends within the address space (wire/lanes.cc).
std::uint64_t OwnerEnd::left_bytes() const {
  std::uint64_t bytes = 0;
  for (std::size_t i = at_; i < pieces_.pieces.size(); ++i) bytes += pieces_.pieces[i].size_bytes;
  return bytes - within_;
}

// Passes over bytes of the requester's pieces.
void OwnerEnd::Pass(std::uint64_t bytes) {
  within_ += bytes;
  while (at_ < pieces_.pieces.size() && within_ >= pieces_.pieces[at_].size_bytes) {
    within_ -= pieces_.pieces[at_++].size_bytes;
  }
}

// Cuts a part of this process's memory where the requester's pieces end.
void OwnerEnd::Cut(Operation operation, const Keyed& part, std::vector<Move>& moves) {
  for (std::uint64_t offset = 0; offset < part.bytes;) {
    const wire::LanePiece& piece = pieces_.pieces[at_];
    const std::uint64_t bytes = std::min(part.bytes - offset, piece.size_bytes - within_);
    moves.push_back({.operation = operation,
                     .local = part.data + offset,
                     .bytes = bytes,
                     .local_key = part.local_key,
                     .remote = piece.address + within_,
                     .remote_key = piece.key});
    offset += bytes;
    Pass(bytes);
  }
}

Result<bool> OwnerEnd::Plan(Operation operation, std::span<const Piece> local,
                            std::vector<Move>& moves) {
  std::uint64_t bytes = 0;
  for (const Piece& piece : local) bytes += piece.size;
  if (bytes > left_bytes()) return Fail(Code::kCorrupt, "the requester's pieces are too small");
  // Looks before it moves: a step moves by the lane as a whole, or not at all.
  std::vector<std::vector<Keyed>> parts(local.size());
  for (std::size_t i = 0; i < local.size(); ++i) {
    if (local[i].data == nullptr || local[i].size == 0) continue;
    if (!fabric_.Cover(local[i].data, local[i].size, Access::kLocal, parts[i])) return false;
  }
  step_begin_ = lane_->moved_bytes();
  marks_.clear();
  Mark mark;
  for (std::size_t i = 0; i < local.size(); ++i) {
    mark.payload_end += local[i].size;
    if (local[i].data == nullptr) {
      Pass(local[i].size);
    } else {
      mark.lane_end += local[i].size;
      for (const Keyed& part : parts[i]) Cut(operation, part, moves);
    }
    marks_.push_back(mark);
  }
  return true;
}

Status OwnerEnd::PostAll(const std::vector<Move>& moves) {
  for (const Move& move : moves) KVCOVE_TRY(lane_->Post(move));
  return {};
}

Result<bool> OwnerEnd::Read(std::span<const Piece> into) {
  std::vector<Move> moves;
  KVCOVE_ASSIGN(const bool covered, Plan(Operation::kRead, into, moves));
  if (!covered) return false;
  KVCOVE_TRY(PostAll(moves));
  return true;
}

Result<bool> OwnerEnd::Write(std::span<const ConstPiece> out) {
  std::vector<Piece> local;
  local.reserve(out.size());
  std::uint64_t bytes = 0;
  for (const ConstPiece& piece : out) {
    // The device only reads it: the operation is a write into the requester's memory.
    local.push_back({.data = const_cast<std::byte*>(piece.data), .size = piece.size});  // NOLINT
    bytes += piece.size;
  }
  if (bytes != left_bytes()) return Fail(Code::kCorrupt, "the requester's pieces do not fit");
  std::vector<Move> moves;
  KVCOVE_ASSIGN(const bool covered, Plan(Operation::kWrite, local, moves));
  if (!covered) return false;
  // Behind all moves, and on their queue pair: a device delivers a pair's work in order, so the
  // completion of this at the requester shows that each byte before it is visible there. That holds
  // for registrations without relaxed ordering only (library.cc).
  // Names memory of the requester although it has no bytes: some devices look at the key.
  moves.push_back({.operation = Operation::kWriteWithImmediate,
                   .remote = pieces_.pieces.front().address,
                   .remote_key = pieces_.pieces.front().key,
                   .immediate = static_cast<std::uint32_t>(pieces_.exchange)});
  KVCOVE_TRY(PostAll(moves));
  return true;
}

Result<bool> OwnerEnd::Advance() {
  bool moved = false;
  // Each batch makes room for as many work requests. A device that completes small ones as fast as
  // they are posted would keep a server's loop from its other connections until the last one.
  for (int batches = 0; batches < kBatchesInARow; ++batches) {
    KVCOVE_ASSIGN(const bool taken, lane_->Advance(ignored_));
    ignored_.clear();  // the requester's first message, which asks for nothing
    if (!taken) return moved;
    moved = true;
  }
  return moved;
}

// The lane counts the bytes that it has moved; the step also has those that it passes over. These
// count as soon as all bytes before them are there.
std::uint64_t OwnerEnd::moved() const {
  const std::uint64_t lane_bytes = lane_->moved_bytes() - step_begin_;
  Mark before;
  for (const Mark& mark : marks_) {
    if (mark.lane_end > lane_bytes) return before.payload_end + lane_bytes - before.lane_end;
    before = mark;
  }
  return before.payload_end;
}

Result<bool> OwnerEnd::ArmAndLook() {
  KVCOVE_TRY(lane_->Arm());
  return Advance();  // behind the arming, as at the requester's end
}

void OwnerEnd::End(std::unique_ptr<OwnerEnd> end, std::function<void()> on_quiet) {
  end->fabric_.reaper().Take(std::move(end->lane_), std::move(on_quiet));
}

}  // namespace kvcove::transport::verbs
