// SPDX-License-Identifier: Apache-2.0
#include "lab/policy/two_tiers.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "kvcove/base/random.h"
#include "lab/policy/zone_log.h"

namespace kvcove::lab {
namespace {

constexpr std::uint32_t kNoBlock = PolicyBlocks::kNoBlock;

policy::WriteFilterOptions OptionsOf(const TwoTierOptions& options) {
  policy::WriteFilterOptions admission = options.admission;
  admission.tier_bytes = options.disk_blocks;
  return admission;
}

class TwoTiers {
 public:
  TwoTiers(const TwoTierOptions& options, std::unique_ptr<policy::EvictionPolicy> memory,
           std::unique_ptr<policy::EvictionPolicy> disk)
      : options_(options),
        memory_(std::move(memory)),
        disk_(std::move(disk)),
        admission_(OptionsOf(options)) {
    if (options.zones) log_.emplace(ZoneLogOptions{options.disk_blocks, options.moves});
  }

  void Request(const Chain& chain);
  TwoTierCount count() const {
    TwoTierCount count = count_;
    count.moved = log_ ? log_->moved() : 0;
    return count;
  }

 private:
  // What is known of a block that is in a tier.
  struct Facts {
    std::uint32_t parent = kNoBlock;
    bool used = false;  // asked for at least twice
    bool on_disk = false;
    bool brief = false;  // what admission says of it
  };
  bool Admits() const { return options_.descent == Descent::kAdmitted; }
  bool Judges() const { return Admits() || options_.moves; }
  bool Worth(std::uint32_t block, Facts& facts);
  void MakeRoom();
  void TakeOff(std::uint32_t block);
  bool Apart() const { return options_.descent == Descent::kApart; }
  bool Present(std::uint32_t block) const { return facts_.contains(block); }
  bool OnDisk(std::uint32_t block) const {
    const auto at = facts_.find(block);
    return at != facts_.end() && at->second.on_disk;
  }
  void Ask(std::uint32_t block, std::uint32_t parent);
  void Descend(std::uint32_t block);
  void Write(std::uint32_t block);
  void Forget(std::uint32_t block);
  void WriteArrivals();

