// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/verbs/ends.h"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <atomic>
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

Status AddDescriptor(const UniqueFd& all, int descriptor) {
  epoll_event event{.events = EPOLLIN, .data = {}};
  if (epoll_ctl(all.get(), EPOLL_CTL_ADD, descriptor, &event) == 0) return {};
  return FailErrno(Code::kLimit, "a descriptor for several lanes");
}

// Adds the descriptor of a further lane to those of an end, which are in `all` from the second lane
// on. After an error `all` is what it was.
Status JoinDescriptors(UniqueFd& all, int first, int next) {
  if (all.valid()) return AddDescriptor(all, next);
  UniqueFd both(epoll_create1(EPOLL_CLOEXEC));
  if (!both.valid()) return FailErrno(Code::kLimit, "a descriptor for several lanes");
  KVCOVE_TRY(AddDescriptor(both, first));
  KVCOVE_TRY(AddDescriptor(both, next));
  all = std::move(both);
  return {};
}

// Ends lanes whose keys are valid on each of them, so that the last one's end is the proof.
void EndAll(Fabric& fabric, std::vector<std::unique_ptr<Lane>> lanes,
            std::function<void()> on_quiet) {
  if (lanes.size() == 1 || !on_quiet) {
    for (auto& lane : lanes) fabric.reaper().Take(std::move(lane), on_quiet);
    return;
  }
  // One object for all: what it holds is let go when it is called, and not with the last copy.
  struct Left {
    Left(std::size_t count, std::function<void()> notify)
        : lanes(count), on_quiet(std::move(notify)) {}
    std::atomic<std::size_t> lanes;
    std::function<void()> on_quiet;
  };
  const auto left = std::make_shared<Left>(lanes.size(), std::move(on_quiet));
  for (auto& lane : lanes) {
    fabric.reaper().Take(std::move(lane), [left] {
      // The last one sees all that the ends of the others have done.
      if (left->lanes.fetch_sub(1, std::memory_order_acq_rel) == 1) left->on_quiet();
    });
  }
}

template <typename One>
std::vector<std::unique_ptr<Lane>> LanesOf(std::vector<One>& ones) {
  std::vector<std::unique_ptr<Lane>> lanes;
  lanes.reserve(ones.size());
  for (One& one : ones) lanes.push_back(std::move(one.lane));
  return lanes;
}

}  // namespace

// ---- RequesterEnd

Result<std::unique_ptr<RequesterEnd>> RequesterEnd::Open(Fabric& fabric, std::size_t port) {
  KVCOVE_ASSIGN(auto lane, fabric.OpenLane(Access::kRemote, port));
  return std::unique_ptr<RequesterEnd>(new RequesterEnd(fabric, std::move(lane), port));
}

wire::LaneEnd RequesterEnd::hello() const { return HelloOf(lanes_.front().lane->own()); }

Status RequesterEnd::Connect(const wire::LaneEnd& owner, std::int64_t until_ns,
                             const Clock& clock) {
  Lane& lane = *lanes_.front().lane;
  KVCOVE_TRY(lane.Connect(AddressOf(owner)));
  // No bytes, and no receive of this end: the acknowledgement alone shows that both ways are open.
  const std::int64_t sent_ns = clock.NowNs();
  KVCOVE_TRY(lane.Post({.operation = Operation::kSend}));
  while (true) {
    KVCOVE_TRY(Take());
    if (lane.idle()) {
      round_trip_ns_ = clock.NowNs() - sent_ns;
      return {};
    }
    KVCOVE_ASSIGN(const bool more, ArmAndLook());
    if (more) continue;
    KVCOVE_TRY(SleepUntilReadable(descriptor(), until_ns, clock));
    TakeEvents();
  }
}

Status RequesterEnd::Join(std::unique_ptr<RequesterEnd> other) {
  One& one = other->lanes_.front();
  if (Status s = JoinDescriptors(all_, lanes_.front().lane->descriptor(), one.lane->descriptor());
      !s) {
    End(std::move(other), nullptr);
    return s;
  }
  lanes_.push_back(std::move(one));
  used_ = lanes_.size();
  return {};
}

int RequesterEnd::descriptor() const {
  return all_.valid() ? all_.get() : lanes_.front().lane->descriptor();
}

void RequesterEnd::TakeEvents() {
  for (One& one : lanes_) one.lane->TakeEvents();
}

