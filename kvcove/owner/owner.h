// SPDX-License-Identifier: Apache-2.0
// The owner of one host's memory: the segment's files, the lock around its `Core`, and the thread
// that does what happens by itself. Thread-safe.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>

#include "kvcove/base/log.h"
#include "kvcove/base/memory_file.h"
#include "kvcove/base/mutex.h"
#include "kvcove/base/numa.h"
#include "kvcove/base/posix.h"
#include "kvcove/owner/core.h"
#include "kvcove/owner/data_store.h"
#include "kvcove/owner/link_target.h"
#include "kvcove/owner/listed_waits.h"
#include "kvcove/owner/populator.h"
#include "kvcove/owner/tier.h"

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
  // A master elsewhere gives the lease and lists what is stored (owner/link.h).
  bool cluster = false;
  // Where evicted values go; no size is 0, and no two are one disk (ParseDisks).
  std::vector<disklog::DiskSpec> disks;
  DiskAdmit disk_admit = DiskAdmit::kPolicy;
  std::uint64_t disk_write_rate = 0;  // bytes a second; 0: any
  // Of all disks together, by namespace or tenant as `quotas`.
  DiskQuotas disk_quotas = {};
  TierOptions tier = {};  // how disks are opened, and tried again
  // A log line for each reset. Not in a program of somebody else, which has an embedded pool.
  bool says_resets = true;
};

// What a successor must know of an owner's disks (owner_take_over.cc).
struct HandedDisks {
  std::uint64_t seed = 0;
  std::vector<std::uint64_t> shares;
  std::vector<Id128> numbers;  // Superblock::disk, by disk; none: what it holds must not be used
  // In a cluster:
  std::vector<std::string> asides;  // by disk, why it is set aside; empty: it is not
  std::vector<SlotUpdate> slots;
  std::string directory;
  OwnerFacts facts;
  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, seed, shares, numbers, asides, slots, directory, facts);
  }
};

class Owner final : public LinkTarget, public DataStore, private Promoter {
 public:
  // Errors: kInvalid when the host cannot give the memory, or for an unknown policy; kInternal.
  static Result<std::unique_ptr<Owner>> Open(const OwnerOptions& options, const Clock& clock);
  ~Owner() override;

  // ---- a successor's process (owner_take_over.cc, docs/upgrade.md)
  // What one owner gives another one beside its state.
  struct Files {
    UniqueFd header;
    UniqueFd payload;
    std::vector<std::pair<SessionNumber, UniqueFd>> pages;
    UniqueFd disk_lock;  // of an owner's disks in a cluster; locked while a process has it open
  };
  // With what the options leave open; Errors: kInvalid.
  static Result<OwnerOptions> Complete(const OwnerOptions& options);
  const OwnerOptions& options() const { return options_; }
  // Puts that wait to be listed are answered now, as when the master is away, until Thaw.
  void EndWaits() {
    waits_end_ = true;
    listed_waits_.End(0, /*all=*/true);
  }
  // The threads but the lease's end. The lease goes on; the caller sees to it that no call comes.
  void Freeze();
  // Waits for the slice that is being populated, but not for long.
  void PausePopulating();
  // What Freeze, EndWaits and StopLease ended goes on.
  void Thaw();
  // Of a frozen owner. Errors: kInProgress while a transfer reads.
  Status Save(StateWriter& ar, StateWriter& policies);
  Result<Files> CopyFiles();
  // Renews the lease once more, and no more until Thaw. Without a cluster.
  void StopLease();
  // An owner over the memory of another one, which goes on until this one is started: writes
  // nothing there. `options` are Complete. Errors: kIncompatible with the reason, kInvalid.
  static Result<std::unique_ptr<Owner>> Map(const OwnerOptions& options, Files files,
                                            const Clock& clock);
  // In a cluster: nobody waits for the answers of what is to be listed any more.
  void ForgetCallers();
  // What waits to be listed is listed from here, but for what is `asked` already.
  void EnqueueWaiting(const std::set<std::uint64_t>& asked);
  // Once, before Start. Returns whether the policies' knowledge was kept.
  Result<bool> Load(StateReader& ar, StateReader& policies, Files pages);

  // ---- its disks in an upgrade (owner_take_over.cc)
  // Much of what is queued is written before anybody waits, and a disk that is being opened is
  // waited for.
  void DrainDisks() const;
  // Errors: kInProgress: a disk is still being opened.
  Status MayPauseDisks();
  // Of a frozen owner: what it has of its disks is closed, so that the successor can open them, or
  // Thaw. Errors: kUnavailable: one hangs; it is set aside.
  Status PauseDisks();
  // In the successor's process, before Start: they open by themselves. Their keys are misses until
  // then. In a cluster the place is the running owner's.
  // Errors: as StartThread.
  Status ResumeDisks(const TierPlace& place);
  Status ResumeClusterDisks();

