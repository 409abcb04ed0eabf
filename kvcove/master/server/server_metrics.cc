// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/server/server_metrics.h"

#include <map>
#include <string_view>

namespace kvcove::master {
namespace {

double Number(auto value) { return static_cast<double>(value); }

}  // namespace

void CollectOwners(Metrics& metrics, std::span<const wire::OwnerStat> owners,
                   const Standings& standings, std::int64_t now_ns) {
  // An owner that was started again, on a host that was, too, may be another member at the same
  // address. Only the one that was heard last is shown: Prometheus takes no series twice, and would
  // keep the ended one.
  std::map<std::string_view, const wire::OwnerStat*> at;
  for (const wire::OwnerStat& owner : owners) {
    const wire::OwnerStat*& last = at[owner.address];
    if (last == nullptr || owner.lease_age_ns < last->lease_age_ns) last = &owner;
  }
  for (const wire::OwnerStat& owner : owners) {
    if (at[owner.address] != &owner) continue;
    const Labels labels = {{"owner", owner.address}};
    const Labels tier = {{"owner", owner.address}, {"tier", "memory"}};
    metrics.Gauge("kvcove_master_owner_live", "1 while the owner's lease runs, else 0", owner.live,
                  labels);
    metrics.Gauge("kvcove_master_owner_told", "1 when all that the owner holds is listed, else 0",
                  owner.told, labels);
    metrics.Gauge("kvcove_master_owner_draining", "1 while the owner is drained, else 0",
                  owner.draining, labels);
    metrics.Gauge("kvcove_master_owner_capacity_bytes", "memory that an owner gives to the pool",
                  Number(owner.capacity_bytes), tier);
    metrics.Gauge("kvcove_master_owner_used_bytes", "payload memory of an owner that is in use",
                  Number(owner.capacity_bytes - owner.free_bytes), tier);
    if (owner.disks > 0) {
      metrics.Gauge("kvcove_master_owner_disks_aside", "disks of an owner that are set aside",
                    Number(owner.disks_aside), labels);
    }
    metrics.Gauge("kvcove_master_owner_objects", "objects that an owner holds",
                  Number(owner.objects), labels);
    metrics.Gauge("kvcove_master_owner_lease_age_seconds",
                  "seconds since an owner renewed its lease", Number(owner.lease_age_ns) * 1e-9,
                  labels);
    metrics.Counter("kvcove_master_owner_hits_total", "values read from an owner",
                    Number(owner.hits), tier);
    metrics.Counter("kvcove_master_owner_puts_total", "values stored at an owner",
                    Number(owner.puts), labels);
    metrics.Counter("kvcove_master_owner_evictions_total",
                    "values that an owner evicted to make room", Number(owner.evictions), tier);
    metrics.Counter("kvcove_master_owner_stale_puts_total",
                    "puts that an owner rejected because they were begun before a reset or removal",
                    Number(owner.stale_puts), labels);
    // Requesters report an owner again at each refresh of their lists, every 250 ms with few
    // owners; 2 s cover several refreshes. Relaxed: a figure of its own.
    const std::int64_t broken =
        standings.owner(owner.number).broken_at_ns.load(std::memory_order_relaxed);
    metrics.Gauge("kvcove_master_owner_passed_over",
                  "1 while a requester does not ask the owner because it does not answer, else 0",
                  broken != 0 && broken + 2 * kSecond > now_ns, labels);
  }
}

void CollectMaster(Metrics& metrics, const MasterStat& stat) {
  metrics.Gauge("kvcove_master_directory_entries",
                "objects and replicas in this master's part of the directory",
                Number(stat.directory_entries));
  for (const auto& [tenant, entries] : stat.entries_of_tenants) {
    metrics.Gauge("kvcove_master_tenant_directory_entries",
                  "objects and replicas of a tenant in the directory", Number(entries),
                  {{"tenant", tenant}});
  }
  std::vector<NamedValue> versions;
  for (const auto& [slot, entries] : stat.entries_of_versions) {
    versions.push_back(
        {.labels = {{"namespace", ReadableName(slot.first)}, {"version", slot.second}},
         .value = Number(entries)});
  }
  metrics.Gauges("kvcove_master_namespace_entries",
                 "objects and replicas of a namespace's weight version in the directory",
                 std::move(versions));
  metrics.Counter("kvcove_master_listings_over_share_total",
                  "listings that were refused because a tenant's share of the directory, or all of "
                  "it, is in use",
                  Number(stat.listings_over_share));
  metrics.Gauge("kvcove_master_directory_bytes", "bytes of memory of the directory",
                Number(stat.directory_bytes));
  metrics.Counter("kvcove_master_lookups_total", "keys that were looked up in the directory",
                  Number(stat.lookups));
  metrics.Counter("kvcove_master_listed_total", "objects that owners have listed or withdrawn",
                  Number(stat.listed));
  metrics.Counter("kvcove_master_rejected_listings_total",
                  "listings that were rejected because another owner has the key, or because of a "
                  "reset or removal",
                  Number(stat.rejected));
  metrics.Counter("kvcove_master_resets_total", "calls of reset", Number(stat.resets));
  metrics.Gauge("kvcove_master_term",
                "term of the leader: the number of starts of a master of this pool",
                Number(stat.term));
  metrics.Gauge("kvcove_master_members", "identities of owners in the control store",
                Number(stat.control.members));
  metrics.Gauge("kvcove_master_barriers",
                "slots that an absent owner must not show before it has caught up",
                Number(stat.control.barriers));
  metrics.Gauge("kvcove_master_slots", "slots in use: pairs of a namespace and a weight version",
                Number(stat.slots));
  metrics.Gauge("kvcove_master_registrations", "engines that are registered at a namespace",
                Number(stat.registrations));
  metrics.Counter("kvcove_master_slots_refused_total",
                  "registrations that were refused because a tenant's share of the slots, or all "
                  "slots, are in use",
                  Number(stat.refused.slots));
  metrics.Counter(
      "kvcove_master_registrations_refused_total",
      "registrations that were refused because a tenant's share of them, or all, are in use",
      Number(stat.refused.registrations));
  metrics.Gauge("kvcove_master_versions", "weight versions whose order of first naming is known",
                Number(stat.versions.known));
  metrics.Gauge("kvcove_master_versions_dead", "weight versions that were pruned",
                Number(stat.versions.dead));
  metrics.Counter("kvcove_master_dead_registrations_total",
                  "registrations that were refused because their weight version is dead",
                  Number(stat.refused.dead));
  metrics.Gauge("kvcove_master_removal_log_bytes",
                "bytes of removals that owners may still have to apply",
                Number(stat.control.removal_bytes));
  metrics.Gauge("kvcove_master_waiting_calls", "resets, prunes and removals that wait for owners",
                Number(stat.control.proofs));
  metrics.Counter(
      "kvcove_master_removals_refused_total",
      "removals that were refused because they exceed the owners' pace or a tenant's share, or "
      "because too many by pattern are under way",
      Number(stat.control.removals_refused));
}

}  // namespace kvcove::master
