// SPDX-License-Identifier: Apache-2.0
#include "kvcove/server/host_pool.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "kvcove/master/control/wait_for.h"
#include "kvcove/owner/disk/disks_report.h"
#include "kvcove/pool/host_status.h"
#include "kvcove/server/admin.h"
#include "kvcove/server/daemon.h"
#include "kvcove/server/expected.h"

namespace kvcove::server {
namespace {

using nlohmann::json;

// What is added to a change's deadline: its own error says more than this wait's.
constexpr std::int64_t kAnswerNs = kSecond;

std::string HostName() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return {};
  return name.data();
}

std::string AddressOf(const pool::LocalHost& host) {
  return host.socket_path().empty() ? fmt::format("process {}", getpid()) : host.socket_path();
}

// Looks a key up as a reader does.
wire::HeldKey HeldAt(pool::LocalHost& host, wire::OwnerNumber number,
                     const master::SlotDescription& slot, std::string_view key,
                     std::int64_t now_ns) {
  const segment::HeaderView view = host.owner().memory().header();
  if (!view.LeaseHolds(now_ns)) return {.reason = MissReason::kLease, .holders = {}};
  const std::uint64_t hash = view.HashKey(slot.slot, key);
  const segment::Found found = view.Find(slot.slot, {.key = key, .hash = hash});
  if (found && found.generation == slot.generation) {
    return {.size_bytes = static_cast<std::uint32_t>(found.meta.size_bytes()),
            .holders = {{number, Tier::kMemory}}};
  }
  if (view.tier().Holds(slot.slot, slot.generation, key)) {
    return {.holders = {{number, Tier::kDisk}}};
  }
  return {.reason = found ? MissReason::kReset : view.GhostReason(hash), .holders = {}};
}

// Adds what one owner knows to what others know: a value that any has is found, and a reason says
// more than that the key was never put.
void AddHeld(wire::HeldKey& all, wire::HeldKey one) {
  if (one.reason == MissReason::kNone && all.reason == MissReason::kNone) {
    all.size_bytes = std::max(all.size_bytes, one.size_bytes);
    all.holders.insert(all.holders.end(), one.holders.begin(), one.holders.end());
  } else if (one.reason == MissReason::kNone ||
             (all.reason == MissReason::kNeverPut && one.reason != MissReason::kNeverPut)) {
    all = std::move(one);
  }
}

}  // namespace

HostPoolOptions PoolOf(std::span<Daemon* const> daemons) {
  HostPoolOptions options;
  for (Daemon* const daemon : daemons) options.hosts.push_back(&daemon->host());
  options.control = [first = daemons.front()](std::function<void()> call) {
    return first->PostControl(std::move(call));
  };
  options.walk = [first = daemons.front()](std::function<void()> call) {
    return first->PostWalk(std::move(call));
  };
  return options;
}

// The caller's deadline is that of the call itself; this wait is longer.
template <typename T>
Result<T> HostPool::Run(const HostPoolOptions::Post& post, std::int64_t deadline_ns,
                        const std::function<void(master::Reply<T>)>& call) const {
  return master::WaitFor<T>(
      clock_, deadline_ns + kAnswerNs,
      [&](master::Reply<T> reply) {
        if (!post) return call(std::move(reply));
        if (post([call, reply] { call(reply); })) return;
        reply(Fail(Code::kLimit, "too many calls are waiting; ask again"));
      },
      {}, "the call is still under way; it may succeed later");
}

HostPool::Readiness HostPool::Ready() const {
  const bool ready = std::ranges::all_of(
      options_.hosts, [&](pool::LocalHost* host) { return host->LeaseUntilNs() > clock_.NowNs(); });
  return {.ready = ready, .text = ready ? "ok" : "no lease: the owner's memory is not read now"};
}

std::vector<wire::OwnerStat> HostPool::Owners() const {
  std::vector<wire::OwnerStat> owners;
  const std::int64_t now_ns = clock_.NowNs();
  for (std::size_t i = 0; i < options_.hosts.size(); ++i) {
    owner::Owner& owner = options_.hosts[i]->owner();
    const wire::RenewRequest report = owner.link_side().Report();
    const std::int64_t until_ns = owner.memory().LeaseUntilNs();
    owners.push_back(
        {.number = static_cast<wire::OwnerNumber>(i),
         .address = AddressOf(*options_.hosts[i]),
         .socket = options_.hosts[i]->socket_path(),
         .host = HostName(),
         .capacity_bytes = owner.options().memory_bytes,
         .free_bytes = report.free_bytes,
         .live = until_ns > now_ns,
         .told = true,
         .objects = report.objects,
         .lease_age_ns = std::max<std::int64_t>(now_ns - (until_ns - owner.options().lease_ns), 0),
         .tenant = {},
         .hits = report.hits,
         .evictions = report.evictions,
         .stale_puts = report.stale_puts,
         .puts = report.puts,
         .disks = report.disks,
         .disks_aside = report.disks_aside,
         .disk_capacity_bytes = report.disk_capacity_bytes,
         .disk_bytes = report.disk_bytes,
         .hit_bytes = report.hit_bytes,
         .put_bytes = report.put_bytes,
         .disk_hits = report.disk_hits,
         .disk_hit_bytes = report.disk_hit_bytes});
  }
  return owners;
}

