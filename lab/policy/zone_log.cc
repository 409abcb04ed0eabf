// SPDX-License-Identifier: Apache-2.0
#include "lab/policy/zone_log.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "kvcove/policy/retention.h"

namespace kvcove::lab {
namespace {
constexpr std::uint64_t kZones = 64;
constexpr double kBriefAges = 4;
}  // namespace

ZoneLog::ZoneLog(const ZoneLogOptions& options)
    : options_(options),
      zone_blocks_(std::max<std::uint64_t>(options.blocks / kZones, 1)),
      brief_{.brief = true} {}

void ZoneLog::Append(Zone& zone, std::uint32_t block) {
  if (zone.blocks.empty()) zone.opened_at = written_;
  zone.blocks.push_back(block);
  if (zone.blocks.size() < zone_blocks_) return;
  sealed_.push_back(std::exchange(zone, {.brief = zone.brief}));
}

void ZoneLog::Write(std::uint32_t block, bool brief) {
  ++written_;
  const double earned = options_.write_amplification - 1;
  budget_ = std::min(budget_ + earned, earned * static_cast<double>(options_.blocks));
  where_[block] = 0;
  Append(brief && options_.moves ? brief_ : fresh_, block);
}

void ZoneLog::Read(std::uint32_t block) {
  if (const auto at = where_.find(block); at != where_.end()) at->second = written_;
}

std::deque<ZoneLog::Zone>::iterator ZoneLog::Victim() {
  return std::ranges::max_element(sealed_, {}, [&](const Zone& zone) {
    return static_cast<double>(written_ - zone.opened_at + 1) * (zone.brief ? kBriefAges : 1);
  });
}

std::vector<std::uint32_t> ZoneLog::FreeZone(const std::function<bool(std::uint32_t)>& in_memory) {
  if (sealed_.empty()) sealed_.push_back(std::exchange(fresh_, {}));
  const auto victim = Victim();
  const Zone zone = std::move(*victim);
  sealed_.erase(victim);
  const double disk = static_cast<double>(options_.blocks);
  const double most = (options_.write_amplification - 1) * disk;
  std::size_t left = zone.blocks.size() / 2;
  std::vector<std::uint32_t> gone;
  for (const std::uint32_t block : zone.blocks) {
    const std::uint64_t read_at = where_.at(block);
    std::optional<double> since;
    if (read_at != 0) since = static_cast<double>(written_ - read_at) / disk;
    if (options_.moves && left > 0 && budget_ >= 1 && !in_memory(block) &&
        policy::WorthMoving(since, budget_ / most)) {
      --left;
      --budget_;
      ++moved_;
      where_[block] = 0;
      Append(moves_, block);
    } else {
      where_.erase(block);
      gone.push_back(block);
    }
  }
  return gone;
}

}  // namespace kvcove::lab
