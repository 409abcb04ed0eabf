// SPDX-License-Identifier: Apache-2.0
// An owner and its disks: what goes up, what is removed there, and who hears that it fails.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "kvcove/base/log.h"
#include "kvcove/owner/owner.h"

namespace kvcove::owner {
namespace {

constexpr std::int64_t kDrainNs = 10 * kSecond;
// A sync behind much other work takes seconds on a disk that is sound.
constexpr std::int64_t kHangNs = 10 * kSecond;
constexpr std::int64_t kLongestPrefetchNs = 10 * kSecond;
constexpr std::uint64_t kLeastKeepingQueueBytes = 16 * kMiB;
constexpr std::uint64_t kBytesAnObject = 2048;  // of a disk, for the table's limit

wire::LoadResult ResultOf(Code code, std::uint64_t bytes) {
  switch (code) {
    case Code::kOk:
      return {.code = Code::kOk, .bytes = bytes};
    case Code::kExists:
      return {.code = Code::kOk};
    case Code::kNoSpace:
    case Code::kLimit:
      return MissFor(MissReason::kNoRoom);
    default:  // kStale, too: a removal or a reset overtook it
      return MissFor(MissReason::kRaced);
  }
}

}  // namespace

std::uint64_t Owner::TierObjects() const {
  std::uint64_t bytes = 0;
  for (const disklog::DiskSpec& disk : options_.disks) bytes += disk.size_bytes;
  return bytes / kBytesAnObject;
}

void Owner::MakeTiers() {
  const std::size_t disks = options_.disks.size();
  if (disks == 0) return;
  // What one call may bring up, and what may wait to be written, are the owner's in total.
  const std::uint64_t share = options_.memory_bytes / 8 / disks;
  TieringOptions each;
  each.hang_ns = kHangNs;
  each.listed = options_.cluster;
  each.quotas = options_.disk_quotas;
  each.batch_bytes = std::max<std::uint64_t>(share, kMiB);
  // A queue that must hold what it gets needs room for values of any usual size.
  const std::uint64_t least =
      options_.disk_admit == DiskAdmit::kKeep ? kLeastKeepingQueueBytes : 4 * kMiB;
  each.queue_bytes = std::clamp<std::uint64_t>(share, least, each.queue_bytes);
  DemotionOptions demotions{.admit = options_.disk_admit,
                            .bytes_per_second = options_.disk_write_rate};
  for (const disklog::DiskSpec& disk : options_.disks) demotions.disk_bytes += disk.size_bytes;
  tiers_ = std::make_unique<TierSet>(disks, each, demotions, header_, payload(), clock_);
  said_aside_.resize(disks);
}

Status Owner::OpenDisks(const TierPlace& place) {
  if (tiers_ == nullptr) return place.known->Write({});
  known_disks_ = place.known;
  disk_place_ = place;
  {
    const MutexLock lock(mutex_);
    promoter_ = core_->AddPromoter();
  }
  std::vector<OpenedTier> opened =
      OpenTiers(options_.disks, place, *tiers_, *this, clock_, options_.tier);
  for (const OpenedTier& one : opened) KVCOVE_TRY(one.status);
  for (OpenedTier& one : opened) disks_.push_back(std::move(one.tier));
  for (const auto& disk : disks_) KVCOVE_TRY(disk->Start());
  disks_open_ = true;
  return {};
}

// All at once, so that they take no longer than one.
void Owner::StopDisks() {
  StopOpening();
  for (const auto& disk : disks_) {
    if (disk != nullptr) disk->BeginStop(kDrainNs);
  }
  for (std::size_t i = 0; i < disks_.size(); ++i) {
    if (disks_[i] != nullptr && !disks_[i]->AwaitStop()) hanging_disks_.push_back(i);
  }
  disk_hangs_ = disk_hangs_ || !hanging_disks_.empty();
}

// Behind the janitor, which watches the disks until it ends.
void Owner::LeaveHangingDisks() {
  for (const std::size_t disk : std::exchange(hanging_disks_, {})) (void)disks_[disk].release();
  if (!disk_hangs_ || tiers_ == nullptr) return;
  // The thread of a disk that hangs may use these one day.
  (void)new Mapping(std::move(header_map_));
  (void)tiers_.release();
  disks_open_ = false;
}

void Owner::UnmountDisk() {
  for (std::size_t i = 0; i < options_.disks.size(); ++i) (*tiers_)[i].Unmount("it was unmounted");
}

void Owner::TickDisks() {
  TickOpening();
  if (!disks_open_) return;
  for (std::size_t i = 0; i < disks_.size(); ++i) {
    if (disks_[i] == nullptr) continue;
    Tiering& tiering = (*tiers_)[i];
    if (tiering.Tick(clock_.NowNs())) disks_[i]->Wake();
    const auto why = tiering.aside();
    if (why.has_value() == said_aside_[i]) continue;
    said_aside_[i] = why.has_value();
    const std::string& path = disks_[i]->path();
    if (why) {
      LogError("disk {} is set aside: {}. {}{}", path, *why,
               disks_.size() == 1 ? "Memory goes on" : "Memory and the other disks go on",
               tiering.TriesAgain() ? ", and the disk is tried again from time to time"
                                    : "; restart this owner to use the disk again");
    } else {
      LogWarn("disk {} is used again{}", path,
              tiering.away() ? " once the master has heard what it holds" : "");
    }
  }
}

Tier* Owner::TierOf(std::size_t disk) const { return disks_open_ ? disks_[disk].get() : nullptr; }

// ---- up

void Owner::Load(SessionNumber session, const wire::LoadRequest& request,
                 const wire::HostService::Loaded& done) {
  if (tiers_ == nullptr) return done(std::vector<wire::LoadResult>(request.keys.size()));
  const std::int64_t now = clock_.NowNs();
  const bool prefetch = request.wait_ns <= 0;
  const Upcoming upcoming{
      .session = [session] { return session; },
      .deadline_ns =
          now + (prefetch ? std::min(request.hold_ns, kLongestPrefetchNs) : request.wait_ns),
      .done =
          [done, prefetch](std::vector<wire::LoadResult> results) {
            if (!prefetch) done(std::move(results));
          }};
  (void)BeginLoad(request, upcoming, now + std::max(request.hold_ns, request.wait_ns));
  if (prefetch) done(std::vector<wire::LoadResult>(request.keys.size()));
}

std::shared_ptr<LoadCall> Owner::BeginLoad(const wire::LoadRequest& request,
                                           const Upcoming& upcoming, std::int64_t hold_until_ns) {
  const auto call = std::make_shared<LoadCall>();
  call->answer->results.resize(request.keys.size());
  call->answer->done = upcoming.done;
  call->deadline_ns = upcoming.deadline_ns;
  call->session = upcoming.session();
  call->hold_until_ns = hold_until_ns;
  for (std::size_t begin = 0; begin < request.keys.size(); begin += kSlice) {
    const MutexLock lock(mutex_);
    const MissReason refused = core_->Unreadable(request.token);
    for (std::size_t i = begin; i < std::min(begin + kSlice, request.keys.size()); ++i) {
      AddLoad(*call, i, request, refused);
    }
  }
  tiers_->Begin(*call);
  WakeDisks();
  return call;
}

// Held for as long as somebody waits: what comes first must not give way to the rest.
std::shared_ptr<void> Owner::BringUp(const Token& token, std::span<const std::string_view> keys,
                                     const Upcoming& upcoming) {
  const segment::TierTable& tier = header_.tier();
  const bool any = tiers_ != nullptr && std::ranges::any_of(keys, [&](std::string_view key) {
                     return tier.Holds(token.slot, token.generation, key);
                   });
  if (!any) return nullptr;
  return BeginLoad({.token = token, .keys = keys}, upcoming, upcoming.deadline_ns);
}

void Owner::GiveUp(const std::shared_ptr<void>& brought) {
  tiers_->Cancel(*std::static_pointer_cast<LoadCall>(brought));
}

void Owner::WakeDisks() const {
  if (!disks_open_) return;
  for (std::size_t i = 0; i < disks_.size(); ++i) {
    if (disks_[i] != nullptr && (*tiers_)[i].HasWork()) disks_[i]->Wake();
  }
}

void Owner::AddLoad(LoadCall& call, std::size_t index, const wire::LoadRequest& request,
                    MissReason refused) {
  const std::string_view key = request.keys[index];
  const Token& token = request.token;
  if (refused != MissReason::kNone) {
    call.answer->results[index] = MissFor(refused);
  } else if (!CheckKey(key)) {
    call.answer->results[index] = {.code = Code::kInvalid};
  } else if (core_->StatObject(token.slot, key)) {
    core_->HoldKey(call.session, token.slot, key, call.hold_until_ns);
    call.answer->results[index] = {.code = Code::kOk};
  } else {
    (void)tiers_->AddLoad(call, index,
                          {.slot = token.slot,
                           .generation = token.generation,
                           .key = std::string(key),
                           .after = std::string(index > 0 ? request.keys[index - 1] : ""),
                           .waiters = {}});
  }
}

// An ordinary put: a removal or a reset that comes before its end fences it as it fences every put.
wire::LoadResult Owner::Promote(const owner::Load& load, std::span<const std::byte> value) {
  const bool whole = value.size() <= kInlineBytes;
  const PutItem item{.key = load.key,
                     .size_bytes = static_cast<std::uint32_t>(value.size()),
                     .value = whole ? value : std::span<const std::byte>(),
                     .after = load.after};
  std::vector<PutResult> put;
  {
    const MutexLock lock(mutex_);
    if (!tiers_->Wanted(load)) return MissFor(MissReason::kRaced);
    const Token token{
        .incarnation = core_->incarnation(), .generation = load.generation, .slot = load.slot};
    put = core_->Put(promoter_, token, {&item, 1});
    if (put[0].code == Code::kOk && whole) core_->NotePromoted(load.slot, load.key, load.put);
    if (put[0].code != Code::kOk || whole) {
      HoldLoaded(load);
      return ResultOf(put[0].code, value.size());
    }
  }
  EnsurePopulated(put);
  std::span<const std::byte> left = value;
  for (const Extent& extent : put[0].extents) {
    const std::span<std::byte> room = payload().At(extent);
    const std::size_t count = std::min(room.size(), left.size());
    std::memcpy(room.data(), left.data(), count);
    left = left.subspan(count);
  }
  const FinishItem commit{.reservation = put[0].reservation, .commit = true};
  const MutexLock lock(mutex_);
  const Code code = core_->Finish(promoter_, {&commit, 1}).front();
  if (code == Code::kOk) core_->NotePromoted(load.slot, load.key, load.put);
  HoldLoaded(load);
  return ResultOf(code, value.size());
}

Promoter::Puts Owner::PutsUnderWay() {
  const MutexLock lock(mutex_);
  return {.next = core_->next_put(), .oldest = core_->oldest_put()};
}

void Owner::HoldLoaded(const owner::Load& load) {
  for (const auto& [session, until_ns] : tiers_->HoldersOf(load)) {
    core_->HoldKey(session, load.slot, load.key, until_ns);
  }
}

// ---- removals

Status Owner::AwaitDisks(DisksRemoval& removal, std::int64_t deadline_ns) {
  if (tiers_ == nullptr) return {};
  WakeDisks();
  for (std::size_t i = 0; i < removal.parts.size(); ++i) {
    auto& part = removal.parts[i];
    if (part == nullptr) continue;
    Status proven = (*tiers_)[i].AwaitRemoval(*part, deadline_ns);
    if (proven) continue;
    if (proven.error().code != Code::kUnavailable) return proven;
    // The disk proves nothing any more. Once it is written down that the next start must not use
    // what it holds, the removal is proven all the same.
    if (const Status forgotten = ForgetDisk(i); !forgotten) {
      return Fail(Code::kUnavailable, proven.error().detail + "; and " + forgotten.error().detail);
    }
    part = nullptr;  // the disk's thread may still write to it
  }
  return {};
}

// Before the disks are open none is used: whichever the next start finds, it is emptied.
Status Owner::ForgetDisk(std::size_t disk) {
  if (!disks_open_) return ForgetDisks();
  Tiering& tiering = (*tiers_)[disk];
  return known_disks_->Forget(tiering.shares(), [&] { tiering.Struck(); });
}

Status Owner::ForgetDisks() {
  return known_disks_->Write({}, [&] {
    for (std::size_t i = 0; tiers_ != nullptr && i < tiers_->size(); ++i) (*tiers_)[i].Struck();
  });
}

void Owner::RemoveFromDisks(const Token& token, std::span<const std::string_view> keys,
                            std::span<Code> codes, DisksRemoval& removal) {
  if (tiers_ == nullptr) return;
  std::vector<std::string_view> sound;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (codes[i] != Code::kOk && codes[i] != Code::kMiss) continue;
    sound.push_back(keys[i]);
    if (tiers_->Holds(token.slot, token.generation, keys[i])) codes[i] = Code::kOk;
  }
  if (!sound.empty()) tiers_->Remove(token.slot, token.generation, sound, removal);
}

