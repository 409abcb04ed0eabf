// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/tcp/connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "kvcove/rpc/busy.h"

namespace kvcove::transport::tcp {
namespace {

// Most bytes of the pieces of one payload: more than kMaxLanePieces need.
constexpr std::uint32_t kMostPiecesBytes = 32 * wire::kMaxLanePieces;

}  // namespace

Connection::Connection(const Shared& shared, rpc::Arrival arrival, Visit::Wake wake)
    : shared_(shared),
      arrival_(std::move(arrival)),
      wake_(std::move(wake)),
      ends_ns_(shared.clock.NowNs() + shared.hello_ns) {
  NextFrame();
}

Connection::~Connection() {
  // First: the peer learns at once that it gets no answer, however long the device needs.
  arrival_.fd.Reset();
  if (lane_ != nullptr) {
    if (visit_ != nullptr) visit_->SetPermit(nullptr);  // it refers to this connection
    shared_.lanes->End(std::move(lane_), std::move(served_), std::move(visit_));
  }
  served_.reset();
  visit_.reset();
}

// Frees the exchange's buffers: thousands of connections may be silent between exchanges.
void Connection::NextFrame() {
  FrameOfExchange();
  if (let_in()) ends_ns_ = 0;
  if (account_ != nullptr) account_->End(std::exchange(charged_, 0));
}

void Connection::FrameOfExchange() {
  state_ = State::kFrame;
  body_ = {};
  reply_ = {};
  parts_.Clear();
  parts_.Add(frame_.data(), frame_.size());
}

void Connection::Progress() {
  // Before its hello is accepted a peer gains no time by sending: else one byte now and then would
  // keep a connection that proves nothing.
  if (let_in()) ends_ns_ = shared_.clock.NowNs() + shared_.stall_ns;
}

Connection::Wait Connection::Advance() {
  // Bounds the steps of one call, so that a peer with many small exchanges queued in its socket
  // does not keep the loop from its other connections.
  constexpr int kStepsInARow = 16;
  for (int steps = 0; steps < kStepsInARow; ++steps) {
    Wait wait = Wait::kEnd;
    switch (state_) {
      case State::kFrame:
      case State::kBody:
      case State::kReceive:
        wait = Receive();
        break;
      case State::kSend:
        wait = Send();
        break;
      case State::kMove:
        wait = Move();
        // The same for a slice of what a device has moved.
        if (wait == Wait::kTurn && state_ == State::kMove) return wait;
        break;
      case State::kHold:
        if (shared_.clock.NowNs() < wake_ns_) return Wait::kWake;
        state_ = held_;
        wait = Wait::kTurn;
        break;
      case State::kWork:
        wait = Work();
        // kAgain: a slice was computed, which takes as long as many reads, so others are next.
        if (wait == Wait::kTurn && state_ == State::kWork) return wait;
        break;
    }
    if (wait != Wait::kTurn) return wait;
  }
  return Wait::kTurn;
}

Connection::Wait Connection::Receive() {
  if (!parts_.empty()) {
    const ssize_t got = parts_.Receive(fd(), shared_.discard);
    if (got < 0 && errno == EAGAIN) return Wait::kRead;
    if (got < 0 && errno == EINTR) return Wait::kTurn;
    if (got <= 0) return Wait::kEnd;
    Progress();
    if (arrival_.ticket != nullptr) arrival_.ticket->Heard();
    if (state_ == State::kReceive) {
      moved_ += static_cast<std::uint64_t>(got);
      served_->Received(moved_);
    }
    if (!parts_.empty()) return Wait::kTurn;
  }
  if (state_ == State::kFrame) return FrameArrived() ? Wait::kTurn : Wait::kEnd;
  if (state_ == State::kBody) return BodyArrived() ? Wait::kTurn : Wait::kEnd;
  state_ = State::kWork;
  return Work();
}

Connection::Wait Connection::Send() {
  if (!parts_.empty()) {
    const ssize_t sent = parts_.Send(fd());
    if (sent < 0 && errno == EAGAIN) return Wait::kWrite;
    if (sent < 0 && errno == EINTR) return Wait::kTurn;
    if (sent <= 0) return Wait::kEnd;
    Progress();
    if (!parts_.empty()) return Wait::kTurn;
  }
  switch (std::exchange(then_, Then::kNext)) {
    case Then::kNext:
      break;
    case Then::kReceive:
      parts_.Clear();
      parts_.Add(std::exchange(into_, {}));
      moved_ = 0;
      state_ = State::kReceive;
      return Wait::kTurn;
    case Then::kPieces:
      then_ = Then::kPieces;
      FrameOfExchange();
      return Wait::kTurn;
  }
  if (close_) return Wait::kEnd;
  EndExchange();
  if (hold_ns_ > 0) Hold(std::exchange(hold_ns_, 0));
  return Wait::kTurn;
}

// Ends the exchange before the next frame is read: its loans and reservations are returned even if
// the peer then remains silent.
void Connection::EndExchange() {
  served_.reset();
  given_ = false;
  pieces_read_ = false;
  hold_ = false;
  out_ = {};
  if (lane_ != nullptr) lane_->Begin({});
  NextFrame();
}

void Connection::Hold(std::int64_t duration_ns) {
  held_ = std::exchange(state_, State::kHold);
  wake_ns_ = shared_.clock.NowNs() + duration_ns;
}

bool Connection::FrameArrived() {
  const auto header =
      wire::DecodeFrameHeader(frame_, let_in() ? wire::kMaxFrameBytes : wire::kMaxFirstFrameBytes);
  if (!header || (header->method & wire::kReplyBit) != 0) return false;
  header_ = *header;
  const bool pieces = header->method == static_cast<std::uint16_t>(wire::Method::kLanePieces);
  // One such frame precedes a request, which counts as a call; so its sender has no more of them.
  if (pieces && (given_ || (hold_ && then_ != Then::kPieces))) return false;
  if (pieces && header->body_bytes > kMostPiecesBytes) return false;
  if (then_ == Then::kPieces && !pieces) return false;
  if (account_ != nullptr) {
    // Charged before the buffer is allocated, so that large bodies of a limited caller count while
    // they arrive; NextFrame() ends the charge.
    const std::uint64_t bytes = wire::kFrameHeaderBytes + header->body_bytes;
    account_->Hold(bytes);
    charged_ += bytes;
  }
  body_.resize(header->body_bytes);
  parts_.Clear();
  parts_.Add(body_.data(), body_.size());
  state_ = State::kBody;
  return true;
}

bool Connection::BodyArrived() {
  const auto method = static_cast<wire::Method>(header_.method);
  if (rpc::Gate::IsGreeting(method)) {
    const rpc::Reply reply = shared_.gate.Greet(guest_, method, body_);
    if (let_in()) {
      // A connection without a ticket is not displaced by newcomers.
      arrival_.ticket.reset();
      if (shared_.admission != nullptr && account_ == nullptr) {
        account_ = shared_.admission->Enter(shared_.gate.Describe(guest_));
      }
    }
    close_ = reply.close;
    Respond(reply.code, reply.body, {});
    if (reply.delay_ns > 0) Hold(reply.delay_ns);
    return true;
  }
  // Checked for each request: a token that is removed from the credentials' file ends connections
  // that it has opened, too.
  shared_.gate.Refresh();
  if (!shared_.gate.Admitted(guest_)) return false;
  if (method == wire::Method::kLanePieces) return PiecesArrived();
  if (method == wire::Method::kLane) {
    if (lane_ != nullptr) return false;
    // A call like others: the device makes and ends a queue pair for it, also for an address that
    // is nobody's, and one worker makes those of all callers.
    const auto verdict = account_ == nullptr
                             ? rpc::CallLimits::Verdict()
                             : account_->Begin(rpc::Traffic::kOther, 0, shared_.clock.NowNs());
    served_ = verdict.admitted() ? OpenLane(shared_.lanes, body_, wake_, lane_)
                                 : std::make_unique<Refused>(0, Busy(verdict));
    state_ = State::kWork;
    return served_ != nullptr;
  }
  served_ = Begin(method);
  state_ = State::kWork;
  return served_ != nullptr;
}

bool Connection::PiecesArrived() {
  auto pieces = wire::DecodeLanePieces(body_);
  if (!pieces || lane_ == nullptr) return false;
  if (then_ != Then::kPieces) {
    // They are those of the request behind this frame.
    hold_ = pieces->pieces.empty();
    given_ = !hold_;
    lane_->Begin(std::move(*pieces));
    FrameOfExchange();
    return true;
  }
  then_ = Then::kNext;
  body_ = {};
  if (pieces->pieces.empty()) {
    parts_.Clear();
    parts_.Add(out_);
    state_ = State::kSend;
    return true;
  }
  lane_->Begin(std::move(*pieces));
  // Registered, as they were before the reply; else the requester waits for bytes in vain.
  const auto begun = lane_->Write(out_);
  if (!begun || !*begun) return false;
  reading_ = false;
  state_ = State::kMove;
  return true;
}

Connection::Wait Connection::BeginReceive(std::vector<Piece> into) {
  if (given_) {
    const auto begun = lane_->Read(into);
    if (!begun) return Wait::kEnd;
    moved_ = 0;
    reading_ = true;
    state_ = State::kMove;
    if (*begun) {
      pieces_read_ = true;
      return Wait::kTurn;
    }
    // The requester sends its payload from the beginning on, so none of it may be here already.
    if (pieces_read_) return Wait::kEnd;
    // This memory is not the device's: the requester sends the payload after all.
    given_ = false;
    into_ = std::move(into);
    then_ = Then::kReceive;
    RespondAs(wire::Method::kLanePieces, Code::kOk, {}, {});
    return Wait::kTurn;
  }
  parts_.Clear();
  parts_.Add(into);
  moved_ = 0;
  state_ = State::kReceive;
  return Wait::kTurn;
}

void Connection::Reply(Step step) {
  if (!hold_ || step.code != Code::kOk || !lane_->Takes(step.out)) {
    return Respond(step.code, std::move(step.head), step.out);
  }
  out_ = std::move(step.out);
  then_ = Then::kPieces;
  RespondAs(wire::Method::kLanePieces, step.code, std::move(step.head), {});
}

// Lets the device move, and hashes at most a slice of what it has moved.
Connection::Wait Connection::Move() {
  if (std::exchange(sleeping_, false)) {
    lane_->TakeEvents();
    // A peer that hangs up has given up, and one that sends now sends garbage.
    std::byte next;
    const ssize_t got = recv(fd(), &next, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got >= 0 || (errno != EAGAIN && errno != EINTR)) return Wait::kEnd;
  }
  const auto moved = lane_->Advance();
  if (!moved) return Wait::kEnd;
  const bool ended = lane_->idle();
  if (*moved) Progress();
  if (reading_ && moved_ < lane_->moved()) {
    moved_ = std::min(lane_->moved(), moved_ + Parts::kMaxMove);
    served_->Received(moved_);
    if (moved_ < lane_->moved()) return Wait::kTurn;
  }
  if (ended) shared_.lanes->CountMoved(reading_, lane_->moved());
  // The requester has its immediate, and answers nothing. The loans of a get end only now: the
  // device read them until its last completion.
  if (ended && !reading_) {
    EndExchange();
    return Wait::kTurn;
  }
  if (ended) {
    state_ = State::kWork;
    return Work();
  }
  // Sleeps only if nothing has completed behind the arming: that completion would wake nobody.
  const auto more = lane_->ArmAndLook();
  if (!more) return Wait::kEnd;
  if (*more) Progress();
  sleeping_ = !*more;
  return *more ? Wait::kTurn : Wait::kLane;
}

std::unique_ptr<Served> Connection::Begin(wire::Method method) {
  const std::int64_t now_ns = shared_.clock.NowNs();
  if (visit_ == nullptr) {
    visit_ = shared_.service.Open();
    if (account_ != nullptr) {
      visit_->SetPermit([this](std::uint64_t bytes) { return Permit(bytes); });
    }
  }
  if (account_ != nullptr) {
    // 0 bytes: FrameArrived() has charged the head, and Permit() charges payload.
    const auto verdict = account_->Begin(shared_.service.TrafficOf(method), 0, now_ns);
    if (!verdict.admitted()) {
      // The peer sends its payload without waiting for an answer, so the payload has to be read
      // before the next frame can be.
      const std::optional<std::uint64_t> payload = visit_->PayloadOf(method, body_);
      if (!payload) return nullptr;
      return std::make_unique<Refused>(*payload, Busy(verdict));
    }
  }
  return visit_->Begin(*guest_.caller, method, body_, wire::DeadlineOf(header_, now_ns), wake_);
}

Status Connection::Permit(std::uint64_t bytes) {
  const auto verdict = account_->More(bytes, shared_.clock.NowNs());
  if (!verdict.admitted()) return std::unexpected(Busy(verdict));
  charged_ += bytes;
  return {};
}

Error Connection::Busy(const rpc::CallLimits::Verdict& verdict) {
  hold_ns_ = verdict.retry_after_ms * kMillisecond;
  close_ = verdict.close;
  return rpc::BusyError(verdict);
}

Connection::Wait Connection::Work() {
  Step step = served_->Next();
  switch (step.kind) {
    case Step::Kind::kReceive:
      return BeginReceive(std::move(step.into));
    case Step::Kind::kAgain:
      Progress();
      return Wait::kTurn;
    case Step::Kind::kWait:
      wake_ns_ = step.until_ns;
      // The peer has nothing to send now, so its silence counts only from `until_ns` on.
      ends_ns_ = step.until_ns + shared_.stall_ns;
      return Wait::kWake;
    case Step::Kind::kReply:
      Progress();
      Reply(std::move(step));
      return Wait::kTurn;
    case Step::Kind::kEnd:
      break;
  }
  return Wait::kEnd;
}

void Connection::Respond(Code code, std::string head, std::span<const ConstPiece> out) {
  RespondAs(static_cast<wire::Method>(header_.method), code, std::move(head), out);
}

void Connection::RespondAs(wire::Method method, Code code, std::string head,
                           std::span<const ConstPiece> out) {
  reply_ = std::move(head);
  frame_ = wire::EncodeFrameHeader(
      {.method = static_cast<std::uint16_t>(static_cast<std::uint16_t>(method) | wire::kReplyBit),
       .body_bytes = static_cast<std::uint32_t>(reply_.size()),
       .code = code,
       .call = header_.call});
  body_ = {};
  parts_.Clear();
  parts_.Add(frame_.data(), frame_.size());
  parts_.Add(reply_.data(), reply_.size());
  parts_.Add(out);
  state_ = State::kSend;
}

}  // namespace kvcove::transport::tcp
