// SPDX-License-Identifier: Apache-2.0
// The pool behind an admin endpoint: a cluster's, as its leader knows it (admin.cc), or that of one
// host (server/host_pool.h). `PoolRoutes` answers the paths that both have from it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/metrics.h"
#include "kvcove/http/server.h"
#include "kvcove/master/control/generations.h"
#include "kvcove/master/server/pins.h"
#include "kvcove/master/server/tasks.h"
#include "kvcove/model/prefix_count.h"
#include "kvcove/wire/cluster.h"
#include "kvcove/wire/shards.h"
#include "kvcove/wire/tasks.h"

namespace kvcove::master {

// Thread-safe.
class AdminPool {
 public:
  virtual ~AdminPool() = default;

  struct Readiness {
    bool ready = false;
    std::string text;  // for a person
  };
  virtual Readiness Ready() const = 0;
  // Whether Status and what follows, but for the calls that say that they wait, may wait for an
  // owner's lock, which a hand-over to another process holds while it writes the owner's state.
  virtual bool AnswersWait() const { return false; }
  // Returns the pool in a few numbers. The two forms share names; each leaves out what it lacks.
  virtual nlohmann::json Status() const = 0;
  // Returns the body of a scrape.
  virtual std::string Metrics() const = 0;
  virtual std::vector<wire::OwnerStat> Owners() const = 0;
  // Errors: kUnavailable.
  virtual Result<std::vector<SlotDescription>> Namespaces() const = 0;
  // Returns the namespaces whose weight versions have an order, qualified by their tenants. Some
  // may have no slot now, but can be pruned. Errors: kUnavailable.
  virtual Result<std::vector<std::string>> VersionedNames() const = 0;
  // Returns the bytes of each slot's values, by slot; empty: it does not count them.
  virtual std::vector<std::uint64_t> BytesBySlot() const { return {}; }
  // Returns the objects and replicas of each slot, by slot; empty: it does not count them.
  virtual std::vector<std::uint64_t> EntriesBySlot() const { return {}; }
  struct EngineList {
    std::vector<EngineDescription> engines;
    std::size_t registered = 0;  // those beyond the limit, too
  };
  // Errors: kUnavailable.
  virtual Result<EngineList> Engines(std::size_t at_most) const = 0;
  virtual std::vector<TaskStat> Tasks() const { return {}; }
  // What this process has counted since its start.
  struct Counts {
    std::array<std::uint64_t, kMissReasons> misses{};  // keys, by reason
    std::uint64_t resets = 0;
    std::uint64_t resets_not_proven = 0;
    // Durations by the name of the call: always the same calls in the same order.
    std::vector<std::pair<std::string, Histogram::Counts>> calls;
  };
  virtual Counts Count() const { return {}; }

  // Asks one owner for a page of its objects. May wait.
  using AskPage = std::function<Result<wire::InventoryReply>(const wire::InventoryRequest& request,
                                                             std::int64_t deadline_ns)>;
  virtual Result<AskPage> PagesOf(const wire::OwnerStat& owner) const = 0;

  struct Found {
    std::vector<wire::HeldKey> keys;  // by slot
    // What the endpoint's own process knows of the same keys, where another one may have answered;
    // empty: the same.
    std::vector<wire::HeldKey> own;
    std::string away;  // why some are kShardAway
    // A key of which nothing is known was not put since this ("the master started"), so long ago.
    std::string since;
    std::int64_t since_age_ns = 0;
  };
  // Looks a key up in these slots, until `deadline_ns` at most.
  virtual Found Find(std::span<const SlotDescription> slots, std::string_view key,
                     std::int64_t deadline_ns) const = 0;

  // Counts the owners of a prefix (numbers of Owners()), until `deadline_ns` at most. Counts no hit
  // and no miss.
  virtual void CountPrefix(const SlotDescription& slot, std::span<const std::string_view> keys,
                           std::int64_t deadline_ns, PrefixCount& count) const = 0;

  // Each waits for its proof. Errors: those of GenerationKeeper; kUnavailable.
  virtual Result<wire::ResetOutcome> Reset(const wire::ResetRequest& request,
                                           std::int64_t deadline_ns) = 0;
  virtual Result<wire::PruneOutcome> Prune(const wire::PruneRequest& request,
                                           std::int64_t deadline_ns) = 0;
  // Removes the keys that match, and returns their number once the removal is proven.
  virtual Result<std::uint64_t> Remove(const SlotDescription& slot, std::string_view pattern,
                                       std::int64_t deadline_ns) = 0;
  // Pins or unpins the values at all live owners. Linear in the number of their objects if the
  // request has no key. Errors: those of PinAt; some values are pinned then, so the caller may
  // repeat the request.
  virtual Result<PinCounts> Pin(const PinRequest& request, std::int64_t deadline_ns) = 0;
};

// Returns the routes that an endpoint has whatever pool is behind it: /healthz, /readyz, /metrics,
// and /v1/: status, segments, namespaces, versions, engines, keys, key, prefix, tasks, reset,
// prune, remove, pin, unpin.
std::vector<http::Route> PoolRoutes(const std::shared_ptr<AdminPool>& pool, const Clock& clock);

// ---- for further routes
// Adds a route with a JSON answer. `waits`: see http::Route.
void AddRoute(std::vector<http::Route>& routes, const char* method, const std::string& path,
              bool waits, std::function<Result<nlohmann::json>(const http::Request&)> answer);

}  // namespace kvcove::master
