// SPDX-License-Identifier: Apache-2.0
#include "kvcove/disklog/writer.h"

#include <algorithm>
#include <cerrno>

#include "kvcove/base/copy.h"
#include "kvcove/disklog/checksum.h"

namespace kvcove::disklog {
namespace {

constexpr std::uint32_t kFailuresToGiveUp = 3;
constexpr std::uint32_t kNumbers = 0xFFFF;  // of scopes, all in use when Intern refuses one
constexpr std::array<std::byte, kUnitBytes> kZeros{};

std::uint32_t BytesOf(Pieces value) {
  std::uint64_t bytes = 0;
  for (const auto& piece : value) bytes += piece.size();
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(bytes, ~std::uint32_t{0}));
}

Status StatusOf(int error, const char* act) {
  if (error == 0) return {};
  errno = error;
  return FailErrno(error == ENOSPC ? Code::kNoSpace : Code::kUnavailable, act);
}

// Has a zone freed whose numbers of scopes can be used again. A zone keeps those of all generations
// that it has records of, and one live object keeps the zone. So resets could use all numbers up,
// and nothing of a later generation could be written any more. One zone at a time: callers repeat
// their puts.
void FreeNumbers(State& state) {
  if (state.zones.AnyDoomed()) return;
  std::vector<bool> in_zones(kNumbers);
  std::optional<std::uint32_t> best;
  double most = 0;
  for (std::uint32_t i = 0; i < state.zones.count(); ++i) {
    const Zone& zone = state.zones[i];
    std::uint32_t dead = 0;
    for (const ScopeUse& use : zone.uses) {
      in_zones[use.scope] = true;
      if (state.scopes.dead(use.scope)) ++dead;
    }
    if (zone.state != ZoneState::kSealed || zone.tombstone_bytes() > 0) continue;
    const double gain = static_cast<double>(dead) / (1 + zone.live());
    if (gain <= most) continue;
    most = gain;
    best = i;
  }
  // The sweep gives such a number back once it has erased the index entries that name it. Until
  // then one zone after the other would be freed for nothing.
  for (std::uint32_t number = 0; number < kNumbers; ++number) {
    if (state.scopes.dead(static_cast<ScopeId>(number)) && !in_zones[number]) return;
  }
  if (best) state.zones.Doom(*best, /*untaken=*/false);
}

}  // namespace

Writer::Writer(State& state, const WriterOptions& options)
    : state_(state),
      chunk_bytes_(AlignUp(options.chunk_bytes, kBlockBytes)),
      streams_(options.streams),
      reserved_zones_(options.reserved_zones),
      arena_(std::max(options.queue_bytes / chunk_bytes_, std::uint64_t{2}) * chunk_bytes_),
      streams_open_(options.streams + 4U, nullptr) {
  for (std::uint64_t at = 0; at < arena_.size(); at += chunk_bytes_) {
    free_.push_back(chunks_.size());
    chunks_.push_back({.memory = arena_.span().subspan(at, chunk_bytes_)});
  }
  state_.device.Register(arena_.span());
  // A zone with one record has a block each for header and trailer, two for the summary, and one
  // that the record may use in part. The queue needs a block for the header, too.
  largest_record_ =
      std::min(state_.zones.zone_bytes() - (5 * kBlockBytes), arena_.size() - (2 * kBlockBytes));
}

