// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/disk/disk_set.h"

#include <algorithm>
#include <bit>
#include <iterator>

namespace kvcove::owner {

std::uint64_t DisksRemoval::removed() const {
  std::uint64_t all = 0;
  for (const auto& part : parts) all += part == nullptr ? 0 : part->removed;
  return all;
}

std::vector<std::string> DisksRemoval::TakeKeys(std::size_t at_most) {
  std::vector<std::string> keys;
  for (const auto& part : parts) {
    if (part == nullptr) continue;
    const std::size_t left = part->keys.size() - std::min(at_most - keys.size(), part->keys.size());
    std::move(part->keys.begin() + static_cast<std::ptrdiff_t>(left), part->keys.end(),
              std::back_inserter(keys));
    part->keys.resize(left);
  }
  return keys;
}

DiskSet::DiskSet(std::size_t disks, const TieringOptions& each, const DemotionOptions& demotions,
                 const segment::HeaderView& header, const segment::Payload& payload,
                 const Clock& clock)
    : common_(header.tier(), demotions, each.quotas, clock.NowNs()) {
  for (std::size_t i = 0; i < disks; ++i) {
    disks_.push_back(std::make_unique<Tiering>(each, common_, header, payload, clock));
  }
}

void DiskSet::SetShares(std::span<const std::uint64_t> shares) {
  for (std::size_t i = 0; i < shares.size(); ++i) {
    disks_[i]->SetShares(shares[i]);
    for (std::uint64_t left = shares[i]; left != 0; left &= left - 1) {
      disk_of_[static_cast<std::size_t>(std::countr_zero(left))] = static_cast<std::uint8_t>(i);
    }
  }
}

// Takes the share from the tag, as readers of the shared table do, so both find the key at one
// disk.
std::size_t DiskSet::IndexOf(SlotId slot, Generation generation, std::string_view key) const {
  const Id128 hash = segment::TierHash(common_.tags.seed(), slot, key);
  const std::uint64_t share = segment::ShareOf(segment::TierTag(hash, generation));
  return disk_of_[static_cast<std::size_t>(std::countr_zero(share))];
}

std::uint64_t DiskSet::SpareBytes() const {
  std::uint64_t least = ~std::uint64_t{0};
  for (const auto& disk : disks_) least = std::min(least, disk->SpareBytes());
  return least;
}

void DiskSet::SetSlots(const std::vector<SlotUpdate>& updates) {
  for (const auto& disk : disks_) disk->removals().SetSlots(updates);
}

bool DiskSet::AddLoad(LoadCall& call, std::size_t index, const Load& wanted) {
  const std::size_t disk =
      disks_.size() == 1 ? 0 : IndexOf(wanted.slot, wanted.generation, wanted.key);
  call.parts.resize(disks_.size());
  LoadCall::Part& part = call.parts[disk];
  if (part.batch == nullptr) {
    part.batch = std::make_shared<LoadBatch>();
    part.batch->deadline_ns = call.deadline_ns;
    part.batch->session = call.session;
    part.batch->hold_until_ns = call.hold_until_ns;
  }
  part.places.push_back(index);
  return disks_[disk]->loads().Add(part.batch, wanted);
}

// Each part writes to elements of its own. The decrement (acq_rel) makes these writes visible to
// the last part, which passes all results on.
void LoadCall::Answer::EndPart() {
  if (open.fetch_sub(1, std::memory_order_acq_rel) == 1) done(std::move(results));
}

void DiskSet::Begin(LoadCall& call) {
  for (std::size_t i = 0; i < call.parts.size(); ++i) {
    LoadCall::Part& part = call.parts[i];
    if (part.batch == nullptr) continue;
    // Relaxed: the call's own count keeps `open` above 0 until the EndPart below.
    call.answer->open.fetch_add(1, std::memory_order_relaxed);
    part.batch->done = [answer = call.answer, places = std::move(part.places)](
                           const std::vector<wire::LoadResult>& results) {
      for (std::size_t at = 0; at < places.size(); ++at) answer->results[places[at]] = results[at];
      answer->EndPart();
    };
    disks_[i]->loads().Begin(part.batch);
  }
  call.answer->EndPart();
}

void DiskSet::Cancel(LoadCall& call) {
  for (std::size_t i = 0; i < call.parts.size(); ++i) {
    if (call.parts[i].batch != nullptr) disks_[i]->loads().Cancel(call.parts[i].batch);
  }
}

void DiskSet::EndLoads() {
  for (const auto& disk : disks_) disk->loads().End();
}

bool DiskSet::Any(bool (DiskState::*is)() const) const {
  return std::ranges::any_of(disks_,
                             [is](const auto& disk) { return (disk->use().state().*is)(); });
}

// ---- removals

TierRemoval& DiskSet::PartOf(DisksRemoval& removal, std::size_t disk) const {
  removal.parts.resize(disks_.size());
  auto& part = removal.parts[disk];
  if (part == nullptr) {
    part = std::make_shared<TierRemoval>();
    part->collect = removal.collect;
  }
  return *part;
}

void DiskSet::Remove(SlotId slot, Generation generation, std::span<const std::string_view> keys,
                     DisksRemoval& removal) {
  if (disks_.empty()) return;
  // Gives each disk all of its keys in one order, so they share tombstone writes and one sync.
  std::vector<std::vector<std::string_view>> of(disks_.size());
  for (const std::string_view key : keys) {
    of[disks_.size() == 1 ? 0 : IndexOf(slot, generation, key)].push_back(key);
  }
  for (std::size_t i = 0; i < disks_.size(); ++i) {
    if (of[i].empty()) continue;
    (void)PartOf(removal, i);
    disks_[i]->removals().Remove(slot, generation, of[i], removal.parts[i]);
  }
}

void DiskSet::BeginMatching(SlotId slot, std::string_view pattern) {
  for (const auto& disk : disks_) disk->removals().BeginMatching(slot, pattern);
}

void DiskSet::RemoveMatching(SlotId slot, Generation generation, std::string_view pattern,
                             DisksRemoval& removal) {
  for (std::size_t i = 0; i < disks_.size(); ++i) {
    (void)PartOf(removal, i);
    disks_[i]->removals().RemoveMatching(slot, generation, pattern, removal.parts[i]);
  }
}

void DiskSet::EndMatching(SlotId slot, std::string_view pattern) {
  for (const auto& disk : disks_) disk->removals().EndMatching(slot, pattern);
}

std::size_t DiskSet::Patterns() const {
  std::size_t most = 0;
  for (const auto& disk : disks_) most = std::max(most, disk->removals().Patterns());
  return most;
}

// ---- figures

std::vector<DiskShareStat> DiskSet::ShareStats() const {
  std::vector<DiskShareStat> shares;
  for (const auto& [name, quota] : common_.quotas) {
    shares.push_back({.name = name,
                      .maximum_bytes = quota.maximum_bytes,
                      .guaranteed_bytes = quota.guaranteed_bytes,
                      .read_rate = quota.read_rate,
                      .write_rate = quota.write_rate});
  }
  for (const auto& disk : disks_) {
    const std::vector<ShareFigures> here = disk->ByShare();
    for (std::size_t i = 0; i < std::min(here.size(), shares.size()); ++i) {
      shares[i].bytes += here[i].held_bytes;
      shares[i].read_bytes += here[i].read_bytes;
    }
  }
  return shares;
}

}  // namespace kvcove::owner
