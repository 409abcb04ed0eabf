// SPDX-License-Identifier: Apache-2.0
#include "kvcove/top/view.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

namespace kvcove::top {
namespace {

// Divides differences of counters by the seconds between two samples.
class Rates {
 public:
  // `seconds` 0: no rate is known.
  explicit Rates(double seconds) : seconds_(seconds) {}
  Rate Of(std::optional<std::uint64_t> now, std::optional<std::uint64_t> before) const {
    if (seconds_ <= 0 || !now || !before || *now < *before) return std::nullopt;
    return static_cast<double>(*now - *before) / seconds_;
  }

 private:
  double seconds_;
};

Rate Sum(Rate a, Rate b) {
  if (!a) return b;
  return b ? *a + *b : *a;
}

OwnerView ViewOf(const Owner& now, const Owner* before, const Rates& rates) {
  const auto rate = [&](std::optional<std::uint64_t> Owner::* counter) {
    return rates.Of(now.*counter, before == nullptr ? std::nullopt : before->*counter);
  };
  return {.now = now,
          .hits = rate(&Owner::hits),
          .down_bytes = rate(&Owner::hit_bytes),
          .up_bytes = rate(&Owner::put_bytes),
          .from_disk_bytes = rate(&Owner::disk_hit_bytes),
          .evictions = rate(&Owner::evictions)};
}

// Fills the owners, their sums, and returns the values a second that disks had.
Rate AddOwners(const Sample* before, const Rates& rates, View& view) {
  std::map<std::string, const Owner*> earlier;
  if (before != nullptr && before->owners) {
    for (const Owner& owner : *before->owners) earlier[owner.address] = &owner;
  }
  Rate disk_hits;
  for (const Owner& owner : *view.now.owners) {
    const auto at = earlier.find(owner.address);
    const Owner* const was = at == earlier.end() ? nullptr : at->second;
    OwnerView one = ViewOf(owner, was, rates);
    view.down_bytes = Sum(view.down_bytes, one.down_bytes);
    view.up_bytes = Sum(view.up_bytes, one.up_bytes);
    view.from_disk_bytes = Sum(view.from_disk_bytes, one.from_disk_bytes);
    view.hits.keys = Sum(view.hits.keys, one.hits);
    disk_hits =
        Sum(disk_hits, rates.Of(owner.disk_hits, was == nullptr ? std::nullopt : was->disk_hits));
    view.owners.push_back(std::move(one));
    if (owner.state == "gone") continue;
    ++view.owners_live;
    view.capacity_bytes += owner.capacity_bytes;
    view.free_bytes += owner.free_bytes;
    view.objects += owner.objects;
    view.disk_capacity_bytes += owner.disk_capacity_bytes;
    view.disk_bytes += owner.disk_bytes;
    view.disks += owner.disks;
    view.disks_aside += owner.disks_aside;
  }
  return disk_hits;
}

void AddMisses(const Sample* before, const Rates& rates, View& view) {
  for (const auto& [reason, total] : view.now.misses) {
    std::optional<std::uint64_t> was;
    // A reason that is new counts from zero.
    if (before != nullptr) {
      const auto at = before->misses.find(reason);
      was = at == before->misses.end() ? 0 : at->second;
    }
    view.misses.push_back({.reason = reason, .keys = rates.Of(total, was), .total = total});
  }
  std::ranges::sort(view.misses, [](const MissView& a, const MissView& b) {
    const std::pair left(a.keys.value_or(0), a.total);
    const std::pair right(b.keys.value_or(0), b.total);
    return left != right ? left > right : a.reason < b.reason;
  });
}

// `found`: values read a second.
HitView HitsOf(Rate found, Rate disk_hits, const std::vector<MissView>& misses) {
  if (!found) return {};
  double missed = 0;
  for (const MissView& miss : misses) missed += miss.keys.value_or(0);
  HitView hits{.keys = *found + missed};
  if (*hits.keys <= 0) return hits;
  const double disk = std::min(disk_hits.value_or(0), *found);
  hits.ratio = *found / *hits.keys;
  hits.disk = disk / *hits.keys;
  hits.memory = (*found - disk) / *hits.keys;
  return hits;
}

CallView CallOf(const std::string& name, const Times& now, const Times* before,
                const Rates& rates) {
  CallView call{.name = name,
                .calls = rates.Of(now.count(), before == nullptr ? std::nullopt
                                                                 : std::optional(before->count()))};
  const bool lately = call.calls && *call.calls > 0;
  const Times times = lately ? now.Since(*before) : now;
  call.since_start = !lately;
  call.p50_s = times.Quantile(0.5);
  call.p99_s = times.Quantile(0.99);
  return call;
}

}  // namespace

View MakeView(const Sample* before, const Sample& now, double seconds) {
  if (before != nullptr &&
      (before->term != now.term || before->role != now.role || before->summed != now.summed)) {
    before = nullptr;
  }
  View view{.seconds = before == nullptr ? 0 : seconds, .now = now};
  const Rates rates(view.seconds);
  Rate disk_hits;
  if (now.owners) disk_hits = AddOwners(before, rates, view);
  AddMisses(before, rates, view);
  view.hits = HitsOf(view.hits.keys, disk_hits, view.misses);
  for (const auto& [name, times] : now.calls) {
    if (times.count() == 0) continue;
    const Times* was = nullptr;
    const Times none;
    if (before != nullptr) {
      const auto at = before->calls.find(name);
      was = at == before->calls.end() ? &none : &at->second;
    }
    view.calls.push_back(CallOf(name, times, was, rates));
  }
  return view;
}

// ---- JSON

namespace {

using nlohmann::json;

json JsonOf(const std::optional<double>& figure) { return figure ? json(*figure) : json(); }

json InUs(const std::optional<double>& seconds) { return seconds ? json(*seconds * 1e6) : json(); }

json JsonOf(const OwnerView& owner) {
  const Owner& now = owner.now;
  json entry{{"address", now.address},
             {"host", now.host},
             {"tenant", now.tenant},
             {"state", now.state},
             {"capacity_bytes", now.capacity_bytes},
             {"free_bytes", now.free_bytes},
             {"objects", now.objects},
             {"disk_capacity_bytes", now.disk_capacity_bytes},
             {"disk_bytes", now.disk_bytes},
             {"disks", now.disks},
             {"disks_aside", now.disks_aside},
             {"hits_per_second", JsonOf(owner.hits)},
             {"down_bytes_per_second", JsonOf(owner.down_bytes)},
             {"up_bytes_per_second", JsonOf(owner.up_bytes)},
             {"from_disk_bytes_per_second", JsonOf(owner.from_disk_bytes)},
             {"evictions_per_second", JsonOf(owner.evictions)}};
  if (now.lease_age_s) entry["lease_age_seconds"] = *now.lease_age_s;
  if (now.lease_left_s) entry["lease_left_seconds"] = *now.lease_left_s;
  return entry;
}

// Adds the sections that the endpoints have.
void AddLists(const Sample& now, json& answer) {
  if (now.namespaces) {
    json& list = answer["namespaces"] = json::array();
    for (const Namespace& space : *now.namespaces) {
      json entry{{"namespace", space.name},
                 {"version", space.version},
                 {"bytes", space.bytes ? json(*space.bytes) : json()}};
      if (space.dead) entry["dead"] = *space.dead;
      list.push_back(std::move(entry));
    }
  }
  if (now.engines) {
    json& list = answer["engines"] = json::array();
    for (const Engine& engine : *now.engines) {
      list.push_back({{"engine", engine.name},
                      {"namespace", engine.space},
                      {"version", engine.version},
                      {"state", engine.state}});
    }
  }
  if (now.registered) answer["engines_registered"] = *now.registered;
  if (now.tasks) {
    json& list = answer["tasks"] = json::array();
    for (const Task& task : *now.tasks) {
      list.push_back({{"id", task.id},
                      {"kind", task.kind},
                      {"state", task.state},
                      {"from", task.from},
                      {"to", task.to},
                      {"copied", task.copied},
                      {"copied_bytes", task.copied_bytes},
                      {"left", task.left},
                      {"seconds", task.seconds}});
    }
  }
}

}  // namespace

json JsonOf(const View& view) {
  json answer{{"schema", "kvcove.top.1"},
              {"role", view.now.role},
              {"term", view.now.term},
              {"seconds", view.seconds},
              {"keys_per_second", JsonOf(view.hits.keys)},
              {"hit_ratio", JsonOf(view.hits.ratio)},
              {"hit_ratio_memory", JsonOf(view.hits.memory)},
              {"hit_ratio_disk", JsonOf(view.hits.disk)},
              {"down_bytes_per_second", JsonOf(view.down_bytes)},
              {"up_bytes_per_second", JsonOf(view.up_bytes)},
              {"from_disk_bytes_per_second", JsonOf(view.from_disk_bytes)},
              {"calls", json::object()},
              {"misses", json::object()},
              {"counters", json::object()}};
  for (const CallView& call : view.calls) {
    answer["calls"][call.name] = {{"per_second", JsonOf(call.calls)},
                                  {"p50_us", InUs(call.p50_s)},
                                  {"p99_us", InUs(call.p99_s)},
                                  {"since_start", call.since_start}};
  }
  for (const MissView& miss : view.misses) {
    answer["misses"][miss.reason] = {{"per_second", JsonOf(miss.keys)}, {"total", miss.total}};
  }
  for (const auto& [name, count] : view.now.counters) answer["counters"][name] = count;
  if (view.now.owners) {
    json& list = answer["owners"] = json::array();
    for (const OwnerView& owner : view.owners) list.push_back(JsonOf(owner));
    answer["owners_live"] = view.owners_live;
    answer["capacity_bytes"] = view.capacity_bytes;
    answer["free_bytes"] = view.free_bytes;
    answer["objects"] = view.objects;
    answer["disk_capacity_bytes"] = view.disk_capacity_bytes;
    answer["disk_bytes"] = view.disk_bytes;
    answer["disks"] = view.disks;
    answer["disks_aside"] = view.disks_aside;
  }
  if (const auto ratios = view.now.expected.OfMemory(); !ratios.empty()) {
    answer["expected_hit_ratio"] = {{"memory", ratios}, {"disk", view.now.expected.OfDisk()}};
  }
  AddLists(view.now, answer);
  return answer;
}

}  // namespace kvcove::top