Status Writer::Add(const Append& append, Done done) {
  if (state_.failures >= kFailuresToGiveUp) {
    return Fail(Code::kUnavailable, "the disk fails to write");
  }
  Record record{.kind = append.kind,
                .slot = append.slot,
                .generation = append.generation,
                .version = append.version,
                .name = append.name,
                .key = append.key,
                .value_bytes = BytesOf(append.value)};
  if (AlignUp(record.bytes(), kUnitBytes) > largest_record_) {
    return Fail(Code::kInvalid, "an object of " + std::to_string(record.value_bytes) +
                                    " bytes does not fit a zone or the write queue");
  }
  const Result<ScopeId> numbered =
      state_.scopes.Intern(append.slot, append.generation, append.name);
  if (!numbered) {
    FreeNumbers(state_);
    return std::unexpected(numbered.error());
  }
  const ScopeId scope = *numbered;
  KVCOVE_ASSIGN(OpenZone* const zone, Room(append, record.bytes()));
  record.nonce = state_.zones[zone->number].nonce;
  record.sequence = append.sequence != 0 ? append.sequence : state_.next_sequence++;
  Checksum sum;
  sum.Add(EncodeRecordHead(record));
  sum.Add(append.name);
  sum.Add(append.key);
  for (const auto& piece : append.value) sum.Add(piece);
  record.checksum = sum.Value();

  IndexEntry entry;
  entry.set_id(state_.HashOf(append.slot, append.key));
  entry.set_sequence(record.sequence);
  entry.zone = zone->number;
  entry.use = state_.zones[zone->number].use;
  entry.offset_units = static_cast<std::uint32_t>(zone->position / kUnitBytes);
  entry.record_bytes = static_cast<std::uint32_t>(record.bytes());
  entry.scope = scope;
  entry.kind = append.kind;
  entry.pending = true;
  Note(*zone, scope, record, zone->position);
  if (append.kind == RecordKind::kTombstone) ++tombstones_;
  // Copies are taken by Land.
  if (append.kind == RecordKind::kObject && !append.moved_from) state_.Offer(entry);

  const auto ticket = std::make_shared<Ticket>();
  Append kept = append;
  kept.name = kept.key = {};
  kept.value = {};
  ticket->finish = [this, kept, entry, done = std::move(done)](int error) {
    Land(kept, entry, error, done);
  };
  const std::string front = EncodeRecordFront(record);
  Copy(*zone, std::as_bytes(std::span(front)), ticket);
  for (const auto& piece : append.value) Copy(*zone, piece, ticket);
  const std::uint64_t end = AlignUp(zone->position, kUnitBytes);
  state_.counters.padding_bytes += end - zone->position;
  Pad(*zone, end);
  ticket->whole = true;
  state_.zones[zone->number].records_end = zone->position;
  return {};
}

Status Writer::AddTombstone(Append append) {
  append.kind = RecordKind::kTombstone;
  KVCOVE_TRY(CheckTwins(append));
  for (const std::uint8_t stream : tombstone_streams()) {
    append.stream = stream;
    KVCOVE_TRY(Add(append, [this](const Status& status) { unproven_ |= !status; }));
    // Both have one sequence. Add draws a new one for the first.
    if (append.sequence == 0) append.sequence = state_.next_sequence - 1;
  }
  return {};
}

// Ends the write of a record: makes a put found, points the index at a copy, or forgets a failed
// put: some or all of its bytes may be on the disk. The key's entry may be another one meanwhile,
// so sequence, or place of the original, is compared.
void Writer::Land(const Append& append, const IndexEntry& entry, int error, const Done& done) {
  if (error != 0) {
    const auto open = open_.find(entry.zone);
    if (open != open_.end()) open->second->lost.insert(entry.offset_units);
  }
  IndexEntry* known = state_.Find(entry.id());
  if (append.moved_from) {
    if (error == 0 && known != nullptr && !known->forgotten &&
        state_.PlaceOf(*known) == *append.moved_from) {
      state_.Move(*known, entry);
    } else if (append.kind == RecordKind::kObject) {
      EndCopy(append, entry, error);
    }
  } else if (append.kind == RecordKind::kObject && known != nullptr &&
             known->sequence() == entry.sequence()) {
    const bool there = error == 0 && state_.TellFound(*known);
    if (!there) {
      const Status outcome = error != 0 ? StatusOf(error, "writing to the disk")
                                        : Fail(Code::kLimit, "the table of objects is full");
      state_.Forget(*known, KeyOf(entry), [done, outcome](const Status&) { done(outcome); });
      return;
    }
  } else if (error == 0 && append.kind == RecordKind::kObject &&
             !state_.scopes.Current(append.slot, append.generation)) {
    done(Fail(Code::kStale, "the generation ended while the object was being written"));
    return;
  }
  done(StatusOf(error, "writing to the disk"));
}

// Ends a copy that does not count: the object ended meanwhile, or the write failed. A tombstone
// that was written meanwhile names the zone of the original, not that of the copy.
void Writer::EndCopy(const Append& append, const IndexEntry& entry, int error) {
  state_.zones.AddUncovered(entry.zone);
  if (error != 0) return;  // the original is alive, and a tombstone would cover it, too
  const OpenZone& zone = *open_.at(entry.zone);
  state_.forgotten.push_back({.hash = entry.id(),
                              .sequence = entry.sequence(),
                              .slot = append.slot,
                              .generation = append.generation,
                              .name = zone.summary.scopes[zone.scopes.at(entry.scope)].name,
                              .key = KeyOf(entry),
                              .place = state_.PlaceOf(entry),
                              .copy = true});
}