bool RequesterEnd::arrived() const {
  return std::all_of(lanes_.begin(), lanes_.begin() + static_cast<std::ptrdiff_t>(used_),
                     [](const One& one) { return one.arrived; });
}

bool RequesterEnd::idle() const {
  return std::ranges::all_of(lanes_, [](const One& one) { return one.lane->idle(); });
}

template <typename AnyPiece>
std::optional<std::vector<wire::LanePiece>> RequesterEnd::KeysTo(std::span<const AnyPiece> pieces) {
  // All pieces or none: payload moves one way as a whole, so that its announcement is one of all.
  std::vector<wire::LanePiece> keyed;
  std::size_t used = 0;
  for (const One& one : lanes_) {
    std::vector<Keyed> parts;
    for (const AnyPiece& piece : pieces) {
      if (piece.size == 0) continue;
      if (piece.data == nullptr) return std::nullopt;
      if (!fabric_.Cover(piece.data, piece.size, Access::kRemote, parts, one.port)) {
        return std::nullopt;
      }
    }
    if (keyed.size() + parts.size() > wire::kMaxLanePieces) break;
    for (const Keyed& part : parts) {
      keyed.push_back({.address = reinterpret_cast<std::uintptr_t>(part.data),
                       .size_bytes = part.bytes,
                       .key = part.remote_key});
    }
    ++used;
  }
  if (used == 0) return std::nullopt;
  used_ = used;
  return keyed;
}
template std::optional<std::vector<wire::LanePiece>> RequesterEnd::KeysTo(
    std::span<const Piece> pieces);
template std::optional<std::vector<wire::LanePiece>> RequesterEnd::KeysTo(
    std::span<const ConstPiece> pieces);

Status RequesterEnd::Expect(std::uint64_t exchange) {
  used_ = lanes_.size();
  for (One& one : lanes_) {
    one.arrived = false;
    // A receive is posted as long as an immediate is expected: that of an exchange whose reply took
    // the connection instead, or other lanes alone, serves this one.
    if (!one.expected) KVCOVE_TRY(one.lane->PostReceive(kSlot, {}));
    one.expected = static_cast<std::uint32_t>(exchange);
  }
  return {};
}

Status RequesterEnd::Take() {
  for (One& one : lanes_) KVCOVE_TRY(TakeFrom(one));
  return {};
}

Status RequesterEnd::TakeFrom(One& one) {
  while (true) {
    KVCOVE_ASSIGN(const bool taken, one.lane->Advance(received_));
    for (const Received& message : std::exchange(received_, {})) {
      // The owner has one message at a time to send, and only while one is expected.
      if (message.immediate != one.expected || !one.expected) {
        return Fail(Code::kCorrupt, "an owner wrote the payload of another exchange");
      }
      one.expected.reset();
      one.arrived = true;
    }
    if (!taken) return {};
  }
}

Result<bool> RequesterEnd::Advance() {
  KVCOVE_TRY(Take());
  return arrived();
}

Result<bool> RequesterEnd::ArmAndLook() {
  // Looks behind the arming: a completion that came before it wakes nobody.
  for (One& one : lanes_) KVCOVE_TRY(one.lane->Arm());
  const auto count = [this] {
    return std::ranges::count_if(lanes_, [](const One& one) { return one.arrived; });
  };
  const auto had_arrived = count();
  const bool was_idle = idle();
  KVCOVE_TRY(Take());
  return count() != had_arrived || idle() != was_idle;
}

void RequesterEnd::End(std::unique_ptr<RequesterEnd> end, std::function<void()> on_quiet) {
  EndAll(end->fabric_, LanesOf(end->lanes_), std::move(on_quiet));
}

// ---- OwnerEnd

Result<std::unique_ptr<OwnerEnd>> OwnerEnd::Accept(Fabric& fabric, const wire::LaneEnd& requester,
                                                   std::size_t port) {
  std::size_t by = port % fabric.ports();
  auto lane = fabric.OpenLane(Access::kLocal, by);
  for (std::size_t turn = 1; !lane && turn < fabric.ports(); ++turn) {
    by = (port + turn) % fabric.ports();
    lane = fabric.OpenLane(Access::kLocal, by);
  }
  if (!lane) return std::unexpected(std::move(lane).error());
  // Before the requester learns of this end: a message that finds no receive is repeated every
  // 0.64 ms, and fails in the end.
  KVCOVE_TRY((*lane)->PostReceive(kSlot, {}));
  if (Status s = (*lane)->Connect(AddressOf(requester)); !s) {
    fabric.reaper().Take(std::move(*lane), nullptr);
    return std::unexpected(std::move(s).error());
  }
  return std::unique_ptr<OwnerEnd>(new OwnerEnd(fabric, std::move(*lane), by));
}