  // ---- its disks (owner_tier.cc, docs/ssd.md)
  // Once, after the first Publish and before Start. Without a disk: notes that the pool runs
  // without one. Errors: those of OpenTiers.
  Status OpenDisks(const TierPlace& place);
  bool has_disk() const { return !options_.disks.empty(); }
  // Removals may wait for a disk.
  bool disks_open() const { return disks_open_; }
  // In a cluster: memory goes on alone, and what lies on the disks only is found by nobody. The
  // next start, or a successor's process, uses them, empty. Does nothing without a disk.
  void UnmountDisk();
  // For /metrics (tier_metrics.cc).
  void CollectDisks(http::Metrics& metrics) const;
  // Brings keys up from there. `done` is called once, from any thread or within this call, when all
  // are decided or `wait_ns` have passed.
  void Load(SessionNumber session, const wire::LoadRequest& request,
            const wire::HostService::Loaded& done);
  // In a cluster, before Start (owner_cluster_tier.cc): the disks open when the master has told all
  // generations. `directory` keeps what outlives the process. Errors: those of FindDisk;
  // kUnavailable when another process uses the directory.
  Result<OwnerFacts> PrepareDisks(const std::string& directory);
  // Calls of the link that wait for the disk end now. What they were about is not acknowledged.
  void EndDiskWaits() { link_ends_ = true; }
  // Each Load is answered when it returns.
  void EndLoads() {
    if (tiers_ != nullptr) tiers_->EndLoads();
  }

  // Starts the lease and the background thread.
  // Errors: as StartThread; it is stopped then.
  Status Start();
  // Touches the memory in the background, until PausePopulating. After all that others wait for is
  // started: it holds the lock of the address space, for which new threads wait to get a stack.
  void StartPopulating();
  // Ends the lease: nobody trusts the memory any more. Joins the threads.
  void Stop();

  struct Grant {
    SessionNumber number = 0;
    UniqueFd page;  // a sealed memory file: one SessionPage, then one Staging
    segment::SessionPage* mapped = nullptr;  // the owner's own mapping, valid until EndSession
  };
  Result<Grant> AddSession(std::int32_t pid);
  // Of a process that maps nothing here: another host's, or another user's.
  SessionNumber AddRemoteSession() override;
  void EndSession(SessionNumber number) override;

  void Publish(const Id128& incarnation, const std::vector<SlotUpdate>& updates) override;

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
  void FinishThen(SessionNumber session, std::span<const FinishItem> items,
                  std::int64_t deadline_ns, std::function<void(std::vector<Code>)> done);
  // Answers when the master has; from any thread.
  void FinishThen(SessionNumber session, std::span<const FinishItem> items,
                  std::function<void(std::vector<Code>)> done) override;
  // Never waits for the master: reservations only. `evict` false: nothing makes room for them. A
  // draining owner takes nothing.
  std::vector<PutResult> Reserve(SessionNumber session, const Token& token,
                                 std::span<const PutItem> items, bool evict = true) override;
  std::vector<Loan> Lend(const Token& token, std::span<const std::string_view> keys) override;
  // Of what lies on a disk only, once it has come up (BringUp).
  std::vector<std::optional<CopyLoan>> LendForCopy(std::span<const wire::CopyRequest::Item> items);
  bool OnDisk(const wire::CopyRequest::Item& item) const {
    return tiers_ != nullptr && header_.tier().Holds(item.slot, item.generation, item.key);
  }
  // What a process here would have captured while that was the slot's generation.
  Token TokenOf(SlotId slot, Generation generation);
  void Return(std::span<const Loan> loans) override;
  void SetChecksum(const Loan& loan, std::uint64_t checksum) override;
  bool LeaseHolds() const override { return LeaseUntilNs() > clock_.NowNs(); }
  bool Awaits(const Token& token) override;
  std::shared_ptr<void> BringUp(const Token& token, std::span<const std::string_view> keys,
                                const Upcoming& upcoming) override;
  void GiveUp(const std::shared_ptr<void>& brought) override;

