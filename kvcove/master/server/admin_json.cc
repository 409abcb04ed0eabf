// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/server/admin_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kvcove/base/text.h"
#include "kvcove/http/url.h"

namespace kvcove::master {
namespace {

using nlohmann::json;

}  // namespace

void AddPercent(std::string_view key, json& object) {
  if (!IsUtf8(key)) object["key_percent"] = http::UrlEncode(key);
}

json OwnerJson(const wire::OwnerStat& owner) {
  return {{"address", owner.address},
          {"host", owner.host},
          {"tenant", owner.tenant},
          {"state", !owner.live      ? "gone"
                    : owner.draining ? "draining"
                                     : "live"},
          {"capacity_bytes", owner.capacity_bytes},
          {"free_bytes", owner.free_bytes},
          {"objects", owner.objects},
          {"hits", owner.hits},
          {"hit_bytes", owner.hit_bytes},
          {"puts", owner.puts},
          {"put_bytes", owner.put_bytes},
          {"evictions", owner.evictions},
          {"stale_puts", owner.stale_puts},
          {"disks", owner.disks},
          {"disks_aside", owner.disks_aside},
          {"disk_capacity_bytes", owner.disk_capacity_bytes},
          {"disk_bytes", owner.disk_bytes},
          {"disk_hits", owner.disk_hits},
          {"disk_hit_bytes", owner.disk_hit_bytes},
          {"lease_age_ms", owner.lease_age_ns / kMillisecond}};
}

json KeyJson(const wire::HeldKey& key, const wire::HeldKey& own, const AdminPool::Found& found_in,
             const std::vector<wire::OwnerStat>& owners) {
  const bool found = key.reason == MissReason::kNone;
  json entry{{"found", found}, {"locations", json::array()}};
  // The size of a value that only a disk has may not be known.
  if (found && key.size_bytes != 0) entry["bytes"] = key.size_bytes;
  if (key.reason == MissReason::kNeverPut) {
    entry["reason"] = "not put since " + found_in.since;
    entry["started_seconds_ago"] = static_cast<double>(found_in.since_age_ns) * 1e-9;
  } else if (!found) {
    entry["reason"] = MissReasonName(key.reason);
  }
  for (const wire::OwnerStat& owner : owners) {
    const auto at =
        std::ranges::find(key.holders, owner.number, &std::pair<wire::OwnerNumber, Tier>::first);
    if (at == key.holders.end()) continue;
    entry["locations"].push_back({{"owner", owner.address},
                                  {"host", owner.host},
                                  {"tier", at->second == Tier::kDisk ? "disk" : "memory"}});
  }
  const bool own_is_later =
      key.missed == MissReason::kNone ||
      (own.missed != MissReason::kNone && own.missed_age_ns < key.missed_age_ns);
  const wire::HeldKey& last = own_is_later ? own : key;
  if (last.missed != MissReason::kNone) {
    entry["last_miss"] = {{"reason", MissReasonName(last.missed)},
                          {"count", last.misses},
                          {"seconds_ago", static_cast<double>(last.missed_age_ns) * 1e-9}};
  }
  return entry;
}

json HeldJson(const wire::HeldObject& object, const SlotDescription& slot,
              const wire::OwnerStat& owner) {
  json entry{{"key", object.key},
             {"namespace", ReadableName(slot.name)},
             {"bytes", object.size_bytes},
             {"owner", owner.address},
             {"copies", object.copies},
             {"tier", object.tier == Tier::kDisk ? "disk"
                      : object.on_disk           ? "memory+disk"
                                                 : "memory"},
             {"hard_pinned", object.hard_pinned}};
  if (!slot.version.empty()) entry["version"] = slot.version;
  AddPercent(object.key, entry);
  return entry;
}

json TaskJson(const TaskStat& task) {
  return {{"id", task.id},
          {"kind", TaskKindName(task.request.kind)},
          {"state", TaskStateName(task.state)},
          {"from", task.request.from},
          {"to", task.request.to},
          {"looked_at", task.looked_at},
          {"copied", task.copied},
          {"copied_bytes", task.copied_bytes},
          {"left", task.left},
          {"seconds", task.seconds},
          {"message", task.message}};
}

}  // namespace kvcove::master
