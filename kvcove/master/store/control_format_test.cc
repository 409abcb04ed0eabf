// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/store/control_format.h"

#include <gtest/gtest.h>

#include "kvcove/base/hash.h"

namespace kvcove::master {
namespace {

using Transactions = std::vector<std::vector<FactChange>>;

// A file with a snapshot and three batches; the second batch needs several sectors.
struct File {
  File() {
    bytes = EncodeControl({{"a", {"one", 3}}, {"b", {std::string(600, '\0'), 7}}}, 7, 5);
    Keep(7, {{"a", {"one", 3}}, {"b", {std::string(600, '\0'), 7}}});
    Add({{{"c", "two"}}, {{"a", std::nullopt}, {"d", ""}}});
    Add({{{"e", std::string(1200, '\0')}}});
    Add({{{"f", std::string("end\0\0\0", 6)}}, {}});
  }
  void Add(const Transactions& transactions) {
    bytes += EncodeBatch(transactions, image.revision + 1, 5, bytes.size() / kSectorBytes);
    for (const auto& changes : transactions) {
      ApplyTransaction(changes, ++image.revision, image.facts);
    }
    Keep(image.revision, image.facts);
  }
  void Keep(std::uint64_t revision, const Facts& facts) {
    image.revision = revision;
    image.facts = facts;
    ends.emplace_back(bytes.size(), image);
  }

  std::string bytes;
  ControlImage image;
  std::vector<std::pair<std::size_t, ControlImage>> ends;  // of the snapshot and of each batch
};

TEST(ControlFormatTest, ReadsWhatItWrote) {
  const File file;
  const auto parsed = ParseControl(file.bytes);
  ASSERT_TRUE(parsed) << parsed.error().ToString();
  EXPECT_EQ(parsed->facts, file.image.facts);
  EXPECT_EQ(parsed->revision, 12U);
  EXPECT_EQ(parsed->file_number, 5U);
  EXPECT_FALSE(parsed->cut_short);
  EXPECT_EQ(parsed->facts.at("b").revision, 7U);
  EXPECT_EQ(parsed->facts.at("d").revision, 9U);
  EXPECT_EQ(file.bytes.size() % kSectorBytes, 0U);
}

TEST(ControlFormatTest, ACutAtEveryByteLosesWholeBatchesOnly) {
  const File file;
  for (std::size_t cut = 0; cut < file.bytes.size(); ++cut) {
    const auto parsed = ParseControl(std::string_view(file.bytes).substr(0, cut));
    if (cut < file.ends.front().first) {
      ASSERT_FALSE(parsed) << "header and snapshot were whole before the file had its name; "
                           << cut;
      EXPECT_EQ(parsed.error().code, Code::kCorrupt);
      continue;
    }
    ASSERT_TRUE(parsed) << cut << ": " << parsed.error().ToString();
    std::size_t whole = 0;
    while (file.ends[whole + 1].first <= cut) ++whole;
    EXPECT_EQ(parsed->facts, file.ends[whole].second.facts) << cut;
    EXPECT_EQ(parsed->revision, file.ends[whole].second.revision) << cut;
    EXPECT_EQ(parsed->cut_short, cut != file.ends[whole].first) << cut;
  }
}

TEST(ControlFormatTest, ZerosFromAnyByteOnAreACutToo) {
  const File file;
  for (std::size_t cut = file.ends.front().first; cut < file.bytes.size(); ++cut) {
    std::string bytes = file.bytes.substr(0, cut);
    bytes.resize(file.bytes.size(), '\0');
    const auto parsed = ParseControl(bytes);
    if (cut % kSectorBytes > kSectorBytes - 8) {
      EXPECT_FALSE(parsed) << "a checksum that ends in zeros may be a flipped bit; " << cut;
      continue;
    }
    ASSERT_TRUE(parsed) << cut << ": " << parsed.error().ToString();
    std::size_t whole = 0;
    // The last bytes of a batch may be zeros by themselves.
    while (whole + 1 < file.ends.size() && bytes.substr(0, file.ends[whole + 1].first) ==
                                               file.bytes.substr(0, file.ends[whole + 1].first)) {
      ++whole;
    }
    EXPECT_EQ(parsed->facts, file.ends[whole].second.facts) << cut;
  }
}

TEST(ControlFormatTest, AnyFlippedBitIsDamage) {
  const File file;
  for (std::size_t bit = 0; bit < file.bytes.size() * 8; ++bit) {
    std::string bytes = file.bytes;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    const auto parsed = ParseControl(bytes);
    ASSERT_FALSE(parsed) << "bit " << bit;
    ASSERT_EQ(parsed.error().code, Code::kCorrupt) << "bit " << bit;
  }
}

TEST(ControlFormatTest, BytesBehindACutAreDamage) {
  const File file;
  for (const std::size_t garbage : {2U, 4U, 9U, 511U, 512U, 700U}) {
    EXPECT_FALSE(ParseControl(file.bytes + std::string(garbage, 'x'))) << garbage;
    const std::string hole = std::string(kSectorBytes, '\0') + std::string(garbage, 'x');
    EXPECT_FALSE(ParseControl(file.bytes + hole)) << garbage;
  }
  // A batch that lost a sector in its middle, with the rest behind it.
  std::string hole = file.bytes;
  const std::size_t middle = file.ends[1].first + kSectorBytes;
  hole.replace(middle, kSectorBytes, std::string(kSectorBytes, '\0'));
  EXPECT_FALSE(ParseControl(hole));
  std::string without = file.bytes;
  without.erase(middle, kSectorBytes);
  EXPECT_FALSE(ParseControl(without));
}

TEST(ControlFormatTest, SectorsOfAnotherFileOrPlaceAreDamage) {
  const File file;
  const std::uint64_t next = file.bytes.size() / kSectorBytes;
  const Transactions one = {{{"g", "x"}}};
  EXPECT_TRUE(ParseControl(file.bytes + EncodeBatch(one, 13, 5, next)));
  EXPECT_FALSE(ParseControl(file.bytes + EncodeBatch(one, 13, 4, next))) << "an older file's";
  EXPECT_FALSE(ParseControl(file.bytes + EncodeBatch(one, 13, 5, next + 1)));
  EXPECT_FALSE(ParseControl(file.bytes + EncodeBatch(one, 14, 5, next))) << "one is missing";
  EXPECT_FALSE(ParseControl(file.bytes + EncodeBatch(one, 12, 5, next))) << "one comes twice";
}

TEST(ControlFormatTest, FieldsBeyondTheirLimitsAreDamage) {
  const std::string header = EncodeControlHeader({.file_number = 1});
  EXPECT_TRUE(ParseControl(header));
  const auto parse = [&](const std::vector<FactChange>& changes) {
    return ParseControl(header + EncodeBatch(Transactions{changes}, 1, 1, 1)).has_value();
  };
  EXPECT_TRUE(parse({{std::string(kMaxFactKeyBytes, 'k'), std::string(kMaxFactValueBytes, 'v')}}));
  EXPECT_FALSE(parse({{std::string(kMaxFactKeyBytes + 1, 'k'), "v"}}));
  EXPECT_FALSE(parse({{"k", std::string(kMaxFactValueBytes + 1, 'v')}}));
  EXPECT_FALSE(ParseControl(header + FrameBody("some bytes", BodyKind::kBatch, 1, 1)));
  EXPECT_FALSE(ParseControl(EncodeControlHeader({.file_number = 1, .snapshot_facts = 1})));
  // A snapshot whose keys are not in order.
  const std::string fact("\1\0\0\0\0\0\0\0\1\0\0\0\0\0k", 15);
  const auto snapshot = [&](const std::string& body, std::uint64_t facts) {
    const std::string sectors = FrameBody(body, BodyKind::kSnapshot, 1, 1);
    return ParseControl(EncodeControlHeader({.file_number = 1,
                                             .revision = 1,
                                             .snapshot_sectors = sectors.size() / kSectorBytes,
                                             .snapshot_facts = facts}) +
                        sectors)
        .has_value();
  };
  EXPECT_TRUE(snapshot(fact, 1));
  EXPECT_FALSE(snapshot(fact, 2));
  EXPECT_FALSE(snapshot(fact + fact, 2));
}

TEST(ControlFormatTest, AnotherVersionIsNamed) {
  std::string bytes = EncodeControlHeader({.file_number = 1});
  bytes[8] = 9;
  EXPECT_EQ(ParseControl(bytes).error().code, Code::kCorrupt) << "a flipped bit";
  const std::uint64_t sum = Hash64(std::string_view(bytes).substr(0, 504), 0);
  for (std::size_t i = 0; i < 8; ++i) bytes[504 + i] = static_cast<char>(sum >> (8 * i));
  const auto parsed = ParseControl(bytes);
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().code, Code::kIncompatible);
  EXPECT_NE(parsed.error().detail.find('9'), std::string::npos);
}

std::string Hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    text += kDigits[static_cast<std::uint8_t>(byte) >> 4];
    text += kDigits[static_cast<std::uint8_t>(byte) & 15];
  }
  return text;
}