std::string Writer::KeyOf(const IndexEntry& entry) const {
  const Summary& summary = open_.at(entry.zone)->summary;
  std::size_t key_at = 0;
  for (const SummaryEntry& one : summary.entries) {
    if (one.offset_units == entry.offset_units) return summary.keys.substr(key_at, one.key_bytes);
    key_at += one.key_bytes;
  }
  return {};
}

bool Writer::Fits(const OpenZone& zone, const Append& append, std::uint64_t bytes) const {
  const auto scope = state_.scopes.Find(append.slot, append.generation);
  const std::uint64_t scope_bytes =
      zone.scope_bytes + (scope && zone.scopes.contains(*scope) ? 0 : ScopeBytes(append.name));
  const std::uint64_t summary = SummaryBytes(zone.summary.entries.size() + 1, scope_bytes,
                                             zone.summary.keys.size() + append.key.size());
  return zone.scopes.size() < kMaxScopesOfZone &&
         AlignUp(zone.position + bytes, kBlockBytes) + summary + kBlockBytes <=
             state_.zones.zone_bytes();
}

Writer::Need Writer::NeedOf(const Append& append, std::uint64_t bytes) const {
  bytes = AlignUp(bytes, kUnitBytes);
  const OpenZone* const open = streams_open_[append.stream];
  const bool fits = open != nullptr && Fits(*open, append, bytes);
  const std::uint64_t room = fits && open->chunk ? chunk_bytes_ - chunks_[*open->chunk].filled : 0;
  const std::uint64_t needed = bytes + (fits ? 0 : kBlockBytes);  // a new zone begins with a header
  return {.chunks = needed > room ? (needed - room + chunk_bytes_ - 1) / chunk_bytes_ : 0,
          .zone = !fits};
}

Status Writer::CheckQueue(std::uint64_t chunks) {
  if (chunks <= free_.size()) return {};
  ++state_.counters.refused_full;
  return Fail(Code::kLimit, "the disk's write queue is full");
}

std::unexpected<Error> Writer::RefuseZone() {
  ++state_.counters.refused_space;
  return Fail(Code::kNoSpace, "the disk has no free zone");
}

// Checks that both copies of a tombstone have room. A removal that is refused is repeated, each
// millisecond perhaps: without this check each attempt could leave one copy, until the disk is full
// of them.
Status Writer::CheckTwins(Append append) {
  std::uint64_t chunks = 0;
  std::uint32_t zones = 0;
  for (const std::uint8_t stream : tombstone_streams()) {
    append.stream = stream;
    const Need need = NeedOf(append, kRecordHeadBytes + append.name.size() + append.key.size());
    chunks += need.chunks;
    if (need.zone) ++zones;
  }
  KVCOVE_TRY(CheckQueue(chunks));
  if (zones > state_.zones.openable()) return RefuseZone();
  return {};
}

// Returns the zone for a record of `bytes`, after it has checked that the queue has room: the
// stream's current zone, or a new one if the record and the zone's summary would not fit.
Result<Writer::OpenZone*> Writer::Room(const Append& append, std::uint64_t bytes) {
  OpenZone*& current = streams_open_[append.stream];
  const Need need = NeedOf(append, bytes);
  KVCOVE_TRY(CheckQueue(need.chunks));
  if (!need.zone) return current;
  const auto number = state_.zones.AnyFree();
  const bool callers = append.stream < streams_ || append.stream == brief_stream();
  // The last free zones are kept for moves and tombstones: without a zone for these, no zone with
  // needed tombstones could be freed, and the disk would stay full.
  const std::uint32_t reserve = callers ? reserved_zones_ : 0;
  if (!number || state_.zones.free() <= reserve) return RefuseZone();
  if (current != nullptr) Seal(*current);
  current = &Open(*number, append.stream);
  return current;
}