  // ---- LinkTarget
  void SetHidden(const std::vector<SlotId>& slots) override;
  void SetLease(std::int64_t deadline_ns) override;
  void SetMasterReachable(bool reachable) override { master_reachable_ = reachable; }
  // False: a listing is not worth waiting for.
  bool MasterReachable() const override { return master_reachable_; }
  void SetDraining(bool draining) override { draining_ = draining; }
  wire::RenewRequest Report() override;
  std::uint64_t capacity_bytes() const override { return options_.memory_bytes; }
  void Follow(const OwnerFacts& facts) override;
  void TableKnown() override;
  bool AwaitApplied() override;
  std::uint64_t ApplyRemoval(const wire::Removal& removal) override;
  void DropSlot(SlotId slot) override;
  void SetApplied(std::uint64_t number) override;
  std::vector<Listing> TakeListings(std::size_t at_most_items) override;
  void ReturnListings(std::vector<Listing> listings) override;
  void CompleteListing(Listing listing, std::span<const Code> codes) override;
  std::vector<InventoryItem> TakeGone(std::size_t at_most) override;
  bool TakeGoneOverflow() override;
  std::vector<InventoryItem> Inventory(ObjectId& cursor, std::size_t at_most) override;
  std::optional<ObjectId> TellAgainFrom() override;
  void WalkEnds() override;
  void Told() override;
  void DropObjects(std::span<const InventoryItem> items) override;

  // The last removal from the master that is applied.
  std::uint64_t applied() const { return applied_; }
  std::int64_t LeaseUntilNs() const;
  // TenantTag of the slot's tenant.
  std::uint64_t TenantOfSlot(SlotId slot) const override {
    return slot < kMaxSlots ? slot_tenants_[slot].load(std::memory_order_acquire) : ~0ULL;
  }
  // Waits up to `wait_ns` for something to be listed or forgotten.
  bool WaitOutbox(std::int64_t wait_ns);
  void WakeOutbox();
  void DropObjects(std::span<const wire::CopyRequest::Item> items);
  // Errors: kTimeout: a disk has not answered in time.
  Result<wire::InventoryReply> Page(const wire::InventoryRequest& request,
                                    std::int64_t deadline_ns);
  // These name the generation that they mean: kStale for each key under another one. kTimeout: the
  // disk has not proven it in time.
  std::vector<Code> Remove(const Token& token, std::span<const std::string_view> keys,
                           std::int64_t deadline_ns);
  // Errors: kTimeout, with what was removed so far gone; kInvalid for the pattern; kStale.
  Result<std::uint64_t> RemoveMatching(const Token& token, std::string_view pattern,
                                       std::int64_t deadline_ns);
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
  // In slices, between which others have their turn. Not on an event loop.
  PoolStat Stat();
  bool Populated();

  std::int64_t lease_renewal_ns() const { return options_.lease_renewal_ns; }
  // Reads only.
  int header_fd() const { return reader_fd_.get(); }
  int payload_fd() const { return payload_fd_.get(); }
  segment::HeaderView header() const { return header_; }
  segment::Payload payload() const override {
    return {.data = payload_.data(), .granule = header_.granule()};
  }
  std::uint64_t header_bytes() const { return header_map_.size(); }
  std::uint64_t payload_bytes() const { return options_.memory_bytes; }
  // Which pages the payload has, why, and what page tables cost. For the log.
  const std::string& pages() const { return pages_description_; }

 private:
  static constexpr std::size_t kSlice = 256;  // keys or objects under one hold of the lock
  static constexpr std::int64_t kTurnNs = 50 * kMicrosecond;

  explicit Owner(const OwnerOptions& options, const Clock& clock)
      : options_(options), clock_(clock) {}
  // Between two slices of a walk. A mutex that is taken again at once is never seen to be free by
  // the threads that wait for it: they need the time of a wake-up.
  static void LetOthersIn();
  Status MakeFiles();
  Status MapPayload(const Id128& segment_id);
  void MakePopulator();
  Status OpenCore();
  std::uint64_t TierObjects() const;
  void MakeTiers();
  void StopDisks();
  void LeaveHangingDisks();
  void TickDisks();
  void AddLoad(LoadCall& call, std::size_t index, const wire::LoadRequest& request,
               MissReason refused) KVCOVE_REQUIRES(mutex_);
  wire::LoadResult Promote(const owner::Load& load, std::span<const std::byte> value) override;
  Puts PutsUnderWay() override;
  void HoldLoaded(const owner::Load& load) KVCOVE_REQUIRES(mutex_);
  Status AwaitDisks(DisksRemoval& removal, std::int64_t deadline_ns);
  void RemoveFromDisks(const Token& token, std::span<const std::string_view> keys,
                       std::span<Code> codes, DisksRemoval& removal) KVCOVE_REQUIRES(mutex_);
  void AddDiskStat(PoolStat& stat) const;
  DiskStat DiskStatOf(std::size_t disk) const;
  void ReportDisks(wire::RenewRequest& report) const;
  // From what `upcoming` says, with the keys of `request`.
  std::shared_ptr<LoadCall> BeginLoad(const wire::LoadRequest& request, const Upcoming& upcoming,
                                      std::int64_t hold_until_ns);
  void WakeDisks() const;
  // The next start begins with this disk empty, or with all.
  Status ForgetDisk(std::size_t disk);
  Status ForgetDisks();
  Tier* TierOf(std::size_t disk) const;

