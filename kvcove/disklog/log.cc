// SPDX-License-Identifier: Apache-2.0
#include "kvcove/disklog/log.h"

#include <algorithm>
#include <cerrno>

#include "kvcove/base/size.h"

namespace kvcove::disklog {
namespace {

constexpr std::uint64_t kSweepSteps = 1024;
constexpr std::uint32_t kZonesForBrief = 32;  // one more open zone is too many for a smaller disk

std::unexpected<Error> FailDevice(int error, const std::string& act) {
  errno = error;
  return FailErrno(error == ENOSPC ? Code::kNoSpace : Code::kUnavailable, act);
}

Status WriteAndSync(Device& device, std::uint64_t offset, AlignedBuffer bytes) {
  // Owned by the completion, too: after Await's timeout the device still names the memory.
  const auto kept = std::make_shared<AlignedBuffer>(std::move(bytes));
  const int error = Await(device, [&](Device::Done done) {
    device.Write(offset, kept->span(), [kept, done = std::move(done)](int e) { done(e); });
  });
  if (error != 0) return FailDevice(error, "writing a superblock");
  const int synced = Await(device, [&](Device::Done done) { device.Sync(std::move(done)); });
  if (synced != 0) return FailDevice(synced, "syncing a superblock");
  return {};
}

std::uint64_t SuperblockOffset(std::uint64_t sequence) { return sequence % 2 * kSuperblockBytes; }

}  // namespace

Result<Superblock> Log::ReadSuperblock(Device& device) {
  if (device.size_bytes() < kZonesStart) {
    return Fail(Code::kInvalid, "too small to be a disk of kvcove; format it: kvcove disk format");
  }
  std::optional<Superblock> best;
  std::optional<std::uint32_t> version;
  int unreadable = 0;  // errno
  for (std::uint64_t copy = 0; copy < 2; ++copy) {
    const auto buffer = std::make_shared<AlignedBuffer>(kSuperblockBytes);
    const int error = Await(device, [&](Device::Done done) {
      device.Read(SuperblockOffset(copy), buffer->span(),
                  [buffer, done = std::move(done)](int e) { done(e); });
    });
    // A device that hangs would hang at the other copy, too.
    if (error == ETIMEDOUT) return FailDevice(error, "reading a superblock");
    if (error != 0) {
      unreadable = error;
      continue;
    }
    if (const auto named = SuperblockVersion(buffer->view())) version = named;
    auto block = ParseSuperblock(buffer->view());
    if (block && (!best || block->sequence > best->sequence)) best = std::move(block);
  }
  if (!best && unreadable != 0) return FailDevice(unreadable, "reading a superblock");
  if (!best && version && *version != kFormatVersion) {
    return Fail(Code::kIncompatible,
                "the disk has format " + std::to_string(*version) + ", this kvcove writes format " +
                    std::to_string(kFormatVersion) +
                    "; format it again (kvcove disk format --yes), its objects are lost");
  }
  if (!best && version) {
    return Fail(Code::kCorrupt,
                "both superblocks are damaged; format the disk again (kvcove disk format --yes)");
  }
  if (!best) {
    return Fail(Code::kInvalid, "not a disk of kvcove; format it: kvcove disk format PATH:SIZE");
  }
  if (best->device_bytes > device.size_bytes()) {
    return Fail(Code::kInvalid, "the disk was formatted for " + FormatSize(best->device_bytes) +
                                    " and has " + FormatSize(device.size_bytes()) +
                                    " now; format it again (kvcove disk format --yes)");
  }
  return *std::move(best);
}

Result<std::unique_ptr<Log>> Log::Open(Device& device, LogOptions options) {
  KVCOVE_ASSIGN(Superblock super, ReadSuperblock(device));
  if (super.pool != options.pool) {
    return Fail(Code::kIncompatible, "the disk belongs to pool " + ToHex(super.pool) +
                                         ", this owner to " + ToHex(options.pool));
  }
  const bool empty = super.incarnation != options.incarnation;
  if (empty) {
    // A zone whose header has another incarnation or disk id is free. The new id also voids zones
    // of an earlier time when the disk had this incarnation.
    super.incarnation = options.incarnation;
    super.disk = RandomId();
    super.removals.clear();
    super.generation_counter = 0;
    super.lost_zones.clear();
  }
  super.opening = RandomId();
  super.opening_before = options.noted_opening;
  // Written before any zone is: after a crash, open zones must not be covered by `clean`.
  super.clean = false;
  ++super.sequence;
  KVCOVE_TRY(WriteAndSync(device, SuperblockOffset(super.sequence),
                          AlignedBuffer(EncodeSuperblock(super))));
  if (empty) {
    // The other copy still names the former disk: were this one damaged, all of its objects would
    // be back.
    ++super.sequence;
    KVCOVE_TRY(WriteAndSync(device, SuperblockOffset(super.sequence),
                            AlignedBuffer(EncodeSuperblock(super))));
  }
  std::unique_ptr<Log> log(new Log(device, std::move(options), std::move(super), empty));
  log->recovery_.Start();
  return log;
}

Log::Log(Device& device, LogOptions options, Superblock superblock, bool started_empty)
    : state_(device, std::move(superblock)),
      verify_slice_bytes_(options.verify_slice_bytes),
      streams_(options.writer.streams),
      started_empty_(started_empty),
      writer_(state_, options.writer),
      reader_(state_),
      cleaner_(state_, writer_, reader_, options.cleaner),
      forgetting_(state_, writer_, std::move(options.cleaner.on_dropped)),
      recovery_(state_, writer_) {
  saved_lost_ = state_.super.lost_zones.size();
  state_.presence = options.presence;
  state_.scopes.SetShares(std::move(options.shares));
  for (const SlotGeneration& slot : options.generations) {
    state_.SetGeneration(slot.slot, slot.generation);
  }
}

void Log::SetGeneration(SlotId slot, Generation generation) {
  state_.SetGeneration(slot, generation);
}

Status Log::Put(const PutRequest& request, Done done) {
  KVCOVE_TRY(CheckKey(request.key));
  std::uint64_t bytes = 0;
  for (const auto& piece : request.value) bytes += piece.size();
  KVCOVE_TRY(CheckObjectSize(bytes));
  if (request.stream >= streams_ || request.name.size() > kMaxSpaceNameBytes) {
    return Fail(Code::kInvalid, "a put names stream " + std::to_string(request.stream) + " of " +
                                    std::to_string(streams_) + ", or a name that is too long");
  }
  if (!serving() || stopping_) return Fail(Code::kUnavailable, "the disk is starting or stopping");
  if (!state_.scopes.Current(request.slot, request.generation)) {
    return Fail(Code::kStale, "the object's generation is not its slot's current one");
  }
  KVCOVE_TRY(writer_.Add(
      {.slot = request.slot,
       .generation = request.generation,
       .version = request.version,
       .name = request.name,
       .key = request.key,
       .value = request.value,
       .stream = request.brief && state_.zones.count() >= kZonesForBrief ? writer_.brief_stream()
                                                                         : request.stream},
      std::move(done)));
  ++state_.counters.put_objects;
  state_.counters.put_bytes += bytes + request.key.size();
  return {};
}

std::optional<Found> Log::Find(SlotId slot, Generation generation, std::string_view key) {
  if (!serving()) return std::nullopt;
  const auto found = reader_.Find(slot, generation, key);
  // A doomed zone is freed once nobody reads from it; a hot object would keep it for ever.
  if (found && state_.zones[found->place.zone].doomed) return std::nullopt;
  return found;
}

void Log::Read(const Found& found, const Expected& expected, std::span<std::byte> buffer,
               Reader::Done done) {
  reader_.Read(found, expected, buffer, std::move(done));
}

Status Log::Remove(const RemoveRequest& request, Done done) {
  if (!recovered() || stopping_ || unproven()) {
    return Fail(Code::kUnavailable,
                unproven() ? "the disk failed to write" : "the disk is starting or stopping");
  }
  const auto scope = state_.scopes.Find(request.slot, request.generation);
  const bool uncovered = scope && state_.zones.Uncovered(*scope);
  for (const std::string_view key : request.keys) {
    KVCOVE_TRY(CheckKey(key));
    const Status removed = RemoveOne(request, key, uncovered);
    if (removed) continue;
    // Without a zone that the cleaner can free there will be no room: its objects are all in open
    // zones.
    if (removed.error().code == Code::kNoSpace && !cleaner_.active() &&
        !state_.zones.Victim(state_.next_sequence)) {
      writer_.SealObjects();
    }
    return removed;
  }
  // Nothing of these keys is on the disk, but the tombstones of an earlier removal may still be on
  // their way there.
  if (!unsynced_) {
    if (removing_ != nullptr) {
      removing_->push_back(std::move(done));
    } else {
      done({});
    }
    return {};
  }
  unsynced_ = false;
  removing_ = std::make_shared<std::vector<Done>>();
  removing_->push_back(std::move(done));
  // The tombstones' callbacks run before this one, as a barrier completes only after the callbacks
  // of the writes before it (Writer::Write): so a failed one has made the log unproven by then, and
  // the sync fails.
  writer_.Sync([this, waiting = removing_](const Status& status) {
    // What a repeated removal would look for is not in the index any more.
    if (!status) writer_.SetUnproven();
    if (removing_ == waiting) removing_ = nullptr;
    for (const Done& one : *waiting) one(status);
  });
  return {};
}

Status Log::RemoveOne(const RemoveRequest& request, std::string_view key, bool uncovered) {
  const Id128 hash = state_.HashOf(request.slot, key);
  const IndexEntry* const known = state_.Find(hash);
  const bool here =
      known != nullptr && state_.scopes[known->scope].generation == request.generation;
  if (!here && !uncovered) return {};
  // First the tombstone: without an entry, a repeated call would write none.
  KVCOVE_TRY(writer_.AddTombstone({.slot = request.slot,
                                   .generation = request.generation,
                                   .version = here ? state_.zones[known->zone].nonce : 0,
                                   .name = request.name,
                                   .key = key}));
  ++state_.counters.tombstones;
  if (!here) ++state_.blind_tombstones;
  unsynced_ = true;
  if (here) state_.Drop(IndexEntry(*known));
  return {};
}

void Log::HoldMoves() {
  cleaner_.HoldMoves();
  writer_.Flush();  // a copy in a chunk that is not full would never end, and still() never be true
}

void Log::Walk(std::uint32_t number, std::function<void(const LiveObject&)> each, Done done) {
  if (WaitsForForgotten(done)) return;
  if (const Summary* const open = writer_.OpenSummary(number)) {
    WalkSummary(*open, number, each);
    done({});
    return;
  }
  const Zone& zone = state_.zones[number];
  // The summary is being written, or the zone is about to be empty: the caller repeats the walk.
  if (zone.doomed || state_.voiding ||
      (zone.live() > 0 &&
       (zone.state == ZoneState::kSealing || zone.state == ZoneState::kFreeing))) {
    done(unproven() ? Fail(Code::kUnavailable, "the disk failed to write")
                    : Fail(Code::kInProgress, "the zone is being sealed, or freed; walk it again"));
    return;
  }
  if (zone.live() == 0) {
    done({});
    return;
  }
  ReadContents(state_, number,
               [this, number, each = std::move(each), done = std::move(done)](
                   ZoneContents contents) { TakeWalk(number, std::move(contents), each, done); });
}

// A walk lists no forgotten object. A removal by pattern that matches it must not be proven before
// the tombstone of its record is written: the Sync behind the walk covers that.
bool Log::WaitsForForgotten(const Done& done) const {
  if (state_.forgotten.empty()) return false;
  done(unproven() ? Fail(Code::kUnavailable, "the disk failed to write")
                  : Fail(Code::kInProgress, "tombstones wait for room; walk the zone again"));
  return true;
}

void Log::TakeWalk(std::uint32_t number, ZoneContents contents,
                   const std::function<void(const LiveObject&)>& each, const Done& done) {
  if (WaitsForForgotten(done)) return;
  Zone& zone = state_.zones[number];
  const bool damaged = !contents.summary || contents.scanned;
  if (damaged && zone.state != ZoneState::kSealed) {
    done(Fail(Code::kInProgress, "the zone is being cleaned; walk it again"));
    return;
  }
  if (damaged) {
    // Objects that no sound record shows can be listed no more. Those that a removal by pattern
    // would have found must not be found later, so the zone goes.
    std::uint32_t listed = 0;
    if (contents.summary) {
      WalkSummary(*contents.summary, number, [&](const LiveObject&) { ++listed; });
    }
    if (listed < zone.live()) {
      state_.zones.Doom(number, /*untaken=*/false);
    } else if (contents.summary && zone.summarized) {
      writer_.SealRecovered(number, *contents.summary);
    }
  }
  if (!contents.summary || zone.doomed) {
    done(Fail(Code::kInProgress, "the zone is damaged and is being freed; walk it again"));
    return;
  }
  WalkSummary(*contents.summary, number, each);
  done({});
}

void Log::WalkSummary(const Summary& summary, std::uint32_t zone,
                      const std::function<void(const LiveObject&)>& each) {
  std::size_t key_at = 0;
  for (const SummaryEntry& entry : summary.entries) {
    const auto key = std::string_view(summary.keys).substr(key_at, entry.key_bytes);
    key_at += entry.key_bytes;
    if (entry.kind != RecordKind::kObject) continue;
    // Only the record to which the index points is alive.
    if (state_.FindAt(entry.hash, zone, entry.offset_units) == nullptr) continue;
    const SummaryScope& scope = summary.scopes[entry.scope];
    each({.slot = scope.slot,
          .generation = scope.generation,
          .name = scope.name,
          .key = key,
          .version = entry.version,
          .value_bytes = entry.value_bytes});
  }
}

void Log::SaveIdentity(const Id128& identity, Done done) {
  state_.super.identity = identity;
  WriteSuperblock(std::move(done));
}

void Log::OpeningNoted(const Id128& opening, Done done) {
  if (opening != state_.super.opening) return done({});
  state_.super.opening_before = {};
  QueueSuperblock(std::move(done));
}

// A write that is under way now counts as a later change: a copy may have the new number without
// that write.
void Log::DrawOpening(Done done) {
  if (state_.super.opening_before == Id128{}) {
    state_.super.opening_before = state_.super.opening;
    state_.super.opening = RandomId();
    drawn_changes_ = state_.changes;
  }
  QueueSuperblock(std::move(done));
}

bool Log::OpeningDue() const {
  return state_.changes != drawn_changes_ || state_.super.opening_before != Id128{};
}

// Ends the opening once nothing that was not taken into the index can come back: doomed zones are
// freed, and the summaries of scanned zones, which leave out what is damaged, are durable.
void Log::StepOpening() {
  if (state_.emptying) return Empty();
  if (syncing_scans_ || !recovery_.done() || writer_.sealing() || state_.zones.AnyDoomed() ||
      state_.voiding) {
    return;
  }
  state_.single_tombstones.clear();
  if (recovery_.counters().scanned == 0) {
    state_.opening = false;
    return;
  }
  syncing_scans_ = true;
  writer_.Sync([this](const Status& status) {
    if (!status) return writer_.SetUnproven();
    state_.opening = false;
  });
}

// Gives the disk a new number in both superblocks, which frees all zones at once: were these freed
// one by one, a crash in between would leave records whose lost tombstones nobody knows of any
// more. Nothing may be written to a zone meanwhile.
void Log::Empty() {
  if (saving_empty_ || unproven() || !recovery_.done() || state_.voiding || cleaner_.active())
    return;
  // Copies of tombstones may have been written before one of these zones could not be read.
  if (!writer_.idle()) return writer_.SealAll();
  saving_empty_ = true;
  state_.super.disk = RandomId();
  const auto ended = [this](const Status& status) {
    if (!status) return writer_.SetUnproven();
    for (std::uint32_t i = 0; i < state_.zones.count(); ++i) {
      if (state_.zones[i].state == ZoneState::kLost) continue;
      const bool untaken = state_.zones[i].untaken;
      state_.Abandon(i);
      state_.zones[i].state = ZoneState::kFree;
      // Its header is damaged, or cannot be read, until it is written again. The next start would
      // take that for lost tombstones once more, and empty what was stored meanwhile.
      if (untaken) state_.zones.Doom(i, /*untaken=*/false);
    }
    state_.SweepAll();
    started_empty_ = true;
    state_.emptying = false;
  };
  WriteSuperblock([this, ended](const Status& status) {
    if (!status) return ended(status);
    WriteSuperblock(ended);
  });
}

// Twice, so that no damage of one superblock brings the zone's records back.
void Log::VoidLost() {
  if (state_.super.lost_zones.size() > kMaxLostZones) {
    state_.super.lost_zones.resize(kMaxLostZones);
    return writer_.SetUnproven();
  }
  saving_lost_ = true;
  const std::size_t lost = state_.super.lost_zones.size();
  const auto ended = [this, lost](const Status& status) {
    saving_lost_ = false;
    if (!status) return writer_.SetUnproven();
    for (; saved_lost_ < lost; ++saved_lost_) {
      const std::uint32_t zone = state_.super.lost_zones[saved_lost_];
      state_.counters.dropped_objects += state_.zones[zone].live();
      state_.Abandon(zone);
    }
    // Others may have been lost meanwhile; the next Poll saves these.
    state_.voiding = state_.super.lost_zones.size() > lost;
  };
  WriteSuperblock([this, ended](const Status& status) {
    if (!status) return ended(status);
    WriteSuperblock(ended);
  });
}

void Log::WriteSuperblock(Done done) {
  QueueSuperblock([this, done = std::move(done)](const Status& status) {
    ++state_.changes;
    done(status);
  });
}

void Log::QueueSuperblock(Done done) {
  superblock_waits_.push_back(std::move(done));
  if (!superblock_writing_) WriteSuperblockNow();
}

// Writes the superblock to the place of the older copy: a torn write leaves the newer copy whole.
// One write at a time, as two could tear both copies; calls meanwhile share the next write.
void Log::WriteSuperblockNow() {
  superblock_writing_ = true;
  ++state_.super.sequence;
  const auto bytes = std::make_shared<AlignedBuffer>(EncodeSuperblock(state_.super));
  auto waits = std::make_shared<std::vector<Done>>(std::move(superblock_waits_));
  superblock_waits_.clear();
  const auto finish = [this, waits](int error) {
    superblock_writing_ = false;
    if (!superblock_waits_.empty()) WriteSuperblockNow();
    for (const Done& done : *waits) {
      if (error == 0) {
        done({});
      } else {
        done(FailDevice(error, "writing the superblock"));
      }
    }
  };
  state_.device.Write(SuperblockOffset(state_.super.sequence), bytes->span(),
                      [this, bytes, finish](int error) {
                        if (error != 0) {
                          finish(error);
                        } else {
                          writer_.SyncDevice(finish);
                        }
                      });
}

void Log::Stop(Done done) {
  stopping_ = true;
  stop_ = std::move(done);
  StopStep();
}

void Log::StopStep() {
  if (!stop_ || !recovered()) return;
  // Else each object that is being moved would get a zone of its own.
  if (cleaner_.active() && state_.forgotten.empty()) return writer_.Flush();
  writer_.SealAll();
  if (!writer_.idle() || cleaner_.active() || !forgetting_.idle()) return;
  Done done = std::move(stop_);
  stop_ = nullptr;
  // Marked clean only once all summaries are durable. `kvcove disk show` prints the mark; recovery
  // does not rely on it, but looks at each zone.
  writer_.Sync([this, done = std::move(done)](const Status& status) {
    if (!status) {
      done(status);
      return;
    }
    state_.super.clean = true;
    DrawOpening(done);
  });
}

bool Log::Poll(std::int64_t wait_ns) {
  // One slice of each kind of work a call, so that completions never wait long for cleaning.
  const std::size_t ran = state_.device.Poll(more_ ? 0 : wait_ns);
  more_ = reader_.Verify(verify_slice_bytes_);
  forgetting_.Step();
  // While the log stops, zones are freed only for tombstones that find no room.
  if (!stopping_ || state_.opening || cleaner_.active() || !state_.forgotten.empty()) {
    more_ = cleaner_.Step() || more_;
  }
  if (state_.voiding && !saving_lost_ && !unproven()) VoidLost();
  if (state_.opening) StepOpening();
  // Two rounds, as the one that is under way may have passed the entries that became stale.
  if (state_.stale != swept_stale_) {
    swept_stale_ = state_.stale;
    sweeps_ = 2;
  }
  if (sweeps_ > 0 && state_.Sweep(kSweepSteps)) --sweeps_;
  if (stopping_) StopStep();
  return more_ || ran > 0;
}

bool Log::idle() const {
  return state_.device.in_flight() == 0 && reader_.in_flight() == 0 && writer_.idle() &&
         !cleaner_.active() && forgetting_.idle() && !state_.voiding;
}

Space Log::space() const {
  Space space{.total_bytes = state_.zones.count() * state_.zones.zone_bytes(),
              .objects = state_.index.size(),
              .zones = state_.zones.count(),
              .free_zones = state_.zones.free(),
              .lost_zones = state_.zones.CountOf(ZoneState::kLost),
              .index_bytes = state_.index.memory_bytes(),
              .queued_bytes = writer_.queued_bytes()};
  for (std::uint32_t i = 0; i < state_.zones.count(); ++i) {
    const Zone& zone = state_.zones[i];
    const std::uint64_t live = zone.live_bytes();
    space.live_bytes += live;
    if (zone.state == ZoneState::kFree || zone.state == ZoneState::kLost) continue;
    space.tombstone_bytes += state_.zones.NeededBytes(i);
    space.dead_bytes += zone.records_end - std::min(live, zone.records_end);
  }
  return space;
}

Status Format(Device& device, const FormatOptions& options) {
  if (options.zone_bytes < kMinZoneBytes || options.zone_bytes > kMaxZoneBytes ||
      options.zone_bytes % kBlockBytes != 0) {
    return Fail(Code::kInvalid, "a zone has 64KiB to 4GiB, whole blocks of 4KiB");
  }
  if (device.size_bytes() < kZonesStart + (kMinZones * options.zone_bytes)) {
    return Fail(Code::kInvalid, "a disk needs at least " +
                                    FormatSize(kZonesStart + (kMinZones * options.zone_bytes)) +
                                    " (" + std::to_string(kMinZones) + " zones); this one has " +
                                    FormatSize(device.size_bytes()));
  }
  const Superblock super{.sequence = 1,
                         .pool = options.pool,
                         .incarnation = options.incarnation,
                         .identity = options.identity,
                         .disk = RandomId(),
                         .hash_seed = options.hash_seed != 0 ? options.hash_seed : RandomU64(),
                         .device_bytes = device.size_bytes(),
                         .zone_bytes = options.zone_bytes,
                         .clean = true};
  // Overwrites both places, for an earlier disk's superblock with a higher sequence would count.
  // Place 0 gets sequence 0, and place 1 sequence 1, as sequence % 2 says.
  Superblock older = super;
  older.sequence = 0;
  KVCOVE_TRY(WriteAndSync(device, SuperblockOffset(0), AlignedBuffer(EncodeSuperblock(older))));
  return WriteAndSync(device, SuperblockOffset(1), AlignedBuffer(EncodeSuperblock(super)));
}

}  // namespace kvcove::disklog
