// SPDX-License-Identifier: Apache-2.0
// The summary of a zone and the trailer that points to it.
#include "kvcove/base/little_endian.h"
#include "kvcove/disklog/fields.h"
#include "kvcove/disklog/format.h"

namespace kvcove::disklog {
namespace {

constexpr std::uint64_t kTrailerMagic = 0x4C4952544556434BULL;  // "KCVETRIL"

void AppendEntry(std::string& out, const SummaryEntry& entry) {
  AppendId(out, entry.hash);
  AppendNumber(out, entry.sequence);
  AppendNumber(out, entry.version);
  AppendNumber(out, entry.offset_units);
  AppendNumber(out, entry.value_bytes);
  AppendNumber(out, entry.scope);
  AppendNumber(out, entry.key_bytes);
  AppendNumber(out, static_cast<std::uint32_t>(entry.kind));
}

SummaryEntry ReadEntry(FieldReader& in) {
  SummaryEntry entry;
  entry.hash = ReadId(in);
  entry.sequence = in.Number<std::uint64_t>();
  entry.version = in.Number<std::uint64_t>();
  entry.offset_units = in.Number<std::uint32_t>();
  entry.value_bytes = in.Number<std::uint32_t>();
  entry.scope = in.Number<std::uint16_t>();
  entry.key_bytes = in.Number<std::uint16_t>();
  // Four bytes on the disk, one here: a large value must not be cut down to a kind that exists.
  const auto kind = in.Number<std::uint32_t>();
  entry.kind = static_cast<RecordKind>(kind <= 0xFF ? kind : 0);
  return entry;
}

bool Sound(const SummaryEntry& entry, const Summary& summary, std::uint64_t end) {
  if (entry.scope >= summary.scopes.size() || entry.key_bytes == 0 ||
      entry.key_bytes > kMaxKeyBytes || entry.value_bytes > kMaxObjectBytes) {
    return false;
  }
  const bool object = entry.kind == RecordKind::kObject;
  if ((!object && entry.kind != RecordKind::kTombstone) || object != (entry.value_bytes > 0)) {
    return false;
  }
  const std::uint64_t offset = entry.offset_units * kUnitBytes;
  return offset >= kBlockBytes && offset + kRecordHeadBytes +
                                          summary.scopes[entry.scope].name.size() +
                                          entry.key_bytes + entry.value_bytes <=
                                      end;
}

}  // namespace

std::uint64_t ScopeBytes(std::string_view name) { return 12 + name.size(); }

std::uint64_t SummaryBytes(std::uint64_t entries, std::uint64_t scope_bytes, std::uint64_t keys) {
  return AlignUp((entries * kSummaryEntryBytes) + scope_bytes, kBlockBytes) +
         AlignUp(keys, kBlockBytes);
}

EncodedSummary EncodeSummary(const Summary& summary) {
  EncodedSummary out;
  for (const SummaryScope& scope : summary.scopes) {
    AppendNumber(out.bytes, scope.slot);
    AppendNumber(out.bytes, scope.generation);
    AppendNumber(out.bytes, static_cast<std::uint16_t>(scope.name.size()));
    out.bytes += scope.name;
  }
  ZoneTrailer& trailer = out.trailer;
  for (const SummaryEntry& entry : summary.entries) {
    AppendEntry(out.bytes, entry);
    trailer.last_sequence = std::max(trailer.last_sequence, entry.sequence);
    if (entry.kind == RecordKind::kTombstone) {
      trailer.last_tombstone = std::max(trailer.last_tombstone, entry.sequence);
    }
  }
  trailer.entries = static_cast<std::uint32_t>(summary.entries.size());
  trailer.scopes = static_cast<std::uint32_t>(summary.scopes.size());
  trailer.table_bytes = out.bytes.size();
  trailer.table_checksum = Checksum::Of(out.bytes);
  trailer.keys_bytes = summary.keys.size();
  trailer.keys_checksum = Checksum::Of(summary.keys);
  out.bytes.resize(AlignUp(out.bytes.size(), kBlockBytes), '\0');
  out.bytes += summary.keys;
  out.bytes.resize(AlignUp(out.bytes.size(), kBlockBytes), '\0');
  return out;
}

std::string EncodeZoneTrailer(const ZoneTrailer& trailer) {
  std::string out;
  AppendNumber(out, kTrailerMagic);
  AppendNumber(out, kFormatVersion);
  AppendNumber(out, trailer.zone);
  AppendNumber(out, trailer.nonce);
  AppendNumber(out, trailer.summary_offset);
  AppendNumber(out, trailer.entries);
  AppendNumber(out, trailer.scopes);
  AppendNumber(out, trailer.table_bytes);
  AppendNumber(out, trailer.keys_bytes);
  AppendNumber(out, trailer.last_sequence);
  AppendNumber(out, trailer.last_tombstone);
  AppendId(out, trailer.table_checksum);
  AppendId(out, trailer.keys_checksum);
  return SealBlock(std::move(out));
}

std::optional<ZoneTrailer> ParseZoneTrailer(std::string_view block, std::uint64_t zone_bytes) {
  if (block.size() != kBlockBytes || !EndsWithChecksum(block)) return std::nullopt;
  FieldReader in(block);
  if (in.Number<std::uint64_t>() != kTrailerMagic || in.Number<std::uint32_t>() != kFormatVersion) {
    return std::nullopt;
  }
  ZoneTrailer trailer;
  trailer.zone = in.Number<std::uint32_t>();
  trailer.nonce = in.Number<std::uint64_t>();
  trailer.summary_offset = in.Number<std::uint64_t>();
  trailer.entries = in.Number<std::uint32_t>();
  trailer.scopes = in.Number<std::uint32_t>();
  trailer.table_bytes = in.Number<std::uint64_t>();
  trailer.keys_bytes = in.Number<std::uint64_t>();
  trailer.last_sequence = in.Number<std::uint64_t>();
  trailer.last_tombstone = in.Number<std::uint64_t>();
  trailer.table_checksum = ReadId(in);
  trailer.keys_checksum = ReadId(in);
  // Each number is bounded by itself first, so that no sum below can overflow.
  if (trailer.summary_offset < kBlockBytes || trailer.summary_offset % kBlockBytes != 0 ||
      trailer.summary_offset > zone_bytes || trailer.table_bytes > zone_bytes ||
      trailer.keys_bytes > zone_bytes || trailer.scopes > kMaxScopesOfZone ||
      trailer.entries * kSummaryEntryBytes > trailer.table_bytes) {
    return std::nullopt;
  }
  const std::uint64_t end = trailer.summary_offset + AlignUp(trailer.table_bytes, kBlockBytes) +
                            AlignUp(trailer.keys_bytes, kBlockBytes);
  if (end + kBlockBytes > zone_bytes) return std::nullopt;
  return trailer;
}

std::optional<Summary> ParseSummary(const ZoneTrailer& trailer, std::string_view table,
                                    std::string_view keys) {
  if (table.size() != trailer.table_bytes || Checksum::Of(table) != trailer.table_checksum) {
    return std::nullopt;
  }
  if (!keys.empty() &&
      (keys.size() != trailer.keys_bytes || Checksum::Of(keys) != trailer.keys_checksum)) {
    return std::nullopt;
  }
  FieldReader in(table);
  Summary summary;
  for (std::uint32_t i = 0; i < trailer.scopes; ++i) {
    SummaryScope& scope = summary.scopes.emplace_back();
    scope.slot = in.Number<SlotId>();
    scope.generation = in.Number<Generation>();
    scope.name = in.Bytes(in.Number<std::uint16_t>());
    if (!in.ok() || scope.name.size() > kMaxSpaceNameBytes) return std::nullopt;
  }
  if (in.left() != trailer.entries * kSummaryEntryBytes) return std::nullopt;
  summary.entries.reserve(trailer.entries);
  std::uint64_t keys_bytes = 0;
  for (std::uint32_t i = 0; i < trailer.entries; ++i) {
    summary.entries.push_back(ReadEntry(in));
    if (!Sound(summary.entries.back(), summary, trailer.summary_offset)) return std::nullopt;
    keys_bytes += summary.entries.back().key_bytes;
  }
  if (keys_bytes != trailer.keys_bytes) return std::nullopt;
  summary.keys = keys;
  return summary;
}

}  // namespace kvcove::disklog
