// SPDX-License-Identifier: Apache-2.0
// Checks the path of a disk before anything on the disk is used: an empty disk is formatted, and
// one that belongs to something else is not touched. These calls wait for the disk.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "kvcove/disklog/disk_file.h"

namespace kvcove::owner {

// Parses PATH:SIZE; the size is required. `option` names the option in messages. Errors: kInvalid.
Result<disklog::DiskSpec> ParseDisk(std::string_view option, const std::string& text);
// Parses several of them, also with commas in between. Errors: kInvalid, also for too many disks or
// one disk named twice.
Result<std::vector<disklog::DiskSpec>> ParseDisks(std::string_view option,
                                                  std::span<const std::string> texts);
// Returns "PATH:SIZE,PATH:SIZE", sizes in bytes.
std::string DiskOptions(std::span<const disklog::DiskSpec> specs);
// Returns "PATH" or "PATH and PATH", for messages.
std::string DiskPaths(std::span<const disklog::DiskSpec> specs);

// Returns the zone size for a disk of this size, in bytes.
std::uint64_t ZoneBytesFor(std::uint64_t disk_bytes);
inline constexpr std::uint64_t kLeastZoneBytes = 1ULL << 20;

// Opens an existing file or block device.
using DeviceOpener =
    std::function<Result<std::unique_ptr<disklog::Device>>(const std::string& path)>;

// The owner that a disk is expected to belong to.
struct DiskOwner {
  Id128 pool;  // zero: not known yet, and any pool is accepted
  Id128 incarnation;
  std::string data_directory;
};

struct FoundDisk {
  std::string path;  // of the file or block device
  std::unique_ptr<disklog::Device> device;
  disklog::Superblock super;  // its pool is zero, or the expected one
};

// Opens the disk, and formats it if it is empty. Errors: those of disklog::FormatFile, OpenDevice
// and Log::ReadSuperblock, with the path; kInvalid: the disk has another size, or the name of a
// file that `data_directory` keeps; kIncompatible: the disk belongs to another pool.
Result<FoundDisk> FindDisk(const disklog::DiskSpec& spec, const DiskOwner& whose,
                           const DeviceOpener& open);

// Formats the disk for `whose`: all objects are lost, and its identity stays.
Status EmptyDisk(FoundDisk& disk, const DiskOwner& whose, std::uint64_t hash_seed);

}  // namespace kvcove::owner
