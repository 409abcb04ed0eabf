// SPDX-License-Identifier: Apache-2.0
// `kvcove status`: the owners of this host, as an engine on it would find them; else the pool that
// find_pool.h finds.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "kvcove/base/clock.h"
#include "kvcove/base/size.h"
#include "kvcove/base/text.h"
#include "kvcove/cli/command.h"
#include "kvcove/cli/find_pool.h"
#include "kvcove/cli/tables.h"
#include "kvcove/pool/host_status.h"
#include "kvcove/pool/pool.h"
#include "kvcove/server/expected.h"

namespace kvcove::cli {
namespace {

struct StatusOptions {
  PoolChoice pool;
  AdminAccessOptions access;
  std::uint32_t timeout_ms = 1000;
};

nlohmann::json JsonOf(const std::optional<double>& figure) {
  return figure ? nlohmann::json(*figure) : nlohmann::json();
}

// A disk, or the sum of several.
nlohmann::json JsonOf(const DiskStat& disk) {
  nlohmann::json json;
  ForEachFigure(disk, [&](const auto& figure, std::uint64_t value) {
    if (!figure.key.empty()) json[figure.key] = value;
  });
  json["aside"] = disk.aside != 0;
  json["counted_ms"] = disk.counted_ms;
  json["write_amplification"] = disk.write_amplification().value_or(0);
  json["read_amplification"] = JsonOf(disk.read_amplification());
  json["served_per_written"] = JsonOf(disk.served_per_written());
  json["tombstone_share"] = JsonOf(disk.tombstone_share());
  json["wears_for_nothing"] = disk.wears_for_nothing();
  json["written_bytes_per_day"] = JsonOf(disk.written_bytes_per_day());
  return json;
}

DiskStat SumOf(const std::vector<DiskStat>& disks) {
  DiskStat sum;
  for (const DiskStat& disk : disks) sum += disk;
  return sum;
}

nlohmann::json DiskOf(const wire::PoolStat& stat) {
  if (stat.disk_capacity_bytes == 0) return {};
  nlohmann::json json = JsonOf(SumOf(stat.disks));
  json["errors"] = stat.disk_errors;
  return json;
}

// With several disks it is one of them, as a rule.
std::string AsideText(const wire::PoolStat& stat) {
  const auto aside =
      std::ranges::count_if(stat.disks, [](const DiskStat& disk) { return disk.aside != 0; });
  if (aside == 0) return "";
  return stat.disks.size() == 1 ? "SET ASIDE, "
                                : fmt::format("{} of {} SET ASIDE, ", aside, stat.disks.size());
}

std::string DiskText(const wire::PoolStat& stat) {
  if (stat.disk_capacity_bytes == 0) return "";
  return fmt::format(
      "; disk: {}{} of {} used, {} objects, {} put, {} hits, {} misses, {} not worth it, {} over "
      "the "
      "rate, {} dropped, {} errors, write amplification {:.2f}",
      AsideText(stat), FormatSize(stat.disk_bytes), FormatSize(stat.disk_capacity_bytes),
      stat.disk_objects, stat.disk_puts, stat.disk_hits, stat.disk_misses, stat.disk_not_worth,
      stat.disk_over_rate, stat.disk_dropped_full + stat.disk_dropped_other,
      stat.disk_errors + stat.disk_damaged, SumOf(stat.disks).write_amplification().value_or(0));
}

// Without a time: it is due now, or waits for the owner's next start.
std::string StateOf(const DiskStat& disk) {
  if (disk.aside == 0) return "works";
  if (disk.retry_ms == 0) return "SET ASIDE";
  return fmt::format("SET ASIDE, tried again in {} s", (disk.retry_ms + 999) / 1000);
}

nlohmann::json DisksOf(const wire::PoolStat& stat) {
  nlohmann::json list = nlohmann::json::array();
  for (const DiskStat& disk : stat.disks) {
    nlohmann::json json = JsonOf(disk);
    json["path"] = disk.path;
    json["retry_ms"] = disk.retry_ms;
    json["errors"] = {{"read", disk.log.read_errors},
                      {"write", disk.log.write_errors},
                      {"damaged", disk.log.corrupt},
                      {"timeout", disk.load_timeouts},
                      {"set_aside", disk.asides}};
    list.push_back(std::move(json));
  }
  return list;
}

// A line a disk, where the sums leave something open.
void PrintDisks(const wire::PoolStat& stat) {
  if (stat.disks.size() < 2 && stat.disk_aside == 0) return;
  for (const DiskStat& disk : stat.disks) {
    fmt::print(
        "  disk {}: {}, {} of {} used, {} objects, {} queued, {} hits, errors: {} read, {} write, "
        "{} damaged, {} timeouts, set aside {} times\n",
        disk.path, StateOf(disk), FormatSize(disk.space.live_bytes),
        FormatSize(disk.space.total_bytes), disk.space.objects, FormatSize(disk.space.queued_bytes),
        disk.promoted, disk.log.read_errors, disk.log.write_errors, disk.log.corrupt,
        disk.load_timeouts, disk.asides);
  }
}

// "-": there is nothing yet to divide by.
std::string FigureText(const std::optional<double>& figure) {
  return figure ? fmt::format("{:.2f}", *figure) : "-";
}

// Returns the wear: bytes a day once they are known, else what was counted.
std::string WrittenText(const DiskStat& disk) {
  const std::uint64_t minutes = disk.counted_ms / 60'000;
  if (const std::optional<double> a_day = disk.written_bytes_per_day()) {
    const double times =
        *a_day / static_cast<double>(std::max<std::uint64_t>(disk.space.total_bytes, 1));
    return fmt::format("{} written a day ({:.2f} times its size; {} in {} h {} min)",
                       FormatSize(static_cast<std::uint64_t>(*a_day)), times,
                       FormatSize(disk.log.written_bytes), minutes / 60, minutes % 60);
  }
  std::string written = FormatSize(disk.log.written_bytes) + " written";
  if (disk.counted_ms == 0) return written;
  return fmt::format("{} in {} min (bytes a day are known after an hour)", written, minutes);
}

// Prints a line a disk: its wear, and what it brings for that.
void PrintWorth(const wire::PoolStat& stat) {
  for (const DiskStat& disk : stat.disks) {
    fmt::print(
        "  disk {}: {}; {} bytes written for each byte stored, {} read for each byte served, {} "
        "served for each byte written; tombstones: {:.2f} % of it\n",
        disk.path, WrittenText(disk), FigureText(disk.write_amplification()),
        FigureText(disk.read_amplification()), FigureText(disk.served_per_written()),
        100 * disk.tombstone_share().value_or(0));
    if (disk.wears_for_nothing()) {
      fmt::print(
          "  disk {} COSTS MORE THAN IT BRINGS: little of what is written is read again; use "
          "--disk-admit policy, a larger disk, or none\n",
          disk.path);
    }
  }
}

// What is not bounded, and not guaranteed, is not in it.
void AddQuota(nlohmann::json& entry, std::uint64_t maximum_bytes, std::uint64_t guaranteed_bytes) {
  if (maximum_bytes != ~0ULL) entry["maximum_bytes"] = maximum_bytes;
  if (guaranteed_bytes != 0) entry["guaranteed_bytes"] = guaranteed_bytes;
}

nlohmann::json SharesOf(const wire::PoolStat& stat) {
  nlohmann::json list = nlohmann::json::array();
  for (const DiskShareStat& share : stat.disk_shares) {
    nlohmann::json entry = {{"namespace", ReadableName(share.name)},
                            {"bytes", share.bytes},
                            {"read_bytes", share.read_bytes}};
    AddQuota(entry, share.maximum_bytes, share.guaranteed_bytes);
    if (share.read_rate != 0) entry["read_bytes_per_second"] = share.read_rate;
    if (share.write_rate != 0) entry["write_bytes_per_second"] = share.write_rate;
    list.push_back(std::move(entry));
  }
  return list;
}

void PrintShares(const wire::PoolStat& stat) {
  for (const DiskShareStat& share : stat.disk_shares) {
    const std::string maximum =
        share.maximum_bytes == ~0ULL ? "" : " of " + FormatSize(share.maximum_bytes);
    const std::string guaranteed =
        share.guaranteed_bytes == 0
            ? ""
            : fmt::format(", {} guaranteed", FormatSize(share.guaranteed_bytes));
    const auto rate = [](std::string_view what, std::uint64_t bytes) {
      return bytes == 0 ? "" : fmt::format(", {} {}/s at most", what, FormatSize(bytes));
    };
    fmt::print("  disk, {}: {}{} used{}, {} read{}{}\n", ReadableName(share.name),
               FormatSize(share.bytes), maximum, guaranteed, FormatSize(share.read_bytes),
               rate("reads", share.read_rate), rate("writes", share.write_rate));
  }
}

nlohmann::json NamespacesOf(const wire::PoolStat& stat) {
  nlohmann::json list = nlohmann::json::array();
  for (const wire::NamespaceStat& space : stat.namespaces) {
    nlohmann::json entry = {{"namespace", ReadableName(space.name)}, {"bytes", space.bytes}};
    AddQuota(entry, space.maximum_bytes, space.guaranteed_bytes);
    if (space.priority != NamespacePriority::kUnsaid) {
      entry["priority"] = PriorityName(space.priority);
    }
    list.push_back(std::move(entry));
  }
  return list;
}

std::uint64_t MissesOf(const wire::PoolStat& stat) {
  std::uint64_t sum = 0;
  for (std::size_t i = 1; i < kMissReasons; ++i) sum += stat.local.misses[i];
  return sum;
}

// Prints what memory of other sizes, and disks below it, would have found.
void PrintExpected(const wire::PoolStat& stat) {
  if (stat.asked == 0) return;
  const auto sizes = [&](std::uint64_t PoolStat::* ExpectedSize::* hits) {
    std::string text;
    for (const ExpectedSize& size : kExpectedSizes) {
      text += fmt::format("{}{} {:.1f} %", text.empty() ? "" : ", ", size.text,
                          100 * *stat.expected_ratio(size.*hits));
    }
    return text;
  };
  fmt::print("  expected hit ratio of memory: {}; of any size: {:.1f} % at most\n",
             sizes(&ExpectedSize::hits), 100 * *stat.most_ratio());
  if (stat.disk_capacity_bytes == 0) return;
  fmt::print("  expected hit ratio of memory and disk, if the disk is: {}\n",
             sizes(&ExpectedSize::hits_with_disk));
}

nlohmann::json JsonOf(const pool::OwnerStatus& owner) {
  nlohmann::json json = {{"socket", owner.socket}, {"reached", owner.reached.has_value()}};
  if (!owner.reached) {
    json["error"] = owner.reached.error().ToString();
    return json;
  }
  json["node"] = owner.node < 0 ? nlohmann::json() : nlohmann::json(owner.node);
  json["lease"] = owner.lease_holds;
  json["payload_bytes"] = owner.stat.payload_bytes;
  json["populated_bytes"] = owner.stat.populated_bytes;
  json["free_bytes"] = owner.stat.free_bytes;
  json["objects"] = owner.stat.objects;
  json["hits"] = owner.stat.hits;
  json["misses"] = MissesOf(owner.stat);
  json["evictions"] = owner.stat.evictions;
  json["expected"] = server::ExpectedJson(owner.stat);
  json["disk"] = DiskOf(owner.stat);
  json["disks"] = DisksOf(owner.stat);
  json["disk_shares"] = SharesOf(owner.stat);
  json["sessions"] = owner.stat.sessions.size();
  json["namespaces"] = NamespacesOf(owner.stat);
  return json;
}

// Returns "12 never put, 3 evicted" behind a colon.
std::string ReasonsText(const wire::PoolStat& stat) {
  std::string text;
  for (std::size_t i = 1; i < kMissReasons; ++i) {
    if (stat.local.misses[i] == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? ": " : ", ", stat.local.misses[i],
                        MissReasonName(static_cast<MissReason>(i)));
  }
  return text;
}

void Print(const pool::OwnerStatus& owner) {
  if (!owner.reached) {
    return fmt::print("{}: {}\n", owner.socket, owner.reached.error().ToString());
  }
  const wire::PoolStat& stat = owner.stat;
  fmt::print("{}: NUMA node {}, {}, {} of {} free, {}\n", owner.socket,
             owner.node < 0 ? "none" : fmt::format("{}", owner.node),
             owner.lease_holds ? "has its lease" : "no lease: its memory is not read",
             FormatSize(stat.free_bytes), FormatSize(stat.payload_bytes),
             Counted(stat.sessions.size(), "session", "sessions"));
  fmt::print("  {} populated, {} objects, {} evictions{}\n", FormatSize(stat.populated_bytes),
             stat.objects, stat.evictions, DiskText(stat));
  fmt::print("  hit ratio {}: {} hits, {} misses{}\n", RatioText(stat.hits, MissesOf(stat)),
             stat.hits, MissesOf(stat), ReasonsText(stat));
  PrintExpected(stat);
  PrintDisks(stat);
  PrintWorth(stat);
  PrintShares(stat);
}

// The socket that is meant, or this host's.
std::string SocketOf(const PoolChoice& chosen) {
  if (!chosen.socket.empty()) return chosen.socket;
  const char* const pool = std::getenv("KVCOVE_POOL");
  const std::string_view named = pool == nullptr ? "" : pool;
  if (!named.starts_with("unix:")) return DefaultSocketPath();
  return std::string(named.substr(5, named.find('?') - 5));
}

void PrintOwners(const std::vector<pool::OwnerStatus>& owners, bool as_json) {
  if (as_json) {
    nlohmann::json list = nlohmann::json::array();
    for (const pool::OwnerStatus& owner : owners) list.push_back(JsonOf(owner));
    return fmt::print("{}\n", nlohmann::json{{"owners", list}}.dump());
  }
  for (const pool::OwnerStatus& owner : owners) Print(owner);
  constexpr std::string_view kMaster = "master:";
  if (!owners.empty() && owners.front().authority.starts_with(kMaster)) {
    fmt::print(
        "this is a part of the cluster of the master {}; 'kvcove status --admin HOST:7480' "
        "asks the master about all of it (with --token FILE where it has credentials)\n",
        owners.front().authority.substr(kMaster.size()));
  }
}

Result<int> Run(const StatusOptions& options) {
  KVCOVE_ASSIGN(const PoolChoice chosen, ChosenOf(options.pool));
  if (!chosen.admin.empty()) return PrintPoolStatus({chosen.admin}, options.access);
  const std::string socket = SocketOf(chosen);
  const auto owners = pool::StatusOfOwners(socket, std::int64_t{options.timeout_ms} * kMillisecond);
  if (owners.empty() && chosen.socket.empty()) {
    const auto endpoint = FindEndpoint(chosen, options.access);
    if (endpoint) return PrintPoolStatus(*endpoint, options.access);
    const Code code = endpoint.error().code;
    if (code == Code::kInvalid || code == Code::kDenied) return std::unexpected(endpoint.error());
  }
  PrintOwners(owners, options.access.as_json);
  if (owners.empty() && !options.access.as_json) {
    fmt::print("no owner at {}: 'kvcove serve' or 'kvcove owner' starts one\n", socket);
  }
  const bool all = std::ranges::all_of(owners, [](const pool::OwnerStatus& owner) {
    return owner.reached.has_value() && owner.lease_holds;
  });
  return all && !owners.empty() ? 0 : 1;
}

}  // namespace

void AddStatus(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<StatusOptions>();
  CLI::App* status = app.add_subcommand(
      "status",
      "Print the owners of this host, their memory and leases; or the pool that is found.");
  AddPoolChoice(*status, options->pool);
  AddAdminAccessOptions(*status, options->access);
  status->add_option("--timeout-ms", options->timeout_ms, "milliseconds to wait for each owner")
      ->capture_default_str();
  status->footer(
      "The pool is, in this order: --admin or --socket; $KVCOVE_ADMIN or $KVCOVE_SOCKET; the one "
      "that $KVCOVE_POOL names; what is on this host: the owner at the default socket, an embedded "
      "pool of this user, a master at 127.0.0.1:7480. 'top', 'namespaces', 'versions', 'engines', "
      "'keys', 'key', 'why', 'prefix', 'tasks', 'metrics', 'reset', 'prune', 'remove', 'pin' and "
      "'unpin' find it in the same way.");
  status->callback([options, &chosen] { chosen = [options] { return Run(*options); }; });
}

}  // namespace kvcove::cli
