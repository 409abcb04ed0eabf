// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/tier/disk_worker.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "kvcove/base/glob.h"
#include "kvcove/owner/tier/disk_shared.h"

namespace kvcove::owner {
namespace {

using disklog::ReadMiss;

constexpr std::uint32_t kReadErrorsToGiveUp = 8;
constexpr int kDemotionsAStep = 64;
constexpr const char* kUnproven = "a removal, or the loss of a zone, cannot be made durable";
constexpr std::int64_t kNoteNs = 50 * kMillisecond;
constexpr std::int64_t kNoSpaceNs = 10 * kSecond;  // how long a removal waits for a zone

wire::LoadResult ResultOf(ReadMiss miss) {
  switch (miss) {
    case ReadMiss::kReset:
      return {.code = Code::kMiss, .reason = MissReason::kReset};
    case ReadMiss::kOtherKey:
      return {.code = Code::kMiss, .reason = MissReason::kNeverPut};
    case ReadMiss::kIoError:
      return {.code = Code::kMiss, .reason = MissReason::kDiskFailed};
    case ReadMiss::kCorrupt:
      return {.code = Code::kMiss, .reason = MissReason::kDiskDamaged};
    default:  // also kAbsent: the key was present when the load began
      return {.code = Code::kMiss, .reason = MissReason::kRaced};
  }
}

}  // namespace

DiskWorker::DiskWorker(Tiering& tiering, std::unique_ptr<disklog::Device> device,
                       std::unique_ptr<disklog::Log> log, Promoter& promoter, const Clock& clock,
                       const TierDiskOptions& options)
    : tiering_(tiering),
      options_(options),
      promoter_(promoter),
      clock_(clock),
      staging_(options.read_bytes),
      log_(std::move(log)),
      device_(std::move(device)),
      zones_(log_->space().zones) {
  tiering_.inventory().SetZones(zones_);
  device_->Register(staging_.memory());
}

// Ends this era's work. The fences note its removals as missed, so the queues below hold nothing
// that the next era needs.
void DiskWorker::SetAside(const std::string& why) {
  tiering_.use().SetAside(why);
  removals_.clear();
  patterns_.clear();
  walk_ = nullptr;
  no_space_since_ns_ = 0;
}

// Applies orders first, so that the log ends an older value of a key before a newer one is demoted.
void DiskWorker::Step(std::int64_t wait_ns) {
  TakeOrders();
  StepRemovals();
  StepWalk();
  StepListing();
  StartReads();
  Demote();
  // Another disk may make room for a promotion; its thread does not wake this one.
  const bool walks = walk_ != nullptr || !patterns_.empty();
  const bool busy = !removals_.empty() || walks || no_room_ || tiering_.loads().Paced() ||
                    tiering_.demotions().First().demotion != nullptr;
  if (flush_at_ns_ != 0 && clock_.NowNs() >= flush_at_ns_) {
    log_->Flush();
    flush_at_ns_ = 0;
  }
  // While the log has no room for some work, waits briefly: a completion or a clean zone makes
  // room.
  std::int64_t wait = busy ? std::min(wait_ns, kMillisecond) : wait_ns;
  if (flush_at_ns_ != 0) wait = std::clamp<std::int64_t>(flush_at_ns_ - clock_.NowNs(), 0, wait);
  tiering_.removals().ReportProven();  // those that needed no tombstone, before the wait
  log_->Poll(wait);
  tiering_.use().NoteProgress();
  if (log_->unproven()) SetAside(kUnproven);
  tiering_.removals().ReportProven();
  if (const std::int64_t now = clock_.NowNs();
      now >= note_at_ns_ || tiering_.demotions().Drained()) {
    tiering_.log().NoteCounters(log_->space(), log_->counters(), log_->HeldByShare());
    note_at_ns_ = now + kNoteNs;
  }
}

void DiskWorker::TakeOrders() {
  for (TierOrder& order : tiering_.removals().TakeOrders()) {
    switch (order.kind) {
      case TierOrder::Kind::kGeneration:
        log_->SetGeneration(order.slot, order.generation);
        break;
      case TierOrder::Kind::kRemove:
        removals_.push_back(std::move(order));
        break;
      case TierOrder::Kind::kRemoveMatching:
        tiering_.removals().RemoveQueued(order);
        patterns_.push_back({.order = std::move(order), .keys = {}, .open = nullptr});
        break;
    }
  }
}

// Ends the fence of an order at once, since the log finds its keys no more; the callback proves the
// removal when its tombstones are synced. A refused order stays first, because orders keep their
// sequence.
void DiskWorker::StepRemovals() {
  while (!removals_.empty()) {
    const TierOrder& order = removals_.front();
    const std::vector<std::string_view> keys(order.keys.begin(), order.keys.end());
    const std::string name = tiering_.removals().NameOf(order.slot);
    const Status removed = log_->Remove(
        {.slot = order.slot, .generation = order.generation, .name = name, .keys = keys},
        [this, order](const Status& status) {
          if (!status) return SetAside("a removal is not proven: " + status.error().detail);
          tiering_.removals().Proven(order, 0);
        });
    if (!removed) return Postpone(removed.error());
    no_space_since_ns_ = 0;
    tiering_.removals().Applied(order);
    removals_.pop_front();
  }
}

// Leaves a removal to a later step if the log will have room for its tombstones: in its queue, or
// in a zone that the cleaner frees. Otherwise sets the disk aside, which ends the wait of the
// removal's caller.
void DiskWorker::Postpone(const Error& refused) {
  if (refused.code == Code::kLimit) return log_->Flush();
  if (refused.code == Code::kNoSpace) {
    if (no_space_since_ns_ == 0) no_space_since_ns_ = clock_.NowNs();
    if (clock_.NowNs() - no_space_since_ns_ < kNoSpaceNs) return log_->Flush();
  }
  SetAside("a removal cannot be written: " + refused.detail);
}

bool DiskWorker::Pattern::Matches(const disklog::LiveObject& object) const {
  return object.slot == order.slot && object.generation == order.generation &&
         GlobMatches(order.pattern, object.key);
}

// Reads a zone a step, for all removals that waited when the walk began: patterns that are ordered
// in a row wait for two walks at most, however many they are. The log moves nothing from zone to
// zone meanwhile, so the walk meets each object once. The first pattern that matches takes the
// object, so that it is counted once; the sync of a later one covers its tombstone.
void DiskWorker::StepWalk() {
  if (walk_ == nullptr) {
    if (patterns_.empty()) return;
    walk_ = std::make_shared<Walk>();
    walk_->patterns = std::exchange(patterns_, {});
    log_->HoldMoves();
  }
  const std::shared_ptr<Walk> walk = walk_;
  if (walk->reading || !log_->MovesStill()) return;
  if (walk->zone == zones_) return EndWalk(*walk);
  walk->reading = true;
  const auto found = std::make_shared<std::vector<std::vector<std::string>>>(walk->patterns.size());
  log_->Walk(
      walk->zone,
      [walk, found](const disklog::LiveObject& object) {
        const auto first = std::ranges::find_if(
            walk->patterns, [&](const Pattern& pattern) { return pattern.Matches(object); });
        if (first == walk->patterns.end()) return;
        (*found)[static_cast<std::size_t>(first - walk->patterns.begin())].emplace_back(object.key);
      },
      [this, walk, found](const Status& status) {
        walk->reading = false;
        if (!status && status.error().code == Code::kInProgress) return;  // repeats the zone
        if (!status) {
          return SetAside("a removal by pattern cannot read a zone: " + status.error().detail);
        }
        for (std::size_t i = 0; i < found->size(); ++i) {
          std::ranges::move((*found)[i], std::back_inserter(walk->patterns[i].keys));
        }
        ++walk->zone;
      });
}

// Reads a zone's objects for the inventory that the owner reports to the master. Moves are held
// until a whole walk has ended.
void DiskWorker::StepListing() {
  if (const bool walking = tiering_.inventory().walking(); walking != listing_) {
    listing_ = walking;
    if (walking) {
      log_->HoldMoves();
    } else {
      log_->ReleaseMoves();
    }
  }
  const std::shared_ptr<DiskInventory::Zone> zone = tiering_.inventory().Take(log_->MovesStill());
  if (zone == nullptr) return;
  const auto found = std::make_shared<std::vector<TierObject>>();
  log_->Walk(
      zone->number,
      [found](const disklog::LiveObject& object) {
        found->push_back({.slot = object.slot,
                          .generation = object.generation,
                          .put = object.version,
                          .size_bytes = object.value_bytes,
                          .key = std::string(object.key)});
      },
      [this, zone, found](const Status& status) {
        if (status) return tiering_.inventory().Answer(*zone, std::move(*found));
        if (status.error().code == Code::kInProgress) return tiering_.inventory().PutBack(zone);
        SetAside("a zone cannot be read for the inventory: " + status.error().detail);
      });
}

// Removes what the walk has found, in the order of the removals.
void DiskWorker::EndWalk(Walk& walk) {
  while (!walk.patterns.empty()) {
    if (!RemoveFound(walk.patterns.front())) return;
    walk.patterns.pop_front();
  }
  walk_ = nullptr;
  log_->ReleaseMoves();
}

// Removes the keys that a walk has found: as many as the log's queue has room for, the rest with
// later steps. Returns whether all are removed.
bool DiskWorker::RemoveFound(Pattern& pattern) {
  TierRemoval& removal = *pattern.order.removal;
  if (pattern.open == nullptr) {
    // This thread owns the keys until the removal is proven, the thread that awaits the removal
    // from then on.
    if (removal.collect) {
      removal.keys.insert(removal.keys.end(), pattern.keys.begin(), pattern.keys.end());
    }
    pattern.found = pattern.keys.size();
    pattern.open = std::make_shared<std::size_t>(1);
  }
  // Each part has a sync of its own. The last one to end proves the order.
  const auto ended = [this, open = pattern.open, count = pattern.found,
                      order = pattern.order](const Status& status) {
    if (!status) return SetAside("a removal is not proven: " + status.error().detail);
    if (--*open == 0) tiering_.removals().Proven(order, count);
  };
  const TierOrder& order = pattern.order;
  const std::string name = tiering_.removals().NameOf(order.slot);
  while (!pattern.keys.empty()) {
    const std::size_t part = std::min(kRemovedAtOnce, pattern.keys.size());
    const std::vector<std::string_view> keys(pattern.keys.end() - static_cast<std::ptrdiff_t>(part),
                                             pattern.keys.end());
    ++*pattern.open;
    const Status removed = log_->Remove(
        {.slot = order.slot, .generation = order.generation, .name = name, .keys = keys}, ended);
    if (!removed) {
      --*pattern.open;
      Postpone(removed.error());
      return false;
    }
    no_space_since_ns_ = 0;
    pattern.keys.resize(pattern.keys.size() - part);
  }
  // Syncs even if nothing was found: an earlier removal may have taken the keys and not be synced
  // yet.
  log_->Sync(ended);
  return true;
}

// ---- promotions

// Starts reads until a limit is reached. Promotes a value that is still queued from the queue
// itself.
void DiskWorker::StartReads() {
  no_room_ = false;
  while (const std::shared_ptr<Load> load = tiering_.loads().First()) {
    if (const auto queued = tiering_.loads().Queued(*load)) {
      if (tiering_.loads().Take(load, queued->size())) {
        tiering_.loads().Finish(load, promoter_.Promote(*load, *queued));
      }
      continue;
    }
    const auto found = log_->Find(load->slot, load->generation, load->key);
    const std::uint64_t bytes = found ? found->buffer_bytes : 0;
    if (reading_bytes_ > 0 && reading_bytes_ + bytes > options_.read_bytes) return;
    no_room_ = !tiering_.loads().ReservePromotion(bytes);
    if (no_room_) return;
    const bool taken = tiering_.loads().Take(load, bytes);
    if (!taken || !found) tiering_.loads().ReleasePromotion(bytes);
    if (!taken) continue;
    if (!found) {
      Lost(*load);
      tiering_.loads().Finish(load, {.code = Code::kMiss, .reason = MissReason::kEvicted});
      continue;
    }
    StartRead(load, *found);
  }
}

// The callback owns the buffer: the device may write into it for as long as the read is under way.
void DiskWorker::StartRead(const std::shared_ptr<Load>& load, const disklog::Found& found) {
  const auto buffer = std::make_shared<disklog::Staging::Buffer>(staging_.Take(found.buffer_bytes));
  const std::uint64_t bytes = found.buffer_bytes;
  const std::int64_t begun_ns = clock_.NowNs();
  reading_bytes_ += bytes;
  ++reads_;
  log_->Read(found, {.slot = load->slot, .generation = load->generation, .key = load->key},
             buffer->span(),
             [this, load, buffer, bytes, begun_ns](const disklog::ReadResult& result) {
               tiering_.log().times().reads.Add(clock_.NowNs() - begun_ns);
               reading_bytes_ -= bytes;
               --reads_;
               Ended(load, buffer->span(), result);
               tiering_.loads().ReleasePromotion(bytes);
             });
}

void DiskWorker::Ended(const std::shared_ptr<Load>& load, std::span<const std::byte> buffer,
                       const disklog::ReadResult& result) {
  if (tiering_.use().state().aside()) return;  // nobody waits, and the owner may be gone
  if (result.miss == ReadMiss::kNone) {
    read_errors_ = 0;
    load->put = result.version;
    return tiering_.loads().Finish(
        load, promoter_.Promote(*load, buffer.subspan(result.value_offset, result.value_bytes)));
  }
  // The log reports a damaged object itself, once its tombstone is durable.
  if (result.miss != ReadMiss::kIoError && result.miss != ReadMiss::kCorrupt) Lost(*load);
  tiering_.loads().Finish(load, ResultOf(result.miss));
  if (result.miss == ReadMiss::kIoError && ++read_errors_ >= kReadErrorsToGiveUp) {
    SetAside("it fails to read");
  }
}

// Reports that the log does not have the key. The owner checks again before it notifies the master.
void DiskWorker::Lost(const Load& load) {
  tiering_.log().Lost({.slot = load.slot, .generation = load.generation, .key = load.key});
}

// ---- demotions

// Writes a bounded number of values a step, so that removals and reads wait for few of them.
void DiskWorker::Demote() {
  if (stopping_) return;
  HandedDemotion next = tiering_.demotions().First();
  for (int i = 0; i < kDemotionsAStep && next.demotion != nullptr; ++i) {
    const std::optional<bool> copied = DemoteOne(next);
    if (!copied) return;
    next = tiering_.demotions().Take(*next.demotion, *copied);
  }
}

// Returns whether the log has copied the value. Nothing: the log has no room now, or the disk was
// set aside.
std::optional<bool> DiskWorker::DemoteOne(const HandedDemotion& handed) {
  const std::shared_ptr<Demotion>& demotion = handed.demotion;
  const std::span<const std::byte> value = demotion->room;
  const Status put =
      log_->Put({.slot = demotion->slot,
                 .generation = demotion->generation,
                 .version = demotion->put,
                 .name = handed.name,
                 .key = demotion->key,
                 .value = std::span(&value, 1),
                 .stream = StreamOf(handed),
                 .brief = demotion->brief},
                [this, demotion, begun_ns = clock_.NowNs()](const Status& status) {
                  tiering_.log().times().writes.Add(clock_.NowNs() - begun_ns);
                  // First: the key must not be stored again while the old record may return.
                  if (log_->unproven()) SetAside(kUnproven);
                  // A removal may have taken the value while it was being written.
                  const bool there =
                      status && log_->Find(demotion->slot, demotion->generation, demotion->key);
                  tiering_.demotions().Complete(*demotion, there);
                });
  if (!put && (put.error().code == Code::kLimit || put.error().code == Code::kNoSpace)) {
    // While the device is busy, a partial chunk would be a small write between large ones.
    if (device_->in_flight() == 0) log_->Flush();
    return std::nullopt;
  }
  if (!put && put.error().code == Code::kUnavailable) {
    SetAside(put.error().detail);
    return std::nullopt;
  }
  if (put && flush_at_ns_ == 0) flush_at_ns_ = clock_.NowNs() + options_.flush_ns;
  return put.has_value();
}

// Puts values that end together, those of one slot, into the same zones. Values of a share are
// together, too, so that a zone that is freed takes from one share.
std::uint8_t DiskWorker::StreamOf(const HandedDemotion& handed) const {
  const std::uint64_t by =
      handed.share == disklog::kNoShare ? handed.demotion->slot : std::uint64_t{handed.share} + 1;
  return static_cast<std::uint8_t>(by % options_.streams);
}

void DiskWorker::Stop() {
  stopping_ = true;
  log_->Stop([this](const Status& status) {
    stopped_ = true;
    sealed_ = status.has_value();
  });
}

}  // namespace kvcove::owner
