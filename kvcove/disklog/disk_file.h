// SPDX-License-Identifier: Apache-2.0
// What `kvcove disk format|check|show` do, and what an owner asks of a path before it opens it.
// These calls wait for the disk.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvcove/disklog/log.h"

namespace kvcove::disklog {

// The file within a directory that is given as a disk.
inline constexpr const char* kDiskFileName = "kvcove.disk";

struct DiskSpec {
  std::string path;              // a directory, a file, or a block device
  std::uint64_t size_bytes = 0;  // 0: the whole block device
};
// "PATH:SIZE", or "PATH" for a block device. Errors: kInvalid.
Result<DiskSpec> ParseDiskSpec(const std::string& text);
// `path`, or the disk's file in it when it is a directory.
std::string DiskFileOf(const std::string& path);

// Errors: kInvalid where a disk cannot be (tmpfs, a network file system).
Status CheckFileSystem(const std::string& path);

struct FormatFileOptions {
  FormatOptions format;
  bool yes = false;  // overwrite what is there
};
// Makes the file, allocated ahead, or takes the block device, and formats it. Errors: kInvalid (too
// small, tmpfs or NFS, no O_DIRECT), kDenied (mounted; or it holds something, and `yes` was not
// given), kNoSpace, kUnavailable (in use).
Status FormatFile(const DiskSpec& spec, const FormatFileOptions& options);

struct CheckReport {
  std::uint64_t zones = 0;
  std::uint64_t records = 0;
  std::uint64_t tombstones = 0;
  std::uint64_t value_bytes = 0;
  // One line each: what is damaged, and where. At most 1000; `damages` counts all.
  std::vector<std::string> problems;
  std::uint64_t damages = 0;
};
// Reads every record of the disk and verifies it. Writes nothing.
Result<CheckReport> CheckFile(const std::string& path);

struct ShownZone {
  std::uint32_t zone = 0;
  std::string state;          // "free", "sealed", "open" (without a summary)
  std::uint64_t records = 0;  // with tombstones
  std::uint64_t record_bytes = 0;
  std::uint32_t scopes = 0;
};
struct ShowReport {
  Superblock superblock;
  std::vector<ShownZone> zones;
};
// From superblocks, headers and trailers. Writes nothing.
Result<ShowReport> ShowFile(const std::string& path);

}  // namespace kvcove::disklog
