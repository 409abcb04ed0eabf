// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/scheduler/counts.h"

#include <fmt/core.h>

#include <algorithm>

namespace kvcove::connector {
namespace {

class List {
 public:
  void Add(std::string name, std::uint64_t value, std::string help) {
    counts_.push_back({.name = std::move(name), .value = value, .help = std::move(help)});
  }
  void Gauge(std::string name, std::uint64_t value, std::string help) {
    Add(std::move(name), value, std::move(help));
    counts_.back().kind = CountKind::kGauge;
  }
  void Histogram(const char* name, const Latency& latency, const char* help) {
    for (std::size_t i = 0; i < Latency::kBuckets; ++i) {
      const bool last = i == Latency::kBounds.size();
      Add(last ? fmt::format("{}_le_inf", name)
               : fmt::format("{}_le_{:g}", name, Latency::kBounds[i]),
          latency.counts[i], help);
      counts_.back().kind = CountKind::kBucket;
    }
  }
  void Misses(const char* where, const std::array<std::uint64_t, kMissReasons>& misses,
              const char* help) {
    for (std::size_t i = 1; i < kMissReasons; ++i) {
      const std::string_view reason = MissReasonName(static_cast<MissReason>(i));
      std::string name = fmt::format("{}_missed_{}", where, reason);
      std::ranges::replace_if(name, [](char c) { return c == ' ' || c == '-'; }, '_');
      Add(std::move(name), misses[i], fmt::format("{}: {}.", help, reason));
    }
  }
  std::vector<Count> Take() { return std::move(counts_); }

