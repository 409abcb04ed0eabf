// SPDX-License-Identifier: Apache-2.0
// The owner of one host's memory. It joins the parts and fixes the order of their calls:
//
//   Memory        the segment's files, and the lock around the core
//   OwnerDisks    the disks below it, with Promotions (up), Removals and, in a cluster,
//                 DiskOpening (when they open) and InventoryWalk (reports to the master)
//   Outbox        in a cluster: puts that the master has not listed yet
//   LinkSide      the calls of its link to the master
//   DataSide      the calls of its data service, for requesters of other hosts
//
//   opened -> running (Start) -> stopped (Stop)
//                ^--> frozen (Freeze), while a successor's process takes over; Thaw undoes it
//
// Threads: the janitor, which drains sessions' events, ends waits and sweeps every 5 ms, and rests
// while no session is there (RunJanitor); outside a cluster also the lease's. Thread-safe, but for
// the calls of an upgrade, Start and Stop.
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
#include "kvcove/model/saves_under_way.h"
#include "kvcove/owner/core/core.h"
#include "kvcove/owner/data_side.h"
#include "kvcove/owner/disk/disk_opening.h"
#include "kvcove/owner/disk/inventory_walk.h"
#include "kvcove/owner/disk/object_pages.h"
#include "kvcove/owner/disk/owner_disks.h"
#include "kvcove/owner/disk/promotions.h"
#include "kvcove/owner/disk/removals.h"
#include "kvcove/owner/expected_hits.h"
#include "kvcove/owner/link/outbox.h"
#include "kvcove/owner/link_side.h"
#include "kvcove/owner/memory/memory.h"

namespace kvcove::owner {

struct OwnerOptions {
  std::uint64_t memory_bytes = 0;   // payload, 1 MiB to segment::kMaxPayloadBytes
  std::uint64_t granule_bytes = 0;  // 0: the smallest that memory_bytes allows
  std::uint64_t max_objects = 0;    // 0: one per 512 bytes of payload, at most 2^27
  // Memory that the host can give; Open refuses a larger payload. Unset: as measured at Open.
  std::optional<std::uint64_t> available_bytes;
  std::string policy = "default";
  std::unordered_map<std::string, Quota> quotas;
  HugePages huge_pages = HugePages::kAuto;
  NodePlace place{};     // where the memory comes from
  bool populate = true;  // in the background, so that puts cause no page faults
  std::int64_t lease_ns = kSecond;
  std::int64_t lease_renewal_ns = 250 * kMillisecond;
  std::int64_t janitor_rest_ns = 200 * kMillisecond;  // less than LoopBeat::kLongestTurn
  // True: several tenants share this memory, so it is cleared before another tenant gets it.
  bool tenants = false;
  // True: a master elsewhere grants the lease and lists stored values (owner/link/link.h).
  bool cluster = false;
  // Disks for evicted values; no size is 0, and no two specs name one disk (ParseDisks).
  std::vector<disklog::DiskSpec> disks;
  DiskAdmit disk_admit = DiskAdmit::kPolicy;
  std::uint64_t disk_write_rate = 0;  // bytes a second; 0: any
  // Shares of all disks together, by namespace or tenant as `quotas`.
  DiskQuotas disk_quotas = {};
  TierOptions tier = {};  // how disks are opened, and tried again
  // Most bytes of changes of keys that wait for TakeChanges. 0: none is kept, and nothing is noted.
  std::uint64_t key_changes_bytes = 0;
  // Log a line for each reset. An embedded pool does not: the log is another program's.
  bool log_resets = true;
};

class Owner {
 public:
  // Creates the memory and the core; no thread runs before Start. Errors: kInvalid when the host
  // cannot give the memory, or for an unknown policy; kInternal.
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

  // Opens the disks. Call once, after the first Publish and before Start, also without a disk.
  // Errors: those of OpenTiers.
  Status OpenDisks(const TierPlace& place);
  // Prepares the disks in a cluster: they open when the master has sent all generations.
  // `directory` keeps the facts that outlive the process. Errors: those of FindDisk; kUnavailable
  // when another process uses the directory.
  Result<OwnerFacts> PrepareDisks(const std::string& directory);
  // Starts the lease and the janitor. Errors: those of StartThread; the owner is stopped then.
  Status Start();
  // Joins the threads and ends the lease: no reader trusts the memory any more.
  void Stop();

