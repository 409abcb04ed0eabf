// SPDX-License-Identifier: Apache-2.0
// The bytes on the disk do not change by accident: each structure has its golden bytes. A change of
// one of them is a new format version.
#include "kvcove/disklog/format.h"

#include <gtest/gtest.h>

#include "kvcove/disklog/checksum.h"
#include "kvcove/disklog/fields.h"
#include "kvcove/disklog/summaries.h"

namespace kvcove::disklog {
namespace {

std::string Hex(std::string_view bytes) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const char c : bytes) {
    out += kDigits[static_cast<unsigned char>(c) >> 4];
    out += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return out;
}

Superblock SomeSuperblock() {
  return {.sequence = 3,
          .pool = {.high = 1, .low = 2},
          .incarnation = {.high = 3, .low = 4},
          .identity = {.high = 5, .low = 6},
          .disk = {.high = 7, .low = 8},
          .hash_seed = 9,
          .device_bytes = kZonesStart + (8 * kMinZoneBytes),
          .zone_bytes = kMinZoneBytes,
          .generation_counter = 10,
          .clean = true,
          .removals = {{.slot = 11, .generation = 12, .term = 13, .number = 14}},
          .lost_zones = {15}};
}

Record SomeRecord() {
  return {.kind = RecordKind::kObject,
          .slot = 1,
          .generation = 2,
          .version = 3,
          .sequence = 4,
          .nonce = 5,
          .name = "n",
          .key = "key",
          .value_bytes = 2};
}

std::string EncodedRecord(Record record, std::string_view value) {
  const auto head = EncodeRecordHead(record);
  Checksum sum;
  sum.Add(head);
  sum.Add(record.name);
  sum.Add(record.key);
  sum.Add(value);
  record.checksum = sum.Value();
  return EncodeRecordFront(record) + std::string(value);
}

Summary SomeSummary() {
  return {.scopes = {{.slot = 1, .generation = 2, .name = "n"}},
          .entries = {{.hash = {.high = 3, .low = 4},
                       .sequence = 5,
                       .version = 6,
                       .offset_units = 64,
                       .value_bytes = 7,
                       .scope = 0,
                       .key_bytes = 2},
                      {.hash = {.high = 8, .low = 9},
                       .sequence = 10,
                       .version = 0,
                       .offset_units = 66,
                       .value_bytes = 0,
                       .scope = 0,
                       .key_bytes = 3,
                       .kind = RecordKind::kTombstone}},
          .keys = "abcde"};
}

TEST(FormatTest, ASuperblockComesBack) {
  const Superblock block = SomeSuperblock();
  const std::string bytes = EncodeSuperblock(block);
  EXPECT_EQ(bytes.size(), kBlockBytes);
  EXPECT_EQ(ParseSuperblock(bytes), block);
  EXPECT_EQ(SuperblockVersion(bytes), kFormatVersion);
}

TEST(FormatTest, ASuperblockComesBackWithItsOpeningNumbers) {
  Superblock block = SomeSuperblock();
  const std::size_t length_without = 178;
  block.opening = {.high = 16, .low = 17};
  block.opening_before = {.high = 18, .low = 19};
  const std::string bytes = EncodeSuperblock(block);
  EXPECT_EQ(ParseSuperblock(bytes), block);
  // In the place of the former checksum.
  EXPECT_EQ(Hex(bytes.substr(length_without - 16, 32)),
            "1100000000000000100000000000000013000000000000001200000000000000");
}

// Any number in a note would stand for such a disk once it is written again.
TEST(FormatTest, ASuperblockWhoseOpeningIsZeroIsDamaged) {
  Superblock block = SomeSuperblock();
  const std::size_t opening_at = 178 - 16;
  block.opening = block.opening_before = {.high = 16, .low = 17};
  std::string bytes = EncodeSuperblock(block).substr(0, opening_at + 32);
  std::string sound = bytes;
  AppendId(sound, Checksum::Of(sound));
  EXPECT_EQ(ParseSuperblock(sound), block);
  bytes.replace(opening_at, 16, 16, '\0');
  AppendId(bytes, Checksum::Of(bytes));
  EXPECT_FALSE(ParseSuperblock(bytes));
}

TEST(FormatTest, ADiskIsTheOneThatWasNotedByEitherOfItsNumbers) {
  Superblock block = SomeSuperblock();
  const Id128 before{.high = 1, .low = 1};
  const Id128 now{.high = 2, .low = 2};
  EXPECT_TRUE(block.HasOpening({})) << "disk and note of an earlier version";
  EXPECT_FALSE(block.HasOpening(now)) << "a copy from before the first number";
  block.opening = now;
  EXPECT_TRUE(block.HasOpening({})) << "a note of an earlier version";
  EXPECT_TRUE(block.HasOpening(now));
  EXPECT_FALSE(block.HasOpening(before));
  block.opening_before = before;
  EXPECT_TRUE(block.HasOpening(before));
  EXPECT_TRUE(block.HasOpening(now));
}

TEST(FormatTest, AFullSuperblockFitsItsPlace) {
  Superblock block = SomeSuperblock();
  block.opening = block.opening_before = {.high = 1, .low = 1};
  block.removals.resize(kMaxSlots);
  block.lost_zones.resize(kMaxLostZones);
  EXPECT_LE(EncodeSuperblock(block).size(), kSuperblockBytes);
  EXPECT_EQ(ParseSuperblock(EncodeSuperblock(block)), block);
}

TEST(FormatTest, ASuperblockWithAnyBitFlippedIsRefused) {
  const std::string bytes = EncodeSuperblock(SomeSuperblock());
  const std::size_t used = 4 + 8 + 4 + 8 + 64 + 40 + 26 + 8 + 16;
  for (std::size_t bit = 0; bit < used * 8; ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(ParseSuperblock(flipped)) << bit;
  }
}

TEST(FormatTest, ARecordWithAnyBitFlippedIsRefused) {
  const std::string bytes = EncodedRecord(SomeRecord(), "va");
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    const auto record = ParseRecord(flipped);
    EXPECT_FALSE(record && VerifyRecord(*record, flipped)) << bit;
  }
}

