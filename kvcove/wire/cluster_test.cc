// SPDX-License-Identifier: Apache-2.0
#include "kvcove/wire/cluster.h"

#include <flatbuffers/flatbuffers.h>
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "kvcove/wire/host_wire.h"

namespace kvcove::wire {
namespace {

// As a server has it: aligned to 8 bytes.
std::vector<std::uint64_t> AlignedCopy(const std::string& text) {
  std::vector<std::uint64_t> words(text.size() / 8 + 1);
  std::copy(text.begin(), text.end(), reinterpret_cast<char*>(words.data()));
  return words;
}
template <typename Decoded>
auto Decode(const std::string& text, Decoded (*decode)(std::span<const std::byte>)) {
  const std::vector<std::uint64_t> words = AlignedCopy(text);
  return decode(std::as_bytes(std::span(words)).first(text.size()));
}

// What a message leaves out shifts the rest, so each combination of fields is another layout.
TEST(ClusterWireTest, ListsOfAnyLengthArriveWhateverElseTheMessageHas) {
  for (std::size_t count = 0; count < 4; ++count) {
    for (OwnerNumber number = 0; number < 3; ++number) {
      for (std::uint32_t epoch = 0; epoch < 3; ++epoch) {
        for (std::uint64_t sequence = 0; sequence < 3; ++sequence) {
          ListRequest list{.number = number, .epoch = epoch, .sequence = sequence, .items = {}};
          list.items.resize(count);
          const auto decoded = Decode(Encode(list), &DecodeList);
          ASSERT_TRUE(decoded) << count << " items, number " << number << ", epoch " << epoch
                               << ", sequence " << sequence << ": " << decoded.error().ToString();
          EXPECT_EQ(decoded->items.size(), count);
          EXPECT_EQ(decoded->number, number);
          EXPECT_EQ(decoded->epoch, epoch);
          EXPECT_EQ(decoded->sequence, sequence);
        }
      }
    }
    const std::vector<Place> places(count);
    const std::string reply = Encode(std::span<const Place>(places));
    const std::vector<std::uint64_t> words = AlignedCopy(reply);
    const auto bytes = std::as_bytes(std::span(words)).first(reply.size());
    EXPECT_TRUE(DecodePlaces(bytes, count));
    EXPECT_FALSE(DecodePlaces(bytes, count + 1));
    const std::vector<Id128> hashes(count);
    for (SlotId slot = 0; slot < 3; ++slot) {
      for (Generation generation = 0; generation < 3; ++generation) {
        const Token token{.incarnation = {}, .generation = generation, .slot = slot};
        const auto lookup = Decode(EncodeLookup(token, hashes), &DecodeLookup);
        ASSERT_TRUE(lookup) << lookup.error().ToString();
        EXPECT_EQ(lookup->hashes.size(), count);
      }
    }
  }
}

TEST(ClusterWireTest, ALookUpSaysWhatIsBeingSaved) {
  const std::vector<Id128> hashes = {{1, 2}, {3, 4}};
  for (const SaveNotice notice : {SaveNotice::kNone, SaveNotice::kBegin, SaveNotice::kEnd}) {
    EXPECT_EQ(Decode(EncodeLookup({}, hashes, notice), &DecodeLookup)->notice, notice);
  }
  const auto later = Decode(EncodeLookup({}, hashes, static_cast<SaveNotice>(3)), &DecodeLookup);
  EXPECT_EQ(later->notice, SaveNotice::kNone) << "a notice that this build does not know";
  const std::vector<Place> places = {{.reason = MissReason::kNeverPut},
                                     {.reason = MissReason::kNeverPut, .under_way = true}};
  const std::string reply = Encode(std::span<const Place>(places));
  const std::vector<std::uint64_t> words = AlignedCopy(reply);
  const auto decoded = DecodePlaces(std::as_bytes(std::span(words)).first(reply.size()), 2);
  ASSERT_TRUE(decoded);
  EXPECT_FALSE((*decoded)[0].under_way);
  EXPECT_TRUE((*decoded)[1].under_way);
}

TEST(ClusterWireTest, APrefixHasAsManyOfEachColumnAsOwners) {
  for (std::size_t count = 0; count < 4; ++count) {
    PrefixShares shares{.keys = count, .reason = MissReason::kReset, .owners = {}};
    for (std::uint16_t i = 0; i < count; ++i) {
      shares.owners.push_back(
          {.owner = i, .prefix = 4, .memory_prefix = 3, .memory = 2, .disk = 1});
    }
    const auto decoded = Decode(Encode(shares), &DecodePrefixShares);
    ASSERT_TRUE(decoded) << decoded.error().ToString();
    EXPECT_EQ(*decoded, shares);
  }
  for (const flatbuffers::voffset_t column : {8, 10, 12, 14, 16}) {
    flatbuffers::FlatBufferBuilder builder;
    const auto values = builder.CreateVector(std::vector<std::uint32_t>(3));
    const auto table = builder.StartTable();
    builder.AddOffset(column, values);
    builder.Finish(flatbuffers::Offset<void>(builder.EndTable(table)));
    const std::string one_column{reinterpret_cast<const char*>(builder.GetBufferPointer()),
                                 builder.GetSize()};
    EXPECT_FALSE(Decode(one_column, &DecodePrefixShares)) << column;
  }
}

// A message whose only field, at `field` of its table, is a list that has one string many times.
std::string OneStringManyTimes(flatbuffers::voffset_t field, std::size_t bytes, std::size_t times) {
  flatbuffers::FlatBufferBuilder builder;
  const auto text = builder.CreateString(std::string(bytes, 'k'));
  const auto list = builder.CreateVector(std::vector(times, text));
  const auto table = builder.StartTable();
  builder.AddOffset(field, list);
  builder.Finish(flatbuffers::Offset<void>(builder.EndTable(table)));
  return {reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize()};
}

TEST(ClusterWireTest, StringsThatShareTheirBytesAreRefusedBeforeTheyAreCopied) {
  constexpr std::size_t kBytes = 1 << 16;
  const std::string keys = OneStringManyTimes(/*keys*/ 6, kBytes, 2000);
  const auto removal = Decode(keys, &DecodeRemove);
  ASSERT_FALSE(removal) << removal->keys.size() << " keys from " << keys.size() << " bytes";
  EXPECT_EQ(removal.error().code, Code::kCorrupt);
  const std::string versions = OneStringManyTimes(/*versions*/ 8, kBytes, 2000);
  const auto engine = Decode(versions, &DecodeEngineVersions);
  ASSERT_FALSE(engine) << engine->versions.size() << " names from " << versions.size() << " bytes";
  EXPECT_EQ(engine.error().code, Code::kCorrupt);
  // Strings of their own, as every encoder writes them, also where they are equal.
  const RemoveRequest honest{
      .token = {}, .keys = std::vector<std::string>(2000, "same"), .pattern = {}, .budget_ns = 1};
  EXPECT_EQ(Decode(Encode(honest), &DecodeRemove)->keys, honest.keys);
}

TEST(ClusterWireTest, NoBatchIsLargerThanACallMayBe) {
  const auto get = [](std::size_t count) {
    const std::vector<std::string_view> keys(count, "key");
    const DataGet request{
        .token = {}, .keys = keys, .room = std::vector<std::uint64_t>(count), .no_checksum = false};
    return Decode(Encode(request), &DecodeDataGet).has_value();
  };
  EXPECT_TRUE(get(kMaxBatch));
  EXPECT_FALSE(get(kMaxBatch + 1));
  const auto put = [](std::size_t count) {
    const DataPut request{.token = {},
                          .items = std::vector<DataPutItem>(count, {.key = "key", .after = "key"})};
    return Decode(Encode(request), &DecodeDataPut).has_value();
  };
  EXPECT_TRUE(put(kMaxBatch));
  EXPECT_FALSE(put(kMaxBatch + 1));
}

// Other builds read these bytes. A field that is added at a table's end may change them for
// messages that use it, and for no other.
TEST(ClusterWireTest, MessagesHaveTheseBytes) {
  const Token token{.incarnation = {.high = 1, .low = 2}, .generation = 3, .slot = 4};
  const std::vector<Id128> hashes = {{.high = 5, .low = 6}, {.high = 7, .low = 8}};
  const std::vector<Place> places = {
      {.size_bytes = 9, .owner = 1, .second = 2, .tier = Tier::kMemory},
      {.reason = MissReason::kEvicted}};
  const std::vector<DataValue> values = {{.code = Code::kOk, .size_bytes = 3, .checksum = 4},
                                         {.code = Code::kMiss, .reason = MissReason::kReset}};
  const std::vector<Code> codes = {Code::kOk, Code::kStale};
  const PrefixShares shares{
      .keys = 9,
      .reason = MissReason::kEvicted,
      .owners = {{.owner = 3, .prefix = 7, .memory_prefix = 6, .memory = 5, .disk = 2},
                 {.owner = 4, .prefix = 0, .memory_prefix = 0, .memory = 1, .disk = 0}}};
  RequesterReport report{.fallbacks = 2, .broken = {3}, .holder = {.high = 1, .low = 2}};
  report.misses[1] = 5;
  report.recent.push_back({.hash = hashes[0], .slot = 4, .reason = MissReason::kLease});
  const std::vector<std::pair<std::string_view, std::string>> messages = {
      {"lookup", EncodeLookup(token, hashes)},
      {"places", Encode(std::span<const Place>(places))},
      {"prefix shares", Encode(shares)},
      {"owners",
       Encode(OwnersReply{
           .owners =
               {{.number = 1, .epoch = 2, .address = "h:1", .capacity_bytes = 3, .live = true}},
           .term = 9})},
      {"remove",
       Encode(RemoveRequest{.token = token, .keys = {"k"}, .pattern = {}, .budget_ns = 7})},
      {"data get", Encode(DataGet{.token = token, .keys = {"k", "l"}, .room = {10, 20}})},
      {"values", Encode(std::span<const DataValue>(values))},
      {"data put",
       Encode(DataPut{
           .token = token,
           .items = {{.key = "k", .after = "j", .size_bytes = 3, .checksum = 4, .group = 5}},
           .budget_ms = 6,
           .copies = 2})},
      {"codes", Encode(std::span<const Code>(codes))},
      {"count", EncodeCount(77)},
      {"report", Encode(report)},
  };
  const std::map<std::string_view, std::string_view> golden = {
      {"lookup",
       "0c0000000800280004002400080000000100000000000000020000000000000003000000000000000400"
       "000000000000040000000200000005000000000000000600000000000000070000000000000008000000"
       "00000000"},
      {"places",
       "1400000000000e001800040008000c00100014000e00000034000000280000001c000000100000000400"
       "000002000000010100000200000000020000020000000200ffff020000000100ffff0200000009000000"
       "00000000"},
      {"prefix shares",
       "1c000000000000000000120024001c00070008000c0010001400180012000000000000024c0000003c00"
       "00002c0000001c0000000c00000009000000000000000200000002000000000000000200000005000000"
       "010000000200000006000000000000000200000007000000000000000200000003000400"},
      {"owners",
       "10000000000000000800100004000800080000000c000000090000000000000001000000200000000000"
       "1a002400060008000c00100014001c00000005000000000018001a000000000101000200000030000000"
       "24000000180000000c000000030000000000000000000000000000000000000000000000000000000000"
       "000003000000683a3100"},
      {"remove",
       "14000000000000000c0034000400240028002c000c000000010000000000000002000000000000000300"
       "0000000000000400000000000000180000000c0000000700000000000000000000000000000001000000"
       "04000000010000006b000000"},
      {"data get",
       "140000000000000000000a003000040028002c000a000000010000000000000002000000000000000300"
       "0000000000000400000000000000000000002000000004000000020000000a0000000000000014000000"
       "0000000000000000020000001000000004000000010000006c000000010000006b000000"},
      {"values",
       "180000000000000000000e001800040008000c00100014000e00000038000000280000001c0000001000"
       "000004000000020000000101000002000000000400000200000000010000020000000300000000000000"
       "0200000004000000000000000000000000000000"},
      {"data put",
       "200000000000000000001600440008002c003000340038003c0000004000070016000000000000020100"
       "000000000000020000000000000003000000000000000400000000000000000000003c0000002c000000"
       "200000001400000008000000060000000100000028000000010000000500000001000000030000000100"
       "00000400000000000000010000000c000000010000006a000000010000006b000000"},
      {"codes", "0c000000000006000800040006000000040000000200000000040000"},
      {"count", "4d00000000000000"},
      {"report",
       "180000000000120034000400280008000c00100014001800120000006000000054000000380000002c00"
       "000020000000010000000000000002000000000000000200000000000000000000000100000005000000"
       "010000000400000001000000050000000000000006000000000000000000000001000000030000001300"
       "000000000000000000000500000000000000000000000000000000000000000000000000000000000000"
       "000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
       "000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
       "00000000000000000000000000000000000000000000000000000000"},
  };
  for (const auto& [name, bytes] : messages) {
    std::string hex;
    for (const char c : bytes) {
      hex += "0123456789abcdef"[static_cast<unsigned char>(c) >> 4];
      hex += "0123456789abcdef"[static_cast<unsigned char>(c) & 15];
    }
    const auto at = golden.find(name);
    EXPECT_TRUE(at != golden.end() && at->second == hex)
        << "{\"" << name << "\", \"" << hex << "\"},";
  }
}

}  // namespace
}  // namespace kvcove::wire
