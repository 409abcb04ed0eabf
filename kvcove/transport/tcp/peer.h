// SPDX-License-Identifier: Apache-2.0
// A peer over TCP: kept connections, a breaker, and exchanges whose payload goes straight from and
// into the caller's memory. While the breaker doubts the peer, an exchange begins with a new
// connection, whose hello must be answered in milliseconds. Abort() closes the connection, so that
// no late byte lands.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/base/posix.h"
#include "kvcove/rpc/breaker.h"
#include "kvcove/rpc/busy.h"
#include "kvcove/rpc/link.h"
#include "kvcove/transport/peer.h"

namespace kvcove::transport::tcp {

// One owner's data server. Thread-safe.
class Peer final : public transport::Peer {
 public:
  // `on_doubt` is called, without a lock, when the peer becomes worth a probe: ProbeDueNs().
  Peer(const rpc::Address& address, const rpc::Access& access, const Clock& clock,
       std::function<void()> on_doubt = {});
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  const rpc::Address& address() const override { return address_; }
  wire::Channel& channel() override { return link_.channel(rpc::kPatientGuarded); }

  Transport& transport() override;
  Result<std::unique_ptr<Transfer>> Start(Exchange& exchange, std::int64_t deadline_ns,
                                          std::int64_t doubt_until_ns) override;

  // A connection that was let in, for one exchange. End() must follow.
  struct Line {
    UniqueFd fd;
    rpc::Breaker::Pass pass;
    bool kept = false;  // it served exchanges before
  };
  // `doubt_until_ns` bounds the wait for a peer that the breaker doubts. Errors: kUnavailable for
  // one that does not answer, kTimeout.
  Result<Line> Take(std::int64_t deadline_ns, std::int64_t doubt_until_ns = rpc::Breaker::kNever);
  // `teaches`: see Breaker::End().
  void End(const rpc::Breaker::Pass& pass, rpc::Breaker::Outcome outcome, bool teaches);
  void Heard() { link_.breaker().Heard(); }
  // It has answered an exchange with this error.
  void NoteError(const Error& error);
  void Keep(UniqueFd fd);

  // Another connection instead of a kept one that had ended.
  Result<UniqueFd> ConnectAgain();

  bool broken() const override { return link_.breaker().broken(); }
  std::int64_t ProbeDueNs() const override { return link_.breaker().ProbeDueNs(); }
  void Probe() override;

 private:
  static constexpr std::size_t kMaxIdle = 16;
  Result<UniqueFd> Connect(std::int64_t deadline_ns);
  UniqueFd TakeIdle();
  // The connection that a doubted peer has let in under `pass`, if any, is as good as an answer.
  void EndProbe(const rpc::Breaker::Pass& pass, const Result<UniqueFd>& fd);
  void Note(rpc::Breaker::Change change);

  const rpc::Address address_;
  const rpc::Access access_;
  const Clock& clock_;
  const std::function<void()> on_doubt_;
  rpc::Link link_;       // small calls; exchanges share its breaker
  rpc::BusyUntil busy_;  // of exchanges
  Mutex mutex_;
  std::vector<UniqueFd> idle_ KVCOVE_GUARDED_BY(mutex_);
};

}  // namespace kvcove::transport::tcp
