// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/disk/known_disks.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <filesystem>
#include <numeric>
#include <optional>
#include <sstream>

#include "kvcove/base/durable_file.h"
#include "kvcove/segment/tier_table.h"

namespace kvcove::owner {
namespace {

using segment::kAllTierShares;
using segment::kTierShares;

constexpr std::string_view kNoteName = "disk";

std::string NoteOf(std::size_t owner) {
  return owner == 0 ? std::string(kNoteName) : fmt::format("{}-{}", kNoteName, owner);
}

// Returns the index of the owner whose note has this name.
std::optional<std::size_t> OwnerOf(std::string_view name) {
  if (name == kNoteName) return 0;
  if (!name.starts_with(kNoteName) || name.size() < kNoteName.size() + 2) return std::nullopt;
  std::size_t owner = 0;
  const char* const begin = name.data() + kNoteName.size() + 1;
  const char* const end = name.data() + name.size();
  const auto parsed = std::from_chars(begin, end, owner);
  const bool whole = parsed.ec == std::errc() && parsed.ptr == end && NoteOf(owner) == name;
  return whole ? std::optional(owner) : std::nullopt;
}

// Parses DISK, DISK SHARES, or DISK SHARES OPENING.
std::optional<KnownDisk> ParseLine(std::string_view line) {
  const std::size_t space = line.find(' ');
  const auto disk = IdFromHex(line.substr(0, space));
  if (!disk) return std::nullopt;
  KnownDisk known{.disk = *disk, .shares = kAllTierShares, .opening = {}};
  if (space == std::string_view::npos) return known;
  line.remove_prefix(space + 1);
  const std::string_view shares = line.substr(0, line.find(' '));
  const auto [end, error] =
      std::from_chars(shares.data(), shares.data() + shares.size(), known.shares, 16);
  if (error != std::errc() || end != shares.data() + shares.size()) return std::nullopt;
  if (shares.size() == line.size()) return known;
  const auto opening = IdFromHex(line.substr(shares.size() + 1));
  if (!opening) return std::nullopt;
  known.opening = *opening;
  return known;
}

std::string LineOf(const KnownDisk& known) {
  if (known.opening != Id128{}) {
    return fmt::format("{} {:016x} {}", ToHex(known.disk), known.shares, ToHex(known.opening));
  }
  return known.shares == kAllTierShares
             ? ToHex(known.disk)
             : fmt::format("{} {:016x}", ToHex(known.disk), known.shares);
}

// Returns the number of shares of each disk.
std::vector<std::uint32_t> Targets(std::span<const std::uint64_t> sizes) {
  double total = 0;
  for (const std::uint64_t size : sizes) total += static_cast<double>(size);
  std::vector<std::uint32_t> targets;
  for (const std::uint64_t size : sizes) {
    const double exact = static_cast<double>(size) * kTierShares / std::max(total, 1.0);
    targets.push_back(std::max(static_cast<std::uint32_t>(exact), 1U));
  }
  // Shares that rounding leaves over are given to the disk with the most bytes a share. Where the
  // minimum of one share makes too many, the disk with the most shares loses some.
  const auto bytes_a_share = [&](std::size_t i, std::uint32_t count) {
    return static_cast<double>(sizes[i]) / count;
  };
  const auto sum = [&] { return std::accumulate(targets.begin(), targets.end(), 0U); };
  while (sum() < kTierShares) {
    std::size_t most = 0;
    for (std::size_t i = 1; i < sizes.size(); ++i) {
      if (bytes_a_share(i, targets[i]) > bytes_a_share(most, targets[most])) most = i;
    }
    ++targets[most];
  }
  while (sum() > kTierShares) {
    std::size_t most = 0;
    for (std::size_t i = 1; i < sizes.size(); ++i) {
      if (targets[i] > targets[most]) most = i;
    }
    --targets[most];
  }
  return targets;
}

}  // namespace

KnownDisks::KnownDisks(std::string directory, std::size_t owner, UniqueFd lock)
    : directory_(std::move(directory)), name_(NoteOf(owner)), lock_(std::move(lock)) {}

bool KnownDisks::IsNote(std::string_view name) { return OwnerOf(name).has_value(); }

Status KnownDisks::ForgetOwners(const std::string& directory, std::size_t from) {
  std::error_code error;
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const auto owner = OwnerOf(entry.path().filename().string());
    if (owner && *owner >= from) names.push_back(NoteOf(*owner));
  }
  if (error) return Fail(Code::kUnavailable, directory + ": " + error.message());
  for (const std::string& name : names) KVCOVE_TRY(RemoveFile(directory, name));
  return {};
}

