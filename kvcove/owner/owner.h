// SPDX-License-Identifier: Apache-2.0
// The owner of one host's memory: the segment's files, the lock around its `Core`, and the thread
// that does what happens by itself. Thread-safe.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>

#include "kvcove/base/mutex.h"
#include "kvcove/base/posix.h"
#include "kvcove/owner/core.h"
#include "kvcove/owner/data_store.h"
#include "kvcove/owner/link_target.h"

namespace kvcove::owner {

struct OwnerOptions {
  std::uint64_t memory_bytes = 0;  // of payload, 1 MiB to segment::kMaxPayloadBytes
  std::uint64_t max_objects = 0;   // 0: one per 512 bytes of payload, at most 2^27
  std::string policy = "default";
  std::unordered_map<std::string, Quota> quotas;
  bool populate = true;  // in the background, so that puts meet no page faults
  std::int64_t lease_ns = kSecond;
  std::int64_t lease_renewal_ns = 250 * kMillisecond;
  // Several tenants share this memory.
  bool tenants = false;
  // A master elsewhere gives the lease and lists what is stored (owner/link.h).
  bool cluster = false;
};

class Owner final : public LinkTarget, public DataStore {
 public:
  // Errors: kInvalid when the host cannot give the memory, or for an unknown policy; kInternal.
  static Result<std::unique_ptr<Owner>> Open(const OwnerOptions& options, const Clock& clock);
  ~Owner() override;

  // Starts the lease and the background thread.
  void Start();
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
  // Answers when the master has; from any thread.
  void FinishThen(SessionNumber session, std::span<const FinishItem> items,
                  std::function<void(std::vector<Code>)> done) override;
  // Never waits for the master: reservations only. `evict` false: nothing makes room for them. A
  // draining owner takes nothing.
  std::vector<PutResult> Reserve(SessionNumber session, const Token& token,
                                 std::span<const PutItem> items, bool evict = true) override;
  std::vector<Loan> Lend(const Token& token, std::span<const std::string_view> keys) override;
  std::vector<std::optional<CopyLoan>> LendForCopy(std::span<const wire::CopyRequest::Item> items);
  void Return(std::span<const Loan> loans) override;
  void SetChecksum(const Loan& loan, std::uint64_t checksum) override;
  bool LeaseHolds() const override { return LeaseUntilNs() > clock_.NowNs(); }
  bool Awaits(const Token& token) override;

  // ---- LinkTarget
  void SetHidden(const std::vector<SlotId>& slots) override;
  void SetLease(std::int64_t deadline_ns) override;
  void SetMasterReachable(bool reachable) override { master_reachable_ = reachable; }
  // False: a listing is not worth waiting for.
  bool MasterReachable() const override { return master_reachable_; }
  void SetDraining(bool draining) override { draining_ = draining; }
  wire::RenewRequest Report() override;
  std::uint64_t capacity_bytes() const override { return payload_.size(); }
  std::uint64_t ApplyRemoval(const wire::Removal& removal) override;
  void DropSlot(SlotId slot) override;
  void SetApplied(std::uint64_t number) override;
  std::vector<Listing> TakeListings(std::size_t at_most_items) override;
  void ReturnListings(std::vector<Listing> listings) override;
  void CompleteListing(Listing listing, std::span<const Code> codes) override;
  std::vector<wire::ListItem> TakeGone(std::size_t at_most) override;
  bool TakeGoneOverflow() override;
  std::vector<InventoryItem> Inventory(ObjectId& cursor, std::size_t at_most) override;
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
  wire::InventoryReply Page(const wire::InventoryRequest& request);
  // These name the generation that they mean: kStale for each key under another one.
  std::vector<Code> Remove(const Token& token, std::span<const std::string_view> keys);
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
  int header_fd() const { return header_fd_.get(); }
  int payload_fd() const { return payload_fd_.get(); }
  segment::HeaderView header() const { return header_; }
  std::byte* payload() const override { return payload_.data(); }
  std::uint64_t header_bytes() const { return header_map_.size(); }
  std::uint64_t payload_bytes() const { return payload_.size(); }

 private:
  explicit Owner(const OwnerOptions& options, const Clock& clock)
      : options_(options), clock_(clock) {}
  Status MakeFiles();
  struct Committed {
    std::vector<Code> codes;         // by item; kOk for those that wait
    std::vector<Pending> pending;    // what waits for the master
    std::vector<std::size_t> order;  // which items these are
  };
  // Until the token's generation is known here, the deadline, or the master is away.
  void AwaitGeneration(const Token& token, std::int64_t deadline_ns) KVCOVE_REQUIRES(mutex_);
  Committed Commit(SessionNumber session, std::span<const FinishItem> items);
  // Hands `pending` to the link; `done` gets the outcomes in its order.
  void Enqueue(std::vector<Pending> pending, std::function<void(std::span<const Code>)> done);
  // The outcomes, kNotListed where the deadline came first.
  std::vector<Code> AwaitListed(std::vector<Pending> pending, std::int64_t deadline_ns);
  // Of what waits to be listed, `gave_way` have given way to other puts since the last trim.
  void TrimOutbox(std::uint64_t& gave_way);
  void RunJanitor();
  void RunLease();
  void RunPopulate();

  const OwnerOptions options_;
  const Clock& clock_;
  UniqueFd header_fd_;
  UniqueFd payload_fd_;
  Mapping header_map_;
  Mapping payload_;
  segment::HeaderView header_;

  Mutex mutex_;
  CondVar published_;  // other generations are current
  std::unique_ptr<Core> core_ KVCOVE_GUARDED_BY(mutex_);
  std::unordered_map<SessionNumber, Mapping> pages_ KVCOVE_GUARDED_BY(mutex_);

  std::vector<std::atomic<std::uint64_t>> slot_tenants_ =
      std::vector<std::atomic<std::uint64_t>>(kMaxSlots);
  std::atomic<std::uint64_t> applied_{0};
  // As of the janitor's last round, so that a renewal of the lease waits for no lock of the core.
  Mutex report_mutex_;
  wire::RenewRequest report_ KVCOVE_GUARDED_BY(report_mutex_);
  std::atomic<bool> draining_{false};
  std::atomic<bool> master_reachable_{true};
  Mutex outbox_mutex_;
  CondVar outbox_changed_;
  std::deque<Listing> outbox_ KVCOVE_GUARDED_BY(outbox_mutex_);
  bool outbox_woken_ KVCOVE_GUARDED_BY(outbox_mutex_) = false;

  Mutex stop_mutex_;
  CondVar stop_changed_;
  bool stopping_ KVCOVE_GUARDED_BY(stop_mutex_) = true;
  std::thread janitor_;
  std::thread lease_;
  std::thread populate_;
};

}  // namespace kvcove::owner
