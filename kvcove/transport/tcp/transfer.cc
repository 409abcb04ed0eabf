// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/tcp/transfer.h"

#include <sys/eventfd.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "kvcove/transport/tcp/server.h"

namespace kvcove::transport::tcp {
namespace {

// Returns the buffer for unwanted bytes. Threads write to it at once; its content is never read.
std::byte* Discard() {
  static std::vector<std::byte> discard(Parts::kDiscard);
  return discard.data();
}

std::uint64_t NextNumber() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

// ---- Quiet

Result<void> SocketTransfer::Quiet::Open() {
  event_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (event_.valid()) return {};
  return FailErrno(Code::kLimit, "a descriptor to wait for the end of a lane");
}

bool SocketTransfer::Quiet::now() const {
  const MutexLock lock(mutex_);
  return quiet_;
}

void SocketTransfer::Quiet::Now() {
  std::function<void()> then;
  {
    const MutexLock lock(mutex_);
    quiet_ = true;
    then = std::move(then_);
  }
  if (event_.valid()) (void)eventfd_write(event_.get(), 1);
  if (then) then();
}

bool SocketTransfer::Quiet::OrThen(std::function<void()> then) {
  const MutexLock lock(mutex_);
  if (quiet_) return true;
  then_ = std::move(then);
  return false;
}

// ---- SocketTransfer

SocketTransfer::SocketTransfer(Peer& peer, Exchange& exchange, Peer::Line line)
    : peer_(peer),
      exchange_(exchange),
      fd_(std::move(line.fd)),
      pass_(line.pass),
      kept_(line.kept),
      lane_(std::move(line.lane)) {
  Begin();
}

SocketTransfer::~SocketTransfer() {
  if (!done_) (void)Abort();
}

void SocketTransfer::DropLane() {
  if (lane_ != nullptr) verbs::RequesterEnd::End(std::move(lane_), nullptr);
}

bool SocketTransfer::Advance() {
  if (stage_ == Stage::kQuieting) return Quieted();
  bool moved = Send();
  bool heard = false;
  while (!done_ && stage_ != Stage::kQuieting &&
         (stage_ == Stage::kLanding ? Landed() : Receive(heard))) {
    moved = true;
  }
  if (heard && !done_) peer_.Heard();
  return moved || heard || done_;
}

bool SocketTransfer::Abort() {
  done_ = true;
  fd_.Reset();
  peer_.End(pass_, rpc::Breaker::Outcome::kMissed, teaches());
  if (stage_ != Stage::kQuieting) {
    if (!exposed_) {
      DropLane();
      return true;
    }
    if (teaches()) peer_.lanes().Late();
    StartQuieting();
  }
  return quiet_->OrThen(std::move(exchange_.on_quiet));
}

bool SocketTransfer::AddWaits(std::vector<pollfd>& waits) {
  if (stage_ == Stage::kQuieting) {
    waits.push_back({.fd = quiet_->descriptor(), .events = POLLIN, .revents = 0});
    return !quiet_->now();
  }
  if (stage_ == Stage::kLanding) {
    const auto more = lane_->ArmAndLook();
    // At once: a device that was removed may refuse this, and report no failure to Advance().
    if (!more) Fail(more.error());
    if (!more || *more) return false;
    sleeping_ = true;
    waits.push_back({.fd = lane_->descriptor(), .events = POLLIN, .revents = 0});
  }
  const short events = static_cast<short>(out_.empty() ? POLLIN : POLLIN | POLLOUT);
  waits.push_back({.fd = fd_.get(), .events = events, .revents = 0});
  return true;
}

void SocketTransfer::End(Status status) {
  done_ = true;
  const rpc::Breaker::Outcome outcome =
      status ? rpc::Breaker::Outcome::kAnswered : rpc::OutcomeOf(status.error());
  peer_.End(pass_, outcome, teaches());
  if (!status) peer_.NoteError(status.error());
  exchange_.by_device = status && ByLane();
  if (exchange_.by_device) peer_.lanes().Moved();
  // An error that the peer has answered leaves the connection usable, unless part of the request is
  // unsent: the peer would take the next frame for the rest of it.
  if (fd_.valid() && (status || (status.error().answered && out_.empty()))) {
    KeepLine();
  } else {
    fd_.Reset();
    DropLane();
  }
  exchange_.status = std::move(status);
}

// Returns whether the lane moves, or has moved, this payload.
bool SocketTransfer::ByLane() const {
  return exchange_.out.empty() ? stage_ == Stage::kLanding : by_lane_;
}

void SocketTransfer::KeepLine() {
  if (lane_ == nullptr) return peer_.Keep(std::move(fd_));
  peer_.lanes().Keep({.fd = std::move(fd_), .lane = std::move(lane_)});
}

// The exchange must not end while the owner may still reach its memory.
void SocketTransfer::Fail(Error error) {
  if (!exposed_) return End(std::unexpected(std::move(error)));
  failure_ = std::move(error);
  peer_.lanes().Failed(failure_.detail);
  StartQuieting();
}

void SocketTransfer::StartQuieting() {
  // The owner stops its own lane when it sees the end of the connection. That makes the wait
  // shorter in most cases, and proves nothing: only the end of this side's lane does.
  fd_.Reset();
  stage_ = Stage::kQuieting;
  quiet_ = std::make_shared<Quiet>();
  // A wait without this descriptor ends by its limit, and the exchange by its deadline.
  (void)quiet_->Open();
  verbs::RequesterEnd::End(std::move(lane_), [quiet = quiet_] { quiet->Now(); });
}

bool SocketTransfer::Quieted() {
  if (!quiet_->now()) return false;
  exposed_ = false;
  if (std::exchange(again_, false)) {
    BeginAnew();
  } else {
    End(std::unexpected(std::move(failure_)));
  }
  return true;
}

void SocketTransfer::ExpectFrame() {
  in_.Clear();
  in_.Add(reply_frame_.data(), reply_frame_.size());
  stage_ = Stage::kFrame;
}

void SocketTransfer::Begin() {
  out_.Clear();
  by_lane_ = false;
  held_ = false;
  if (lane_ != nullptr) BeginLane();
  AddFrame(exchange_.method, head_, exchange_.head);
  if (!by_lane_ || exchange_.out.empty()) out_.Add(exchange_.out);
  ExpectFrame();
}

// Announces to the owner, before the request, that the lane moves its payload.
void SocketTransfer::BeginLane() {
  number_ = NextNumber();
  wire::LanePieces pieces{.exchange = number_, .pieces = {}};
  if (exchange_.out.empty()) {
    // A lane that has failed while it was idle.
    if (!lane_->Expect(number_)) return DropLane();
  } else {
    auto keys = lane_->KeysTo(std::span<const ConstPiece>(exchange_.out));
    if (!keys) return;
    pieces.pieces = std::move(*keys);
    // Before the first byte of the frame is sent: the owner may read from its arrival on.
    exposed_ = true;
  }
  by_lane_ = true;
  pieces_ = wire::Encode(pieces);
  AddFrame(wire::Method::kLanePieces, pieces_frame_, pieces_);
}

void SocketTransfer::AddFrame(wire::Method method,
                              std::array<std::byte, wire::kFrameHeaderBytes>& frame,
                              const std::string& body) {
  frame = wire::EncodeFrameHeader({.method = static_cast<std::uint16_t>(method),
                                   .body_bytes = static_cast<std::uint32_t>(body.size()),
                                   .call = 1});
  out_.Add(frame.data(), frame.size());
  out_.Add(body.data(), body.size());
}

// Acts on the end of the connection. An idle one may have ended before this exchange, when its
// server was restarted or its token was removed, so the exchange begins anew over a new one, once.
// The peer may have seen the first request: every call may be repeated.
void SocketTransfer::Lost(Error error) {
  if (!std::exchange(kept_, false)) return Fail(std::move(error));
  if (exposed_) {
    again_ = true;
    return StartQuieting();
  }
  DropLane();
  BeginAnew();
}

void SocketTransfer::BeginAnew() {
  Result<UniqueFd> fd = peer_.ConnectAgain(pass_.until_ns);
  if (!fd) return Fail(std::move(fd.error()));
  fd_ = std::move(*fd);
  Begin();
}

bool SocketTransfer::Send() {
  bool moved = false;
  while (!done_ && stage_ != Stage::kQuieting && !out_.empty()) {
    if (out_.Send(fd_.get()) > 0) {
      moved = true;
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      // The peer has closed the connection. An answer that it may have sent before is not read.
      Lost(FailErrno(Code::kUnavailable, "sending to an owner").error());
    }
  }
  return moved;
}

bool SocketTransfer::Receive(bool& heard) {
  if (in_.empty()) {
    Arrived();
    return true;
  }
  const ssize_t got = in_.Receive(fd_.get(), Discard());
  if (got > 0) {
    heard = true;
    kept_ = false;
    if (stage_ != Stage::kPayload) return true;
    payload_bytes_ += static_cast<std::uint64_t>(got);
    if (exchange_.on_bytes) exchange_.on_bytes(payload_bytes_);
    // One read of payload a turn: other exchanges of the batch are served in between, and
    // `on_bytes` checks values while they are in the processor's cache.
    return in_.empty();
  }
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got == 0) {
    Lost({Code::kUnavailable, "the owner closed the connection"});
  } else {
    Lost(FailErrno(Code::kUnavailable, "receiving from an owner").error());
  }
  return false;
}

// Looks whether the owner has announced the payload. Returns true if the exchange has ended.
bool SocketTransfer::Landed() {
  if (std::exchange(sleeping_, false)) lane_->TakeEvents();
  const auto landed = lane_->Advance();
  if (!landed) {
    Fail(landed.error());
    return false;
  }
  if (*landed) {
    // All bytes are visible, and the owner posts nothing for this exchange behind its immediate.
    exposed_ = false;
    if (exchange_.on_bytes && payload_bytes_ > 0) exchange_.on_bytes(payload_bytes_);
    End({});
    return true;
  }
  std::byte next;
  const ssize_t got = recv(fd_.get(), &next, 1, MSG_PEEK | MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  Fail({Code::kUnavailable, "the owner closed the connection"});
  return false;
}

// Ends a stage: all of its bytes have arrived.
void SocketTransfer::Arrived() {
  in_.Clear();
  switch (stage_) {
    case Stage::kFrame:
      return FrameArrived();
    case Stage::kHead:
      return HeadArrived();
    case Stage::kPayload:
      return End({});
    case Stage::kLanding:
    case Stage::kQuieting:
      break;
  }
}

void SocketTransfer::FrameArrived() {
  const auto frame = wire::DecodeFrameHeader(reply_frame_, wire::kMaxFrameBytes);
  if (!frame) return Fail(frame.error());
  const auto is = [&](wire::Method method) {
    return frame->method == (static_cast<std::uint16_t>(method) | wire::kReplyBit);
  };
  held_ = by_lane_ && is(wire::Method::kLanePieces);
  if (!held_ && !is(exchange_.method)) {
    return Fail({Code::kCorrupt, "an owner answered another call"});
  }
  // The next frame replaces the one that announced the lane, so that must have been sent.
  if (held_ && !out_.empty()) {
    return Fail({Code::kCorrupt, "an owner answered before it had the request"});
  }
  // The owner has read what it wants of a put, or takes it from the socket.
  // A get has given no keys yet. The answer to a put is sent behind the end of the reads
  // (Connection::Work). Should a device repeat one of them, the owner's discards the bytes: nothing
  // here is harmed.
  exposed_ = false;
  if (held_ && !exchange_.out.empty()) {
    by_lane_ = false;
    if (frame->body_bytes != 0) return Fail({Code::kCorrupt, "an owner answered another call"});
    out_.Add(exchange_.out);
    return ExpectFrame();
  }
  code_ = frame->code;
  reply_.resize(frame->body_bytes);
  in_.Add(reply_.data(), reply_.size());
  stage_ = Stage::kHead;
}

void SocketTransfer::HeadArrived() {
  if (code_ != Code::kOk) {
    return Fail({.code = code_,
                 .detail = {reinterpret_cast<const char*>(reply_.data()), reply_.size()},
                 .answered = true});
  }
  auto into = exchange_.on_reply(reply_);
  if (!into) return Fail(into.error());
  if (!held_) {
    in_.Add(*into);
    stage_ = Stage::kPayload;
    return;
  }
  auto keys = lane_->KeysTo(std::span<const Piece>(*into));
  wire::LanePieces pieces{.exchange = number_, .pieces = {}};
  if (keys && !keys->empty()) {
    pieces.pieces = std::move(*keys);
    for (const wire::LanePiece& piece : pieces.pieces) payload_bytes_ += piece.size_bytes;
    exposed_ = true;
    stage_ = Stage::kLanding;
  } else {
    in_.Add(*into);
    stage_ = Stage::kPayload;
  }
  pieces_ = wire::Encode(pieces);
  AddFrame(wire::Method::kLanePieces, pieces_frame_, pieces_);
}

}  // namespace kvcove::transport::tcp