  // ---- an upgrade, at the process that gives (owner_take_over.cc, docs/upgrade.md)
  // The descriptors that one owner hands to another one beside its state.
  struct Files {
    Memory::Files memory;
    UniqueFd disk_lock;  // in a cluster, for the disks; locked while a process has it open
  };
  // Returns ok if PauseDisks may be called. Errors: kInProgress while a disk is being opened or
  // walked for a removal by pattern, its inventory is being reported, its opening is being noted,
  // or the owner's facts are being written.
  Status MayPauseDisks() const;
  // Ends all threads but the lease's, which continues to renew. The caller keeps all other calls
  // away until Thaw.
  void Freeze();
  // Closes the disks, so that the successor, or Thaw, can open them. The owner must be frozen.
  // Errors: those of OwnerDisks::Pause; kInProgress while a disk is walked for a removal by
  // pattern.
  Status PauseDisks();
  // Writes the state for the successor. The owner must be frozen. Errors: kInProgress while a
  // transfer reads.
  Status Save(StateWriter& ar, StateWriter& policies);
  Result<Files> CopyFiles();
  // Ends the lease's thread until Thaw, and renews the lease a last time. Not in a cluster.
  void StopLease();
  // Undoes Freeze, PauseDisks, StopLease, the outbox's EndWaits and the pause of removals that
  // wait: restarts threads and lease.
  void Thaw();

  // ---- an upgrade, at the process that takes
  // Returns an owner over the memory of another one, which continues until this one is started:
  // writes nothing there. `options` are Complete. Errors: kIncompatible with the reason, kInvalid.
  static Result<std::unique_ptr<Owner>> Map(const OwnerOptions& options, Memory::Files files,
                                            const Clock& clock);
  // Reads the state that Save wrote. Call once, before Start. Returns whether the policies'
  // knowledge was kept. Errors: kIncompatible, kCorrupt, kInternal.
  Result<bool> Restore(StateReader& ar, StateReader& policies, Files files);
  // Start the disks' threads, which open the disks; their keys are misses until then. Call before
  // Start: the first without a cluster, the second in one. Errors: those of StartThread.
  Status ResumeDisks(const TierPlace& place);
  Status ResumeClusterDisks();
  // Queues all committed puts for listing, but for the reservations `asked`: those are in the
  // link's unanswered request, which the link repeats.
  void EnqueueWaiting(const std::set<std::uint64_t>& asked);

  // ---- puts
  // Put and Finish wait in a cluster for the master's answer until `deadline_ns`; kNotListed: the
  // value is stored, but not listed yet. A put under a generation that this owner does not know yet
  // waits for that generation, too; kUnavailable if it is not published in time.
  std::vector<PutResult> Put(SessionNumber session, const Token& token,
                             std::span<const PutItem> items, std::int64_t deadline_ns);
  std::vector<Code> Finish(SessionNumber session, std::span<const FinishItem> items,
                           std::int64_t deadline_ns);
  // PutThen and FinishThen do not wait: `done` is called once, from any thread, or within the call.
  // A put under a generation that is not known yet is kUnavailable at once.
  void PutThen(SessionNumber session, const Token& token, std::span<const PutItem> items,
               std::int64_t deadline_ns, std::function<void(std::vector<PutResult>)> done);
  // No deadline: `done` is called only when the master has answered, however long that takes.
  void FinishThen(SessionNumber session, std::span<const FinishItem> items,
                  std::optional<std::int64_t> deadline_ns,
                  std::function<void(std::vector<Code>)> done);

  // ---- saves that sessions have announced (owner_puts.cc)
  // As PutService::NoteSaves.
  std::vector<Code> NoteSaves(SessionNumber session, const Token& token,
                              std::span<const Id128> hashes, SaveNotice notice)
      KVCOVE_EXCLUDES(saves_mutex_);
  // Notes that a session has ended: what it has announced is not under way any more.
  void EndSaves(SessionNumber session) KVCOVE_EXCLUDES(saves_mutex_);

