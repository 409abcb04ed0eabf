// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/owner.h"

#include <fmt/core.h>

#include <algorithm>

#include "kvcove/base/log.h"
#include "kvcove/base/loop_beat.h"
#include "kvcove/base/size.h"
#include "kvcove/owner/disk/disks_report.h"

namespace kvcove::owner {
namespace {

constexpr std::int64_t kJanitorPeriodNs = 5 * kMillisecond;
constexpr std::int64_t kWearPeriodNs = 60 * kSecond;
// The segment's table of the disks' objects has one place for so many bytes of disk.
constexpr std::uint64_t kDiskBytesAnObject = 2048;
// Tags lost by disks that wait for KV events: 512 KiB. Beyond it all of them are looked at.
constexpr std::size_t kLostTags = 1 << 16;

}  // namespace

Result<OwnerOptions> Owner::Complete(const OwnerOptions& given) {
  OwnerOptions options = given;
  if (options.memory_bytes < kMiB || options.memory_bytes > segment::kMaxPayloadBytes) {
    return Fail(Code::kInvalid,
                fmt::format("a memory budget of {}; give between 1MiB and {}",
                            FormatSize(given.memory_bytes), FormatSize(segment::kMaxPayloadBytes)));
  }
  KVCOVE_ASSIGN(const segment::Granule granule,
                segment::Granule::Of(options.granule_bytes, options.memory_bytes));
  options.granule_bytes = granule.bytes();
  options.memory_bytes = options.memory_bytes / granule.bytes() * granule.bytes();
  if (options.max_objects == 0) {
    options.max_objects = std::clamp<std::uint64_t>(options.memory_bytes / 512, 1024, 1ULL << 27);
  }
  return options;
}

MemoryOptions Owner::MemoryOf(const OwnerOptions& options) {
  std::uint64_t disk_bytes = 0;
  for (const disklog::DiskSpec& disk : options.disks) disk_bytes += disk.size_bytes;
  return {.payload_bytes = options.memory_bytes,
          .granule_bytes = options.granule_bytes,
          .max_objects = options.max_objects,
          .tier_objects = disk_bytes / kDiskBytesAnObject,
          .available_bytes = options.available_bytes,
          .huge_pages = options.huge_pages,
          .place = options.place,
          .populate = options.populate};
}

DisksOptions Owner::DisksOf(const OwnerOptions& options) {
  return {.disks = options.disks,
          .admit = options.disk_admit,
          .write_rate = options.disk_write_rate,
          .quotas = options.disk_quotas,
          .tier = options.tier,
          .memory_bytes = options.memory_bytes,
          .cluster = options.cluster};
}

Owner::Owner(const OwnerOptions& options, std::unique_ptr<Memory> memory, const Clock& clock)
    : options_(options),
      clock_(clock),
      memory_(std::move(memory)),
      disks_(DisksOf(options), *memory_, clock),
      promotions_(disks_, *memory_, clock),
      opening_(disks_, *memory_, promotions_, link_ends_, clock),
      removals_(disks_, opening_, *memory_, link_ends_, clock),
      inventory_(disks_, opening_, *memory_, link_ends_, clock),
      outbox_(clock),
      link_side_({.memory = *memory_,
                  .disks = disks_,
                  .opening = opening_,
                  .removals = removals_,
                  .inventory = inventory_,
                  .outbox = outbox_,
                  .link_ends = link_ends_},
                 options.memory_bytes),
      data_side_(
          *memory_, disks_, promotions_, outbox_, link_side_,
          [this](SessionNumber session, std::span<const FinishItem> items, auto done) {
            FinishThen(session, items, std::nullopt, std::move(done));
          },
          clock) {}

Result<std::unique_ptr<Owner>> Owner::Open(const OwnerOptions& given, const Clock& clock) {
  KVCOVE_ASSIGN(const OwnerOptions options, Complete(given));
  KVCOVE_ASSIGN(auto memory, Memory::Create(MemoryOf(options), clock));
  std::unique_ptr<Owner> owner(new Owner(options, std::move(memory), clock));
  KVCOVE_TRY(owner->OpenCore());
  return owner;
}

Status Owner::OpenCore() {
  KVCOVE_TRY(memory_->OpenCore({.payload_bytes = options_.memory_bytes,
                                .max_objects = options_.max_objects,
                                .policy = options_.policy,
                                .quotas = options_.quotas,
                                .clear_foreign = options_.tenants,
                                .listed = options_.cluster,
                                .lower = disks_.lower(),
                                .key_changes_bytes = options_.key_changes_bytes}));
  if (options_.key_changes_bytes != 0) disks_.set().common().tags.Watch(kLostTags);
  std::uint64_t disk_bytes = 0;
  for (const disklog::DiskSpec& disk : options_.disks) disk_bytes += disk.size_bytes;
  KVCOVE_TRY(expected_.Open(options_.policy, options_.memory_bytes, disk_bytes));
  MakeReport();
  return {};
}

// Sets a first report: the link may send a renewal before the janitor's first round, and a report
// of zeros would say that this owner is full.
void Owner::MakeReport() {
  wire::RenewRequest report;
  {
    const MutexLock lock(memory_->mutex);
    report = memory_->core().Report();
  }
  link_side_.SetReport(report);
}

Owner::~Owner() {
  // Also by itself: Stop returns at once if the owner was never started, or is stopped already.
  StopDisks();
  Stop();
  disks_.LeaveHanging();
}

Status Owner::OpenDisks(const TierPlace& place) {
  disk_place_ = place;
  if (!disks_.none()) promotions_.Open();
  return disks_.Open(place, promotions_);
}

Result<OwnerFacts> Owner::PrepareDisks(const std::string& directory) {
  KVCOVE_ASSIGN(const OwnerFacts facts, opening_.Prepare(directory));
  promotions_.Open();
  return facts;
}

void Owner::StopDisks() {
  opening_.Stop();
  disks_.Stop();
}

Status Owner::Start() {
  {
    const MutexLock lock(stop_mutex_);
    stopping_ = false;
  }
  {
    const MutexLock lock(memory_->mutex);
    if (!options_.cluster) memory_->core().RenewLease(clock_.NowNs() + options_.lease_ns);
  }
  PublishTakesSaves();
  const Status started = StartThreads();
  if (!started) Stop();
  return started;
}

// In a cluster the master takes announcements. A predecessor's are not known here.
void Owner::PublishTakesSaves() { memory_->PublishSavesUntil(options_.cluster ? 0 : 1); }

Status Owner::StartThreads() {
  if (!options_.cluster && !lease_.joinable()) {
    KVCOVE_ASSIGN(lease_, StartThread("kvcove-lease", [this] { RunLease(); }));
  }
  if (janitor_.joinable()) return {};
  KVCOVE_ASSIGN(janitor_, StartThread("kvcove-janitor", [this] { RunJanitor(); }));
  return {};
}

void Owner::Stop() {
  {
    const MutexLock lock(stop_mutex_);
    // Never started: the memory may belong to another process, because a take-over failed. Its
    // lease must not be ended.
    if (stopping_) return;
  }
  // Before the janitor ends: the disks still write evicted values, and the janitor watches them
  // (OwnerDisks::Tick).
  StopDisks();
  {
    const MutexLock lock(stop_mutex_);
    stopping_ = true;
    stop_changed_.NotifyAll();
  }
  memory_->EndRest();
  for (std::thread* thread : {&janitor_, &lease_}) {
    if (thread->joinable()) thread->join();
  }
  removals_.waits().Stop();  // before LeaveHanging, as a look at a removal uses the set of disks
  disks_.LeaveHanging();
  memory_->StopPopulating();
  Core::Voided voided;
  {
    const MutexLock lock(memory_->mutex);
    memory_->core().RenewLease(0);
    voided = memory_->core().TakeVoided();
  }
  SayVoided(voided);
}

// A thread of its own, so that no expensive request delays a renewal and ends the lease.
void Owner::RunLease() {
  LoopBeat beat("kvcove-lease");
  const MutexLock lock(stop_mutex_);
  while (!stopping_ && !lease_over_) {
    beat.Turn();
    // One atomic store into the header, without the core's lock, which others may hold for long.
    memory_->SetLease(clock_.NowNs() + options_.lease_ns);
    stop_changed_.WaitFor(stop_mutex_, std::chrono::nanoseconds(options_.lease_renewal_ns));
  }
}

// In a cluster and with disks the janitor has deadlines that the core does not know.
bool Owner::JanitorMayRest() const {
  return !options_.cluster && disks_.none() && memory_->core_for_janitor().MayRest();
}

// The janitor rests while no work is left and none can become due by itself. Each use of the core
// ends the rest, so what a call leaves to the janitor waits 5 ms at most. A session writes hits and
// holds into its page without the core, so the janitor rests only while there is no session.
void Owner::RunJanitor() {
  LoopBeat beat("kvcove-janitor");
  std::int64_t look_ns = clock_.NowNs() + kWearPeriodNs;
  std::vector<bool> wear_said;
  while (true) {
    beat.Turn();
    bool more = false;
    bool may_rest = false;
    wire::RenewRequest report;
    Core::Voided voided;
    std::uint64_t gave_way = 0;
    {
      const MutexLock lock(memory_->mutex);
      memory_->ForgetUse();
      memory_->AddPopulated();
      Core& core = memory_->core_for_janitor();
      more = core.Tick();
      may_rest = !more && JanitorMayRest();
      report = core.Report();
      voided = core.TakeVoided();
      gave_way = core.TakeGaveWay();
      memory_->PublishRoom();
    }
    // All below runs without the core's lock: it logs, calls done callbacks, or asks the disks.
    const bool estimates = expected_.Update(*memory_, clock_.NowNs());
    SayVoided(voided);
    outbox_.Trim(gave_way, [this](const Pending& pending) {
      const MutexLock lock(memory_->mutex);
      return memory_->core_for_janitor().Waits(pending);
    });
    outbox_.EndOverdue();
    opening_.Tick();
    disks_.Tick();
    removals_.waits().Settle();  // after Tick, which sets disks aside
    if (clock_.NowNs() >= look_ns) {
      look_ns = clock_.NowNs() + kWearPeriodNs;
      WarnOfWear(disks_, wear_said);
    }
    AddDisks(disks_, report);
    link_side_.SetReport(report);
    {
      // After ForgetUse: Stop and Freeze set their flag before they call EndRest.
      const MutexLock lock(stop_mutex_);
      if (stopping_ || frozen_) return;
    }
    // The usual period follows a use, so that uses wake the janitor once a period at most.
    if (may_rest && !estimates && !memory_->AwaitUse(options_.janitor_rest_ns)) continue;
    // A round that left work over gives other callers a short turn only, not the whole period.
    const MutexLock lock(stop_mutex_);
    if (stopping_ || frozen_) return;
    stop_changed_.WaitFor(stop_mutex_,
                          std::chrono::nanoseconds(more ? Memory::kTurnNs : kJanitorPeriodNs));
    if (stopping_ || frozen_) return;
  }
}

PoolStat Owner::Stat() {
  PoolStat stat;
  Core::StatWalk walk;
  while (true) {
    {
      const MutexLock lock(memory_->mutex);
      if (!memory_->core().StatSome(walk, stat)) break;
    }
    Memory::LetOthersIn();
  }
  expected_.Add(stat);
  AddDisks(disks_, stat);
  return stat;
}

LongTimes Owner::Residence() const {
  const MutexLock lock(memory_->mutex);
  return memory_->core().asks().residence();
}

PoolStat Owner::Estimates() {
  PoolStat stat;
  {
    const MutexLock lock(memory_->mutex);
    stat.distinct = memory_->core().asks().distinct();
  }
  expected_.Add(stat);
  return stat;
}

std::vector<std::uint64_t> Owner::BytesBySlot() const {
  constexpr SlotId kSlice = kMaxSlots / 4;
  std::vector<std::uint64_t> bytes(kMaxSlots);
  for (SlotId slot = 0; slot < kMaxSlots;) {
    {
      const MutexLock lock(memory_->mutex);
      for (const SlotId end = slot + kSlice; slot < end; ++slot) {
        bytes[slot] = memory_->core().BytesOf(slot);
      }
    }
    if (slot < kMaxSlots) Memory::LetOthersIn();
  }
  return bytes;
}

}  // namespace kvcove::owner
