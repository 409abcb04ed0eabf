// SPDX-License-Identifier: Apache-2.0
#include "kvcove/disklog/reader.h"

#include <algorithm>

namespace kvcove::disklog {

std::string_view ReadMissName(ReadMiss miss) {
  static constexpr std::array<std::string_view, kReadMisses> kNames = {
      "none", "absent", "reset", "other_key", "other_version", "corrupt", "io_error", "raced"};
  return kNames[static_cast<std::size_t>(miss)];
}

std::optional<Found> Reader::Find(SlotId slot, Generation generation, std::string_view key) {
  const IndexEntry* const entry = state_.Find(state_.HashOf(slot, key));
  if (entry == nullptr || entry->kind != RecordKind::kObject || entry->pending ||
      entry->forgotten) {
    return std::nullopt;
  }
  const Scope& scope = state_.scopes[entry->scope];
  if (scope.state != ScopeState::kCurrent || scope.generation != generation) return std::nullopt;
  const Place place = state_.PlaceOf(*entry);
  const std::uint64_t skip = place.offset_units * kUnitBytes % kBlockBytes;
  return Found{.place = place, .buffer_bytes = AlignUp(skip + place.record_bytes, kBlockBytes)};
}

void Reader::Read(const Found& found, const Expected& expected, std::span<std::byte> buffer,
                  Done done) {
  const Place& place = found.place;
  if (state_.zones[place.zone].use != place.use || buffer.size() < found.buffer_bytes) {
    ++state_.counters.raced;
    done({.miss = ReadMiss::kRaced});
    return;
  }
  const std::uint64_t offset =
      state_.zones.OffsetOf(place.zone) + (place.offset_units * kUnitBytes);
  auto read = std::make_shared<Pending>();
  read->place = place;
  read->slot = expected.slot;
  read->generation = expected.generation;
  read->version = expected.version;
  read->asked = expected.asked;
  read->key = expected.key;
  read->buffer = buffer;
  read->skip = offset % kBlockBytes;
  read->done = std::move(done);
  ++state_.counters.reads;
  state_.counters.read_bytes += found.buffer_bytes;
  // Zones::AnyFree and Victim pass over a zone with reads: while the device reads the record, its
  // bytes must not be overwritten by the zone's next use.
  ++state_.zones[place.zone].reads;
  ++in_flight_;
  state_.device.Read(offset - read->skip, buffer.first(found.buffer_bytes),
                     [this, read](int error) {
                       --state_.zones[read->place.zone].reads;
                       read->error = error;
                       verifying_.push_back(std::move(*read));
                     });
}

bool Reader::Verify(std::uint64_t bytes) {
  std::uint64_t budget = bytes;
  while (!verifying_.empty() && budget > 0) {
    ReadResult result;
    if (!Step(verifying_.front(), budget, result)) break;
    Pending read = std::move(verifying_.front());
    verifying_.pop_front();
    --in_flight_;
    Finish(read, result);
  }
  return !verifying_.empty();
}

bool Reader::Step(Pending& read, std::uint64_t& budget, ReadResult& result) {
  if (read.error != 0) {
    result = {.miss = ReadMiss::kIoError, .error = read.error};
    return true;
  }
  const std::string_view bytes = read.bytes();
  if (!read.record) {
    result.miss = CheckHead(read, result);
    if (result.miss != ReadMiss::kNone) return true;
    read.sum.Add(bytes.substr(0, 48));
    read.hashed = kRecordHeadBytes;
  }
  const std::uint64_t count = std::min<std::uint64_t>(budget, bytes.size() - read.hashed);
  read.sum.Add(bytes.substr(read.hashed, count));
  read.hashed += count;
  budget -= count;
  if (read.hashed < bytes.size()) return false;
  if (read.sum.Value() != read.record->checksum) {
    result.miss = ReadMiss::kCorrupt;
    return true;
  }
  // After the checksum: damaged bytes could look like another key, and be no reported corruption.
  if (read.record->key != read.key || read.record->slot != read.slot) {
    result.miss = ReadMiss::kOtherKey;
  } else if (read.version != 0 && read.record->version != read.version) {
    result.miss = ReadMiss::kOtherVersion;
  } else {
    result = {.miss = CheckStill(read),
              .value_offset = read.skip + read.record->value_offset(),
              .value_bytes = read.record->value_bytes,
              .version = read.record->version};
  }
  return true;
}

// Checks that the record was written at this place in this use of the zone. Bytes of an earlier use
// or of another place (a lost or misdirected write) are damage, even with a valid checksum.
ReadMiss Reader::CheckHead(Pending& read, ReadResult& /*result*/) {
  if (state_.zones[read.place.zone].use != read.place.use) return ReadMiss::kRaced;
  read.record = ParseRecord(read.bytes());
  if (!read.record || read.record->bytes() != read.place.record_bytes ||
      read.record->kind != RecordKind::kObject ||
      read.record->nonce != state_.zones[read.place.zone].nonce) {
    return ReadMiss::kCorrupt;
  }
  return ReadMiss::kNone;
}

// Checks that the object has not ended while it was being read: once a reset or a removal has been
// answered, no read may hit. The sequence remains equal if the cleaner has moved the object.
ReadMiss Reader::CheckStill(const Pending& read) {
  if (!state_.scopes.Current(read.slot, read.generation) ||
      read.record->generation != read.generation) {
    return ReadMiss::kReset;
  }
  IndexEntry* const entry = state_.Find(state_.HashOf(read.slot, read.key));
  if (entry == nullptr || entry->forgotten || entry->kind != RecordKind::kObject ||
      entry->sequence() != read.record->sequence) {
    return ReadMiss::kRaced;
  }
  entry->unread = false;
  if (read.asked) entry->read_at = state_.ReadTime();
  return ReadMiss::kNone;
}

void Reader::Finish(Pending& read, ReadResult result) {
  const bool failed = result.miss == ReadMiss::kIoError;
  const bool corrupt = result.miss == ReadMiss::kCorrupt;
  if (failed) ++state_.counters.read_errors;
  if (corrupt) ++state_.counters.corrupt;
  if (result.miss == ReadMiss::kRaced) ++state_.counters.raced;
  if (failed || corrupt) {
    // Forgotten only if the index still has this place: a moved or newer record may be undamaged.
    IndexEntry* const entry = state_.Find(state_.HashOf(read.slot, read.key));
    if (entry != nullptr && !entry->forgotten && state_.PlaceOf(*entry) == read.place) {
      // A device that fails for a moment costs nothing. A bad place would fail each get of the key,
      // and, as the key counts as present, nobody could store it again.
      if (corrupt || entry->unread) {
        state_.Forget(*entry, read.key, {});
      } else {
        entry->unread = true;
      }
    }
  }
  read.done(result);
}

}  // namespace kvcove::disklog
