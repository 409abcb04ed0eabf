// SPDX-License-Identifier: Apache-2.0
// The master's state for operators, and its metrics. Each figure is read by itself, so
// figures of one Stat may belong to slightly different times.
#include <bit>
#include <numeric>

#include "kvcove/master/server/page_verdict.h"
#include "kvcove/master/server/server.h"
#include "kvcove/master/server/server_impl.h"
#include "kvcove/master/server/server_metrics.h"
#include "kvcove/rpc/load_report.h"

namespace kvcove::master {

MasterStat MasterServer::Impl::Stat() const {
  const PoolFact pool = master_->generations().pool();
  const std::vector<std::uint64_t> entries = master_->shards().EntriesBySlot();
  std::map<std::string, std::uint64_t> entries_of_tenants;
  std::map<std::pair<std::string, std::string>, std::uint64_t> entries_of_versions;
  for (const SlotDescription& slot : master_->generations().Describe()) {
    if (entries[slot.slot] > 0) {
      entries_of_versions[{slot.name, slot.version}] += entries[slot.slot];
    }
    const std::string_view tenant = TenantOf(slot.name);
    if (!tenant.empty()) entries_of_tenants[std::string(tenant)] += entries[slot.slot];
  }
  return {.pool = pool.pool,
          .incarnation = pool.incarnation,
          .term = master_->term(),
          .revision = master_->revision(),
          .leads = Leads(),
          .store = etcd_ == nullptr ? std::nullopt : std::optional(etcd_->stat()),
          .directory_entries = master_->directory().entries(),
          .entries_of_all = std::accumulate(entries.begin(), entries.end(), std::uint64_t{0}),
          .directory_bytes = master_->directory().bytes(),
          .entries_of_tenants = std::move(entries_of_tenants),
          .entries_of_versions = std::move(entries_of_versions),
          .listings_over_share = master_->directory().refused(),
          .lookups = master_->directory().lookups(),
          .listed = master_->directory().listed(),
          .rejected = master_->directory().rejected(),
          .resets = resets_.load(),
          .connections = server_->connections().open(),
          .remembered_removals = master_->directory().remembered_removals(),
          .registrations = master_->generations().registrations(),
          .slots = master_->generations().used_slots(),
          .refused = master_->generations().refused(),
          .versions = master_->generations().versions(),
          // The server counts calls by the system's clock, whatever clock_ is.
          .load = admission_->Count(SystemClock::Instance().NowNs()),
          .control = master_->control().Count(),
          .owners = master_->control().Owners()};
}

MasterCounts MasterServer::Impl::Counts() const {
  MasterCounts counts{
      .resets = resets_.load(), .resets_not_proven = resets_not_proven_.load(), .calls = {}};
  for (std::size_t i = 1; i < kMissReasons; ++i) counts.misses[i] = misses_[i].load();
  for (const auto& [method, name] : kTimedCalls) {
    counts.calls.emplace_back(name, times_[static_cast<std::size_t>(method)].Count());
  }
  // Each of them takes the time for which its answer is delayed.
  constexpr auto kBucket =
      static_cast<std::size_t>(std::bit_width(std::uint64_t{rpc::kRefusalDelayNs / 1000}));
  Histogram::Counts refused{};
  refused[kBucket] = gate_.refused();
  counts.calls.emplace_back(kRefusedHello, refused);
  return counts;
}

void MasterServer::Impl::Collect(Metrics& metrics) const {
  const MasterStat stat = Stat();
  metrics.Gauge("kvcove_master_leads", "1 while this master leads, else 0", stat.leads ? 1 : 0);
  if (etcd_ != nullptr) etcd_->Collect(metrics);
  CollectOwners(metrics, stat.owners, master_->standings(), clock_.NowNs());
  CollectMaster(metrics, stat);
  rpc::CollectLoad(metrics, "kvcove_master", stat.load);
  const auto number = [](auto value) { return static_cast<double>(value); };
  metrics.Counter("kvcove_master_resets_not_proven_total",
                  "reset calls that were not answered as proven",
                  number(resets_not_proven_.load()));
  metrics.Counter("kvcove_master_prunes_total", "calls of prune", number(prunes_.load()));
  metrics.Counter("kvcove_master_prunes_not_proven_total",
                  "prune calls that were not answered as proven",
                  number(prunes_not_proven_.load()));
  // From 1: reason 0 is that of a hit.
  for (std::size_t i = 1; i < kMissReasons; ++i) {
    metrics.Counter("kvcove_requester_misses_total", "keys that requesters missed, by reason",
                    number(misses_[i].load()),
                    {{"reason", std::string(MissReasonName(static_cast<MissReason>(i)))}});
  }
  metrics.Counter("kvcove_requester_placement_fallbacks_total",
                  "puts that were stored at another segment than the preferred one",
                  number(fallbacks_.load()));
  metrics.Counter("kvcove_master_refused_connections_total",
                  "connections to the master that were refused for want of a known credential",
                  number(gate_.refused()));
  metrics.Gauge("kvcove_master_insecure",
                "1 if the master has no credentials, so that any client may do everything, else 0",
                options_.credentials == nullptr);
  if (options_.tls != nullptr) {
    metrics.Counter(
        "kvcove_master_tls_refused_total",
        "clients of the master that TLS refused, or that refused this master's certificate",
        number(options_.tls->refused()));
    if (const auto left_s = options_.tls->ExpiresInS()) {
      metrics.Gauge("kvcove_master_tls_certificate_expiry_seconds",
                    "seconds until this master's certificate expires",
                    static_cast<double>(*left_s));
    }
  }
  const ConnectionLimit& connections = server_->connections();
  metrics.Gauge("kvcove_master_connections", "open connections", number(connections.open()));
  metrics.Gauge("kvcove_master_connections_max",
                "open connections beyond which new ones are closed at once",
                number(connections.max()));
  metrics.Counter("kvcove_master_connections_refused_total",
                  "connections to this master that were closed at once or could not be accepted",
                  number(connections.refused()));
  metrics.Gauge("kvcove_master_connections_unproven",
                "open connections that have shown no credential and made no call yet",
                number(server_->unproven().open()));
  metrics.Counter("kvcove_master_connections_displaced_total",
                  "connections without a credential that gave way to newer ones",
                  number(server_->unproven().displaced()));
  for (const auto& [method, name] : kTimedCalls) {
    metrics.Histogram("kvcove_master_call_seconds",
                      "seconds that a call of the master took, by call",
                      times_[static_cast<std::size_t>(method)], {{"call", name}});
  }
}

}  // namespace kvcove::master