void Owner::ReportDisks(wire::RenewRequest& report) const {
  if (tiers_ == nullptr) return;
  for (std::size_t i = 0; i < tiers_->size(); ++i) {
    const DiskStat disk = DiskStatOf(i);
    ++report.disks;
    report.disks_aside += static_cast<std::uint32_t>(disk.aside);
    report.disk_capacity_bytes += disk.capacity_bytes;
    report.disk_bytes += disk.bytes;
  }
}

void Owner::AddDiskStat(PoolStat& stat) const {
  if (tiers_ == nullptr) return;
  const TierStat tier = tiers_->Stat();
  stat.disk_bytes = tier.space.live_bytes;
  stat.disk_objects = tier.space.objects;
  stat.disk_queued_bytes = tier.space.queued_bytes;
  stat.disk_aside = tier.aside ? 1 : 0;
  stat.disk_puts = tier.demoted;
  stat.disk_put_bytes = tier.demoted_bytes;
  stat.disk_written_bytes = tier.log.written_bytes;
  stat.disk_kept = tier.kept;
  stat.disk_not_worth = tier.not_worth;
  stat.disk_over_rate = tier.over_rate;
  stat.disk_over_share = tier.over_share;
  stat.disk_dropped_full = tier.dropped_full;
  stat.disk_dropped_other = tier.dropped_other;
  stat.disk_evictions = tier.log.dropped_objects;
  stat.disk_hits = tier.promoted;
  stat.disk_hit_bytes = tier.promoted_bytes;
  stat.disk_misses = tier.load_misses;
  stat.disk_timeouts = tier.load_timeouts;
  stat.disk_failed = tier.load_failed;
  stat.disk_no_room = tier.load_no_room;
  stat.disk_asides = tier.asides;
  stat.disk_reads = tier.log.reads;
  stat.disk_read_bytes = tier.log.read_bytes;
  stat.disk_damaged = tier.log.corrupt;
  stat.disk_errors = tier.log.write_errors + tier.log.read_errors;
  for (std::size_t i = 0; i < tiers_->size(); ++i) {
    stat.disks.push_back(DiskStatOf(i));
    stat.disk_capacity_bytes += stat.disks.back().capacity_bytes;
  }
  stat.disk_shares = tiers_->ShareStats();
}