  // ---- its disk in a cluster
  enum class DiskState : std::uint8_t { kWaits, kMayOpen, kOpens, kSettled };
  void TickOpening();
  void StopOpening();
  void RunOpener();
  Result<Id128> CheckDisks(const std::string& directory) const;
  bool AwaitSettled();
  // Until it is proven; false: the link ends, and it is not.
  bool AwaitProven(DisksRemoval& removal);
  std::uint64_t ApplyPattern(const wire::Removal& removal);
  void NoteGone(SlotId slot, std::span<const std::string> keys);
  void NoteGoneUnknown();
  TierPlace ClusterPlace();
  bool DisksOpening() const;
  std::vector<InventoryItem> MemoryInventory(ObjectId& cursor, std::size_t at_most);
  std::vector<InventoryItem> DiskInventory(ObjectId& cursor, std::size_t at_most);
  bool ListsFromDisk(const wire::InventoryRequest& request, const TierObject& object) const
      KVCOVE_REQUIRES(mutex_);
  void ListQueued(const wire::InventoryRequest& request, wire::InventoryReply& reply);
  std::size_t ListZone(const std::vector<TierObject>& objects, std::size_t at,
                       const wire::InventoryRequest& request, wire::InventoryReply& reply);
  Status ListZones(const wire::InventoryRequest& request, std::int64_t deadline_ns,
                   wire::InventoryReply& reply);
  bool ReadZone(std::size_t disk, std::uint32_t number);
  void TellFromDisk(std::vector<InventoryItem>& items, std::size_t at_most);
  void UseTold(std::size_t disk, std::uint64_t era);
  bool DiskAway() const;
  Status StartDisks();
  HandedDisks HandOverDisks();
  Status StartThreads();
  struct SessionFile {
    Mapping map;
    UniqueFd fd;  // for a successor
  };
  template <typename T>
  struct Begun {
    std::vector<T> results;          // by item; kOk for those that wait
    std::vector<Pending> pending;    // what waits for the master
    std::vector<std::size_t> order;  // which items these are
  };
  // Until the token's generation is known here, the deadline, or the master is away.
  void AwaitGeneration(const Token& token, std::int64_t deadline_ns) KVCOVE_REQUIRES(mutex_);
  // `wait_ns`: until then for the token's generation.
  Begun<PutResult> BeginPut(SessionNumber session, const Token& token,
                            std::span<const PutItem> items, std::int64_t wait_ns);
  Begun<Code> Commit(SessionNumber session, std::span<const FinishItem> items);
  // Hands `pending` to the link; `done` gets the outcomes in its order.
  void Enqueue(std::vector<Pending> pending, std::function<void(std::span<const Code>)> done);
  // The outcomes, kNotListed where the deadline came first.
  std::vector<Code> AwaitListed(std::vector<Pending> pending, std::int64_t deadline_ns);
  void ListThen(std::vector<Pending> pending, std::int64_t deadline_ns, ListedWaits::Done done);
  // Of what waits to be listed, `gave_way` have given way to other puts since the last trim.
  void TrimOutbox(std::uint64_t& gave_way);
  Result<std::uint64_t> WalkMatching(const Token& token, std::string_view pattern,
                                     std::int64_t deadline_ns);
  void RunJanitor();
  void RunLease();
  // Before anybody else may write to what a put was given.
  void EnsurePopulated(std::span<const PutResult> results);
  // A log line, if something was voided.
  void SayVoided(const Core::Voided& voided) const;
  // A hint for requesters with several owners to choose from.
  void PublishRoom() KVCOVE_REQUIRES(mutex_);

