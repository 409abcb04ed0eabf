// SPDX-License-Identifier: Apache-2.0
// What an owner does with objects by their keys: removals, pins, what is known of them. In slices,
// so that no call holds the lock for long.
#include <fmt/core.h>

#include <algorithm>
#include <thread>

#include "kvcove/base/interrupt.h"
#include "kvcove/base/log.h"
#include "kvcove/base/size.h"
#include "kvcove/owner/owner.h"

namespace kvcove::owner {
namespace {

std::unexpected<Error> StaleRemoval() {
  return Fail(Code::kStale, "the generation is not the current one; register again");
}

}  // namespace

// The janitor's: who publishes a generation may hold locks of its own. An operator sees by it that
// a reset was of another namespace than the one that has values.
void Owner::SayVoided(const Core::Voided& voided) const {
  if (!options_.says_resets || (voided.resets == 0 && voided.objects == 0)) return;
  const char* const disks = has_disk() ? ", and what its disks hold of them" : "";
  const std::string what = fmt::format("{} values ({}) of this host's memory are void{}",
                                       voided.objects, FormatSize(voided.bytes), disks);
  if (voided.resets == 0) return LogInfo("generations that ended without a reset: {}", what);
  const std::string more =
      voided.resets > 1 ? fmt::format(" and {} more", voided.resets - 1) : std::string();
  LogInfo("reset of '{}'{}: {}", ReadableName(voided.name), more, what);
}

void Owner::LetOthersIn() { std::this_thread::sleep_for(std::chrono::nanoseconds(kTurnNs)); }

std::vector<Code> Owner::Remove(const Token& token, std::span<const std::string_view> keys,
                                std::int64_t deadline_ns) {
  std::vector<Code> codes;
  codes.reserve(keys.size());
  DisksRemoval on_disk;
  for (std::size_t begin = 0; begin < keys.size(); begin += kSlice) {
    const auto slice = keys.subspan(begin, std::min(kSlice, keys.size() - begin));
    const MutexLock lock(mutex_);
    const Code current = core_->CheckToken(token);
    for (const std::string_view key : slice) {
      codes.push_back(current != Code::kOk ? current : core_->Remove(token.slot, key));
    }
    RemoveFromDisks(token, slice, std::span(codes).subspan(begin), on_disk);
  }
  if (const Status proven = AwaitDisks(on_disk, deadline_ns); !proven) {
    std::ranges::fill(codes, proven.error().code);
  }
  return codes;
}

Result<std::uint64_t> Owner::RemoveMatching(const Token& token, std::string_view pattern,
                                            std::int64_t deadline_ns) {
  KVCOVE_TRY(CheckPattern(pattern));
  DisksRemoval on_disk;
  {
    const MutexLock lock(mutex_);
    if (core_->CheckToken(token) != Code::kOk) return StaleRemoval();
    if (tiers_ != nullptr) tiers_->BeginMatching(token.slot, pattern);
  }
  Result<std::uint64_t> removed = WalkMatching(token, pattern, deadline_ns);
  if (tiers_ == nullptr) return removed;
  {
    const MutexLock lock(mutex_);
    if (!removed) {
      tiers_->EndMatching(token.slot, pattern);
      return removed;
    }
    tiers_->RemoveMatching(token.slot, token.generation, pattern, on_disk);
  }
  KVCOVE_TRY(AwaitDisks(on_disk, deadline_ns));
  return *removed + on_disk.removed();
}

Result<std::uint64_t> Owner::WalkMatching(const Token& token, std::string_view pattern,
                                          std::int64_t deadline_ns) {
  std::uint64_t removed = 0;
  Core::Walk walk;
  while (!walk.done) {
    if (LeftNs(deadline_ns, clock_) <= 0) {
      return Fail(Code::kTimeout, fmt::format("{} objects were removed, others may be left; "
                                              "repeat the call",
                                              removed));
    }
    {
      const MutexLock lock(mutex_);
      if (core_->CheckToken(token) != Code::kOk) return StaleRemoval();
      removed += core_->RemoveMatching(token.slot, pattern, walk);
    }
    LetOthersIn();
  }
  return removed;
}

std::vector<Code> Owner::Pin(const Token& token, std::span<const std::string_view> keys,
                             const Pinning& pinning, std::int64_t deadline_ns) {
  std::vector<Code> codes;
  codes.reserve(keys.size());
  for (std::size_t begin = 0; begin < keys.size(); begin += kSlice) {
    if (begin > 0 && LeftNs(deadline_ns, clock_) <= 0) break;
    const MutexLock lock(mutex_);
    const Code current = core_->CheckToken(token);
    for (const std::string_view key : keys.subspan(begin, std::min(kSlice, keys.size() - begin))) {
      if (current != Code::kOk) {
        codes.push_back(current);
      } else {
        codes.push_back(pinning.kind
                            ? core_->Pin(token.slot, key, *pinning.kind, pinning.duration_ns)
                            : core_->Unpin(token.slot, key));
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
  for (std::size_t begin = 0; begin < keys.size(); begin += kSlice) {
    if (begin > 0 && LeftNs(deadline_ns, clock_) <= 0) {
      return Fail(Code::kTimeout, fmt::format("{} of {} keys were looked at; ask for fewer at once",
                                              begin, keys.size()));
    }
    const MutexLock lock(mutex_);
    if (begin == 0) core_->DrainEvents();
    const bool current = core_->CheckToken(token) == Code::kOk;
    for (const std::string_view key : keys.subspan(begin, std::min(kSlice, keys.size() - begin))) {
      stats.push_back(current ? core_->StatObject(token.slot, key) : std::nullopt);
    }
  }
  return stats;
}

}  // namespace kvcove::owner