wire::LaneEnd OwnerEnd::hello() const { return HelloOf(lanes_.front().lane->own()); }

Status OwnerEnd::Join(std::unique_ptr<OwnerEnd> other) {
  One& one = other->lanes_.front();
  if (Status s = JoinDescriptors(all_, lanes_.front().lane->descriptor(), one.lane->descriptor());
      !s) {
    End(std::move(other), nullptr);
    return s;
  }
  lanes_.push_back(std::move(one));
  return {};
}

int OwnerEnd::descriptor() const {
  return all_.valid() ? all_.get() : lanes_.front().lane->descriptor();
}

void OwnerEnd::TakeEvents() {
  for (One& one : lanes_) one.lane->TakeEvents();
}

bool OwnerEnd::idle() const {
  return std::ranges::all_of(lanes_, [](const One& one) { return one.lane->idle(); });
}

bool OwnerEnd::settled() const {
  return std::ranges::all_of(lanes_, [](const One& one) { return one.lane->settled(); });
}

void OwnerEnd::Begin(wire::LanePieces pieces) {
  pieces_ = std::move(pieces);
  at_ = 0;
  within_ = 0;
  marks_.clear();
  used_ = 1 + (pieces_.exchange >> wire::LanePieces::kLanesShift);
  // Garbage has no pieces, so that each step is refused.
  if (used_ > lanes_.size() || pieces_.pieces.size() % used_ != 0) {
    used_ = 1;
    pieces_.pieces.clear();
  }
  count_ = pieces_.pieces.size() / used_;
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
// and never too large. Each piece by itself ends within the address space (wire/lanes.cc). Sizes
// and addresses are those of the first lane's list; the others only give keys.
std::uint64_t OwnerEnd::left_bytes() const {
  std::uint64_t bytes = 0;
  for (std::size_t i = at_; i < count_; ++i) bytes += pieces_.pieces[i].size_bytes;
  return bytes - within_;
}

// Passes over bytes of the requester's pieces.
void OwnerEnd::Pass(std::uint64_t bytes) {
  within_ += bytes;
  while (at_ < count_ && within_ >= pieces_.pieces[at_].size_bytes) {
    within_ -= pieces_.pieces[at_++].size_bytes;
  }
}

OwnerEnd::One& OwnerEnd::LeastDealt() {
  return *std::min_element(lanes_.begin(), lanes_.begin() + static_cast<std::ptrdiff_t>(used_),
                           [](const One& a, const One& b) { return a.dealt < b.dealt; });
}

// Cuts a part of this process's memory where the requester's pieces end, and, for several lanes,
// into stripes. `part`: as each lane's port knows it.
void OwnerEnd::Cut(Operation operation, const std::vector<const Keyed*>& part) {
  const Keyed& first = *part.front();
  const std::uint64_t stripe = used_ == 1 ? first.bytes : Lane::kPieceBytes;
  for (std::uint64_t offset = 0; offset < first.bytes;) {
    const wire::LanePiece& piece = pieces_.pieces[at_];
    const std::uint64_t bytes =
        std::min({first.bytes - offset, piece.size_bytes - within_, stripe});
    One& one = LeastDealt();
    const auto lane = static_cast<std::size_t>(&one - lanes_.data());
    one.moves.push_back({.operation = operation,
                         .local = first.data + offset,
                         .bytes = bytes,
                         .local_key = part[lane]->local_key,
                         .remote = piece.address + within_,
                         .remote_key = pieces_.pieces[lane * count_ + at_].key});
    one.dealt += bytes;
    marks_.push_back({.bytes = bytes, .lane = lane, .lane_end = one.dealt});
    offset += bytes;
    Pass(bytes);
  }
}

bool OwnerEnd::CoverAll(std::span<const Piece> local, std::vector<PartsOfPieces>& parts) const {
  for (std::size_t lane = 0; lane < used_; ++lane) {
    PartsOfPieces& of = parts.emplace_back(local.size());
    for (std::size_t i = 0; i < local.size(); ++i) {
      if (local[i].data == nullptr || local[i].size == 0) continue;
      if (!fabric_.Cover(local[i].data, local[i].size, Access::kLocal, of[i], lanes_[lane].port)) {
        return false;
      }
      if (of[i].size() != parts.front()[i].size()) return false;
    }
  }
  return true;
}

Result<bool> OwnerEnd::Plan(Operation operation, std::span<const Piece> local) {
  std::uint64_t bytes = 0;
  for (const Piece& piece : local) bytes += piece.size;
  if (bytes > left_bytes()) return Fail(Code::kCorrupt, "the requester's pieces are too small");
  // Looks before it moves: a step moves by the lanes as a whole, or not at all.
  std::vector<PartsOfPieces> parts;
  if (!CoverAll(local, parts)) return false;
  marks_.clear();
  for (One& one : lanes_) {
    one.step_begin = one.lane->moved_bytes();
    one.dealt = 0;
    one.moves.clear();
  }
  std::vector<const Keyed*> part(used_);
  for (std::size_t i = 0; i < local.size(); ++i) {
    if (local[i].data == nullptr) {
      Pass(local[i].size);
      marks_.push_back({.bytes = local[i].size});
      continue;
    }
    for (std::size_t k = 0; k < parts.front()[i].size(); ++k) {
      for (std::size_t lane = 0; lane < used_; ++lane) part[lane] = &parts[lane][i][k];
      Cut(operation, part);
    }
  }
  return true;
}

Status OwnerEnd::PostAll() {
  for (One& one : lanes_) {
    for (const Move& move : std::exchange(one.moves, {})) KVCOVE_TRY(one.lane->Post(move));
  }
  return {};
}

Result<bool> OwnerEnd::Read(std::span<const Piece> into) {
  KVCOVE_ASSIGN(const bool covered, Plan(Operation::kRead, into));
  if (!covered) return false;
  KVCOVE_TRY(PostAll());
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
  KVCOVE_ASSIGN(const bool covered, Plan(Operation::kWrite, local));
  if (!covered) return false;
  // Behind all moves of each lane, and on its queue pair: a device delivers a pair's work in order,
  // so the completion of this at the requester shows that each byte before it is visible there.
  // That holds for registrations without relaxed ordering only (library.cc). A lane that has moved
  // nothing announces that, too: the requester waits for the same lanes whatever was dealt to them.
  // Names memory of the requester although it has no bytes: some devices look at the key.
  for (std::size_t lane = 0; lane < used_; ++lane) {
    const wire::LanePiece& piece = pieces_.pieces[lane * count_];
    lanes_[lane].moves.push_back({.operation = Operation::kWriteWithImmediate,
                                  .remote = piece.address,
                                  .remote_key = piece.key,
                                  .immediate = static_cast<std::uint32_t>(pieces_.exchange)});
  }
  KVCOVE_TRY(PostAll());
  return true;
}

Result<bool> OwnerEnd::Advance() {
  bool moved = false;
  // Each batch makes room for as many work requests. A device that completes small ones as fast as
  // they are posted would keep a server's loop from its other connections until the last one.
  for (One& one : lanes_) {
    bool taken = true;
    for (int batches = 0; taken && batches < kBatchesInARow; ++batches) {
      KVCOVE_ASSIGN(taken, one.lane->Advance(ignored_));
      ignored_.clear();  // the requester's first message, which asks for nothing
      moved = moved || taken;
    }
  }
  return moved;
}

// Lanes count the bytes that they have moved; the step also has those that it passes over. These
// count as soon as all bytes before them are there, whichever lane has moved them.
std::uint64_t OwnerEnd::moved() const {
  std::uint64_t payload = 0;
  for (const Mark& mark : marks_) {
    if (mark.lane) {
      const One& one = lanes_[*mark.lane];
      const std::uint64_t there = one.lane->moved_bytes() - one.step_begin;
      const std::uint64_t before = mark.lane_end - mark.bytes;
      if (there < mark.lane_end) return payload + (there > before ? there - before : 0);
    }
    payload += mark.bytes;
  }
  return payload;
}

Result<bool> OwnerEnd::ArmAndLook() {
  for (One& one : lanes_) KVCOVE_TRY(one.lane->Arm());
  return Advance();  // behind the arming, as at the requester's end
}

void OwnerEnd::End(std::unique_ptr<OwnerEnd> end, std::function<void()> on_quiet) {
  EndAll(end->fabric_, LanesOf(end->lanes_), std::move(on_quiet));
}

}  // namespace kvcove::transport::verbs
