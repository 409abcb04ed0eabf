// SPDX-License-Identifier: Apache-2.0
#include "kvcove/disklog/summaries.h"

#include <map>

namespace kvcove::disklog {
namespace {

// Adds records to a summary, with their scopes.
class Collector {
 public:
  void Add(const Record& record, std::uint64_t offset, const Id128& hash) {
    const auto [at, added] = scopes_.try_emplace({record.slot, record.generation},
                                                 static_cast<std::uint16_t>(summary.scopes.size()));
    if (added) {
      summary.scopes.push_back(
          {.slot = record.slot, .generation = record.generation, .name = std::string(record.name)});
    }
    summary.entries.push_back({.hash = hash,
                               .sequence = record.sequence,
                               .version = record.version,
                               .offset_units = static_cast<std::uint32_t>(offset / kUnitBytes),
                               .value_bytes = record.value_bytes,
                               .scope = at->second,
                               .key_bytes = static_cast<std::uint16_t>(record.key.size()),
                               .kind = record.kind});
    summary.keys += record.key;
  }
  Summary summary;

 private:
  std::map<std::pair<SlotId, Generation>, std::uint16_t> scopes_;
};

}  // namespace

ZoneContents ScanRecords(std::string_view zone_bytes, std::uint64_t nonce,
                         const std::function<Id128(SlotId, std::string_view)>& hash) {
  Collector collector;
  std::uint64_t at = kBlockBytes;
  std::uint64_t end = at;
  while (at < zone_bytes.size()) {
    const std::string_view rest = zone_bytes.substr(at);
    const auto record = ParseRecord(rest);
    if (record && record->nonce == nonce && record->sequence <= kMaxSequence &&
        VerifyRecord(*record, rest)) {
      collector.Add(*record, at, hash(record->slot, record->key));
      at = end = AlignUp(at + record->bytes(), kUnitBytes);
    } else {
      at += kUnitBytes;  // the length of a damaged record cannot be trusted
    }
  }
  return {.summary = std::move(collector.summary),
          .records_end = AlignUp(end, kBlockBytes),
          .scanned = true};
}

void ReadSummary(State& state, std::uint32_t number, bool keys, ContentsDone done) {
  Zone& zone = state.zones[number];
  const ZoneTrailer& trailer = zone.trailer;
  const std::uint64_t table = AlignUp(trailer.table_bytes, kBlockBytes);
  const std::uint64_t size = table + (keys ? AlignUp(trailer.keys_bytes, kBlockBytes) : 0);
  if (size == 0) {
    done({.summary = Summary{}});
    return;
  }
  const auto buffer = std::make_shared<AlignedBuffer>(size);
  ++zone.reads;
  state.device.Read(
      state.zones.OffsetOf(number) + trailer.summary_offset, buffer->span(),
      [&state, number, buffer, keys, table, trailer, done = std::move(done)](int error) {
        --state.zones[number].reads;
        if (error != 0) {
          ++state.counters.read_errors;
          done({.error = error});
          return;
        }
        const std::string_view bytes = buffer->view();
        done({.summary = ParseSummary(
                  trailer, bytes.substr(0, trailer.table_bytes),
                  keys ? bytes.substr(table, trailer.keys_bytes) : std::string_view())});
      });
}

void ScanZone(State& state, std::uint32_t number, ContentsDone done) {
  // Without the trailer, which the device may not be able to read.
  const auto buffer = std::make_shared<AlignedBuffer>(state.zones.zone_bytes() - kBlockBytes);
  ++state.zones[number].reads;
  state.device.Read(state.zones.OffsetOf(number), buffer->span(),
                    [&state, number, buffer, done = std::move(done)](int error) {
                      --state.zones[number].reads;
                      if (error != 0) {
                        ++state.counters.read_errors;
                        done({.error = error});
                        return;
                      }
                      done(ScanRecords(buffer->view(), state.zones[number].nonce,
                                       [&](SlotId slot, std::string_view key) {
                                         return state.HashOf(slot, key);
                                       }));
                    });
}

void ReadContents(State& state, std::uint32_t number, const ContentsDone& done) {
  if (!state.zones[number].summarized) return ScanZone(state, number, done);
  ReadSummary(state, number, true, [&state, number, done](ZoneContents contents) {
    if (contents.summary) return done(std::move(contents));
    ScanZone(state, number, done);
  });
}

}  // namespace kvcove::disklog