 private:
  std::vector<Count> counts_;
};

std::uint64_t Of(const std::array<std::uint64_t, kTiers>& by_tier, Tier tier) {
  return by_tier[static_cast<std::size_t>(tier)];
}

void AddScheduler(List& list, const SchedulerStats& s) {
  list.Add("lookups", s.lookups, "Requests that were looked up in the pool.");
  list.Add("lookup_keys", s.lookup_keys, "Keys that look-ups asked for.");
  list.Add("lookup_ns", s.lookup_ns, "Nanoseconds that look-ups held the scheduler's thread.");
  list.Add("asked_again", s.asked_again, "Calls that ended without an answer; the request waited.");
  list.Add("lookup_timeouts", s.lookup_timeouts, "Look-ups that were given up: a miss.");
  list.Add("save_waits", s.save_waits, "Look-ups that waited for a save that was under way.");
  list.Add("save_waits_in_vain", s.save_waits_in_vain,
           "Look-ups that waited for a save and found nothing more.");
  list.Add("save_wait_tokens", s.save_wait_tokens, "Tokens found by waiting for their save.");
  list.Add("save_wait_ns", s.save_wait_ns, "Nanoseconds that requests waited for saves.");
  list.Add("notices_dropped", s.notices_dropped,
           "Saves that were not announced to others: too many at once.");
  list.Add("hit_tokens", s.hit_tokens, "Tokens whose KV was found and ordered to be loaded.");
  list.Add("asked_tokens", s.asked_tokens, "Tokens that look-ups asked for.");
  list.Add("hit_memory_keys", Of(s.hit_keys, Tier::kMemory), "Keys found in this host's memory.");
  list.Add("hit_remote_memory_keys", Of(s.hit_keys, Tier::kRemoteMemory),
           "Keys found in another host's memory.");
  list.Add("hit_disk_keys", Of(s.hit_keys, Tier::kDisk), "Keys found on a disk.");
  list.Add("loads", s.loads, "Loads that were ordered.");
  list.Add("loads_failed", s.loads_failed, "Loads with blocks that could not be loaded.");
  list.Add("loads_declined", s.loads_declined,
           "Requests whose found KV was computed, as that is faster than loading it.");
  list.Add("loads_shortened", s.loads_shortened,
           "Requests whose found KV was computed at its end, as that is faster than loading it.");
  list.Add("declined_tokens", s.declined_tokens,
           "Tokens that were found and computed, as that is faster.");
  list.Add("loads_void", s.loads_void, "Loads that a reset or other weights ended.");
  list.Add("saves", s.saves, "Saves that were ordered.");
  list.Add("saves_postponed", s.saves_postponed,
           "Saves left for a later step: too many under way.");
  list.Add(
      "unstored_requests", s.unstored_requests,
      "Requests that stored nothing: they began on older KV, or with an unknown LoRA adapter.");
  list.Add("uncaptured_requests", s.uncaptured_requests,
           "Requests that stored nothing: the pool or the weights were not known when they began.");
  list.Add("sibling_requests", s.sibling_requests,
           "Requests that began on KV which another connector of the engine loaded.");
  list.Add("resets_proven", s.resets_proven, "Resets that are proven.");
  list.Add("resets_failed", s.resets_failed,
           "Resets that could not be proven in time, or were refused.");
  list.Add("reset_ns", s.reset_ns, "Nanoseconds that resets took, proven or not.");
  list.Add("reset_voided_jobs", s.reset_voided_jobs,
           "Loads and saves that were under way at a reset, which voided them.");
  list.Add("epochs", s.epochs, "Times that a reset or other weights voided look-ups and loads.");
  list.Add("events_dropped", s.events_dropped, "KV events dropped, as the engine took them late.");
  list.Gauge("cost_compute_token_ns", s.costs.token_ns,
             "Measured: nanoseconds to compute a prompt's token. 0: not measured yet.");
  list.Gauge("cost_compute_context_ns", s.costs.context_ns,
             "Measured: nanoseconds more for each 1,000 tokens before it.");
  list.Gauge("cost_load_wait_ns", s.costs.wait_ns,
             "Measured: nanoseconds of a load beside its copies, the least of the last 32.");
  list.Gauge("cost_memory_token_ns", Of(s.costs.tier_ns, Tier::kMemory),
             "Measured: nanoseconds to load a token's KV from this host's memory.");
  list.Gauge("cost_remote_memory_token_ns", Of(s.costs.tier_ns, Tier::kRemoteMemory),
             "Measured: nanoseconds to load a token's KV from another host's memory.");
  list.Gauge("cost_disk_token_ns", Of(s.costs.tier_ns, Tier::kDisk),
             "Measured: nanoseconds to load a token's KV from a disk.");
  list.Gauge("closed", s.closed, "1 while nothing is looked up or stored.");
  list.Gauge("pinned_blocks", s.pinned_blocks, "Blocks of the engine that saves hold.");
}

void AddRanks(List& list, const Counters& c) {
  list.Add("loaded_keys", c.loaded_keys, "Values that the ranks have loaded.");
  list.Add("loaded_bytes", c.loaded_bytes, "Bytes that the ranks have loaded.");
  list.Add("failed_keys", c.failed_keys, "Values that could not be loaded.");
  list.Add("failed_memory_keys", Of(c.failed_by_tier, Tier::kMemory),
           "Values in this host's memory that the pool did not deliver to a load.");
  list.Add("failed_remote_memory_keys", Of(c.failed_by_tier, Tier::kRemoteMemory),
           "Values in another host's memory that the pool did not deliver to a load.");
  list.Add("failed_disk_keys", Of(c.failed_by_tier, Tier::kDisk),
           "Values on a disk that the pool did not deliver to a load.");
  list.Add("saved_keys", c.saved_keys, "Values that the ranks have stored.");
  list.Add("saved_bytes", c.saved_bytes, "Bytes that the ranks have stored.");
  list.Add("existing_keys", c.existing_keys, "Values that were in the pool already.");
  list.Add("stale_keys", c.stale_keys, "Values refused by the pool: computed before a reset.");
  list.Add("refused_keys", c.refused_keys, "Values not stored: no room, or no answer.");
  list.Add("dropped_keys", c.dropped_keys, "Values not tried: pressure, or changing weights.");
  list.Add("misfit_keys", c.misfit_keys, "Values of another size, removed.");
  list.Add("copy_errors", c.copy_errors, "Values that the device's driver refused to copy.");
  list.Add("load_ns", c.load_ns, "Nanoseconds that movers spent on loads.");
  list.Add("save_ns", c.save_ns, "Nanoseconds that movers spent on saves.");
  list.Add("load_jobs", c.load_jobs, "Loads that ranks have ended.");
  list.Add("save_jobs", c.save_jobs, "Saves that ranks have ended.");
  list.Gauge("queued_jobs", c.queued_jobs, "Loads and saves that wait or run, of all ranks.");
  list.Add("memory_bytes", Of(c.bytes_by_tier, Tier::kMemory), "Bytes loaded from this host.");
  list.Add("remote_memory_bytes", Of(c.bytes_by_tier, Tier::kRemoteMemory),
           "Bytes loaded from other hosts' memory.");
  static constexpr const char* kPaths[] = {"batched", "staged", "mapped"};
  static constexpr const char* kHow[] = {"by copy engines, run by run",
                                         "by way of staging memory on the device and a kernel",
                                         "by a kernel over the link"};
  for (std::size_t i = 0; i < c.device_load_bytes.size(); ++i) {
    list.Add(fmt::format("device_load_{}_bytes", kPaths[i]), c.device_load_bytes[i],
             fmt::format("Bytes to devices {}.", kHow[i]));
    list.Add(fmt::format("device_save_{}_bytes", kPaths[i]), c.device_save_bytes[i],
             fmt::format("Bytes from devices {}.", kHow[i]));
  }
  list.Add("device_load_in_place_bytes", c.device_load_in_place_bytes,
           "Bytes to devices that were copied straight out of the pool's memory.");
  list.Add("device_save_in_place_bytes", c.device_save_in_place_bytes,
           "Bytes from devices that were copied straight into the pool's memory.");
  list.Add("device_load_ns", c.device_load_ns,
           "Nanoseconds in which bytes were on their way to a device.");
  list.Add("device_save_ns", c.device_save_ns,
           "Nanoseconds in which bytes were on their way from a device.");
  list.Gauge("device_tickets", c.device_tickets, "Transfers of devices that are under way.");
  list.Gauge("device_lent_bytes", c.device_lent_bytes,
             "Pinned host memory that transfers hold, of all ranks.");
  list.Gauge("device_in_place_bytes", c.device_in_place_bytes,
             "The pool's memory that transfers hold, of all ranks.");
  list.Gauge("device_pinned_bytes", c.device_pinned_bytes,
             "Pinned host memory that the ranks have allocated, of all ranks.");
  list.Gauge("device_segment_pinned_bytes", c.device_segment_pinned_bytes,
             "The pool's memory that is pinned for devices; each rank pins it for itself.");
  list.Add("disk_bytes", Of(c.bytes_by_tier, Tier::kDisk), "Bytes loaded from disks.");
}

}  // namespace

std::string_view CountKindName(CountKind kind) {
  switch (kind) {
    case CountKind::kGauge:
      return "gauge";
    case CountKind::kBucket:
      return "bucket";
    default:
      return "counter";
  }
}

std::vector<Count> CountsOf(const SchedulerStats& stats) {
  List list;
  AddScheduler(list, stats);
  AddRanks(list, stats.ranks);
  list.Histogram("lookup_seconds", stats.lookup_time,
                 "Seconds from a request's first look-up to its answer.");
  list.Histogram("reset_seconds", stats.reset_time,
                 "Seconds of a reset, from its call until it was proven.");
  list.Histogram("load_seconds", stats.ranks.load_time,
                 "Seconds from a load's order to its end, on each rank.");
  list.Histogram("save_seconds", stats.ranks.save_time,
                 "Seconds from when a save could begin to its end, on each rank.");
  list.Histogram("device_load_seconds", stats.ranks.device_load_time,
                 "Seconds from when a transfer to a device was submitted to its end.");
  list.Histogram("device_save_seconds", stats.ranks.device_save_time,
                 "Seconds from when a transfer from a device was submitted to its end.");
  list.Misses("lookup", stats.missed, "Look-ups that ended at a key");
  list.Misses("load", stats.ranks.missed, "Values that were found, and missing when loaded");
  return list.Take();
}

}  // namespace kvcove::connector