TEST(ControlFormatTest, BytesAreWhatTheDocumentSays) {
  const std::string bytes =
      EncodeControl({{"key", {"value", 0x0102}}}, 0x0304, 6) +
      EncodeBatch(Transactions{{{"k", "v"}, {"gone", std::nullopt}}}, 0x0305, 6, 2);
  ASSERT_EQ(bytes.size(), 3 * kSectorBytes);
  // Header: magic, version, sector size, file number, revision, sectors and facts of the snapshot.
  EXPECT_EQ(Hex(bytes.substr(0, 48)),
            "6b76636f76656373"
            "02000000"
            "00020000"
            "0600000000000000"
            "0403000000000000"
            "0100000000000000"
            "0100000000000000");
  EXPECT_EQ(bytes.substr(48, 456), std::string(456, '\0'));
  EXPECT_EQ(Hex(bytes.substr(504, 8)), "bc87c91344ace70a");
  // Snapshot: length, kind, first and last, checksum; revision, lengths, key, value.
  EXPECT_EQ(Hex(bytes.substr(512, 4)), "16000103");
  EXPECT_EQ(Hex(bytes.substr(516, 4)), "655ec266");
  EXPECT_EQ(Hex(bytes.substr(520, 22)), "02010000000000000300050000006b657976616c7565");
  EXPECT_EQ(bytes.substr(542, 474), std::string(474, '\0'));
  EXPECT_EQ(Hex(bytes.substr(1016, 8)), "eedd955581b61bc1");
  // Batch: first revision, transactions; changes; lengths, key, value.
  EXPECT_EQ(Hex(bytes.substr(1024, 4)), "22000203");
  EXPECT_EQ(Hex(bytes.substr(1028, 4)), "021fa409");
  EXPECT_EQ(Hex(bytes.substr(1032, 34)),
            "0503000000000000"
            "01000000"
            "02000000"
            "0100010000006b76"
            "0400ffffffff676f6e65");
  EXPECT_EQ(Hex(bytes.substr(1528, 8)), "c59d6a3c43d825d7");
}

}  // namespace
}  // namespace kvcove::master
