// SPDX-License-Identifier: Apache-2.0
// All disks below an owner's memory, as one tier; an owner without disks has none in it. Each has a
// log, a thread, a queue and fences of its own (owner/disk/tiering.h), so one that is slow, hangs
// or breaks slows no other.
//
// Each key lies on one disk, which its share names (segment/tier_table.h), so whatever concerns a
// key asks one disk. A reset, and a removal by pattern, concern all. The rules of what goes down,
// and their write rate, are the owner's.
//
// Threads. As Tiering: "under the owner's lock" below, else thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvcove/owner/disk/disk_shared.h"
#include "kvcove/owner/disk/tiering.h"

namespace kvcove::owner {

// One call that brings keys up, from all disks.
struct LoadCall {
  // What its parts write to: complete when the last part is.
  struct Answer {
    std::vector<wire::LoadResult> results;
    std::function<void(std::vector<wire::LoadResult>)> done;
    std::atomic<std::size_t> open{1};  // parts without an answer, and the call, until Begin
    void EndPart();
  };
  std::int64_t deadline_ns = 0;
  SessionNumber session = 0;
  std::int64_t hold_until_ns = 0;
  std::shared_ptr<Answer> answer = std::make_shared<Answer>();
  // Of DiskSet, by disk:
  struct Part {
    std::shared_ptr<LoadBatch> batch;  // null: no key is on this disk
    std::vector<std::size_t> places;   // of its keys, in the answer
  };
  std::vector<Part> parts;
};

// A removal from all disks that it concerns.
struct DisksRemoval {
  bool collect = false;  // the keys that a pattern matched
  // Null: the disk has no part in it, or has missed it.
  std::vector<std::shared_ptr<TierRemoval>> parts;
  // Once it is proven:
  std::uint64_t removed() const;
  std::vector<std::string> TakeKeys();
};

class DiskSet final : public LowerTier {
 public:
  // `each`: of one disk.
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
  // Once, before any disk is on; each share is one disk's.
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
  // Any disk may get what is evicted.
  std::uint64_t SpareBytes() const override;
  void Stored(SlotId slot, Generation generation, std::string_view key,
              const policy::PutEvent& event, bool comes_up) override {
    Of(slot, generation, key).Stored(slot, generation, key, event, comes_up);
  }
  void Asked(policy::ObjectId id) override { common_.rules.OnHit(id); }
  void Forgotten(policy::ObjectId id) override { common_.rules.OnRemove(id); }
  void SetSlots(const std::vector<SlotUpdate>& updates);
  // The key at `index` of the call. False: it is not on a disk, `results` says why not.
  bool AddLoad(LoadCall& call, std::size_t index, const Load& wanted);
  void Remove(SlotId slot, Generation generation, std::span<const std::string_view> keys,
              DisksRemoval& removal);
  void BeginMatching(SlotId slot, std::string_view pattern);
  void RemoveMatching(SlotId slot, Generation generation, std::string_view pattern,
                      DisksRemoval& removal);
  void EndMatching(SlotId slot, std::string_view pattern);

  // ---- without a lock
  // The call is complete. Answers at once what waits for nothing.
  void Begin(LoadCall& call);
  // Nobody waits for it any more: `done` is not called.
  void Cancel(LoadCall& call);
  void EndLoads();
  // Of the namespaces and tenants that have a quota or a bandwidth, all disks together.
  std::vector<DiskShareStat> ShareStats() const;

 private:
  std::size_t IndexOf(SlotId slot, Generation generation, std::string_view key) const;
  TierRemoval& PartOf(DisksRemoval& removal, std::size_t disk) const;

  DiskShared common_;
  std::vector<std::unique_ptr<Tiering>> disks_;
  std::array<std::atomic<std::uint8_t>, segment::kTierShares> disk_of_{};
};

}  // namespace kvcove::owner