DiskStat Owner::DiskStatOf(std::size_t disk) const {
  const TierStat tier = tiers_->StatOf(disk);
  // What could not be opened has no zones that could be counted.
  DiskStat stat{.path = options_.disks[disk].path,
                .capacity_bytes = tier.aside && tier.space.total_bytes == 0
                                      ? options_.disks[disk].size_bytes
                                      : tier.space.total_bytes,
                .bytes = tier.space.live_bytes,
                .objects = tier.space.objects,
                .queued_bytes = tier.space.queued_bytes,
                .aside = tier.aside ? 1ULL : 0ULL,
                .puts = tier.demoted,
                .put_bytes = tier.demoted_bytes,
                .written_bytes = tier.log.written_bytes,
                .hits = tier.promoted,
                .hit_bytes = tier.promoted_bytes,
                .misses = tier.load_misses,
                .read_errors = tier.log.read_errors,
                .write_errors = tier.log.write_errors,
                .damaged = tier.log.corrupt,
                .timeouts = tier.load_timeouts,
                .asides = tier.asides};
  // Of Tiering, not of the disk itself, which may be closed just now for an upgrade.
  const std::int64_t left_ns = tier.retry_at_ns - clock_.NowNs();
  stat.retry_ms = static_cast<std::uint64_t>(std::max<std::int64_t>(left_ns, 0) / kMillisecond);
  return stat;
}

}  // namespace kvcove::owner
