// SPDX-License-Identifier: Apache-2.0
// A peer over TCP: idle connections, a breaker, and exchanges whose payload moves straight from and
// into the caller's memory. While the breaker doubts the peer, an exchange begins with a new
// connection, whose hello must be answered in milliseconds. Abort() closes the connection, so that
// no late byte lands. No lock is held while a connection is made, used or closed.
//
// With an RDMA device, payload of registered memory moves by lanes beside some of the connections
// (lane_lines.h). Abort() of an exchange whose memory the owner may reach returns false.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/base/posix.h"
#include "kvcove/rpc/breaker.h"
#include "kvcove/rpc/busy.h"
#include "kvcove/rpc/link.h"
#include "kvcove/transport/peer.h"
#include "kvcove/transport/tcp/lane_lines.h"

namespace kvcove::transport::tcp {

// One owner's data server. Thread-safe.
class Peer final : public transport::Peer {
 public:
  // `on_doubt`: as in PeerOptions. `fabric`: of lanes; null: sockets only. `transport`: the one
  // that makes this peer; null: Sockets().
  Peer(const rpc::Address& address, const rpc::Access& access, const Clock& clock,
       std::function<void()> on_doubt = {}, verbs::Fabric* fabric = nullptr,
       Transport* transport = nullptr);
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  const rpc::Address& address() const override { return address_; }
  wire::Channel& channel() override { return link_.channel(rpc::kPatientGuarded); }

  Transport& transport() override { return transport_; }
  Result<std::unique_ptr<Transfer>> Start(Exchange& exchange, std::int64_t deadline_ns,
                                          std::int64_t doubt_until_ns) override;

  // A connection whose hello the server has accepted, for one exchange. End() must follow.
  struct Line {
    UniqueFd fd;
    rpc::Breaker::Pass pass;
    bool kept = false;                               // was idle, so the server may have closed it
    std::unique_ptr<verbs::RequesterEnd> lane = {};  // null: sockets only
  };
  // Returns an idle connection or a new one. `doubt_until_ns` bounds the wait for a peer that the
  // breaker doubts. `lane`: one with a lane, if there is an idle one. Errors: kUnavailable for a
  // peer that does not answer, kTimeout.
  Result<Line> Take(std::int64_t deadline_ns, std::int64_t doubt_until_ns = rpc::Breaker::kNever,
                    bool lane = false);
  // Reports the outcome of an exchange. `teaches`: see Breaker::End().
  void End(const rpc::Breaker::Pass& pass, rpc::Breaker::Outcome outcome, bool teaches);
  void Heard() { link_.breaker().Heard(); }
  // Notes an error with which the peer has answered an exchange: "busy" delays the next one.
  void NoteError(const Error& error);
  // Keeps a connection for later exchanges, or closes it where kMaxIdle are idle already.
  void Keep(UniqueFd fd);
  // Returns what makes and keeps lines with lanes. There must be a fabric.
  LaneLines& lanes() { return *lanes_; }

  // Replaces an idle connection that had ended. Waits until the deadline, for at most 200 ms.
  Result<UniqueFd> ConnectAgain(std::int64_t deadline_ns);

  bool broken() const override { return link_.breaker().broken(); }
  std::int64_t ProbeDueNs() const override { return link_.breaker().ProbeDueNs(); }
  void Probe() override;
  Result<std::int64_t> TryDevice() override;

 private:
  static constexpr std::size_t kMaxIdle = 16;
  Result<UniqueFd> Connect(std::int64_t deadline_ns);
  // Returns an idle connection that has not ended; invalid if there is none.
  UniqueFd TakeIdle();
  // Ends a pass by the result of a connect: an accepted hello counts as an answer.
  void EndProbe(const rpc::Breaker::Pass& pass, const Result<UniqueFd>& fd);
  // Logs the change, closes idle connections of a broken peer, and calls `on_doubt_`.
  void Note(rpc::Breaker::Change change);

  // Returns whether the exchange's payload is worth a lane, and can take one.
  bool WantsLane(const Exchange& exchange) const;

  Transport& transport_;
  const rpc::Address address_;
  const rpc::Access access_;
  const Clock& clock_;
  const std::function<void()> on_doubt_;
  verbs::Fabric* const fabric_;
  const std::shared_ptr<LaneLines> lanes_;  // null without a fabric
  rpc::Link link_;                          // small calls; exchanges share its breaker
  rpc::BusyUntil busy_;                     // for exchanges; `link_` has its own
  Mutex mutex_;
  std::vector<UniqueFd> idle_ KVCOVE_GUARDED_BY(mutex_);
};

}  // namespace kvcove::transport::tcp
