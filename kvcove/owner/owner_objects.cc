// SPDX-License-Identifier: Apache-2.0
// An owner's calls on objects by their keys: pins and statistics. In slices, so that no call holds
// the lock for long.
#include <fmt/core.h>

#include <algorithm>

#include "kvcove/base/interrupt.h"
#include "kvcove/base/log.h"
#include "kvcove/base/size.h"
#include "kvcove/owner/owner.h"

namespace kvcove::owner {
// Called by the janitor and by Stop, not by the thread that publishes a generation: that one may
// hold locks. The line shows an operator whether a reset was of the namespace that has values.
void Owner::SayVoided(const Core::Voided& voided) const {
  if (!options_.log_resets || (voided.resets == 0 && voided.objects == 0)) return;
  const char* const disks = !disks_.none() ? ", and what its disks hold of them" : "";
  const std::string what = fmt::format("{} values ({}) of this host's memory are void{}",
                                       voided.objects, FormatSize(voided.bytes), disks);
  if (voided.resets == 0) return LogInfo("generations that ended without a reset: {}", what);
  const std::string more =
      voided.resets > 1 ? fmt::format(" and {} more", voided.resets - 1) : std::string();
  LogInfo("reset of '{}'{}: {}", ReadableName(voided.name), more, what);
}

std::vector<Code> Owner::Pin(const Token& token, std::span<const std::string_view> keys,
                             const Pinning& pinning, std::int64_t deadline_ns) {
  std::vector<Code> codes;
  codes.reserve(keys.size());
  for (std::size_t begin = 0; begin < keys.size(); begin += Memory::kSlice) {
    if (begin > 0 && LeftNs(deadline_ns, clock_) <= 0) break;
    // Checked in each hold: a reset may come between two slices, and Pin acts on the slot's current
    // generation, whichever that is.
    const MutexLock lock(memory_->mutex);
    const Code current = memory_->core().CheckToken(token);
    for (const std::string_view key :
         keys.subspan(begin, std::min(Memory::kSlice, keys.size() - begin))) {
      if (current != Code::kOk) {
        codes.push_back(current);
      } else {
        codes.push_back(
            pinning.kind ? memory_->core().Pin(token.slot, key, *pinning.kind, pinning.duration_ns)
                         : memory_->core().Unpin(token.slot, key));
      }
    }
  }
  codes.resize(keys.size(), Code::kTimeout);
  return codes;
}

Result<std::vector<std::optional<ObjectStat>>> Owner::StatObjects(
    const Token& token, std::span<const std::string_view> keys, std::int64_t deadline_ns) {
  std::vector<std::optional<ObjectStat>> stats;
  stats.reserve(keys.size());
  for (std::size_t begin = 0; begin < keys.size(); begin += Memory::kSlice) {
    if (begin > 0 && LeftNs(deadline_ns, clock_) <= 0) {
      return Fail(Code::kTimeout, fmt::format("{} of {} keys were looked at; ask for fewer at once",
                                              begin, keys.size()));
    }
    const MutexLock lock(memory_->mutex);
    if (begin == 0) memory_->core().DrainEvents();
    const bool current = memory_->core().CheckToken(token) == Code::kOk;
    for (const std::string_view key :
         keys.subspan(begin, std::min(Memory::kSlice, keys.size() - begin))) {
      stats.push_back(current ? memory_->core().StatObject(token.slot, key) : std::nullopt);
    }
  }
  return stats;
}

void Owner::TakeKeyChanges(KeyChanges::Batch& into, bool all) {
  const MutexLock lock(memory_->mutex);
  memory_->core().TakeKeyChanges(into, all);
}

std::uint64_t Owner::DiskTag(SlotId slot, Generation generation, std::string_view key) const {
  if (disks_.none() || generation == 0) return 0;
  const std::uint64_t seed = disks_.set().common().tags.seed();
  const std::uint64_t tag = segment::TierTag(segment::TierHash(seed, slot, key), generation);
  return DiskHas(tag) ? tag : 0;
}

}  // namespace kvcove::owner
