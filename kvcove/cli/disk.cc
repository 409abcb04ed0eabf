// SPDX-License-Identifier: Apache-2.0
// `kvcove disk format|check|show`: disks of the SSD tier, while no owner uses them.
#include <fmt/core.h>

#include <map>
#include <nlohmann/json.hpp>

#include "kvcove/base/size.h"
#include "kvcove/cli/command.h"
#include "kvcove/disklog/disk_file.h"

namespace kvcove::cli {
namespace {

struct DiskOptions {
  std::string path;
  SizeOption zone{"64MiB"};
  std::string pool;
  std::string incarnation;
  bool yes = false;
  bool json = false;
};

Result<Id128> IdOption(const std::string& text, std::string_view option) {
  const auto id = IdFromHex(text);
  if (!id) return Fail(Code::kInvalid, fmt::format("{}: 32 hex digits, not '{}'", option, text));
  return *id;
}

Result<int> RunFormat(const DiskOptions& options) {
  KVCOVE_ASSIGN(const disklog::DiskSpec spec, disklog::ParseDiskSpec(options.path));
  disklog::FormatFileOptions format{.yes = options.yes};
  KVCOVE_ASSIGN(format.format.pool, IdOption(options.pool, "--pool"));
  KVCOVE_ASSIGN(format.format.incarnation, IdOption(options.incarnation, "--incarnation"));
  KVCOVE_ASSIGN(format.format.zone_bytes, options.zone.Bytes("--zone-size"));
  KVCOVE_TRY(disklog::FormatFile(spec, format));
  fmt::print("{} is an empty disk\n", disklog::DiskFileOf(spec.path));
  return 0;
}

Result<int> RunCheck(const DiskOptions& options) {
  KVCOVE_ASSIGN(const disklog::CheckReport report, disklog::CheckFile(options.path));
  if (options.json) {
    fmt::print("{}\n", nlohmann::json{{"zones", report.zones},
                                      {"records", report.records},
                                      {"tombstones", report.tombstones},
                                      {"value_bytes", report.value_bytes},
                                      {"damages", report.damages},
                                      {"problems", report.problems}}
                           .dump());
  } else {
    for (const std::string& problem : report.problems) fmt::print("{}\n", problem);
    fmt::print("{} zones, {} objects of {}, {} removals: {} damaged\n", report.zones,
               report.records, FormatSize(report.value_bytes), report.tombstones, report.damages);
  }
  return report.damages == 0 ? 0 : 1;
}

Result<int> RunShow(const DiskOptions& options) {
  KVCOVE_ASSIGN(const disklog::ShowReport report, disklog::ShowFile(options.path));
  std::map<std::string, int> states;
  std::uint64_t bytes = 0;
  auto zones = nlohmann::json::array();
  for (const disklog::ShownZone& zone : report.zones) {
    ++states[zone.state];
    bytes += zone.record_bytes;
    if (zone.state == "free") continue;
    zones.push_back({{"zone", zone.zone},
                     {"state", zone.state},
                     {"records", zone.records},
                     {"record_bytes", zone.record_bytes},
                     {"scopes", zone.scopes}});
  }
  const disklog::Superblock& super = report.superblock;
  if (options.json) {
    fmt::print("{}\n", nlohmann::json{{"pool", ToHex(super.pool)},
                                      {"incarnation", ToHex(super.incarnation)},
                                      {"identity", ToHex(super.identity)},
                                      {"clean", super.clean},
                                      {"device_bytes", super.device_bytes},
                                      {"zone_bytes", super.zone_bytes},
                                      {"zone_count", super.zones()},
                                      {"free_zones", states["free"]},
                                      {"zones", zones}}
                           .dump());
    return 0;
  }
  fmt::print("pool {}, incarnation {}, owner {}\n{} in {} zones of {}, {}\n", ToHex(super.pool),
             ToHex(super.incarnation), ToHex(super.identity), FormatSize(super.device_bytes),
             super.zones(), FormatSize(super.zone_bytes),
             super.clean ? "stopped cleanly" : "not stopped cleanly");
  fmt::print("{} zones are free, {} sealed with {} of records, {} without a summary\n",
             states["free"], states["sealed"], FormatSize(bytes), states["open"]);
  for (const auto& zone : zones) {
    fmt::print("zone {:>6}  {:<7}  {:>8} records  {:>9}\n", zone["zone"].get<std::uint32_t>(),
               zone["state"].get<std::string>(), zone["records"].get<std::uint64_t>(),
               FormatSize(zone["record_bytes"].get<std::uint64_t>()));
  }
  return 0;
}

}  // namespace

void AddDisk(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<DiskOptions>();
  CLI::App* disk = app.add_subcommand(
      "disk", "Format, check or show disks of the SSD tier that no owner uses now.");
  disk->require_subcommand(1);
  CLI::App* format = disk->add_subcommand("format", "Make an empty disk; all that it had is lost.");
  format->add_option("PATH:SIZE", options->path, "directory or file with a size, or a device")
      ->required();
  format->add_option("--pool", options->pool, "id of the pool, 32 hex digits")->required();
  format->add_option("--incarnation", options->incarnation, "incarnation of the pool")->required();
  format->add_option("--zone-size", options->zone.text, "size of a zone, 64KiB to 4GiB")
      ->capture_default_str();
  format->add_flag("--yes", options->yes,
                   "overwrite a file system, a partition table or a disk of a pool");
  format->callback([options, &chosen] { chosen = [options] { return RunFormat(*options); }; });
  CLI::App* check = disk->add_subcommand("check", "Read and verify every record; changes nothing.");
  CLI::App* show = disk->add_subcommand("show", "Print zones and space, from their summaries.");
  for (CLI::App* command : {check, show}) {
    command->add_option("PATH", options->path, "directory, file or device of the disk")->required();
    command->add_flag("--json", options->json, "print one JSON object");
  }
  check->callback([options, &chosen] { chosen = [options] { return RunCheck(*options); }; });
  show->callback([options, &chosen] { chosen = [options] { return RunShow(*options); }; });
}

}  // namespace kvcove::cli