  // ---- objects by their keys (owner_objects.cc)
  struct Pinning {
    std::optional<PinKind> kind;  // unset: unpins
    std::int64_t duration_ns = 0;
  };
  // Pins or unpins in slices. kTimeout for keys that were not reached before the deadline.
  std::vector<Code> Pin(const Token& token, std::span<const std::string_view> keys,
                        const Pinning& pinning, std::int64_t deadline_ns);
  // Looks the keys up in slices; nothing for a key that memory does not have. Errors: kTimeout.
  Result<std::vector<std::optional<ObjectStat>>> StatObjects(const Token& token,
                                                             std::span<const std::string_view> keys,
                                                             std::int64_t deadline_ns);
  // Lists one page of the objects in memory and on disks. Errors: kTimeout when a disk does not
  // answer in time.
  Result<wire::InventoryReply> Page(const wire::InventoryRequest& request,
                                    std::int64_t deadline_ns) {
    return ListObjects(disks_, *memory_, clock_, request, deadline_ns);
  }
  // ---- KV events, if OwnerOptions::key_changes_bytes is set (owner_objects.cc)
  // Takes the changes of keys in memory and of slots since the last call, or begins anew with the
  // slots if `all` (KeyChanges::Take).
  void TakeKeyChanges(KeyChanges::Batch& into, bool all);
  // Takes the tags that disks have lost since the last call.
  TierTags::Changes TakeDiskChanges() { return disks_.set().common().tags.TakeChanges(); }
  // Returns the tag by which a disk has the key now; 0: none has it. Needs no lock.
  std::uint64_t DiskTag(SlotId slot, Generation generation, std::string_view key) const;
  // Returns whether a disk has the tag. Needs no lock.
  bool DiskHas(std::uint64_t tag) const { return memory_->header().tier().Holds(tag); }

  // Collects the statistics in slices and sleeps 50 us between two of them, so that other callers
  // get the lock. Not for an event loop.
  PoolStat Stat();
  // Returns how long evicted values had been in memory, since the start.
  LongTimes Residence() const;
  // Returns what Stat says of other sizes, and nothing else. Does not wait.
  PoolStat Estimates();
  // Returns the bytes of memory that each slot's values of its current generation occupy, by slot.
  // Collects them as Stat does.
  std::vector<std::uint64_t> BytesBySlot() const;

 private:
  template <typename T>
  struct Begun {
    std::vector<T> results;          // by item; kOk for those in `pending`
    std::vector<Pending> pending;    // items that wait for the master
    std::vector<std::size_t> order;  // by pending: its index in `results`
  };

  Owner(const OwnerOptions& options, std::unique_ptr<Memory> memory, const Clock& clock);
  // `options` have every default filled in (Complete).
  static MemoryOptions MemoryOf(const OwnerOptions& options);
  static DisksOptions DisksOf(const OwnerOptions& options);
  Status OpenCore();
  void MakeReport();
  Status StartThreads();
  // Notes in the segment's header that this owner takes announcements of saves, or does not.
  void PublishTakesSaves();
  Status StartPausedDisks();
  void StopDisks();
  void RunJanitor();
  // Returns whether nothing becomes due for the janitor by itself.
  bool JanitorMayRest() const KVCOVE_REQUIRES(memory_->mutex);
  void RunLease();
  // Waits until the owner knows the token's generation, the deadline is over, or the master is
  // away. Releases the lock while it waits.
  void AwaitGeneration(const Token& token, std::int64_t deadline_ns)
      KVCOVE_REQUIRES(memory_->mutex);
  // Begins a put; waits for the token's generation until `wait_ns`, as AwaitGeneration.
  Begun<PutResult> BeginPut(SessionNumber session, const Token& token,
                            std::span<const PutItem> items, std::int64_t wait_ns);
  Begun<Code> Commit(SessionNumber session, std::span<const FinishItem> items);
  // Logs one line if a reset ended a generation, or any object was voided.
  void SayVoided(const Core::Voided& voided) const;

  const OwnerOptions options_;
  const Clock& clock_;
  std::unique_ptr<Memory> memory_;
  std::atomic<bool> link_ends_{false};  // true: no call of the link waits for a disk any more
  OwnerDisks disks_;
  Promotions promotions_;
  DiskOpening opening_;
  Removals removals_;
  InventoryWalk inventory_;
  Outbox outbox_;
  LinkSide link_side_;
  DataSide data_side_;
  ExpectedHits expected_;
  TierPlace disk_place_;  // outside a cluster
  HandedDisks handed_;    // from the process that this one takes over from, after Restore

  Mutex saves_mutex_;  // taken alone
  SavesUnderWay saves_ KVCOVE_GUARDED_BY(saves_mutex_);

  Mutex stop_mutex_;
  CondVar stop_changed_;
  bool stopping_ KVCOVE_GUARDED_BY(stop_mutex_) = true;
  bool frozen_ KVCOVE_GUARDED_BY(stop_mutex_) = false;      // the janitor has ended or will
  bool lease_over_ KVCOVE_GUARDED_BY(stop_mutex_) = false;  // the lease's thread has, too
  std::thread janitor_;
  std::thread lease_;
};

}  // namespace kvcove::owner
