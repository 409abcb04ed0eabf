// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>

#include "kvcove/base/posix.h"
#include "kvcove/owner/disk/disk_thread.h"

namespace kvcove::owner {
namespace {

// Decides by the note how each disk is opened, and divides the shares among the disks.
std::vector<DiskThread::Opening> Plan(std::span<const std::optional<FoundDisk>> found,
                                      std::span<const disklog::DiskSpec> specs,
                                      const std::vector<KnownDisk>& note, const TierPlace& place,
                                      std::vector<std::uint64_t>& shares) {
  std::vector<DiskThread::Opening> plan(found.size());
  std::vector<std::uint64_t> sizes(found.size());
  std::vector<std::uint64_t> before(found.size());
  // All disks hash keys with the seed of the first known one. The tags of a disk with another seed
  // would not be found, so that disk starts empty.
  std::uint64_t seed = 0;
  std::uint64_t taken = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    sizes[i] = specs[i].size_bytes;
    if (!found[i] || found[i]->super.incarnation != place.incarnation) continue;
    const auto known = std::ranges::find(note, found[i]->super.disk, &KnownDisk::disk);
    if (known == note.end()) continue;
    // A copy of a disk's file has the same number. One of an earlier time may hold older values,
    // and of two of the same time only the first keeps the shares.
    plan[i].copy = !found[i]->super.HasOpening(known->opening);
    if (plan[i].copy || (known->shares & taken) != 0) continue;
    plan[i].noted_opening = known->opening;
    if (seed == 0) seed = found[i]->super.hash_seed;
    plan[i].known = seed == found[i]->super.hash_seed;
    if (plan[i].known) taken |= before[i] = known->shares;
  }
  if (seed == 0) seed = RandomU64() | 1;
  shares = AssignShares(sizes, before);
  for (std::size_t i = 0; i < plan.size(); ++i) {
    plan[i].hash_seed = seed;
    plan[i].missed = !note.empty();
    plan[i].moved = before[i] & ~shares[i];
  }
  return plan;
}

}  // namespace

std::vector<OpenedTier> OpenTiers(std::span<const disklog::DiskSpec> specs, const TierPlace& place,
                                  DiskSet& tiers, Promoter& promoter, const Clock& clock,
                                  const TierOptions& options) {
  std::vector<OpenedTier> opened(specs.size());
  std::vector<std::optional<FoundDisk>> found(specs.size());
  const DiskOwner whose{.pool = place.pool,
                        .incarnation = place.incarnation,
                        .data_directory = place.known->directory()};
  for (std::size_t i = 0; i < specs.size(); ++i) {
    auto disk = FindDisk(specs[i], whose, options.open);
    tiers[i].use().NoteProgress();
    if (disk) {
      found[i] = *std::move(disk);
    } else {
      opened[i].status = std::unexpected(disk.error());
    }
  }
  // A note that cannot be read names no disk, so all disks are emptied.
  const auto note = place.known->Read();
  std::vector<std::uint64_t> shares;
  const auto plan = Plan(found, specs, note ? *note : std::vector<KnownDisk>(), place, shares);
  tiers.common().tags.Begin(plan.front().hash_seed);
  tiers.SetShares(shares);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const bool is_there = found[i].has_value();
    FoundDisk disk =
        is_there ? *std::move(found[i])
                 : FoundDisk{.path = disklog::DiskFileOf(specs[i].path), .device = {}, .super = {}};
    opened[i].tier =
        std::make_unique<DiskThread>(std::move(disk), place, tiers[i], promoter, clock, options);
    if (!is_there) continue;
    const auto load = [&opened, &plan, i] { opened[i].status = opened[i].tier->Load(plan[i]); };
    // If the system refuses a thread, this one opens the disk.
    if (auto thread = StartThread("kvcove-opener", load)) {
      threads.push_back(std::move(*thread));
    } else {
      load();
    }
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<KnownDisk> known;
  for (OpenedTier& one : opened) {
    if (one.status) known.push_back(one.tier->facts());
  }
  // The note is written before any disk is on. A disk that is missing now misses what is removed
  // from here on, so the note must not name it.
  const Status noted = place.known->Write(known);
  for (std::size_t i = 0; i < opened.size(); ++i) {
    if (!noted) tiers[i].use().MayBeNamed();
    if (opened[i].status && !noted) opened[i].status = noted;
    if (opened[i].status) {
      opened[i].tier->Noted();
      tiers[i].use().SetOn();
    } else {
      tiers[i].use().SetAside(opened[i].status.error().detail);
    }
  }
  return opened;
}

}  // namespace kvcove::owner