// Opens a free zone. The new nonce ties records to this use of the zone: a scan or a read takes no
// record of an earlier use for one of this use.
Writer::OpenZone& Writer::Open(std::uint32_t number, std::uint8_t stream) {
  Zone& zone = state_.zones[number];
  zone.state = ZoneState::kOpen;
  zone.stream = stream;
  zone.brief = stream == brief_stream();
  state_.zones.SetNonce(number, RandomU64());
  zone.opened_at = state_.next_sequence;
  zone.records_end = kBlockBytes;
  auto& open = open_[number];
  open = std::make_unique<OpenZone>();
  open->number = number;
  const std::string header = EncodeZoneHeader({.zone = number,
                                               .stream = stream,
                                               .nonce = zone.nonce,
                                               .pool = state_.super.pool,
                                               .incarnation = state_.super.incarnation,
                                               .disk = state_.super.disk});
  state_.counters.summary_bytes += header.size();
  Copy(*open, std::as_bytes(std::span(header)), nullptr);
  return *open;
}

void Writer::Note(OpenZone& zone, ScopeId scope, const Record& record, std::uint64_t offset) {
  const auto [at, added] =
      zone.scopes.try_emplace(scope, static_cast<std::uint16_t>(zone.summary.scopes.size()));
  if (added) {
    zone.summary.scopes.push_back(
        {.slot = record.slot, .generation = record.generation, .name = std::string(record.name)});
    zone.scope_bytes += ScopeBytes(record.name);
  }
  zone.summary.entries.push_back({.hash = state_.HashOf(record.slot, record.key),
                                  .sequence = record.sequence,
                                  .version = record.version,
                                  .offset_units = static_cast<std::uint32_t>(offset / kUnitBytes),
                                  .value_bytes = record.value_bytes,
                                  .scope = at->second,
                                  .key_bytes = static_cast<std::uint16_t>(record.key.size()),
                                  .kind = record.kind});
  zone.summary.keys += record.key;
  if (record.kind == RecordKind::kObject) {
    state_.zones.NoteObject(zone.number, scope, record.sequence);
  } else {
    state_.zones.NoteTombstone(zone.number, scope, record.sequence, record.version,
                               TombstoneBytes(record.name.size(), record.key.size()));
  }
}

// Copies bytes into the zone's chunks, and submits each full one. Room has checked that enough
// chunks are free.
void Writer::Copy(OpenZone& zone, std::span<const std::byte> bytes,
                  const std::shared_ptr<Ticket>& ticket) {
  while (!bytes.empty()) {
    if (!zone.chunk) {
      zone.chunk = free_.back();
      free_.pop_back();
    }
    Chunk& chunk = chunks_[*zone.chunk];
    const std::size_t count = std::min<std::uint64_t>(bytes.size(), chunk_bytes_ - chunk.filled);
    // Past the caches, as only the device reads these bytes next.
    CopyPastCaches(chunk.memory.data() + chunk.filled, bytes.data(), count);
    chunk.filled += count;
    zone.position += count;
    if (ticket && (chunk.tickets.empty() || chunk.tickets.back() != ticket)) {
      chunk.tickets.push_back(ticket);
      ++ticket->chunks;
    }
    bytes = bytes.subspan(count);
    if (chunk.filled == chunk_bytes_) Submit(zone);
  }
}

void Writer::Pad(OpenZone& zone, std::uint64_t to) {
  while (zone.position < to) {
    Copy(zone, std::span(kZeros).first(std::min(to - zone.position, kUnitBytes)), nullptr);
  }
}

void Writer::Submit(OpenZone& zone) {
  const std::size_t index = *zone.chunk;
  Chunk& chunk = chunks_[index];
  zone.chunk.reset();
  ++zone.writes;
  const std::uint64_t offset = state_.zones.OffsetOf(zone.number) + zone.position - chunk.filled;
  Write(offset, chunk.memory.first(chunk.filled),
        [this, number = zone.number, index](int error) { Written(number, index, error); });
}

void Writer::Written(std::uint32_t number, std::size_t index, int error) {
  // The chunk is free before the callbacks run, as these may add records.
  Chunk& chunk = chunks_[index];
  const std::vector<std::shared_ptr<Ticket>> tickets = std::move(chunk.tickets);
  chunk.tickets.clear();
  chunk.filled = 0;
  free_.push_back(index);
  // A ticket may run a callback that adds records, and so seals this zone. `writes` still counts
  // this write, so FinishSeal cannot run before every loss is in `lost`.
  for (const auto& ticket : tickets) {
    if (error != 0) ticket->error = error;
    if (--ticket->chunks == 0 && ticket->whole) ticket->finish(ticket->error);
  }
  OpenZone& zone = *open_.at(number);
  --zone.writes;
  if (error != 0 && !zone.sealing) {
    Seal(zone);
    return;  // Seal may have ended the zone
  }
  if (zone.sealing && zone.writes == 0) FinishSeal(zone);
}