json HostPool::Status() const {
  const std::vector<wire::OwnerStat> owners = Owners();
  wire::OwnerStat sum;
  std::uint64_t live = 0;
  for (const wire::OwnerStat& owner : owners) {
    live += owner.live ? 1 : 0;
    sum.capacity_bytes += owner.capacity_bytes;
    sum.free_bytes += owner.free_bytes;
    sum.objects += owner.objects;
    sum.hits += owner.hits;
    sum.puts += owner.puts;
    sum.evictions += owner.evictions;
    sum.disks += owner.disks;
    sum.disks_aside += owner.disks_aside;
    sum.disk_capacity_bytes += owner.disk_capacity_bytes;
    sum.disk_bytes += owner.disk_bytes;
  }
  json status{{"role", options_.role},
              {"pid", getpid()},
              {"owners", owners.size()},
              {"owners_live", live},
              {"capacity_bytes", sum.capacity_bytes},
              {"free_bytes", sum.free_bytes},
              {"objects", sum.objects},
              {"hits", sum.hits},
              {"puts", sum.puts},
              {"evictions", sum.evictions},
              {"disks", sum.disks},
              {"disks_aside", sum.disks_aside},
              {"disk_capacity_bytes", sum.disk_capacity_bytes},
              {"disk_bytes", sum.disk_bytes}};
  wire::PoolStat estimates;
  for (pool::LocalHost* const host : options_.hosts) {
    pool::AddStat(estimates, host->owner().Estimates());
  }
  estimates.disk_capacity_bytes = sum.disk_capacity_bytes;
  status["expected"] = ExpectedJson(estimates);
  // Without the generations, while another process takes over, the rest is true all the same.
  if (const auto control = this->control().Describe()) {
    status["pool"] = ToHex(control->pool.pool);
    status["incarnation"] = ToHex(control->pool.incarnation);
    status["slots"] = control->slots.size();
    status["registrations"] = control->registrations;
  }
  return status;
}

std::string HostPool::Metrics() const {
  kvcove::Metrics metrics;
  for (pool::LocalHost* const host : options_.hosts) {
    // Of several owners, each has series of its own.
    CollectOwner(*host, clock_, metrics,
                 options_.hosts.size() > 1 ? Labels{{"socket", host->socket_path()}} : Labels{});
  }
  metrics.Process();
  return metrics.Text();
}

Result<std::vector<master::SlotDescription>> HostPool::Namespaces() const {
  KVCOVE_ASSIGN(pool::HostControl::Description control, this->control().Describe());
  return std::move(control.slots);
}

Result<std::vector<std::string>> HostPool::VersionedNames() const {
  return control().VersionedNames();
}

std::vector<std::uint64_t> HostPool::BytesBySlot() const {
  std::vector<std::uint64_t> sum(kMaxSlots);
  for (pool::LocalHost* const host : options_.hosts) {
    const std::vector<std::uint64_t> bytes = host->owner().BytesBySlot();
    for (SlotId slot = 0; slot < kMaxSlots; ++slot) sum[slot] += bytes[slot];
  }
  return sum;
}

HostPool::Counts HostPool::Count() const {
  Counts counts;
  Histogram::Counts resets{};
  Histogram::Counts reads{};
  for (pool::LocalHost* const host : options_.hosts) {
    const wire::PoolStat stat = host->owner().Stat();
    for (std::size_t i = 1; i < kMissReasons; ++i) counts.misses[i] += stat.local.misses[i];
    // A reset replaces the generation at each owner.
    counts.resets = std::max(counts.resets, stat.resets);
    const Histogram::Counts reset_times = host->ResetTimes();
    const Histogram::Counts disk_reads = owner::DiskReadTimes(host->owner().disks());
    for (std::size_t i = 0; i < resets.size(); ++i) {
      resets[i] += reset_times[i];
      reads[i] += disk_reads[i];
    }
  }
  counts.calls = {{"disk read", reads}, {"reset", resets}};
  return counts;
}

Result<HostPool::EngineList> HostPool::Engines(std::size_t at_most) const {
  KVCOVE_ASSIGN(pool::HostControl::EngineList list, control().Engines(at_most));
  return EngineList{.engines = std::move(list.engines), .registered = list.registered};
}

Result<HostPool::AskPage> HostPool::PagesOf(const wire::OwnerStat& owner) const {
  pool::LocalHost* const host = options_.hosts[owner.number];
  return [this, host, first = true](const wire::InventoryRequest& request,
                                    std::int64_t deadline_ns) mutable {
    if (!std::exchange(first, false)) owner::Memory::LetOthersIn();
    return Run<wire::InventoryReply>(
        options_.walk, deadline_ns,
        [host, request, deadline_ns](const master::Reply<wire::InventoryReply>& reply) {
          reply(host->owner().Page(request, deadline_ns));
        });
  };
}