  const OwnerOptions options_;
  const Clock& clock_;
  UniqueFd header_fd_;
  UniqueFd reader_fd_;  // of the same file
  UniqueFd payload_fd_;
  Mapping header_map_;
  Mapping payload_;
  std::string pages_description_;
  segment::HeaderView header_;
  std::optional<Populator> populator_;
  LogLimit unpopulated_;
  std::unique_ptr<TierSet> tiers_;  // if there are disks; before the core, which uses it
  // As many, once `disks_open_`; null where one could not be opened.
  std::vector<std::unique_ptr<Tier>> disks_;
  std::atomic<bool> disks_open_{false};
  std::shared_ptr<KnownDisks> known_disks_;
  TierPlace disk_place_;
  bool disks_paused_ = false;
  bool disk_hangs_ = false;  // a thread was left behind, that may use `tiers_` one day
  std::vector<std::size_t> hanging_disks_;  // that are not left alone yet
  HandedDisks handed_;                      // of the process that this one has taken over from
  std::vector<Id128> paused_disks_;  // HandedDisks::numbers, of this process or the one before it
  SessionNumber promoter_ = 0;
  std::vector<bool> said_aside_;  // by disk; the janitor's

  Mutex mutex_;
  CondVar published_;  // other generations are current
  std::unique_ptr<Core> core_ KVCOVE_GUARDED_BY(mutex_);
  std::unordered_map<SessionNumber, SessionFile> pages_ KVCOVE_GUARDED_BY(mutex_);

  std::vector<std::atomic<std::uint64_t>> slot_tenants_ =
      std::vector<std::atomic<std::uint64_t>>(kMaxSlots);
  std::atomic<std::uint64_t> applied_{0};
  // As of the janitor's last round, so that a renewal of the lease waits for no lock of the core.
  Mutex report_mutex_;
  wire::RenewRequest report_ KVCOVE_GUARDED_BY(report_mutex_);
  std::atomic<bool> draining_{false};
  std::atomic<bool> master_reachable_{true};
  std::atomic<bool> waits_end_ = false;
  ListedWaits listed_waits_;
  Mutex outbox_mutex_;
  CondVar outbox_changed_;
  std::deque<Listing> outbox_ KVCOVE_GUARDED_BY(outbox_mutex_);
  bool outbox_woken_ KVCOVE_GUARDED_BY(outbox_mutex_) = false;

  // ---- of a disk in a cluster
  std::string disk_directory_;
  UniqueFd disk_lock_;
  std::atomic<bool> disk_stops_{false};
  std::atomic<bool> link_ends_{false};
  Mutex disk_mutex_;
  CondVar disk_changed_;
  DiskState disk_state_ KVCOVE_GUARDED_BY(disk_mutex_) = DiskState::kSettled;
  OwnerFacts facts_ KVCOVE_GUARDED_BY(disk_mutex_);
  // What the disks hold counts no more, and the note may still name them.
  bool voids_ KVCOVE_GUARDED_BY(disk_mutex_) = false;
  std::string follow_error_ KVCOVE_GUARDED_BY(disk_mutex_);  // for the log
  bool starts_opener_ KVCOVE_GUARDED_BY(disk_mutex_) = false;
  LogLimit opener_refused_;
  std::thread opener_;  // joined once nobody starts it any more
  // What the master has published, until the disk is settled: before, nothing may be put, for the
  // disk may have it.
  bool holds_back_ KVCOVE_GUARDED_BY(mutex_) = false;
  Id128 held_incarnation_ KVCOVE_GUARDED_BY(mutex_);
  std::map<SlotId, SlotUpdate> held_ KVCOVE_GUARDED_BY(mutex_);
  // The removal lane's: removed keys whose tombstones are not proven yet.
  std::shared_ptr<DisksRemoval> unproven_;
  // Of the lane that routes: what is left of the zone that is told.
  std::vector<TierObject> zone_objects_;
  std::size_t zone_told_ = 0;
  std::atomic<bool> rereads_zones_{false};  // a walk over them begins anew
  bool zone_returns_ = false;               // its disk was set aside
  // By disk that is being told: the era in which the walk has come to its first zone.
  std::vector<std::optional<std::uint64_t>> told_eras_;
  // The same of walks that have ended.
  std::vector<std::optional<std::uint64_t>> ended_eras_ KVCOVE_GUARDED_BY(disk_mutex_);

  Mutex stop_mutex_;
  CondVar stop_changed_;
  bool stopping_ KVCOVE_GUARDED_BY(stop_mutex_) = true;
  bool frozen_ KVCOVE_GUARDED_BY(stop_mutex_) = false;      // no threads but the lease's
  bool lease_over_ KVCOVE_GUARDED_BY(stop_mutex_) = false;  // not that one either
  std::thread janitor_;
  std::thread lease_;
};

}  // namespace kvcove::owner
