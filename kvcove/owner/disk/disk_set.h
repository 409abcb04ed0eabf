// SPDX-License-Identifier: Apache-2.0
// All disks below an owner's memory, as one tier; an owner without disks has an empty set. Each
// disk has a log, a thread, a queue and fences of its own (owner/tier/tiering.h), so a disk that is
// slow, hangs or breaks does not slow the others.
//
// Each key is on one disk, which its share names (segment/tier_table.h), so a call that concerns a
// key asks one disk. Resets and removals by pattern concern all disks. The rules of demotion and
// the write rate are the owner's.
//
// Threads. As Tiering: calls in the section "under the owner's lock" need that lock; the others are
// thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvcove/owner/disk/strikes.h"
#include "kvcove/owner/tier/disk_shared.h"
#include "kvcove/owner/tier/tiering.h"

namespace kvcove::owner {

// One call that promotes keys, from all disks.
struct LoadCall {
  // The result of the call, to which each part writes: complete when the last part is.
  struct Answer {
    std::vector<wire::LoadResult> results;
    std::function<void(std::vector<wire::LoadResult>)> done;
    std::atomic<std::size_t> open{1};  // parts without an answer; one more until Begin
    // Ends a part. The last one calls `done`.
    void EndPart();
  };
  std::int64_t deadline_ns = 0;
  SessionNumber session = 0;
  std::int64_t hold_until_ns = 0;
  std::shared_ptr<Answer> answer = std::make_shared<Answer>();
  // Set by DiskSet, by disk:
  struct Part {
    std::shared_ptr<LoadBatch> batch;  // null: no key is on this disk
    std::vector<std::size_t> places;   // indices of its keys in the answer
  };
  std::vector<Part> parts;
};

// A removal from all disks that it concerns.
struct DisksRemoval {
  bool collect = false;  // whether to collect the keys that a pattern matches
  // By disk. Null: the disk has no part in the removal, or is struck because it has missed its
  // part.
  std::vector<std::shared_ptr<TierRemoval>> parts;
  // By disk, once one has missed its part: the strike that was begun for that.
  std::vector<std::shared_ptr<const Strike>> strikes;
  // Once the removal is proven: returns the number of removed objects.
  std::uint64_t removed() const;
  // Once it is proven: returns up to `at_most` of the collected keys, and forgets these.
  std::vector<std::string> TakeKeys(std::size_t at_most = ~std::size_t{0});
};

class DiskSet final : public LowerTier {
 public:
  // `each`: the options of every disk.
  DiskSet(std::size_t disks, const TieringOptions& each, const DemotionOptions& demotions,
          const segment::HeaderView& header, const segment::Payload& payload, const Clock& clock);

  std::size_t size() const { return disks_.size(); }
  Tiering& operator[](std::size_t disk) { return *disks_[disk]; }
  const Tiering& operator[](std::size_t disk) const { return *disks_[disk]; }
  // Returns the key's disk. There is at least one.
  Tiering& Of(SlotId slot, Generation generation, std::string_view key) const {
    return *disks_[disks_.size() == 1 ? 0 : IndexOf(slot, generation, key)];
  }
  DiskShared& common() { return common_; }
  const DiskShared& common() const { return common_; }
  // Divides the shares among the disks, once, before any disk is on.
  void SetShares(std::span<const std::uint64_t> shares);

  // ---- under the owner's lock
  bool Holds(SlotId slot, Generation generation, std::string_view key) const override {
    return !disks_.empty() && Of(slot, generation, key).Holds(slot, generation, key);
  }
  bool Covers(SlotId slot, Generation generation, std::string_view key) override {
    return Of(slot, generation, key).Covers(slot, generation, key);
  }
  bool Evicted(const EvictedObject& object) override {
    return Of(object.slot, object.generation, object.key).Evicted(object);
  }
  // Returns the least of all disks: the value that is evicted next may belong to any of them.
  std::uint64_t SpareBytes() const override;
  void Stored(SlotId slot, Generation generation, std::string_view key,
              const policy::PutEvent& event, bool comes_up) override {
    Of(slot, generation, key).Stored(slot, generation, key, event, comes_up);
  }
  void Asked(policy::ObjectId id) override { common_.rules.OnHit(id); }
  void Forgotten(policy::ObjectId id) override { common_.rules.OnRemove(id); }
  void SetSlots(const std::vector<SlotUpdate>& updates);
  // Adds the key at `index` of the call. False: the key is not on a disk; the result says why.
  bool AddLoad(LoadCall& call, std::size_t index, const Load& wanted);
  void Remove(SlotId slot, Generation generation, std::span<const std::string_view> keys,
              DisksRemoval& removal);
  void BeginMatching(SlotId slot, std::string_view pattern);
  void RemoveMatching(SlotId slot, Generation generation, std::string_view pattern,
                      DisksRemoval& removal);
  void EndMatching(SlotId slot, std::string_view pattern);

  // ---- without a lock
  // Completes the call. Answers at once if the call waits for nothing.
  void Begin(LoadCall& call);
  // Withdraws a call for which no caller waits: `done` is not called.
  void Cancel(LoadCall& call);
  // Answers every load before it returns.
  void EndLoads();
  // Returns true if the state of some disk `is` so, such as &DiskState::away.
  bool Any(bool (DiskState::*is)() const) const;
  // Returns how many removals by pattern are under way, at the disk with the most.
  std::size_t Patterns() const;
  // Returns, for each namespace or tenant with a quota or a bandwidth, its figures of all disks
  // together.
  std::vector<DiskShareStat> ShareStats() const;

 private:
  std::size_t IndexOf(SlotId slot, Generation generation, std::string_view key) const;
  TierRemoval& PartOf(DisksRemoval& removal, std::size_t disk) const;

  DiskShared common_;
  std::vector<std::unique_ptr<Tiering>> disks_;
  // By share. Atomic: in a cluster, disks open while other threads look keys up.
  std::array<std::atomic<std::uint8_t>, segment::kTierShares> disk_of_{};
};

}  // namespace kvcove::owner
