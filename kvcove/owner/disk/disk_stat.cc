// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/disk/disk_stat.h"

namespace kvcove::owner {
namespace {

disklog::Space& operator+=(disklog::Space& all, const disklog::Space& more) {
  all.total_bytes += more.total_bytes;
  all.live_bytes += more.live_bytes;
  all.objects += more.objects;
  all.zones += more.zones;
  all.free_zones += more.free_zones;
  all.lost_zones += more.lost_zones;
  all.index_bytes += more.index_bytes;
  all.queued_bytes += more.queued_bytes;
  return all;
}

}  // namespace

TierStat& TierStat::operator+=(const TierStat& more) {
  space += more.space;
  log += more.log;
  for (const auto field :
       {&TierStat::demoted, &TierStat::demoted_bytes, &TierStat::kept, &TierStat::not_worth,
        &TierStat::over_rate, &TierStat::over_share, &TierStat::dropped_full,
        &TierStat::dropped_other, &TierStat::promoted, &TierStat::promoted_bytes,
        &TierStat::load_misses, &TierStat::load_timeouts, &TierStat::load_failed,
        &TierStat::load_no_room, &TierStat::asides}) {
    this->*field += more.*field;
  }
  aside = aside || more.aside;
  return *this;
}

}  // namespace kvcove::owner
