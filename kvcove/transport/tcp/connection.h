// SPDX-License-Identifier: Apache-2.0
// One connection of a server, as a state machine over a non-blocking socket: it says what it waits
// for, and its loop waits. Belongs to its loop's thread. Private to this folder.
//
//   kFrame -> kBody -> (a greeting is answered: kSend)
//                   -> kWork: the exchange's steps; kReceive while payload comes -> kSend -> kFrame
//   A request beyond a limit is refused as an exchange of its own; behind its answer comes kHold,
//   for as long as the peer was told to wait. kHold also comes before the answer to a wrong token.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/rpc/gate.h"
#include "kvcove/rpc/listener.h"
#include "kvcove/transport/service.h"
#include "kvcove/transport/tcp/parts.h"

namespace kvcove::transport::tcp {

class Connection {
 public:
  // What it waits for; kTurn: nothing, but others go first.
  enum class Wait : std::uint8_t { kRead, kWrite, kTurn, kWake, kEnd };

  struct Shared {
    rpc::Gate& gate;
    Service& service;
    const Clock& clock;
    std::int64_t hello_ns;
    std::int64_t stall_ns;
    std::byte* discard;          // of Parts::kDiscard bytes
    rpc::CallLimits* admission;  // null: no limits
  };

  // `wake` posts to the loop that this connection is to be advanced.
  Connection(const Shared& shared, rpc::Arrival arrival, Visit::Wake wake);
  // Exchange before visit: what is lent or reserved goes back before the session ends.
  ~Connection();

  int fd() const { return arrival_.fd.get(); }
  bool is_unix() const { return arrival_.is_unix; }
  bool let_in() const { return guest_.caller != nullptr; }
  // When it is closed for being silent; 0: not.
  std::int64_t ends_ns() const { return ends_ns_; }
  // With kWake: when it goes on without.
  std::int64_t wake_ns() const { return wake_ns_; }

  Wait Advance();

 private:
  enum class State : std::uint8_t { kFrame, kBody, kWork, kReceive, kSend, kHold };
  // Moves what goes without waiting; kTurn: all of it has moved, and the state is another one.
  Wait Receive();
  Wait Send();
  Wait Work();
  bool FrameArrived();
  bool BodyArrived();
  void Respond(Code code, std::string head, std::span<const ConstPiece> out);
  void NextFrame();
  // Puts off what is next: the state that it is in goes on so much later.
  void Hold(std::int64_t duration_ns);
  // The exchange of the request that has arrived; null for garbage.
  std::unique_ptr<Served> Begin(wire::Method method);
  Status Permit(std::uint64_t bytes);
  Error Busy(const rpc::CallLimits::Verdict& verdict);
  void Progress();

  const Shared& shared_;
  rpc::Arrival arrival_;
  const Visit::Wake wake_;
  rpc::Gate::Guest guest_;
  State state_ = State::kFrame;
  State held_ = State::kFrame;  // the state behind kHold
  bool close_ = false;          // when the reply is gone
  std::int64_t ends_ns_ = 0;
  std::int64_t wake_ns_ = 0;
  std::array<std::byte, wire::kFrameHeaderBytes> frame_;
  wire::FrameHeader header_;
  std::vector<std::byte> body_;
  std::string reply_;
  Parts parts_;
  std::uint64_t moved_ = 0;  // of the payload
  std::unique_ptr<rpc::CallLimits::Account> account_;
  std::uint64_t charged_ = 0;  // bytes, until the exchange is over
  std::int64_t hold_ns_ = 0;   // behind the answer
  std::unique_ptr<Visit> visit_;
  std::unique_ptr<Served> served_;
};

}  // namespace kvcove::transport::tcp