Result<std::vector<KnownDisk>> KnownDisks::ReadLocked() const {
  KVCOVE_ASSIGN(const std::optional<std::string> text, ReadSmallFile(directory_, name_));
  std::vector<KnownDisk> disks;
  std::istringstream lines(text.value_or(""));
  std::uint64_t seen = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto known = ParseLine(line);
    // Damage, or two disks with one share: the note is not trusted, and names no disk.
    if (!known || (known->shares & seen) != 0) return std::vector<KnownDisk>();
    seen |= known->shares;
    disks.push_back(*known);
  }
  return disks;
}

Status KnownDisks::WriteLocked(std::span<const KnownDisk> disks) {
  std::string text;
  for (const KnownDisk& known : disks) {
    if (!text.empty()) text += '\n';
    text += LineOf(known);
  }
  Status written =
      disks.empty() ? RemoveFile(directory_, name_) : ReplaceFile(directory_, name_, text);
  // An earlier attempt may have renamed or removed the file already, so nothing changes now, but a
  // crash could still undo that change.
  if (written && unsynced_) written = SyncDirectory(directory_);
  unsynced_ = !written;
  ++writes_;
  return written;
}

Result<std::vector<KnownDisk>> KnownDisks::Read() const {
  const MutexLock lock(mutex_);
  return ReadLocked();
}

Status KnownDisks::Write(std::span<const KnownDisk> disks, const Then& then) {
  const MutexLock lock(mutex_);
  KVCOVE_TRY(WriteLocked(disks));
  then();
  return {};
}

Status KnownDisks::Note(const KnownDisk& disk) {
  const MutexLock lock(mutex_);
  return NoteLocked(disk);
}

Result<bool> KnownDisks::NoteIf(const KnownDisk& disk, const std::function<bool()>& holds) {
  const MutexLock lock(mutex_);
  if (!holds()) return false;
  KVCOVE_TRY(NoteLocked(disk));
  return true;
}

Result<bool> KnownDisks::NoteOpening(const KnownDisk& disk) {
  const MutexLock lock(mutex_);
  KVCOVE_ASSIGN(std::vector<KnownDisk> disks, ReadLocked());
  const auto known = std::ranges::find_if(disks, [&](const KnownDisk& one) {
    return one.disk == disk.disk && one.shares == disk.shares;
  });
  if (known == disks.end()) return false;
  known->opening = disk.opening;
  KVCOVE_TRY(WriteLocked(disks));
  return true;
}

Status KnownDisks::NoteLocked(const KnownDisk& disk) {
  KVCOVE_ASSIGN(std::vector<KnownDisk> disks, ReadLocked());
  std::erase_if(disks, [&](const KnownDisk& known) { return (known.shares & disk.shares) != 0; });
  disks.push_back(disk);
  return WriteLocked(disks);
}

Status KnownDisks::Forget(std::uint64_t shares, const Then& then) {
  const MutexLock lock(mutex_);
  if (const Status forgotten = ForgetLocked(shares); !forgotten) {
    wants_void_ = true;
    // The master has stored that no later process uses the disks: that is as good as the note. The
    // request for it (`wants_void_`) proves nothing.
    if (!void_) return forgotten;
  }
  then();
  return {};
}

Status KnownDisks::ForgetLocked(std::uint64_t shares) {
  auto disks = ReadLocked();
  // The disks in an unreadable note are unknown: strikes all of them.
  if (!disks) return WriteLocked({});
  const auto forgotten =
      std::erase_if(*disks, [&](const KnownDisk& known) { return (known.shares & shares) != 0; });
  // Writes only changes: each removal from a disk that is set aside calls this.
  return forgotten == 0 && !disks->empty() && !unsynced_ ? Status() : WriteLocked(*disks);
}

// Takes shares above its target from each disk, then gives the free ones to disks below theirs.
// Other shares keep their disk, and so their objects.
std::vector<std::uint64_t> AssignShares(std::span<const std::uint64_t> sizes,
                                        std::span<const std::uint64_t> before) {
  const std::vector<std::uint32_t> targets = Targets(sizes);
  std::vector<std::uint64_t> shares(before.begin(), before.end());
  std::uint64_t free = kAllTierShares;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    while (static_cast<std::uint32_t>(std::popcount(shares[i])) > targets[i]) {
      shares[i] &= ~std::bit_floor(shares[i]);
    }
    free &= ~shares[i];
  }
  for (std::size_t i = 0; i < shares.size(); ++i) {
    while (static_cast<std::uint32_t>(std::popcount(shares[i])) < targets[i]) {
      const std::uint64_t one = free & (~free + 1);
      shares[i] |= one;
      free &= ~one;
    }
  }
  return shares;
}

}  // namespace kvcove::owner
