// SPDX-License-Identifier: Apache-2.0
#include "kvcove/disklog/recovery.h"

#include <algorithm>
#include <tuple>

namespace kvcove::disklog {
namespace {
constexpr std::uint32_t kEndsAtOnce = 64;
constexpr std::size_t kZonesAtOnce = 4;

}  // namespace

void Recovery::Start() { ReadEnds(); }

void Recovery::ReadEnds() {
  while (next_end_ < state_.zones.count() && ends_in_flight_ < kEndsAtOnce) {
    const std::uint32_t zone = next_end_++;
    ++ends_in_flight_;
    const auto ends = std::make_shared<Ends>();
    const auto read = [this, zone, ends] {
      if (--ends->waiting > 0) return;
      --ends_in_flight_;
      TakeEnds(zone, *ends);
      ReadEnds();
    };
    const std::uint64_t start = state_.zones.OffsetOf(zone);
    // Once more, because the device may have failed for a moment: a zone whose header cannot be
    // read is freed, and two of them cost all objects of the disk.
    state_.device.Read(start, ends->header.span(), [this, start, ends, read](int error) {
      if (error == 0) return read();
      state_.device.Read(start, ends->header.span(), [ends, read](int again) {
        ends->header_error = again;
        read();
      });
    });
    state_.device.Read(start + state_.zones.zone_bytes() - kBlockBytes, ends->trailer.span(),
                       [ends, read](int error) {
                         ends->trailer_error = error;
                         read();
                       });
    counters_.read_bytes += 2 * kBlockBytes;
  }
  if (next_end_ == state_.zones.count() && ends_in_flight_ == 0 && !done_ && !serving_) Order();
}

void Recovery::TakeEnds(std::uint32_t number, const Ends& ends) {
  Zone& zone = state_.zones[number];
  const Superblock& super = state_.super;
  if (std::ranges::find(super.lost_zones, number) != super.lost_zones.end()) {
    zone.state = ZoneState::kLost;
    return;
  }
  if (ends.header_error != 0 || ends.trailer_error != 0) ++state_.counters.read_errors;
  if (ends.header_error != 0) {
    ++counters_.unreadable;
    return Lose(number, std::nullopt);
  }
  // A header of another place, pool, incarnation or disk belongs to an earlier use of the space,
  // and a trailer with another nonce to an earlier use of the zone.
  const auto header = ParseZoneHeader(ends.header.view());
  if (!header) {
    // Damaged, or never written: only zeros are known to be the latter.
    if (ends.header.view().find_first_not_of('\0') != std::string_view::npos) {
      Lose(number, std::nullopt);
    }
    return;
  }
  if (header->free || header->zone != number || header->pool != super.pool ||
      header->incarnation != super.incarnation || header->disk != super.disk) {
    return;  // free
  }
  zone.state = ZoneState::kSealed;
  state_.zones.SetNonce(number, header->nonce);
  zone.stream = header->stream;
  zone.brief = header->stream == writer_.brief_stream();
  // A trailer that cannot be read parses as none: zeros.
  const auto trailer = ParseZoneTrailer(ends.trailer.view(), state_.zones.zone_bytes());
  zone.summarized = trailer && trailer->zone == number && trailer->nonce == header->nonce;
  if (zone.summarized) {
    zone.trailer = *trailer;
    zone.records_end = trailer->summary_offset;
    zone.opened_at = trailer->last_sequence;
    state_.next_sequence = std::max(state_.next_sequence, trailer->last_sequence + 1);
  }
  ++counters_.zones;
  queue_.push_back(number);
}

// Orders the zones by stages: those with tombstones; then those without a summary; then the others,
// the newest first, as their objects are most likely to be read.
void Recovery::Order() {
  const auto streams = writer_.tombstone_streams();
  const auto stage = [&](std::uint32_t number) {
    const Zone& zone = state_.zones[number];
    const bool tombstones = std::ranges::find(streams, zone.stream) != streams.end() ||
                            (zone.summarized && zone.trailer.last_tombstone != 0);
    if (tombstones) return kTombstones;
    return zone.summarized ? kOthers : kScanned;
  };
  std::ranges::sort(queue_, {}, [&](std::uint32_t number) {
    return std::tuple(stage(number), ~state_.zones[number].opened_at, number);
  });
  for (const std::uint32_t number : queue_) {
    for (std::size_t i = stage(number); i < kStages; ++i) ++stage_ends_[i];
  }
  ReadZones();
}

// Reads the next zones. None is begun before all of the stages before it are read: its objects
// would be found although a tombstone that is not read yet covers them, or be taken for uncovered
// ones.
void Recovery::ReadZones() {
  if (next_ == stage_ends_[kTombstones] && finished_ == next_) CheckTombstones();
  if (finished_ >= stage_ends_[kScanned]) serving_ = true;
  const std::size_t end = *std::ranges::find_if(
      stage_ends_, [&](std::size_t at) { return at > finished_ || at == queue_.size(); });
  while (next_ < end && in_flight_ < kZonesAtOnce) {
    const bool scan = !state_.zones[queue_[next_]].summarized;
    if (scan && scans_ > 0) return;  // a scan has a whole zone in memory: one at a time
    Begin(queue_[next_++]);
  }
  if (next_ == queue_.size() && in_flight_ == 0 && !done_) End();
}

void Recovery::Lose(std::uint32_t number, std::optional<std::uint8_t> stream) {
  state_.zones.Doom(number, /*untaken=*/true);
  ++counters_.lost;
  const auto [first, second] = writer_.tombstone_streams();
  const std::uint32_t of_first = !stream || *stream == first ? 1 : 0;
  const std::uint32_t of_second = !stream || *stream == second ? 1 : 0;
  lost_first_ += of_first;
  lost_second_ += of_second;
  lost_tombstones_ += of_first | of_second;
}

void Recovery::CheckTombstones() {
  // A disk that has just been formatted may have damaged headers of something else.
  state_.emptying = lost_first_ > 0 && lost_second_ > 0 && lost_tombstones_ > 1 && !queue_.empty();
  if (!state_.emptying) return;
  queue_.resize(next_);
  stage_ends_.fill(next_);
}

void Recovery::NoteTombstone(std::uint32_t number, ScopeId scope, const SummaryEntry& entry) {
  Tombstone& known = tombstones_[State::CoveredBy(entry.hash, entry.version)];
  if (entry.sequence < known.sequence) return;
  if (entry.sequence > known.sequence) known = {.sequence = entry.sequence};
  known.covers = entry.version;
  known.zone = number;
  known.scope = scope;
  (state_.zones[number].stream == writer_.tombstone_streams().back() ? known.second : known.first) =
      true;
}

void Recovery::MendTombstones() {
  for (const auto& [covered, tombstone] : tombstones_) {
    if (tombstone.first && tombstone.second) continue;
    if (!state_.zones.TombstoneNeeded(tombstone.scope, tombstone.covers, tombstone.sequence)) {
      continue;
    }
    state_.single_tombstones.insert(covered);
    state_.zones.Doom(tombstone.zone, /*untaken=*/false);
  }
}

void Recovery::Begin(std::uint32_t number) {
  ++in_flight_;
  const auto finish = [this] {
    --in_flight_;
    ++finished_;
    ReadZones();
  };
  const auto scan = [this, number, finish] {
    ++scans_;
    ++counters_.scanned;
    counters_.read_bytes += state_.zones.zone_bytes();
    ScanZone(state_, number, [this, number, finish](ZoneContents contents) {
      --scans_;
      TakeScan(number, std::move(contents));
      finish();
    });
  };
  if (!state_.zones[number].summarized) {
    scan();
    return;
  }
  counters_.read_bytes += AlignUp(state_.zones[number].trailer.table_bytes, kBlockBytes);
  ReadSummary(state_, number, false, [this, number, finish, scan](const ZoneContents& contents) {
    if (contents.summary) {
      Take(number, *contents.summary);
      finish();
    } else {
      ++counters_.damaged;
      scan();
    }
  });
}

void Recovery::TakeScan(std::uint32_t number, ZoneContents contents) {
  Zone& zone = state_.zones[number];
  if (!contents.summary) {
    ++counters_.unreadable;
    return Lose(number, zone.stream);
  }
  // The summary is written behind the last valid record. It fits before the trailer, as the writer
  // left room for a summary of all records.
  zone.records_end = contents.records_end;
  zone.summarized = false;
  Take(number, *contents.summary);
  const EncodedSummary encoded = EncodeSummary(*contents.summary);
  if (zone.records_end + encoded.bytes.size() + kBlockBytes <= state_.zones.zone_bytes()) {
    writer_.SealRecovered(number, std::move(*contents.summary));
  } else {
    state_.zones.Doom(number, /*untaken=*/false);
  }
}

// Adds a zone's records to the index, in whatever order zones are read: Offer keeps the record of a
// key with the highest sequence, and tombstones are records, too.
void Recovery::Take(std::uint32_t number, const Summary& summary) {
  Zone& zone = state_.zones[number];
  std::vector<std::optional<ScopeId>> scopes;
  for (const SummaryScope& scope : summary.scopes) {
    const auto id = state_.scopes.Intern(scope.slot, scope.generation, scope.name);
    scopes.push_back(id ? std::optional(*id) : std::nullopt);
    // In use until the end of this function, so that no Drop below gives the number to others.
    if (id) state_.scopes.Use(*id);
  }
  for (const SummaryEntry& from : summary.entries) {
    // Dead records count here, too: a new record needs a higher sequence than any on the disk.
    state_.next_sequence = std::max(state_.next_sequence, from.sequence + 1);
    zone.opened_at = std::max(zone.opened_at, from.sequence);
    const auto scope = scopes[from.scope];
    if (!scope) state_.zones.Doom(number, /*untaken=*/false);
    if (!scope || state_.scopes.dead(*scope)) {
      ++counters_.dead_objects;
      continue;
    }
    IndexEntry entry;
    entry.set_id(from.hash);
    entry.set_sequence(from.sequence);
    entry.zone = number;
    entry.use = zone.use;
    entry.offset_units = from.offset_units;
    entry.record_bytes =
        static_cast<std::uint32_t>(kRecordHeadBytes + summary.scopes[from.scope].name.size() +
                                   from.key_bytes + from.value_bytes);
    entry.scope = *scope;
    entry.kind = from.kind;
    if (from.kind == RecordKind::kObject) {
      state_.zones.NoteObject(number, *scope, from.sequence);
      TakeObject(number, entry);
      continue;
    }
    state_.zones.NoteTombstone(
        number, *scope, from.sequence, from.version,
        TombstoneBytes(summary.scopes[from.scope].name.size(), from.key_bytes));
    NoteTombstone(number, *scope, from);
    state_.Offer(entry);
    ++counters_.dead_objects;
  }
  for (const auto& scope : scopes) {
    if (scope) state_.scopes.Unuse(*scope);
  }
}

// Takes an object's record. Marks the zone of a record that ends here without a tombstone of its
// own as uncovered (Zones): the record was replaced, or copied by the cleaner. Zones with
// tombstones are read first, so all tombstones are known.
void Recovery::TakeObject(std::uint32_t number, IndexEntry entry) {
  const Id128 hash = entry.id();
  // A zone may have several records of a key, so the tombstone must be the younger one.
  const auto ends = [&](std::uint32_t zone, std::uint64_t sequence) {
    const auto tombstone = tombstones_.find(State::CoveredBy(hash, state_.zones[zone].nonce));
    if (tombstone == tombstones_.end() || tombstone->second.sequence < sequence) {
      state_.zones.AddUncovered(zone);
    }
  };
  const IndexEntry* const known = state_.Find(hash);
  const bool older = known != nullptr && known->kind == RecordKind::kObject &&
                     known->sequence() < entry.sequence();
  if (older) ends(known->zone, known->sequence());
  IndexEntry* const kept = state_.Offer(entry);
  if (kept == nullptr) {
    ++counters_.dead_objects;
    ends(number, entry.sequence());
    return;
  }
  ++counters_.objects;
  if (!state_.TellFound(*kept)) {
    state_.Hide(*kept);
    state_.zones.Doom(number, /*untaken=*/false);
  }
}

void Recovery::End() {
  done_ = true;
  if (!state_.emptying) MendTombstones();
  tombstones_.clear();
  state_.recovering = false;
  state_.stale += 1;  // makes Log::Poll sweep the tombstones out of the index
}

}  // namespace kvcove::disklog
