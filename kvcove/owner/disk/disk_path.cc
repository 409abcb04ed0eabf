// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/disk/disk_path.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <sstream>

#include "kvcove/base/log.h"
#include "kvcove/base/random.h"
#include "kvcove/base/size.h"
#include "kvcove/owner/disk/known_disks.h"

namespace kvcove::owner {
namespace {

// Files that a data directory keeps. A disk with one of these names would be written over.
constexpr std::string_view kNamesOfData[] = {"owner", "control", "lock", "upgrade"};

Status CheckPath(const std::string& path, const std::string& data_directory) {
  std::error_code ignored;
  const auto place = std::filesystem::weakly_canonical(path, ignored);
  const auto data = std::filesystem::weakly_canonical(data_directory, ignored);
  const std::string name = place.filename().string();
  const bool taken =
      KnownDisks::IsNote(name) || std::ranges::find(kNamesOfData, name) != std::end(kNamesOfData);
  if (place.parent_path() != data || !taken) return {};
  return Fail(Code::kInvalid,
              fmt::format("'{}' in '{}' is a name of this pool's own files; give a directory, or a "
                          "file of another name",
                          name, data_directory));
}

// Returns a text that is equal for two paths of one file or device, whatever links are in them. A
// path that does not exist yet has no inode, so its canonical form is used.
std::string PlaceOf(const std::string& path) {
  struct stat status{};
  if (stat(path.c_str(), &status) == 0) {
    return S_ISBLK(status.st_mode) ? fmt::format("device {}", status.st_rdev)
                                   : fmt::format("file {}:{}", status.st_dev, status.st_ino);
  }
  std::error_code ignored;
  return std::filesystem::weakly_canonical(path, ignored).string();
}

Result<std::unique_ptr<disklog::Device>> OpenOrFormat(const std::string& path,
                                                      const disklog::DiskSpec& spec,
                                                      const DiskOwner& whose,
                                                      const DeviceOpener& open) {
  const disklog::FormatFileOptions format{.format = {.pool = whose.pool,
                                                     .incarnation = whose.incarnation,
                                                     .identity = RandomId(),
                                                     .zone_bytes = ZoneBytesFor(spec.size_bytes)}};
  struct stat status{};
  if (stat(path.c_str(), &status) != 0) {
    KVCOVE_TRY(disklog::FormatFile(spec, format));
    LogInfo("disk {}: {} are allocated for it", path, FormatSize(spec.size_bytes));
    return open(path);
  }
  KVCOVE_ASSIGN(auto device, open(path));
  const auto super = disklog::Log::ReadSuperblock(*device);
  // A superblock that is damaged or of another format is an error, which Find reports. kInvalid:
  // there is none.
  if (super || super.error().code != Code::kInvalid) return device;
  // FormatFile formats an empty file, and refuses one that holds anything.
  device.reset();
  if (const Status formatted = disklog::FormatFile(spec, format); !formatted) {
    if (formatted.error().code != Code::kDenied) return std::unexpected(formatted.error());
    return Fail(
        Code::kDenied,
        fmt::format("{} is not a disk of kvcove, and not empty; to erase its contents: "
                    "kvcove disk format {}:{} --pool {} --incarnation {} --yes",
                    path, spec.path, spec.size_bytes, ToHex(whose.pool), ToHex(whose.incarnation)));
  }
  return open(path);
}

Status CheckSize(const disklog::DiskSpec& spec, const disklog::Superblock& super) {
  if (spec.size_bytes == 0 || spec.size_bytes == super.device_bytes) return {};
  return Fail(Code::kInvalid,
              fmt::format("it has {} B, not {} B: give its size, or remove it and lose what it "
                          "holds",
                          super.device_bytes, spec.size_bytes));
}

// A disk that was formatted before the master answered has no pool.
Status CheckPool(const DiskOwner& whose, const disklog::Superblock& super) {
  if (whose.pool == Id128{} || super.pool == Id128{} || super.pool == whose.pool) return {};
  return Fail(Code::kIncompatible,
              fmt::format("it belongs to pool {}, this one is pool {} (generations in '{}'); start "
                          "with that pool's data, or use another path",
                          ToHex(super.pool), ToHex(whose.pool), whose.data_directory));
}

Result<FoundDisk> Find(const std::string& path, const disklog::DiskSpec& spec,
                       const DiskOwner& whose, const DeviceOpener& open) {
  KVCOVE_TRY(CheckPath(path, whose.data_directory));
  FoundDisk found{.path = path, .device = nullptr, .super = {}};
  KVCOVE_ASSIGN(found.device, OpenOrFormat(path, spec, whose, open));
  KVCOVE_ASSIGN(found.super, disklog::Log::ReadSuperblock(*found.device));
  KVCOVE_TRY(CheckPool(whose, found.super));
  KVCOVE_TRY(CheckSize(spec, found.super));
  return found;
}

}  // namespace

Result<disklog::DiskSpec> ParseDisk(std::string_view option, const std::string& text) {
  auto spec = disklog::ParseDiskSpec(text);
  const bool sized = spec && spec->size_bytes != 0;
  if (sized) return spec;
  return Fail(Code::kInvalid, fmt::format("{}: '{}' is not PATH:SIZE, such as /mnt/nvme0:500GiB{}",
                                          option, text, spec ? "" : ": " + spec.error().detail));
}

Result<std::vector<disklog::DiskSpec>> ParseDisks(std::string_view option,
                                                  std::span<const std::string> texts) {
  std::vector<disklog::DiskSpec> specs;
  for (const std::string& text : texts) {
    std::istringstream parts(text);
    for (std::string part; std::getline(parts, part, ',');) {
      KVCOVE_ASSIGN(disklog::DiskSpec spec, ParseDisk(option, part));
      const std::string path = disklog::DiskFileOf(spec.path);
      for (const disklog::DiskSpec& other : specs) {
        if (PlaceOf(disklog::DiskFileOf(other.path)) != PlaceOf(path)) continue;
        return Fail(Code::kInvalid, fmt::format("{}: '{}' and '{}' are one disk; name it once",
                                                option, other.path, spec.path));
      }
      specs.push_back(std::move(spec));
    }
  }
  if (specs.size() > kMaxDisks) {
    return Fail(Code::kInvalid, fmt::format("{}: {} disks; an owner has {} at most", option,
                                            specs.size(), kMaxDisks));
  }
  return specs;
}

std::string DiskOptions(std::span<const disklog::DiskSpec> specs) {
  std::string text;
  for (const disklog::DiskSpec& spec : specs) {
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", spec.path, spec.size_bytes);
  }
  return text;
}

std::string DiskPaths(std::span<const disklog::DiskSpec> specs) {
  std::string text;
  for (const disklog::DiskSpec& spec : specs) text += (text.empty() ? "" : " and ") + spec.path;
  return text;
}

std::uint64_t ZoneBytesFor(std::uint64_t disk_bytes) {
  return std::clamp(std::bit_floor(disk_bytes / 64), kLeastZoneBytes, disklog::kDefaultZoneBytes);
}

Result<FoundDisk> FindDisk(const disklog::DiskSpec& spec, const DiskOwner& whose,
                           const DeviceOpener& open) {
  const std::string path = disklog::DiskFileOf(spec.path);
  auto found = Find(path, spec, whose, open);
  if (found || found.error().detail.find(path) != std::string::npos) return found;
  return Fail(found.error().code, "the disk " + path + ": " + found.error().detail);
}

Status EmptyDisk(FoundDisk& disk, const DiskOwner& whose, std::uint64_t hash_seed) {
  KVCOVE_TRY(disklog::Format(*disk.device, {.pool = whose.pool,
                                            .incarnation = whose.incarnation,
                                            .identity = disk.super.identity,
                                            .zone_bytes = disk.super.zone_bytes,
                                            .hash_seed = hash_seed}));
  KVCOVE_ASSIGN(disk.super, disklog::Log::ReadSuperblock(*disk.device));
  return {};
}

}  // namespace kvcove::owner