void Writer::Write(std::uint64_t offset, std::span<const std::byte> bytes,
                   std::function<void(int)> done) {
  const std::uint64_t id = next_write_++;
  outstanding_.insert(id);
  state_.counters.written_bytes += bytes.size();
  state_.device.Write(offset, bytes, [this, id, done = std::move(done)](int error) {
    ++state_.changes;
    if (error != 0) {
      ++state_.counters.write_errors;
      ++state_.failures;
    } else {
      state_.failures = 0;
    }
    done(error);
    // Erased after `done`, so that no barrier completes before the record's own callback has run:
    // Sync's caller relies on it (Log::Remove reads `failed` then).
    outstanding_.erase(id);
    CheckBarriers();
  });
}

// The kernel reports a lost write to one sync only, which may be that of another caller. So an
// error of any sync counts for all tombstones that are not durable yet.
void Writer::SyncDevice(std::function<void(int error)> done) {
  state_.device.Sync([this, upto = tombstones_, done = std::move(done)](int error) {
    if (error == 0) {
      synced_tombstones_ = std::max(synced_tombstones_, upto);
    } else {
      ++state_.counters.write_errors;
      unproven_ |= tombstones_ > synced_tombstones_;
    }
    done(error);
  });
}

void Writer::Flush() {
  for (auto& [number, zone] : open_) {
    if (!zone->chunk) continue;
    const std::uint64_t end = AlignUp(zone->position, kBlockBytes);
    state_.counters.padding_bytes += end - zone->position;
    // The padding may fill the chunk, and Copy submits a full one.
    Pad(*zone, end);
    if (zone->chunk) Submit(*zone);
  }
}

void Writer::Sync(Done done) {
  Flush();
  barriers_.push_back({.last = next_write_, .done = std::move(done)});
  CheckBarriers();
}

void Writer::CheckBarriers() {
  while (!barriers_.empty() &&
         (outstanding_.empty() || *outstanding_.begin() >= barriers_.front().last)) {
    // Looks at `unproven_` when the sync ends: the kernel may have reported a lost write to another
    // sync meanwhile (SyncDevice).
    const auto end = [this, done = std::move(barriers_.front().done)](int error) {
      if (error != 0 || !unproven_) return done(StatusOf(error, "syncing the disk"));
      done(Fail(Code::kUnavailable,
                "the disk failed to write a tombstone; no removal is proven until it is "
                "opened again"));
    };
    barriers_.pop_front();
    ++state_.counters.syncs;
    if (unproven_) {
      end(0);
    } else {
      SyncDevice(end);
    }
  }
}

void Writer::Seal(OpenZone& zone) {
  zone.sealing = true;
  for (OpenZone*& stream : streams_open_) {
    if (stream == &zone) stream = nullptr;
  }
  state_.zones[zone.number].state = ZoneState::kSealing;
  if (zone.chunk) {
    const std::uint64_t end = AlignUp(zone.position, kBlockBytes);
    state_.counters.padding_bytes += end - zone.position;
    Pad(zone, end);
    if (zone.chunk) Submit(zone);
  } else if (zone.writes == 0) {
    FinishSeal(zone);
  }
}

void Writer::SealObjects() {
  const auto tombstones = tombstone_streams();
  for (std::uint8_t stream = 0; stream < tombstones.front(); ++stream) {
    if (OpenZone* const zone = streams_open_[stream]) Seal(*zone);
  }
}

void Writer::SealAll() {
  for (OpenZone* const zone : std::vector(streams_open_)) {
    if (zone != nullptr) Seal(*zone);
  }
}

// Builds the summary once the zone's last write has completed. Records whose write failed are left
// out: the summary would name bytes that are not there.
void Writer::FinishSeal(OpenZone& zone) {
  const std::uint32_t number = zone.number;
  Summary summary;
  summary.scopes = std::move(zone.summary.scopes);
  std::size_t key_at = 0;
  for (const SummaryEntry& entry : zone.summary.entries) {
    const std::string_view key =
        std::string_view(zone.summary.keys).substr(key_at, entry.key_bytes);
    key_at += entry.key_bytes;
    if (zone.lost.contains(entry.offset_units)) continue;
    summary.entries.push_back(entry);
    summary.keys += key;
  }
  state_.zones[number].records_end = AlignUp(zone.position, kBlockBytes);
  SealSynced(number, std::move(summary));
}

