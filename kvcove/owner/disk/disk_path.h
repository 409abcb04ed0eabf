// SPDX-License-Identifier: Apache-2.0
// The path that a disk was given, before anything of it is used: what is empty is formatted, what
// is another one's is not touched. These calls wait for the disk.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "kvcove/disklog/disk_file.h"

namespace kvcove::owner {

// PATH:SIZE, with a size. `option` names it in messages. Errors: kInvalid.
Result<disklog::DiskSpec> ParseDisk(std::string_view option, const std::string& text);
// The same with commas between several. Errors: also kInvalid for too many, or one disk twice.
Result<std::vector<disklog::DiskSpec>> ParseDisks(std::string_view option,
                                                  std::span<const std::string> texts);
// "PATH:SIZE,PATH:SIZE", sizes in bytes.
std::string DiskOptions(std::span<const disklog::DiskSpec> specs);
// "PATH", or "PATH and PATH", for messages.
std::string DiskPaths(std::span<const disklog::DiskSpec> specs);

// Zones that fit a disk of this size.
std::uint64_t ZoneBytesFor(std::uint64_t disk_bytes);
inline constexpr std::uint64_t kLeastZoneBytes = 1ULL << 20;

// Of an existing file or block device.
using DeviceOpener =
    std::function<Result<std::unique_ptr<disklog::Device>>(const std::string& path)>;

// Whose disk a path is expected to be.
struct DiskOwner {
  Id128 pool;  // zero: none is known yet, and any will do
  Id128 incarnation;
  std::string data_directory;
};

struct FoundDisk {
  std::string path;  // of the file or block device
  std::unique_ptr<disklog::Device> device;
  disklog::Superblock super;  // its pool is zero, or the expected one
};

// Errors: those of disklog::FormatFile, OpenDevice and Log::ReadSuperblock, with the path;
// kInvalid: another size, or the name of a file that `data_directory` keeps; kIncompatible: another
// pool's.
Result<FoundDisk> FindDisk(const disklog::DiskSpec& spec, const DiskOwner& whose,
                           const DeviceOpener& open);

// Empties it. Its identity stays what it is.
Status EmptyDisk(FoundDisk& disk, const DiskOwner& whose, std::uint64_t hash_seed);

}  // namespace kvcove::owner
