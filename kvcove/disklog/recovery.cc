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
    const auto read = [this, zone, ends](int error) {
      if (error != 0) ends->error = error;
      if (--ends->waiting > 0) return;
      --ends_in_flight_;
      TakeEnds(zone, *ends);
      ReadEnds();
    };
    const std::uint64_t start = state_.zones.OffsetOf(zone);
    state_.device.Read(start, ends->header.span(), read);
    state_.device.Read(start + state_.zones.zone_bytes() - kBlockBytes, ends->trailer.span(), read);
    counters_.read_bytes += 2 * kBlockBytes;
  }
  if (next_end_ == state_.zones.count() && ends_in_flight_ == 0 && !done_ && !serving_) Order();
}

void Recovery::TakeEnds(std::uint32_t number, const Ends& ends) {
  Zone& zone = state_.zones[number];
  if (ends.error != 0) {
    // The zone may hold records that are older than a tombstone. Zones::Holds and TombstoneNeeded
    // count a lost zone, so such tombstones are kept for a start that can read the zone again.
    ++state_.counters.read_errors;
    ++counters_.unreadable;
    zone.state = ZoneState::kLost;
    return;
  }
  // A header of another place, pool, incarnation or disk belongs to an earlier use of the space,
  // and a trailer with another nonce to an earlier use of the zone.
  const auto header = ParseZoneHeader(ends.header.view());
  const Superblock& super = state_.super;
  if (!header || header->free || header->zone != number || header->pool != super.pool ||
      header->incarnation != super.incarnation || header->disk != super.disk) {
    return;  // free
  }
  zone.state = ZoneState::kSealed;
  zone.nonce = header->nonce;
  zone.stream = header->stream;
  zone.brief = header->stream == writer_.brief_stream();
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

// Orders the zones: first those without a summary, which may hold tombstones; then those with
// tombstones; then the others, the newest first, as their objects are most likely to be read.
void Recovery::Order() {
  const auto rank = [&](std::uint32_t number) {
    const Zone& zone = state_.zones[number];
    const bool tombstones = zone.summarized && zone.trailer.last_tombstone != 0;
    return std::tuple(zone.summarized ? (tombstones ? 1 : 2) : 0, ~zone.opened_at, number);
  };
  std::ranges::sort(queue_, {}, rank);
  before_serving_ = static_cast<std::size_t>(std::ranges::count_if(
      queue_, [&](std::uint32_t zone) { return std::get<0>(rank(zone)) < 2; }));
  ReadZones();
}

// Reads the next zones. No zone without tombstones is begun before all with tombstones are read:
// its objects would be found although a tombstone that is not read yet covers them.
void Recovery::ReadZones() {
  if (finished_of_these_ == before_serving_) serving_ = true;
  const std::size_t end = serving_ ? queue_.size() : before_serving_;
  while (next_ < end && in_flight_ < kZonesAtOnce) {
    const bool scan = !state_.zones[queue_[next_]].summarized;
    if (scan && scans_ > 0) return;  // a scan has a whole zone in memory: one at a time
    Begin(queue_[next_++]);
  }
  if (next_ == queue_.size() && in_flight_ == 0 && !done_) End();
}

void Recovery::Begin(std::uint32_t number) {
  ++in_flight_;
  const auto finish = [this] {
    --in_flight_;
    if (!serving_) ++finished_of_these_;
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
    zone.state = ZoneState::kLost;
    return;
  }
  // The summary is written behind the last valid record. If it does not fit before the trailer, the
  // zone stays without one, and the next start scans it again.
  zone.records_end = contents.records_end;
  zone.summarized = false;
  Take(number, *contents.summary);
  const EncodedSummary encoded = EncodeSummary(*contents.summary);
  if (zone.records_end + encoded.bytes.size() + kBlockBytes <= state_.zones.zone_bytes()) {
    writer_.SealRecovered(number, std::move(*contents.summary));
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
    if (!scope || state_.scopes.dead(*scope)) {
      ++counters_.dead_objects;
      continue;
    }
    state_.zones.Note(number, *scope, from.kind, from.sequence);
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
    const bool taken = state_.Offer(entry);
    const bool object = from.kind == RecordKind::kObject;
    ++(object && taken ? counters_.objects : counters_.dead_objects);
  }
  for (const auto& scope : scopes) {
    if (scope) state_.scopes.Unuse(*scope);
  }
}

void Recovery::End() {
  done_ = true;
  state_.recovering = false;
  state_.stale += 1;  // makes Log::Poll sweep the tombstones out of the index
}

}  // namespace kvcove::disklog
