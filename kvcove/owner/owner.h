// SPDX-License-Identifier: Apache-2.0
// The owner of one host's memory. It joins the parts and has the order of their calls:
//
//   Memory        the segment's files, and the lock around the core
//   OwnerDisks    the disks below it, with Promotions (up), Removals and, in a cluster,
//                 DiskOpening (when they open) and InventoryWalk (what the master is told)
//   Outbox        in a cluster: puts that the master has not listed yet
//   LinkSide      what its link to the master calls
//   DataSide      what its data service calls, for requesters of other hosts
//
// Threads: the janitor, which does what happens by itself; without a cluster also the lease.
// Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/owner/core/core.h"
#include "kvcove/owner/data_side.h"
#include "kvcove/owner/disk/disk_opening.h"
#include "kvcove/owner/disk/inventory_walk.h"
#include "kvcove/owner/disk/object_pages.h"
#include "kvcove/owner/disk/owner_disks.h"
#include "kvcove/owner/disk/promotions.h"
#include "kvcove/owner/disk/removals.h"
#include "kvcove/owner/link/outbox.h"
#include "kvcove/owner/link_side.h"
#include "kvcove/owner/memory/memory.h"

namespace kvcove::owner {

struct OwnerOptions {
  std::uint64_t memory_bytes = 0;   // of payload, 1 MiB to segment::kMaxPayloadBytes
  std::uint64_t granule_bytes = 0;  // 0: the smallest that memory_bytes allows
  std::uint64_t max_objects = 0;    // 0: one per 512 bytes of payload, at most 2^27
  // Less than this: Open refuses. Nothing: what the host can give now.
  std::optional<std::uint64_t> available_bytes;
  std::string policy = "default";
  std::unordered_map<std::string, Quota> quotas;
  HugePages huge_pages = HugePages::kAuto;
  NodePlace place{};     // where the memory comes from
  bool populate = true;  // in the background, so that puts meet no page faults
  std::int64_t lease_ns = kSecond;
  std::int64_t lease_renewal_ns = 250 * kMillisecond;
  // Several tenants share this memory.
  bool tenants = false;
  // A master elsewhere gives the lease and lists what is stored (owner/link/link.h).
  bool cluster = false;
  // Where evicted values go; no size is 0, and no two are one disk (ParseDisks).
  std::vector<disklog::DiskSpec> disks;
  DiskAdmit disk_admit = DiskAdmit::kPolicy;
  std::uint64_t disk_write_rate = 0;  // bytes a second; 0: any
  // Of all disks together, by namespace or tenant as `quotas`.
  DiskQuotas disk_quotas = {};
  TierOptions tier = {};  // how disks are opened, and tried again
  // Log a line for each reset. An embedded pool does not: the log is another program's.
  bool log_resets = true;
};

class Owner {
 public:
  // Errors: kInvalid when the host cannot give the memory, or for an unknown policy; kInternal.
  static Result<std::unique_ptr<Owner>> Open(const OwnerOptions& options, const Clock& clock);
  ~Owner();
  // Returns the options with every default filled in. Errors: kInvalid.
  static Result<OwnerOptions> Complete(const OwnerOptions& options);
  const OwnerOptions& options() const { return options_; }

  Memory& memory() { return *memory_; }
  const Memory& memory() const { return *memory_; }
  OwnerDisks& disks() { return disks_; }
  Outbox& outbox() { return outbox_; }
  Promotions& promotions() { return promotions_; }
  Removals& removals() { return removals_; }
  LinkSide& link_side() { return link_side_; }
  DataSide& data_side() { return data_side_; }

  // Once, after the first Publish and before Start; without a disk, too. Errors: those of
  // OpenTiers.
  Status OpenDisks(const TierPlace& place);
  // The same in a cluster: they open when the master has told all generations. `directory` keeps
  // what outlives the process. Errors: those of FindDisk; kUnavailable when another process uses
  // the directory.
  Result<OwnerFacts> PrepareDisks(const std::string& directory);
  // Starts the lease and the janitor. Errors: as StartThread; it is stopped then.
  Status Start();
  // Ends the lease: nobody trusts the memory any more. Joins the threads.
  void Stop();

  // ---- an upgrade, at the process that gives (owner_take_over.cc, docs/upgrade.md)
  // What one owner gives another one beside its state.
  struct Files {
    Memory::Files memory;
    UniqueFd disk_lock;  // of an owner's disks in a cluster; locked while a process has it open
  };
  // Errors: kInProgress: a disk is still being opened, or told.
  Status MayPauseDisks() const;
  // The threads but the lease's end. The lease goes on; the caller sees to it that no call comes.
  void Freeze();
  // Of a frozen owner. Errors: those of OwnerDisks::Pause.
  Status PauseDisks();
  // Of a frozen owner. Errors: kInProgress while a transfer reads.
  Status Save(StateWriter& ar, StateWriter& policies);
  Result<Files> CopyFiles();
  // Renews the lease once more, and no more until Thaw. Without a cluster.
  void StopLease();
  // Undoes Freeze, PauseDisks, StopLease and the outbox's EndWaits: restarts threads and lease.
  void Thaw();

