// SPDX-License-Identifier: Apache-2.0
// A cluster's master without its sockets: generations, members, removals and the directory, joined.
// Every call answers at once or later through its reply, and waits for nothing. Threads, ports and
// credentials are `MasterServer`'s; the simulation drives this class as it is.
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
  std::int64_t lease_ns = kSecond;
  bool strict = false;
  std::int64_t member_ttl_ns = 3600 * kSecond;
  std::int64_t disk_member_ttl_ns = 7 * 24 * 3600 * kSecond;
  GenerationOptions generations;
  // Sizes of what is told at a time; small ones make pages happen in tests.
  RemovalLog::Limits removals;
  std::size_t table_page_bytes = SlotTable::kPageBytes;
  std::uint32_t inventory_batch = DirectoryService::Options().inventory_batch;
  // Keys and replicas that the directory holds, in all and of one tenant (0: a quarter of all).
  std::uint64_t max_entries = DirectoryService::Options().max_entries;
  std::uint64_t tenant_entries = 0;
  bool shards = false;  // other masters may serve parts of the directory (Shards)
  // For simulations, to show that they notice: rules that are switched off.
  bool barriers = true;
  bool wait = true;
  bool copies = true;
  bool doubt = true;
};

// Thread-safe.
class Master {
 public:
  // `plan`: PlanStart of what `store` holds. The store's callbacks must have ended before this
  // object does.
  Master(const MasterOptions& options, const StartPlan& plan, ControlStore& store,
         std::uint64_t revision, const Clock& clock);
  ~Master();
  // Stores that it starts. Until `ready` says so, nothing else may be called.
  void Start(Reply<void> ready);

  // ---- owners: see Control and DirectoryService
  Control& control() { return *control_; }
  const Control& control() const { return *control_; }
  DirectoryService& directory() { return directory_; }
  const DirectoryService& directory() const { return directory_; }
  GenerationKeeper& generations() { return *keeper_; }
  const GenerationKeeper& generations() const { return *keeper_; }
  Standings& standings() { return standings_; }
  const Standings& standings() const { return standings_; }
  void List(const wire::ListRequest& request, Reply<wire::ListReply> reply);
  Shards& shards() { return *shards_; }
  const Shards& shards() const { return *shards_; }
  // For how long this master leads at least; before Start.
  void SetLeads(std::function<std::int64_t()> leads_ns) { leads_ns_ = std::move(leads_ns); }

  // ---- requesters
  // Errors: kStale when the token's generation is not the current one.
  Result<std::vector<wire::Place>> Lookup(const Token& token, std::span<const Id128> hashes);
  struct Removed {
    std::vector<Code> codes;    // by key: kOk, kMiss
    std::uint64_t matches = 0;  // objects that the pattern removed
  };
  // Answered when no owner has it any more, nor ever shows it again. Large batches take
  // milliseconds, so call it from a thread that may be busy. Errors: kStale, kTimeout, kLimit,
  // kInvalid.
  void Remove(const Token& token, std::vector<std::string> keys, std::string_view pattern,
              std::int64_t deadline_ns, Reply<Removed> reply);

  // Every few milliseconds.
  void Tick();
  // Ends every wait. Says in the store that no lease is running, if none is; `done` may be called
  // late.
  void Stop(Reply<void> done);

  std::uint64_t revision() const { return commits_.revision(); }
  std::uint64_t term() const { return term_; }

  // ---- for a successor's process (docs/upgrade.md)
  // Between the two, watches do not wait.
  void BeginPause() { control_->BeginPause(); }
  void EndPause() { control_->EndPause(); }
  bool Idle() const { return control_->Idle() && keeper_->Idle(); }
  // Of an idle one, while nobody calls it and its store is at rest. What PlanOf and Load read.
  void Save(StateWriter& ar);
  struct Carried {
    StartPlan plan;
    std::uint64_t revision = 0;  // of the store
  };
  // To construct the successor with; it is not started.
  static Carried PlanOf(StateReader& ar);
  // `ahead`: DirectoryService::LoadAhead.
  void Load(StateReader& ar, Directory::Shards ahead);

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
