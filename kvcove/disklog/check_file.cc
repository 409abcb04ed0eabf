// SPDX-License-Identifier: Apache-2.0
#include <cerrno>

#include "kvcove/disklog/disk_file.h"

namespace kvcove::disklog {
namespace {

constexpr std::size_t kMaxProblems = 1000;

struct OpenDisk {
  std::unique_ptr<Device> device;
  Superblock super;
};

Status Read(Device& device, std::uint64_t offset, AlignedBuffer& buffer) {
  const int error = Await(
      device, [&](Device::Done done) { device.Read(offset, buffer.span(), std::move(done)); });
  if (error == 0) return {};
  errno = error;
  return FailErrno(Code::kUnavailable, "reading the disk at byte " + std::to_string(offset));
}

Result<OpenDisk> OpenToRead(const std::string& path) {
  OpenDisk disk;
  KVCOVE_ASSIGN(disk.device, OpenDevice(DiskFileOf(path), {.read_only = true}));
  KVCOVE_ASSIGN(disk.super, Log::ReadSuperblock(*disk.device));
  return disk;
}

std::uint64_t ZoneOffset(const Superblock& super, std::uint32_t zone) {
  return kZonesStart + (zone * super.zone_bytes);
}

std::optional<ZoneHeader> HeaderOf(const Superblock& super, std::uint32_t zone,
                                   std::string_view block) {
  auto header = ParseZoneHeader(block);
  if (!header || header->free || header->zone != zone || header->pool != super.pool ||
      header->incarnation != super.incarnation || header->disk != super.disk) {
    return std::nullopt;
  }
  return header;
}

std::optional<ZoneTrailer> TrailerOf(const Superblock& super, const ZoneHeader& header,
                                     std::string_view block) {
  auto trailer = ParseZoneTrailer(block, super.zone_bytes);
  if (!trailer || trailer->zone != header.zone || trailer->nonce != header.nonce) {
    return std::nullopt;
  }
  return trailer;
}

void Report(CheckReport& report, std::uint32_t zone, const std::string& what) {
  ++report.damages;
  if (report.problems.size() < kMaxProblems) {
    report.problems.push_back("zone " + std::to_string(zone) + ": " + what);
  }
}

void Count(CheckReport& report, const SummaryEntry& entry) {
  ++(entry.kind == RecordKind::kObject ? report.records : report.tombstones);
  report.value_bytes += entry.value_bytes;
}

// Verifies every record that the summary names.
void CheckRecords(CheckReport& report, const ZoneHeader& header, const Summary& summary,
                  std::string_view bytes) {
  std::size_t key_at = 0;
  for (const SummaryEntry& entry : summary.entries) {
    const auto key = std::string_view(summary.keys).substr(key_at, entry.key_bytes);
    key_at += entry.key_bytes;
    const std::uint64_t offset = entry.offset_units * kUnitBytes;
    const std::string_view rest = bytes.substr(offset);
    const auto record = ParseRecord(rest);
    if (!record || record->nonce != header.nonce || record->key != key ||
        record->sequence != entry.sequence || !VerifyRecord(*record, rest)) {
      Report(report, header.zone,
             "the record of '" + std::string(key) + "' at byte " + std::to_string(offset) +
                 " is damaged");
    } else {
      Count(report, entry);
    }
  }
}

void CheckZone(CheckReport& report, const Superblock& super, std::uint32_t zone,
               std::string_view bytes) {
  const auto header = HeaderOf(super, zone, bytes.substr(0, kBlockBytes));
  if (!header) {
    // A header that parses belongs to a free zone or to an earlier use of the disk: no damage.
    if (bytes.substr(0, 8) == "KCVEZONE" && !ParseZoneHeader(bytes.substr(0, kBlockBytes))) {
      Report(report, zone, "its header is damaged");
    }
    return;
  }
  ++report.zones;
  const auto trailer = TrailerOf(super, *header, bytes.substr(bytes.size() - kBlockBytes));
  if (trailer) {
    const std::uint64_t at = trailer->summary_offset;
    const auto summary = ParseSummary(
        *trailer, bytes.substr(at, trailer->table_bytes),
        bytes.substr(at + AlignUp(trailer->table_bytes, kBlockBytes), trailer->keys_bytes));
    if (summary) {
      CheckRecords(report, *header, *summary, bytes);
      return;
    }
    Report(report, zone, "its summary is damaged");
  }
  // A zone that was open when its owner was killed has no summary. A scan passes over what does not
  // verify: behind the last record that is how bytes of an earlier use look, so it is no damage.
  const auto none = [](SlotId, std::string_view) { return Id128(); };
  const ZoneContents found = ScanRecords(bytes, header->nonce, none);
  if (!found.summary) return;
  for (const SummaryEntry& entry : found.summary->entries) Count(report, entry);
}

}  // namespace

Result<CheckReport> CheckFile(const std::string& path) {
  KVCOVE_ASSIGN(const OpenDisk disk, OpenToRead(path));
  CheckReport report;
  AlignedBuffer buffer(disk.super.zone_bytes);
  for (std::uint32_t zone = 0; zone < disk.super.zones(); ++zone) {
    if (const Status read = Read(*disk.device, ZoneOffset(disk.super, zone), buffer); !read) {
      Report(report, zone, read.error().detail);
      continue;
    }
    CheckZone(report, disk.super, zone, buffer.view());
  }
  return report;
}

Result<ShowReport> ShowFile(const std::string& path) {
  KVCOVE_ASSIGN(const OpenDisk disk, OpenToRead(path));
  ShowReport report{.superblock = disk.super};
  AlignedBuffer block(kBlockBytes);
  for (std::uint32_t zone = 0; zone < disk.super.zones(); ++zone) {
    ShownZone& shown = report.zones.emplace_back(ShownZone{.zone = zone, .state = "free"});
    const std::uint64_t start = ZoneOffset(disk.super, zone);
    KVCOVE_TRY(Read(*disk.device, start, block));
    const auto header = HeaderOf(disk.super, zone, block.view());
    if (!header) continue;
    shown.state = "open";
    KVCOVE_TRY(Read(*disk.device, start + disk.super.zone_bytes - kBlockBytes, block));
    const auto trailer = TrailerOf(disk.super, *header, block.view());
    if (!trailer) continue;
    shown.state = "sealed";
    shown.scopes = trailer->scopes;
    shown.record_bytes = trailer->summary_offset - kBlockBytes;
    shown.records = trailer->entries;
  }
  return report;
}

}  // namespace kvcove::disklog