  const TwoTierOptions& options_;
  PolicyBlocks memory_;
  PolicyBlocks disk_;  // unless apart: what is in either tier
  std::unordered_map<std::uint32_t, Facts> facts_;
  std::uint32_t asked_ = kNoBlock;  // it is read already, wherever it was
  std::uint64_t on_disk_ = 0;
  std::optional<ZoneLog> log_;           // with zones: what is on the disk
  policy::WriteFilter admission_;        // knows blocks by their numbers
  std::vector<std::uint32_t> arrivals_;  // apart: given up by memory during this request
  TwoTierCount count_;
};

void TwoTiers::Request(const Chain& chain) {
  if (chain.empty()) return;
  std::size_t found = 0;
  for (; found < chain.size() && Present(chain[found]); ++found) {
    if (memory_.Has(chain[found])) ++count_.memory_hits;
  }
  count_.together.hit_blocks += found;
  count_.together.blocks += chain.size();
  std::uint32_t parent = kNoBlock;
  for (const std::uint32_t block : chain) {
    Ask(block, parent);
    parent = block;
  }
  memory_.EndRequest(chain.back(), {});
  disk_.EndRequest(chain.back(), {});
  if (Apart()) WriteArrivals();
}

// Reads or stores one block; it is in memory then.
void TwoTiers::Ask(std::uint32_t block, std::uint32_t parent) {
  const auto [at, fresh] = facts_.try_emplace(block, Facts{.parent = parent});
  const bool returned = at->second.on_disk;
  if (returned && log_ && !memory_.Has(block)) log_->Read(block);
  asked_ = block;
  if (!fresh) at->second.used = true;
  if (Apart()) {
    if (at->second.on_disk) disk_.Hit(block);
  } else if (disk_.Has(block)) {
    disk_.Hit(block);
  } else {
    disk_.Put(block, parent);
  }
  if (memory_.Has(block)) {
    memory_.Hit(block);
    if (Judges()) admission_.OnHit(block);
    return;
  }
  if (memory_.size() >= options_.memory_blocks) {
    const std::uint32_t victim = memory_.Victim([](std::uint32_t) { return true; });
    memory_.Evict(victim);
    Descend(victim);
  }
  memory_.Put(block, parent);
  if (Judges()) {
    // What comes up is stored by itself, without what it stands behind.
    admission_.OnPut({.id = block,
                      .key = Mix64(block),
                      .size_bytes = 1,
                      .parent = returned || parent == kNoBlock ? policy::kNoObject : parent},
                     returned);
  }
  if (options_.descent == Descent::kStored && !OnDisk(block)) Write(block);
}

// Memory has given it up.
void TwoTiers::Descend(std::uint32_t block) {
  Facts& facts = facts_.at(block);
  ++count_.evicted;
  if (!Worth(block, facts)) return Forget(block);
  if (facts.on_disk) return;
  if (Apart()) {
    arrivals_.push_back(block);
  } else if (options_.descent == Descent::kStored ||
             (options_.descent == Descent::kUsed && !facts.used)) {
    Forget(block);
  } else {
    Write(block);
  }
}

bool TwoTiers::Worth(std::uint32_t block, Facts& facts) {
  if (!Judges()) return true;
  if (facts.on_disk) {
    admission_.OnKept(block, Mix64(block));
    return true;
  }
  const policy::Verdict verdict = admission_.Judge(block, Mix64(block));
  facts.brief = verdict.brief;
  return verdict.worth || !Admits();
}

void TwoTiers::TakeOff(std::uint32_t block) {
  facts_.at(block).on_disk = false;
  --on_disk_;
  if (Apart()) disk_.Evict(block);
  if (!memory_.Has(block) && block != asked_) Forget(block);
}

// A zone's worth.
void TwoTiers::MakeRoom() {
  const auto in_memory = [&](std::uint32_t block) { return memory_.Has(block); };
  for (const std::uint32_t block : log_->FreeZone(in_memory)) TakeOff(block);
}

void TwoTiers::Write(std::uint32_t block) {
  while (log_ && log_->full()) MakeRoom();
  if (on_disk_ >= options_.disk_blocks) {
    const bool compare = options_.descent == Descent::kWorth;
    const std::uint32_t victim =
        disk_.Victim([&](std::uint32_t at) { return OnDisk(at) || (compare && at == block); });
    if (victim == kNoBlock || victim == block) {
      if (!memory_.Has(block)) Forget(block);
      return;
    }
    TakeOff(victim);
  }
  Facts& facts = facts_.at(block);
  if (Apart()) disk_.Put(block, facts.parent);
  facts.on_disk = true;
  ++on_disk_;
  ++count_.written;
  if (log_) log_->Write(block, facts.brief);
  if (Judges()) admission_.OnWritten(1);
}

// It is in no tier any more.
void TwoTiers::Forget(std::uint32_t block) {
  facts_.erase(block);
  if (disk_.Has(block)) disk_.Evict(block);
}

// Memory gives up chains from their ends: turned round, they are chains again.
void TwoTiers::WriteArrivals() {
  std::ranges::reverse(arrivals_);
  for (std::size_t i = 0; i < arrivals_.size(); ++i) {
    // A later block of the same request may have brought it back.
    if (!Present(arrivals_[i]) || OnDisk(arrivals_[i])) continue;
    Write(arrivals_[i]);
    const auto next = i + 1 < arrivals_.size() ? facts_.find(arrivals_[i + 1]) : facts_.end();
    if (next == facts_.end() || next->second.parent != arrivals_[i]) {
      disk_.EndRequest(arrivals_[i], {});
    }
  }
  arrivals_.clear();
}

}  // namespace

Result<TwoTierCount> SimulateTwoTiers(const TwoTierOptions& options,
                                      std::span<const Chain> requests) {
  if (options.memory_blocks == 0 || options.disk_blocks == 0) {
    return Fail(Code::kInvalid, "two tiers: give each of them at least one block");
  }
  KVCOVE_ASSIGN(auto memory, MakeSimulatedPolicy(options.memory_policy, options.memory_blocks));
  KVCOVE_ASSIGN(auto disk, MakeSimulatedPolicy(options.disk_policy,
                                               options.descent == Descent::kApart
                                                   ? options.disk_blocks
                                                   : options.memory_blocks + options.disk_blocks));
  TwoTiers tiers(options, std::move(memory), std::move(disk));
  for (const Chain& chain : requests) tiers.Request(chain);
  return tiers.count();
}

}  // namespace kvcove::lab