TEST(FormatTest, ASummaryComesBackAndEveryFlippedBitIsSeen) {
  EncodedSummary encoded = EncodeSummary(SomeSummary());
  encoded.trailer.zone = 1;
  encoded.trailer.nonce = 2;
  encoded.trailer.summary_offset = 2 * kBlockBytes;
  const std::string block = EncodeZoneTrailer(encoded.trailer);
  const auto trailer = ParseZoneTrailer(block, kMinZoneBytes);
  ASSERT_TRUE(trailer);
  EXPECT_EQ(*trailer, encoded.trailer);
  EXPECT_EQ(trailer->last_tombstone, 10U);
  EXPECT_EQ(trailer->last_sequence, 10U);
  const std::string table = encoded.bytes.substr(0, trailer->table_bytes);
  const std::string keys = encoded.bytes.substr(kBlockBytes, trailer->keys_bytes);
  const auto summary = ParseSummary(*trailer, table, keys);
  ASSERT_TRUE(summary);
  EXPECT_EQ(summary->entries, SomeSummary().entries);
  EXPECT_EQ(summary->scopes, SomeSummary().scopes);
  EXPECT_EQ(summary->keys, "abcde");
  EXPECT_EQ(ParseSummary(*trailer, table, "")->keys, "");
  for (std::size_t bit = 0; bit < table.size() * 8; ++bit) {
    std::string flipped = table;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(ParseSummary(*trailer, flipped, keys)) << bit;
  }
  EXPECT_FALSE(ParseSummary(*trailer, table, "abcdf"));
  for (std::size_t bit = 0; bit < block.size() * 8; ++bit) {
    std::string flipped = block;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(ParseZoneTrailer(flipped, kMinZoneBytes)) << bit;
  }
}

TEST(FormatTest, ASummaryWhoseEntriesNoWriterMakesIsRefused) {
  const std::size_t kind_at = 13 + kSummaryEntryBytes - 4;  // behind the only scope
  const std::size_t value_at = kind_at - 8;
  for (const auto& [at, value] : {std::pair{kind_at, 0}, std::pair{kind_at, 3},
                                  std::pair{kind_at + 2, 1}, std::pair{value_at, 0}}) {
    EncodedSummary encoded = EncodeSummary(SomeSummary());
    encoded.trailer.summary_offset = 2 * kBlockBytes;
    std::string table = encoded.bytes.substr(0, encoded.trailer.table_bytes);
    EXPECT_TRUE(ParseSummary(encoded.trailer, table, "abcde"));
    table[at] = static_cast<char>(value);
    encoded.trailer.table_checksum = Checksum::Of(table);
    EXPECT_FALSE(ParseSummary(encoded.trailer, table, "abcde")) << at << " " << value;
  }
}

