// SPDX-License-Identifier: Apache-2.0
#include "kvcove/disklog/cleaner.h"

#include <algorithm>

namespace kvcove::disklog {
namespace {
constexpr int kEntriesAStep = 1024;
constexpr std::uint32_t kZonesAStep = 64;  // looked at by a Step that finds none, on average
constexpr int kFreeAttempts = 2;
constexpr std::uint64_t kBlindTombstones = 4096;

std::uint64_t TombstoneBytesOf(const Summary& summary) {
  std::uint64_t bytes = 0;
  for (const SummaryEntry& entry : summary.entries) {
    if (entry.kind != RecordKind::kTombstone) continue;
    bytes += TombstoneBytes(summary.scopes[entry.scope].name.size(), entry.key_bytes);
  }
  return bytes;
}
}  // namespace

Cleaner::Cleaner(State& state, Writer& writer, Reader& reader, CleanerOptions options)
    : state_(state),
      writer_(writer),
      reader_(reader),
      options_(std::move(options)),
      budget_(options_.write_amplification, state.zones.count() * state.zones.zone_bytes()) {}

bool Cleaner::Step() {
  if (waiting_ || Rests()) return false;
  budget_.Update(state_.counters, writer_.queued_bytes());
  if (!zone_ && !Begin()) {
    // It has found none, unless it waits for the device.
    if (!waiting_) rests_ = state_.zones.count() / kZonesAStep;
    return false;
  }
  for (int i = 0; i < kEntriesAStep && zone_ && !waiting_; ++i) {
    if (read_) AppendMoved();
    if (entry_ == summary_.entries.size()) {
      End();
      return false;
    }
    const SummaryEntry& entry = summary_.entries[entry_];
    const auto key = std::string_view(summary_.keys).substr(key_at_, entry.key_bytes);
    switch (Handle(entry, key)) {
      case Outcome::kNext:
        Next();
        break;
      case Outcome::kWait:
        break;
      case Outcome::kAgain:
        return false;
    }
  }
  return !waiting_;
}

// A look for a zone costs a look at every zone, and each Poll of the log calls Step. On a large
// disk a look that has found none is not repeated at once, unless somebody waits for the space.
bool Cleaner::Rests() {
  if (zone_ || rests_ == 0) return false;
  if (Pressed() || state_.opening || !state_.forgotten.empty()) return false;
  --rests_;
  return true;
}

// True if puts lack room: one was refused since the last zone was freed, or half of the queue is
// in use.
bool Cleaner::Pressed() const {
  return writer_.half_full() || state_.counters.refused_space != refused_;
}

void Cleaner::Next() {
  key_at_ += summary_.entries[entry_].key_bytes;
  ++entry_;
}

bool Cleaner::Begin() {
  const std::uint32_t coming = state_.zones.free() + state_.zones.CountOf(ZoneState::kFreeing);
  // Until every zone has been read, a zone may hold live objects that the index does not know.
  if (state_.recovering || state_.emptying) return false;
  held_ = state_.zones.HeldByShare();
  const std::optional<std::uint32_t> costly = Costly();
  const auto victim = costly ? costly : state_.zones.Victim(state_.next_sequence, held_);
  if (!victim) return false;
  const bool dead = state_.zones.Dead(*victim);
  // A share at its maximum has a shortage of its own.
  const bool scarce =
      coming < options_.free_zones ||
      state_.zones.ClassOf(state_.zones[*victim], held_) == Zones::ShareClass::kReplaced;
  // A dead zone costs one write, so it does not wait for a shortage. A doomed one is not waited
  // for.
  const bool waits = !scarce || (holds_ > 0 && !Pressed());
  if (!dead && !state_.zones[*victim].doomed && !costly && waits) return false;
  zone_ = victim;
  summary_ = {};
  left_.clear();  // of a pass that failed: its entries are those of another summary
  entry_ = key_at_ = 0;
  moved_bytes_ = 0;
  failed_ = false;
  Zone& zone = state_.zones[*zone_];
  zone.state = ZoneState::kCleaning;
  waiting_ = true;
  if (dead) {
    FreeDead();
    return false;
  }
  ReadContents(state_, *zone_,
               [this](ZoneContents contents) { TakeContents(std::move(contents)); });
  return false;
}

// Returns an uncovered zone that removals pay for: while it is in use, each removal of an absent
// key writes a tombstone. A kill in the middle of a move leaves such a zone behind, and without
// this rule a flood of removals could then fill the disk.
std::optional<std::uint32_t> Cleaner::Costly() {
  if (holds_ > 0) return std::nullopt;  // nothing could be moved out of it
  if (state_.blind_tombstones < std::min(kBlindTombstones, state_.zones.zone_bytes() / 256)) {
    return std::nullopt;
  }
  const auto zone = state_.zones.AnyUncovered();
  if (!zone) state_.blind_tombstones = 0;
  return zone;
}

void Cleaner::TakeContents(ZoneContents contents) {
  waiting_ = false;
  Zone& zone = state_.zones[*zone_];
  const bool needed = state_.zones.NeededBytes(*zone_) > 0;
  // A scan passes over damaged tombstones, and those of a doomed zone have no twin.
  const bool misses = zone.doomed && contents.scanned && contents.summary &&
                      TombstoneBytesOf(*contents.summary) < zone.tombstone_bytes();
  if (contents.summary && !misses) {
    summary_ = std::move(*contents.summary);
    state_.zones.ReadAgain();
    return;
  }
  // The device cannot read the zone, so nothing can be moved out of it. Its objects are dropped,
  // but a zone of tombstones stays until none is needed: a device that reads nothing for a while
  // would lose the zones of their twins, too.
  if (!needed) return FreeZone();
  // A doomed one has tombstones without a twin. That is known at a start only, before anything is
  // found, so the disk can be emptied.
  if (zone.doomed) state_.emptying = state_.opening;
  zone.unreadable = true;
  zone.state = ZoneState::kSealed;
  zone_.reset();
}

Cleaner::Outcome Cleaner::Handle(const SummaryEntry& entry, std::string_view key) {
  const SummaryScope& from = summary_.scopes[entry.scope];
  const auto scope = state_.scopes.Find(from.slot, from.generation);
  if (!scope || state_.scopes.dead(*scope)) return Outcome::kNext;
  if (entry.kind == RecordKind::kTombstone) return MoveTombstone(entry, *scope, key);
  IndexEntry* const known = state_.FindAt(entry.hash, *zone_, entry.offset_units);
  if (known == nullptr) return Outcome::kNext;
  const LiveObject object{.slot = from.slot,
                          .generation = from.generation,
                          .name = from.name,
                          .key = key,
                          .version = entry.version,
                          .value_bytes = entry.value_bytes};
  if (MayMove(*known, object)) return MoveObject(entry, *known, key);
  left_.push_back({.entry = entry_, .key_at = key_at_});
  return Outcome::kNext;
}

bool Cleaner::MayMove(const IndexEntry& known, const LiveObject& object) {
  if (!options_.worth_moving || holds_ > 0 || Pressed()) return false;
  const auto most = static_cast<std::uint64_t>(options_.move_share *
                                               static_cast<double>(state_.zones.zone_bytes()));
  if (moved_bytes_ + known.record_bytes > most) return false;
  budget_.Update(state_.counters, writer_.queued_bytes());
  return budget_.Allows(known.record_bytes) &&
         options_.worth_moving(object, {.since_read = state_.SinceRead(known),
                                        .budget = budget_.share(),
                                        .guaranteed = state_.zones.Guaranteed(
                                            state_.scopes[known.scope].share, held_)});
}

// Drops the objects that were not moved. FreeZone calls this only once the zone is free on the
// disk.
void Cleaner::DropLeft() {
  for (const Left& left : left_) {
    const SummaryEntry& entry = summary_.entries[left.entry];
    const IndexEntry* const known = state_.FindAt(entry.hash, *zone_, entry.offset_units);
    if (known == nullptr) continue;  // it was removed meanwhile
    state_.Drop(IndexEntry(*known));
    ++state_.counters.dropped_objects;
    if (!options_.on_dropped) continue;
    const SummaryScope& from = summary_.scopes[entry.scope];
    options_.on_dropped(
        {.slot = from.slot,
         .generation = from.generation,
         .name = from.name,
         .key = std::string_view(summary_.keys).substr(left.key_at, entry.key_bytes),
         .version = entry.version,
         .value_bytes = entry.value_bytes});
  }
  left_.clear();
}

Cleaner::Outcome Cleaner::MoveTombstone(const SummaryEntry& entry, ScopeId scope,
                                        std::string_view key) {
  // The copy keeps the sequence: a new one would also cover values that were put after the removal.
  // It keeps the stream, too, so that it never lies in the zone of its twin.
  if (!state_.zones.TombstoneNeeded(scope, entry.version, entry.sequence)) return Outcome::kNext;
  const SummaryScope& from = summary_.scopes[entry.scope];
  const Zone& zone = state_.zones[*zone_];
  const bool single =
      state_.single_tombstones.contains(State::CoveredBy(entry.hash, entry.version));
  const auto [first, second] = writer_.tombstone_streams();
  Writer::Append copy{.kind = RecordKind::kTombstone,
                      .slot = from.slot,
                      .generation = from.generation,
                      .version = entry.version,
                      .name = from.name,
                      .key = key,
                      .sequence = entry.sequence};
  Status added = single ? writer_.CheckTwins(copy) : Status();
  for (const std::uint8_t stream : {first, second}) {
    if (!single && (stream == second) != (zone.stream == second)) continue;
    copy.stream = stream;
    if (added) added = writer_.Add(copy, [this](const Status& status) { failed_ |= !status; });
  }
  if (added) return Outcome::kNext;
  if (added.error().code == Code::kLimit) {
    writer_.Flush();
    return Outcome::kAgain;
  }
  // A tombstone cannot be dropped as an object can: the zone stays until another attempt succeeds.
  failed_ = true;
  return Outcome::kNext;
}

Cleaner::Outcome Cleaner::MoveObject(const SummaryEntry& entry, IndexEntry& known,
                                     std::string_view key) {
  const SummaryScope& from = summary_.scopes[entry.scope];
  const auto found = reader_.Find(from.slot, from.generation, key);
  if (!found) return Outcome::kNext;
  place_ = state_.PlaceOf(known);
  known.read_at = 0;  // the copy has not been read
  if (buffer_.size() < found->buffer_bytes) buffer_ = AlignedBuffer(found->buffer_bytes);
  waiting_ = reading_ = true;
  reader_.Read(*found,
               {.slot = from.slot, .generation = from.generation, .key = key, .asked = false},
               buffer_.span(), [this](const ReadResult& result) {
                 waiting_ = reading_ = false;
                 if (result.miss == ReadMiss::kNone) {
                   read_ = result;
                 } else {
                   // It is dropped with the zone, unless it has ended meanwhile (DropLeft).
                   left_.push_back({.entry = entry_, .key_at = key_at_});
                   Next();
                 }
               });
  return Outcome::kWait;
}

// Appends the object that was read. Room is looked at again, for puts may have used it while the
// read was pending; then the object is left in its zone.
void Cleaner::AppendMoved() {
  const SummaryEntry& entry = summary_.entries[entry_];
  const SummaryScope& from = summary_.scopes[entry.scope];
  const std::span<const std::byte> value =
      buffer_.span().subspan(read_->value_offset, read_->value_bytes);
  Status added = Fail(Code::kLimit, "moves give way");
  if (holds_ == 0 && !Pressed()) {
    added = writer_.Add({.slot = from.slot,
                         .generation = from.generation,
                         .version = entry.version,
                         .name = from.name,
                         .key = std::string_view(summary_.keys).substr(key_at_, entry.key_bytes),
                         .value = std::span(&value, 1),
                         .stream = writer_.move_stream(),
                         .sequence = entry.sequence,
                         .moved_from = place_},
                        [this](const Status& status) {
                          --copies_;
                          failed_ |= !status;
                        });
  }
  if (!added) {
    left_.push_back({.entry = entry_, .key_at = key_at_});
  } else {
    ++copies_;
    moved_bytes_ += place_.record_bytes;
    state_.counters.moved_bytes += place_.record_bytes;
    ++state_.counters.moved_objects;
  }
  read_.reset();
  Next();
}

// Frees a zone without live objects. The sync comes first because newer records in other zones have
// replaced its objects: freed before these are durable, a loss of power could take both.
void Cleaner::FreeDead() {
  writer_.Sync([this](const Status& status) {
    waiting_ = false;
    if (status) {
      ++state_.counters.zones_freed_unread;
      FreeZone();
      return;
    }
    state_.zones[*zone_].state = ZoneState::kSealed;
    zone_.reset();
  });
}

// Ends the pass over the zone's entries: syncs the copies, then frees the zone. The sync also waits
// for the copies' Writer::Land, so `failed_` is final when its callback runs.
void Cleaner::End() {
  waiting_ = true;
  writer_.Sync([this](const Status& status) {
    waiting_ = false;
    if (status && !failed_) {
      FreeZone();
      return;
    }
    state_.zones[*zone_].state = ZoneState::kSealed;  // it may be chosen again
    zone_.reset();
  });
}

// Frees the zone on the disk, and drops its objects only once that is durable. Dropped earlier, a
// key could be put again, or be removed without a tombstone because no zone holds its scope; after
// a crash, a start would then find the old record here.
void Cleaner::FreeZone() {
  waiting_ = true;
  writer_.Free(*zone_, [this](const Status& status) {
    waiting_ = false;
    if (status) {
      refused_ = state_.counters.refused_space;
      DropLeft();
      state_.counters.dropped_objects += state_.zones[*zone_].live();  // those that nothing lists
      state_.Abandon(*zone_);
    }
    // Else the cleaner would choose it again and again: the superblock voids it.
    if (!status && ++state_.zones[*zone_].free_failures >= kFreeAttempts) state_.Lose(*zone_);
    zone_.reset();
    summary_ = {};
    left_.clear();
  });
}

}  // namespace kvcove::disklog