void Writer::SealRecovered(std::uint32_t number, Summary summary) {
  state_.zones[number].state = ZoneState::kSealing;
  SealSynced(number, std::move(summary));
}

// Syncs the records, then writes the summary that names them. In the other order, a loss of power
// could leave a summary without its records, and recovery would prefer these to an older record
// that was synced.
void Writer::SealSynced(std::uint32_t number, Summary summary) {
  ++sealing_;
  SyncDevice([this, number, kept = std::make_shared<Summary>(std::move(summary))](int error) {
    open_.erase(number);
    if (error == 0) {
      WriteSummary(number, *kept);
    } else {
      Sealed(number, error);
    }
  });
}

void Writer::Sealed(std::uint32_t number, int error) {
  // The zone is sealed even if its summary failed: its records are in the index, and the next start
  // scans it.
  Zone& sealed = state_.zones[number];
  sealed.summarized = error == 0;
  // Recovery left out what it found damaged. Without a summary a later scan may find that sound.
  if (error != 0 && state_.opening) state_.zones.Doom(number, /*untaken=*/false);
  sealed.state = ZoneState::kSealed;
  ++state_.counters.zones_sealed;
  --sealing_;
}

void Writer::WriteSummary(std::uint32_t number, const Summary& summary) {
  Zone& zone = state_.zones[number];
  EncodedSummary encoded = EncodeSummary(summary);
  encoded.trailer.zone = number;
  encoded.trailer.nonce = zone.nonce;
  encoded.trailer.summary_offset = AlignUp(zone.records_end, kBlockBytes);
  zone.trailer = encoded.trailer;
  // Summary and trailer need no order: the trailer has the summary's checksum, so recovery scans
  // the zone if only one of them is on the disk. Both buffers live until both writes have
  // completed.
  struct Sealing {
    AlignedBuffer summary;
    AlignedBuffer trailer;
    int waiting = 2;
    int error = 0;
  };
  const auto sealing = std::make_shared<Sealing>();
  sealing->summary = AlignedBuffer(encoded.bytes);
  sealing->trailer = AlignedBuffer(EncodeZoneTrailer(encoded.trailer));
  const auto written = [this, number, sealing](int error) {
    if (error != 0) sealing->error = error;
    if (--sealing->waiting > 0) return;
    Sealed(number, sealing->error);
  };
  const std::uint64_t start = state_.zones.OffsetOf(number);
  const std::uint64_t trailer_at = start + state_.zones.zone_bytes() - kBlockBytes;
  state_.counters.summary_bytes += sealing->summary.size() + kBlockBytes;
  if (sealing->summary.size() == 0) {
    written(0);
  } else {
    Write(start + zone.trailer.summary_offset, sealing->summary.span(), written);
  }
  Write(trailer_at, sealing->trailer.span(), written);
}

void Writer::Free(std::uint32_t number, Done done) {
  const auto block =
      std::make_shared<AlignedBuffer>(EncodeZoneHeader({.zone = number,
                                                        .free = true,
                                                        .nonce = RandomU64(),
                                                        .pool = state_.super.pool,
                                                        .incarnation = state_.super.incarnation,
                                                        .disk = state_.super.disk}));
  state_.zones[number].state = ZoneState::kFreeing;
  state_.counters.summary_bytes += kBlockBytes;
  const auto ended = [this, number, done = std::move(done)](int error) {
    // After an error either header may be on the disk. The zone's records still count, and the
    // cleaner may choose it again.
    state_.zones[number].state = error == 0 ? ZoneState::kFree : ZoneState::kSealed;
    if (error == 0) ++state_.counters.zones_freed;
    done(StatusOf(error, "freeing a zone"));
  };
  Write(state_.zones.OffsetOf(number), block->span(), [this, block, ended](int error) {
    if (error == 0) return SyncDevice(ended);
    // One place that cannot be written is not yet a disk that fails to write (Add).
    state_.failures -= std::min(state_.failures, 1U);
    ended(error);
  });
}

}  // namespace kvcove::disklog
