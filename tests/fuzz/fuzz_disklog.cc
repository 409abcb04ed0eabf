// SPDX-License-Identifier: Apache-2.0
// Any bytes as what lies on a disk: a superblock, a zone of records, a trailer with its summary.
// The first byte chooses which, and whether checksums are made right: without these nothing would
// come through. What is accepted must be sound, and encode to the same bytes again.
// Fuzzes: kvcove/disklog
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "kvcove/disklog/fields.h"
#include "kvcove/disklog/format.h"
#include "kvcove/disklog/summaries.h"

namespace {

using namespace kvcove;
using namespace kvcove::disklog;

void Check(bool holds) {
  if (!holds) std::abort();
}

std::string WithSum(std::string bytes) {
  AppendId(bytes, Checksum::Of(bytes));
  return bytes;
}

void FuzzSuperblock(std::string bytes, bool sums) {
  if (sums && bytes.size() > 16) {
    std::string length;
    AppendNumber(length, static_cast<std::uint32_t>(bytes.size() + kIdBytes));
    bytes.replace(12, 4, length);
    bytes = WithSum(std::move(bytes));
  }
  const auto block = ParseSuperblock(bytes);
  if (!block) return;
  Check(block->zones() > 0 && ParseSuperblock(EncodeSuperblock(*block)) == block);
}

void FuzzZone(std::string bytes, bool sums) {
  std::string zone(kBlockBytes, '\0');
  zone += bytes;
  zone.resize(AlignUp(zone.size(), kBlockBytes), '\0');
  std::uint64_t nonce = 0;
  for (std::size_t at = kBlockBytes; sums && at < zone.size(); at += kUnitBytes) {
    const auto record = ParseRecord(std::string_view(zone).substr(at));
    if (!record) continue;
    nonce = record->nonce;
    Checksum sum;
    sum.Add(std::string_view(zone).substr(at, 48));
    sum.Add(std::string_view(zone).substr(at + 64, record->bytes() - 64));
    std::string field;
    AppendId(field, sum.Value());
    zone.replace(at + 48, field.size(), field);
  }
  const auto hash = [](SlotId, std::string_view key) { return Checksum::Of(key); };
  const ZoneContents contents = ScanRecords(zone, nonce, hash);
  Check(contents.summary && contents.records_end >= kBlockBytes &&
        contents.records_end <= zone.size());
  std::uint64_t last = kBlockBytes;
  for (const SummaryEntry& entry : contents.summary->entries) {
    Check(entry.offset_units * kUnitBytes >= last);
    last = entry.offset_units * kUnitBytes + kRecordHeadBytes;
  }
  // What a scan has found can be written as a summary, and is read back.
  EncodedSummary encoded = EncodeSummary(*contents.summary);
  encoded.trailer.summary_offset = contents.records_end;
  const std::string_view all = encoded.bytes;
  const auto read = ParseSummary(
      encoded.trailer, all.substr(0, encoded.trailer.table_bytes),
      all.substr(AlignUp(encoded.trailer.table_bytes, kBlockBytes), encoded.trailer.keys_bytes));
  Check(read && read->entries == contents.summary->entries);
}

void FuzzSummary(std::string bytes, bool sums) {
  const std::string block = bytes.substr(0, kBlockBytes);
  auto trailer = ParseZoneTrailer(sums ? SealBlock(bytes.substr(0, 128)) : block, kMinZoneBytes);
  ZoneTrailer wanted;
  if (trailer) {
    Check(ParseZoneTrailer(EncodeZoneTrailer(*trailer), kMinZoneBytes) == trailer);
    wanted = *trailer;
  } else if (bytes.size() >= 8) {
    wanted.scopes = static_cast<std::uint8_t>(bytes[0]);
    wanted.entries = static_cast<std::uint8_t>(bytes[1]);
    wanted.keys_bytes = static_cast<std::uint8_t>(bytes[2]);
    bytes = bytes.substr(3);
    wanted.summary_offset = kMinZoneBytes;
  }
  const std::string_view all = bytes;
  const std::size_t keys_bytes = std::min<std::size_t>(wanted.keys_bytes, all.size());
  const std::string_view keys = all.substr(all.size() - keys_bytes);
  const std::string_view table = all.substr(0, all.size() - keys_bytes);
  if (sums) {
    wanted.table_bytes = table.size();
    wanted.table_checksum = Checksum::Of(table);
    wanted.keys_checksum = Checksum::Of(keys);
  }
  const auto summary = ParseSummary(wanted, table, keys);
  if (!summary) return;
  for (const SummaryEntry& entry : summary->entries) Check(entry.scope < summary->scopes.size());
  Check(EncodeSummary(*summary).bytes.substr(0, table.size()) == table);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string rest(reinterpret_cast<const char*>(data + 1), size - 1);
  const bool sums = (data[0] & 4) != 0;
  switch (data[0] % 4) {
    case 0:
      FuzzSuperblock(rest, sums);
      break;
    case 1:
      FuzzZone(rest, sums);
      break;
    case 2:
      FuzzSummary(rest, sums);
      break;
    default:
      (void)ParseZoneHeader(rest);
      (void)ParseZoneHeader(SealBlock(rest.substr(0, 128)));
  }
  return 0;
}