TEST(FormatTest, ATrailerThatPointsOutsideItsZoneIsRefused) {
  ZoneTrailer trailer{.summary_offset = kMinZoneBytes - kBlockBytes, .table_bytes = 1};
  EXPECT_FALSE(ParseZoneTrailer(EncodeZoneTrailer(trailer), kMinZoneBytes));
  trailer.summary_offset = kMinZoneBytes - (2 * kBlockBytes);
  EXPECT_TRUE(ParseZoneTrailer(EncodeZoneTrailer(trailer), kMinZoneBytes));
  trailer.table_bytes = ~0ULL;
  EXPECT_FALSE(ParseZoneTrailer(EncodeZoneTrailer(trailer), kMinZoneBytes));
}

TEST(FormatTest, AZoneHeaderComesBack) {
  const ZoneHeader header{.zone = 1,
                          .free = true,
                          .stream = 2,
                          .nonce = 3,
                          .pool = {4, 5},
                          .incarnation = {6, 7},
                          .disk = {8, 9}};
  EXPECT_EQ(ParseZoneHeader(EncodeZoneHeader(header)), header);
}

TEST(FormatTest, AScanPassesOverADamagedRecord) {
  std::string zone(kBlockBytes, '\0');
  for (std::uint64_t sequence = 1; sequence <= 4; ++sequence) {
    Record record = SomeRecord();
    record.sequence = sequence;
    zone += EncodedRecord(record, "va");
    zone.resize(AlignUp(zone.size(), kUnitBytes), '\0');
    // A flush pads to the block's end.
    if (sequence == 2) zone.resize(AlignUp(zone.size(), kBlockBytes), '\0');
  }
  zone.resize(kMinZoneBytes, '\0');
  const auto hash = [](SlotId, std::string_view) { return Id128(); };
  EXPECT_EQ(ScanRecords(zone, 5, hash).summary->entries.size(), 4U);
  EXPECT_EQ(ScanRecords(zone, 6, hash).summary->entries.size(), 0U);
  zone[(2 * kBlockBytes) + 68] ^= 1;
  const ZoneContents damaged = ScanRecords(zone, 5, hash);
  ASSERT_EQ(damaged.summary->entries.size(), 3U);
  EXPECT_EQ(damaged.summary->entries.back().sequence, 4U);
  EXPECT_EQ(damaged.records_end, 3 * kBlockBytes);
}

TEST(FormatTest, GoldenBytes) {
  EXPECT_EQ(Hex(EncodeSuperblock(SomeSuperblock()).substr(0, 178)),
            "4b4356454449444b02000000b2000000030000000000000002000000000000000100000000000000"
            "04000000000000000300000000000000060000000000000005000000000000000800000000000000"
            "07000000000000000900000000000000000018000000000000000100000000000a00000000000000"
            "01000000010000000b000c000000000000000d000000000000000e00000000000000010000000f00"
            "0000c6a1c7ef9028e36f85fe93be923ab918");
  EXPECT_EQ(Hex(EncodedRecord(SomeRecord(), "va")),
            "4b435243010001000100030002000000050000000000000004000000000000000200000000000000"
            "03000000000000009fc1da785312315946d6d8f06cb7c2e66e6b65797661");
  const EncodedSummary encoded = EncodeSummary(SomeSummary());
  EXPECT_EQ(Hex(encoded.bytes.substr(0, encoded.trailer.table_bytes)),
            "0100020000000000000001006e040000000000000003000000000000000500000000000000060000"
            "000000000040000000070000000000020001000000090000000000000008000000000000000a0000"
            "0000000000000000000000000042000000000000000000030002000000");
  EXPECT_EQ(Hex(EncodeZoneTrailer(encoded.trailer).substr(0, 104)),
            "4b4356455452494c0200000000000000000000000000000000000000000000000200000001000000"
            "6d0000000000000005000000000000000a000000000000000a0000000000000047e6d0edc2321beb"
            "0355e0d20fac5cabc2ee20f38ea4d5973f5cf26981c74330");
  EXPECT_EQ(Hex(EncodeZoneHeader({.zone = 1,
                                  .stream = 2,
                                  .nonce = 3,
                                  .pool = {4, 5},
                                  .incarnation = {6, 7},
                                  .disk = {8, 9}})
                    .substr(0, 74)),
            "4b4356455a4f4e450200000001000000030000000000000000020500000000000000040000000000"
            "00000700000000000000060000000000000009000000000000000800000000000000");
}

}  // namespace
}  // namespace kvcove::disklog