  // ---- an upgrade, at the process that takes
  // An owner over the memory of another one, which goes on until this one is started: writes
  // nothing there. `options` are Complete. Errors: kIncompatible with the reason, kInvalid.
  static Result<std::unique_ptr<Owner>> Map(const OwnerOptions& options, Memory::Files files,
                                            const Clock& clock);
  // Once, before Start. Returns whether the policies' knowledge was kept.
  Result<bool> Restore(StateReader& ar, StateReader& policies, Files files);
  // Before Start: the disks open by themselves. Their keys are misses until then.
  // Errors: as StartThread.
  Status ResumeDisks(const TierPlace& place);
  Status ResumeClusterDisks();
  // What waits to be listed is listed from here, but for what is `asked` already.
  void EnqueueWaiting(const std::set<std::uint64_t>& asked);

  // ---- puts
  // In a cluster they wait for the master until `deadline_ns`; kNotListed: stored all the same. A
  // put under a generation that this owner has not heard of waits for it, too; kUnavailable when it
  // does not come.
  std::vector<PutResult> Put(SessionNumber session, const Token& token,
                             std::span<const PutItem> items, std::int64_t deadline_ns);
  std::vector<Code> Finish(SessionNumber session, std::span<const FinishItem> items,
                           std::int64_t deadline_ns);
  // The same without a wait: answered from any thread. A put under a generation that is not known
  // yet is kUnavailable at once.
  void PutThen(SessionNumber session, const Token& token, std::span<const PutItem> items,
               std::int64_t deadline_ns, std::function<void(std::vector<PutResult>)> done);
  // Without a deadline the answer comes once the master has listed the values.
  void FinishThen(SessionNumber session, std::span<const FinishItem> items,
                  std::optional<std::int64_t> deadline_ns,
                  std::function<void(std::vector<Code>)> done);

  // ---- objects by their keys (owner_objects.cc)
  struct Pinning {
    std::optional<PinKind> kind;  // none: unpins
    std::int64_t duration_ns = 0;
  };
  // kTimeout for the keys that the deadline left over.
  std::vector<Code> Pin(const Token& token, std::span<const std::string_view> keys,
                        const Pinning& pinning, std::int64_t deadline_ns);
  // Errors: kTimeout.
  Result<std::vector<std::optional<ObjectStat>>> StatObjects(const Token& token,
                                                             std::span<const std::string_view> keys,
                                                             std::int64_t deadline_ns);
  // Errors: kTimeout: a disk has not answered in time.
  Result<wire::InventoryReply> Page(const wire::InventoryRequest& request,
                                    std::int64_t deadline_ns) {
    return ListObjects(disks_, *memory_, clock_, request, deadline_ns);
  }
  // In slices, between which others have their turn. Not on an event loop.
  PoolStat Stat();

 private:
  template <typename T>
  struct Begun {
    std::vector<T> results;          // by item; kOk for those that wait
    std::vector<Pending> pending;    // what waits for the master
    std::vector<std::size_t> order;  // which items these are
  };

  Owner(const OwnerOptions& options, std::unique_ptr<Memory> memory, const Clock& clock);
  // `options` are Complete.
  static MemoryOptions MemoryOf(const OwnerOptions& options);
  static DisksOptions DisksOf(const OwnerOptions& options);
  Status OpenCore();
  void MakeReport();
  Status StartThreads();
  Status StartPausedDisks();
  void StopDisks();
  void RunJanitor();
  void RunLease();
  // Until the token's generation is known here, the deadline, or the master is away.
  void AwaitGeneration(const Token& token, std::int64_t deadline_ns)
      KVCOVE_REQUIRES(memory_->mutex);
  // `wait_ns`: until then for the token's generation.
  Begun<PutResult> BeginPut(SessionNumber session, const Token& token,
                            std::span<const PutItem> items, std::int64_t wait_ns);
  Begun<Code> Commit(SessionNumber session, std::span<const FinishItem> items);
  // A log line, if something was voided.
  void SayVoided(const Core::Voided& voided) const;

  const OwnerOptions options_;
  const Clock& clock_;
  std::unique_ptr<Memory> memory_;
  std::atomic<bool> link_ends_{false};  // no call of the link waits for a disk
  OwnerDisks disks_;
  Promotions promotions_;
  DiskOpening opening_;
  Removals removals_;
  InventoryWalk inventory_;
  Outbox outbox_;
  LinkSide link_side_;
  DataSide data_side_;
  TierPlace disk_place_;  // without a cluster
  HandedDisks handed_;    // of the process that this one has taken over from

  Mutex stop_mutex_;
  CondVar stop_changed_;
  bool stopping_ KVCOVE_GUARDED_BY(stop_mutex_) = true;
  bool frozen_ KVCOVE_GUARDED_BY(stop_mutex_) = false;      // no threads but the lease's
  bool lease_over_ KVCOVE_GUARDED_BY(stop_mutex_) = false;  // not that one either
  std::thread janitor_;
  std::thread lease_;
};

}  // namespace kvcove::owner
