// SPDX-License-Identifier: Apache-2.0
// A cluster's master without its sockets: joins generations, members, removals, the directory and
// its shards. Every call answers at once or later through its reply, and waits for nothing.
// `MasterServer` has the threads, ports and credentials; the simulation drives this class as it is.
// It has no thread and no lock of its own: each part has its lock (docs/threads.md). A reply comes
// from the thread that completes it: the caller's, the store's, that of Tick or of another call.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "kvcove/master/control/control.h"
#include "kvcove/master/control/start.h"
#include "kvcove/master/directory/directory_service.h"
#include "kvcove/master/shards/shards.h"

namespace kvcove::master {

struct MasterOptions {
  std::int64_t lease_ns = kSecond;  // of owners and of shards
  // Members: as MembersOptions.
  bool strict = false;
  std::int64_t member_ttl_ns = 3600 * kSecond;
  std::int64_t disk_member_ttl_ns = 7 * 24 * 3600 * kSecond;
  GenerationOptions generations;
  // Sizes of pages and batches; tests use small ones, so that there are several pages.
  RemovalLog::Limits removals;
  std::size_t table_page_bytes = SlotTable::kPageBytes;
  std::uint32_t inventory_batch = DirectoryService::Options().inventory_batch;
  // Entries of the directory, in all and of one tenant (0: a quarter of all).
  std::uint64_t max_entries = DirectoryService::Options().max_entries;
  std::uint64_t tenant_entries = 0;
  bool shards = false;  // other masters may serve parts of the directory (Shards)
  // False: switches a rule off, so that a simulation shows that it notices.
  bool barriers = true;
  bool wait = true;
  bool copies = true;
  bool doubt = true;
};

// Thread-safe from the moment that Start has called `ready`.
class Master {
 public:
  // Loads `plan`, which is PlanStart of the facts in `store`. The store's callbacks must end before
  // this object does.
  Master(const MasterOptions& options, const StartPlan& plan, ControlStore& store,
         std::uint64_t revision, const Clock& clock);
  ~Master();
  // Stores the new term, then publishes the generations and calls `ready`, from the store's thread
  // where it has one. No other method may be called before that. Errors: the store's; then
  // nothing is published.
  void Start(Reply<void> ready);

  // ---- owners. The parts live as long as this object; their headers have the contracts.
  Control& control() { return *control_; }
  const Control& control() const { return *control_; }
  DirectoryService& directory() { return directory_; }
  const DirectoryService& directory() const { return directory_; }
  GenerationKeeper& generations() { return *keeper_; }
  const GenerationKeeper& generations() const { return *keeper_; }
  Standings& standings() { return standings_; }
  const Standings& standings() const { return standings_; }
  // Lists as DirectoryService::List does, and bars absent owners whose values are to be replaced;
  // then the reply waits for the store, but 2 s at most. Errors: those of DirectoryService::List;
  // kCorrupt for a number that no owner can have.
  void List(const wire::ListRequest& request, Reply<wire::ListReply> reply);
  Shards& shards() { return *shards_; }
  const Shards& shards() const { return *shards_; }
  // Sets the function that returns for how long this master leads at least. Call it before Start.
  void SetLeads(std::function<std::int64_t()> leads_ns) { leads_ns_ = std::move(leads_ns); }

  // ---- requesters
  // Looks keys up, in the part of the directory that this master serves: a key of another part is a
  // miss with kShardAway. While owners still list what they have, a key without an entry is a miss
  // with kWarmingUp, not kNeverPut. Errors: kStale when the token's generation is not the current
  // one.
  Result<std::vector<wire::Place>> Lookup(const Token& token, std::span<const Id128> hashes);
  // As DirectoryService. Errors: as Lookup.
  Result<std::vector<wire::Place>> NoteSaves(SavesUnderWay::Writer writer, const Token& token,
                                             std::span<const Id128> hashes, SaveNotice notice);
  struct Removed {
    std::vector<Code> codes;    // by key: kOk, kMiss
    std::uint64_t matches = 0;  // objects that the pattern removed
  };
  // Removes keys or the matches of a pattern, and answers when no owner shows them, now or ever
  // again. Large batches take milliseconds, so call it from a thread that may be busy. Errors:
  // kStale, kTimeout, kLimit, kInvalid, kUnavailable.
  void Remove(const Token& token, std::vector<std::string> keys, std::string_view pattern,
              std::int64_t deadline_ns, Reply<Removed> reply);

  // Drives the deadlines of all parts; call it every few milliseconds.
  void Tick();
  // Ends every wait. Stores that no lease is running, if that is so; `done` may be called late.
  // Errors: kUnavailable while leases run.
  void Stop(Reply<void> done);

  std::uint64_t revision() const { return commits_.revision(); }
  std::uint64_t term() const { return term_; }

 private:
  static constexpr std::int64_t kHour = 3600 * kSecond;
  struct Removing;
  void RemoveNext(const std::shared_ptr<Removing>& removing);

  const MasterOptions options_;
  const std::uint64_t term_;
  std::vector<FactChange> start_changes_;
  OrderedCommits commits_;
  Standings standings_;
  DirectoryService directory_;
  std::unique_ptr<Control> control_;
  std::unique_ptr<GenerationKeeper> keeper_;
  std::function<std::int64_t()> leads_ns_ = [] { return kHour; };
  std::unique_ptr<Shards> shards_;
  std::atomic<bool> losing_{false};
};

}  // namespace kvcove::master
