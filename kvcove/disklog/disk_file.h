// SPDX-License-Identifier: Apache-2.0
// The work of `kvcove disk format|check|show`, and the checks of a path before an owner opens it.
// All calls block on the disk.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvcove/disklog/log.h"

namespace kvcove::disklog {

// Name of the disk's file if a disk is given as a directory.
inline constexpr const char* kDiskFileName = "kvcove.disk";

struct DiskSpec {
  std::string path;              // a directory, a file, or a block device
  std::uint64_t size_bytes = 0;  // 0: the whole block device
};
// Parses "PATH:SIZE", or "PATH" for a block device. Errors: kInvalid.
Result<DiskSpec> ParseDiskSpec(const std::string& text);
// Returns `path`, or the path of the disk's file in it if `path` is a directory.
std::string DiskFileOf(const std::string& path);

// Refuses file systems that cannot hold a disk. Errors: kInvalid (tmpfs, a network file system).
Status CheckFileSystem(const std::string& path);

struct FormatFileOptions {
  FormatOptions format;
  bool yes = false;  // overwrite existing contents
};
// Creates and allocates the file, or uses the block device, and formats it. Errors: kInvalid (too
// small, tmpfs or NFS, no O_DIRECT), kDenied (mounted, or it has contents and `yes` is false),
// kNoSpace, kUnavailable (in use).
Status FormatFile(const DiskSpec& spec, const FormatFileOptions& options);

struct CheckReport {
  std::uint64_t zones = 0;
  std::uint64_t records = 0;
  std::uint64_t tombstones = 0;
  std::uint64_t value_bytes = 0;
  // One line for each damage, with its place. At most 1000; `damages` counts all.
  std::vector<std::string> problems;
  std::uint64_t damages = 0;
};
// Reads and verifies every record of the disk. Writes nothing.
Result<CheckReport> CheckFile(const std::string& path);

struct ShownZone {
  std::uint32_t zone = 0;
  std::string state;          // "free", "sealed", "open" (without a summary)
  std::uint64_t records = 0;  // objects and tombstones
  std::uint64_t record_bytes = 0;
  std::uint32_t scopes = 0;
};
struct ShowReport {
  Superblock superblock;
  std::vector<ShownZone> zones;
};
// Lists the zones by superblocks, headers and trailers; reads no record. Writes nothing.
Result<ShowReport> ShowFile(const std::string& path);

}  // namespace kvcove::disklog