HostPool::Found HostPool::Find(std::span<const master::SlotDescription> slots, std::string_view key,
                               std::int64_t /*deadline_ns*/) const {
  const std::int64_t now_ns = clock_.NowNs();
  Found found{.keys = {},
              .own = {},
              .away = {},
              .since = "the owner started",
              .since_age_ns = now_ns - started_ns_};
  for (const master::SlotDescription& slot : slots) {
    wire::HeldKey& all = found.keys.emplace_back();
    all.reason = MissReason::kNeverPut;
    for (std::size_t i = 0; i < options_.hosts.size(); ++i) {
      AddHeld(all,
              HeldAt(*options_.hosts[i], static_cast<wire::OwnerNumber>(i), slot, key, now_ns));
    }
  }
  return found;
}

void HostPool::CountPrefix(const master::SlotDescription& slot,
                           std::span<const std::string_view> keys, std::int64_t /*deadline_ns*/,
                           PrefixCount& count) const {
  const std::int64_t now_ns = clock_.NowNs();
  for (const std::string_view key : keys) {
    wire::HeldKey all{.reason = MissReason::kNeverPut, .holders = {}};
    for (std::size_t i = 0; i < options_.hosts.size(); ++i) {
      AddHeld(all,
              HeldAt(*options_.hosts[i], static_cast<wire::OwnerNumber>(i), slot, key, now_ns));
    }
    if (all.holders.empty()) return count.End(all.reason);
    count.Add(all.holders);
  }
}

Result<wire::ResetOutcome> HostPool::Reset(const wire::ResetRequest& request,
                                           std::int64_t deadline_ns) {
  return Run<wire::ResetOutcome>(
      options_.control, deadline_ns,
      [&control = control(), request, deadline_ns](const master::Reply<wire::ResetOutcome>& reply) {
        reply(control.Reset(request, deadline_ns));
      });
}

Result<wire::PruneOutcome> HostPool::Prune(const wire::PruneRequest& request,
                                           std::int64_t deadline_ns) {
  return Run<wire::PruneOutcome>(
      options_.control, deadline_ns,
      [&control = control(), request, deadline_ns](const master::Reply<wire::PruneOutcome>& reply) {
        reply(control.Prune(request, deadline_ns));
      });
}

Result<std::uint64_t> HostPool::Remove(const master::SlotDescription& slot,
                                       std::string_view pattern, std::int64_t deadline_ns) {
  KVCOVE_ASSIGN(const pool::HostControl::Description now, control().Describe());
  const Token token{
      .incarnation = now.pool.incarnation, .generation = slot.generation, .slot = slot.slot};
  return Run<std::uint64_t>(options_.walk, deadline_ns,
                            [&control = control(), token, pattern = std::string(pattern),
                             deadline_ns](const master::Reply<std::uint64_t>& reply) {
                              control.RemoveMatchingThen(token, pattern, deadline_ns,
                                                         [reply](Result<std::uint64_t> removed) {
                                                           reply(std::move(removed));
                                                         });
                            });
}

Result<master::PinCounts> HostPool::Pin(const master::PinRequest& request,
                                        std::int64_t deadline_ns) {
  KVCOVE_ASSIGN(const pool::HostControl::Description now, control().Describe());
  master::PinCounts counts;
  for (const wire::OwnerStat& owner : Owners()) {
    KVCOVE_ASSIGN(const AskPage ask, PagesOf(owner));
    const master::PinTarget target{
        .page = [&](const wire::InventoryRequest& page) { return ask(page, deadline_ns); },
        .pin =
            [&](const Token& token, std::span<const std::string_view> keys) {
              return PinKeys(*options_.hosts[owner.number], token, keys, request, deadline_ns);
            }};
    KVCOVE_ASSIGN(const master::PinCounts more,
                  master::PinAt(target, owner.address, now.pool.incarnation, request));
    counts.Add(more);
  }
  return counts;
}

// A call that is answered too late still runs: it has copies of all that it uses.
Result<std::vector<Code>> HostPool::PinKeys(pool::LocalHost& host, const Token& token,
                                            std::span<const std::string_view> keys,
                                            const master::PinRequest& request,
                                            std::int64_t deadline_ns) const {
  const owner::Owner::Pinning pinning{.kind = request.kind, .duration_ns = request.duration_ns};
  return Run<std::vector<Code>>(options_.walk, deadline_ns,
                                [&host, token, pinning, deadline_ns,
                                 keys = std::vector<std::string>(keys.begin(), keys.end())](
                                    const master::Reply<std::vector<Code>>& reply) {
                                  const std::vector<std::string_view> views(keys.begin(),
                                                                            keys.end());
                                  reply(host.owner().Pin(token, views, pinning, deadline_ns));
                                });
}

}  // namespace kvcove::server
