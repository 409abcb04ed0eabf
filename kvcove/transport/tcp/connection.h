// SPDX-License-Identifier: Apache-2.0
// One connection of a server, as a state machine over a non-blocking socket: it returns the event
// for which it waits, and its loop waits. Belongs to its loop's thread. Private to this folder.
//
//   kFrame -> kBody -> (a greeting is answered: kSend)
//                   -> kWork: the exchange's steps; kReceive while payload comes -> kSend -> kFrame
//   With a lane (lane_side.h): kWork -> kMove: the device moves the payload -> kWork, or kFrame.
//   Before a get's payload moves, kSend -> kFrame -> kBody take the requester's pieces.
//   A request beyond a limit is refused as an exchange of its own. kHold follows its answer, for
//   the time that the answer names. kHold also precedes the answer to a wrong token.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/rpc/gate.h"
#include "kvcove/rpc/listener.h"
#include "kvcove/transport/service.h"
#include "kvcove/transport/tcp/lane_side.h"
#include "kvcove/transport/tcp/parts.h"

namespace kvcove::transport::tcp {

class Connection {
 public:
  // The event for which it waits. kTurn: none, but other connections have their turn first. kLane:
  // the lane's descriptor or the socket is readable.
  enum class Wait : std::uint8_t { kRead, kWrite, kTurn, kWake, kLane, kEnd };

  struct Shared {
    rpc::Gate& gate;
    Service& service;
    const Clock& clock;
    std::int64_t hello_ns;
    std::int64_t stall_ns;
    std::byte* discard;          // Parts::kDiscard bytes
    rpc::CallLimits* admission;  // null: no limits
    LaneSide* lanes;             // null: no RDMA
  };

  // `wake` lets the loop advance this connection soon; callable from any thread.
  Connection(const Shared& shared, rpc::Arrival arrival, Visit::Wake wake);
  // Ends the exchange before the visit, so that loans and reservations are returned before the
  // visit's session ends. Where the device still moves bytes, both end when it has finished.
  ~Connection();

  int fd() const { return arrival_.fd.get(); }
  bool is_unix() const { return arrival_.is_unix; }
  bool let_in() const { return guest_.caller != nullptr; }
  // Returns the time at which the loop closes it for silence; 0: never.
  std::int64_t ends_ns() const { return ends_ns_; }
  // Returns, after kWake, the time at which it continues without a wake.
  std::int64_t wake_ns() const { return wake_ns_; }
  // Returns, after kLane, what else is readable then.
  int lane_descriptor() const { return lane_->descriptor(); }

  // Takes some steps without waiting, and returns the event for which it then waits. kEnd: the
  // caller destroys it.
  Wait Advance();

 private:
  enum class State : std::uint8_t { kFrame, kBody, kWork, kReceive, kMove, kSend, kHold };
  // The step behind the frame that is sent.
  enum class Then : std::uint8_t {
    kNext,     // the exchange is over
    kPieces,   // the requester's pieces, into which `out_` is written
    kReceive,  // payload, into `into_`
  };
  // Each moves bytes, or computes, without waiting. kTurn: call Advance() again.
  Wait Receive();
  Wait Send();
  Wait Work();
  Wait Move();
  // Each returns false for garbage, or for a call that may not be made: the connection ends.
  bool FrameArrived();
  bool BodyArrived();
  bool PiecesArrived();
  // Begins a step of the exchange that moves payload.
  Wait BeginReceive(std::vector<Piece> into);
  void Reply(Step step);
  void Respond(Code code, std::string head, std::span<const ConstPiece> out);
  void RespondAs(wire::Method method, Code code, std::string head, std::span<const ConstPiece> out);
  void EndExchange();
  void NextFrame();
  // Reads a frame that belongs to the exchange under way: its charges and the limit for silence
  // remain.
  void FrameOfExchange();
  // Suspends the connection: its present state continues after `duration_ns`.
  void Hold(std::int64_t duration_ns);
  // Returns the exchange of the request that has arrived; null for garbage.
  std::unique_ptr<Served> Begin(wire::Method method);
  // As Visit::Permit.
  Status Permit(std::uint64_t bytes);
  // Returns the error for the peer, and notes how long the connection is held behind it.
  Error Busy(const rpc::CallLimits::Verdict& verdict);
  // Extends the time limit for silence.
  void Progress();

  const Shared& shared_;
  rpc::Arrival arrival_;
  const Visit::Wake wake_;
  rpc::Gate::Guest guest_;
  State state_ = State::kFrame;
  State held_ = State::kFrame;  // the state behind kHold
  bool close_ = false;          // end the connection once the reply is sent
  std::int64_t ends_ns_ = 0;
  std::int64_t wake_ns_ = 0;
  std::array<std::byte, wire::kFrameHeaderBytes> frame_;
  wire::FrameHeader header_;
  std::vector<std::byte> body_;
  std::string reply_;
  Parts parts_;
  std::uint64_t moved_ = 0;  // payload bytes of this step that have arrived
  Then then_ = Then::kNext;
  // The lane, once the peer has asked for one, and how the payload of this exchange moves.
  std::unique_ptr<verbs::OwnerEnd> lane_;
  bool given_ = false;        // the requester has named the pieces of its payload
  bool pieces_read_ = false;  // some of these
  bool hold_ = false;         // it will name those of the reply's
  bool reading_ = false;      // kMove: out of the requester's pieces, else into them
  bool sleeping_ = false;     // kMove: the lane's descriptor may be readable
  std::vector<Piece> into_;
  std::vector<ConstPiece> out_;
  std::unique_ptr<rpc::CallLimits::Account> account_;
  std::uint64_t charged_ = 0;  // bytes that the account holds until the exchange is over
  std::int64_t hold_ns_ = 0;   // pause behind the answer
  std::unique_ptr<Visit> visit_;
  std::unique_ptr<Served> served_;
};

}  // namespace kvcove::transport::tcp
