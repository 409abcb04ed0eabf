// SPDX-License-Identifier: Apache-2.0
// The pool of one host as its admin endpoint shows and changes it: the owners of one process, which
// share one authority over generations. A question costs readers nothing and a put little:
//
//   status, segments   the owners' last reports (each 5 ms old at most); no lock of the core
//   namespaces,        the keeper's lock, for a copy of its table; for the bytes, the core's for a
//   versions, engines  slice of its slots, then a pause
//   key, prefix        as a reader looks a key up: no lock at all
//   keys               the core's lock for a slice of its objects, then a pause; pages
//   metrics            the core's lock for a slice of the statistics, then a pause
//   reset, remove,     as a call of an engine
//   pin
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kvcove/master/server/admin_pool.h"
#include "kvcove/pool/local_host.h"

namespace kvcove::server {

struct HostPoolOptions {
  // The owners, which are in no cluster and outlive the pool.
  std::vector<pool::LocalHost*> hosts;
  std::string role = "host";  // or "embedded"
  // Run a call where the daemon's own calls of its kind run: none is under way while the owner is
  // handed over. False: too many are waiting. Null: calls run in the thread of the request.
  using Post = std::function<bool(std::function<void()> call)>;
  Post control;  // resets and prunes
  Post walk;     // removals by pattern, pages of keys, and pins
};

class Daemon;
// Returns the pool that these daemons of one process serve, in no cluster. They outlive it.
HostPoolOptions PoolOf(std::span<Daemon* const> daemons);

// Thread-safe.
class HostPool final : public master::AdminPool {
 public:
  HostPool(HostPoolOptions options, const Clock& clock)
      : options_(std::move(options)), clock_(clock), started_ns_(clock.NowNs()) {}

  Readiness Ready() const override;
  // An embedded pool is not handed over, and has one worker.
  bool AnswersWait() const override { return options_.role != "embedded"; }
  nlohmann::json Status() const override;
  std::string Metrics() const override;
  std::vector<wire::OwnerStat> Owners() const override;
  Result<std::vector<master::SlotDescription>> Namespaces() const override;
  Result<std::vector<std::string>> VersionedNames() const override;
  // Counts memory only, in whole granules: no disk counts its bytes by slot.
  std::vector<std::uint64_t> BytesBySlot() const override;
  Result<EngineList> Engines(std::size_t at_most) const override;
  Counts Count() const override;
  Result<AskPage> PagesOf(const wire::OwnerStat& owner) const override;
  Found Find(std::span<const master::SlotDescription> slots, std::string_view key,
             std::int64_t deadline_ns) const override;
  void CountPrefix(const master::SlotDescription& slot, std::span<const std::string_view> keys,
                   std::int64_t deadline_ns, PrefixCount& count) const override;
  Result<wire::ResetOutcome> Reset(const wire::ResetRequest& request,
                                   std::int64_t deadline_ns) override;
  Result<wire::PruneOutcome> Prune(const wire::PruneRequest& request,
                                   std::int64_t deadline_ns) override;
  Result<std::uint64_t> Remove(const master::SlotDescription& slot, std::string_view pattern,
                               std::int64_t deadline_ns) override;
  Result<master::PinCounts> Pin(const master::PinRequest& request,
                                std::int64_t deadline_ns) override;

 private:
  pool::HostControl& control() const { return *options_.hosts.front()->host_control(); }
  template <typename T>
  Result<T> Run(const HostPoolOptions::Post& post, std::int64_t deadline_ns,
                const std::function<void(master::Reply<T>)>& call) const;
  Result<std::vector<Code>> PinKeys(pool::LocalHost& host, const Token& token,
                                    std::span<const std::string_view> keys,
                                    const master::PinRequest& request,
                                    std::int64_t deadline_ns) const;

  const HostPoolOptions options_;
  const Clock& clock_;
  const std::int64_t started_ns_;
};

}  // namespace kvcove::server
