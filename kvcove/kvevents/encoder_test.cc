// SPDX-License-Identifier: Apache-2.0
// The bytes were made by msgspec 0.23 of structures like those of vllm/distributed/kv_events.py.
#include "kvcove/kvevents/encoder.h"

#include <gtest/gtest.h>

#include <initializer_list>

namespace kvcove::kvevents {
namespace {

BlockHash HashOf(std::size_t size, std::initializer_list<unsigned> last) {
  BlockHash hash;
  hash.size = static_cast<std::uint8_t>(size);
  std::size_t at = size - last.size();
  for (const unsigned byte : last) hash.bytes[at++] = static_cast<std::byte>(byte);
  return hash;
}

// Numbers of each length that msgpack has.
std::vector<BlockHash> Hashes() {
  BlockHash first{.size = 32};
  for (unsigned i = 0; i < 32; ++i) first.bytes[i] = static_cast<std::byte>(i);
  return {first,
          HashOf(1, {5}),
          HashOf(16, {0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc,
                      0xdd, 0xee, 0xff}),
          HashOf(32, {0x12, 0x34}),
          HashOf(32, {0x12, 0x34, 0x56, 0x78}),
          HashOf(1, {0xc8})};
}

std::string HexOf(const std::string& bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  for (const char byte : bytes) {
    hex.push_back(kDigits[static_cast<unsigned char>(byte) >> 4]);
    hex.push_back(kDigits[static_cast<unsigned char>(byte) & 0xF]);
  }
  return hex;
}

std::string EveryKind(const EncoderOptions& options) {
  const std::vector<Event> events{
      {.kind = Event::Kind::kCleared, .hashes = {}},
      {.kind = Event::Kind::kStored, .medium = Medium::kMemory, .group = 0, .hashes = Hashes()},
      {.kind = Event::Kind::kRemoved,
       .medium = Medium::kDisk,
       .group = 300,
       .hashes = {HashOf(1, {5})}}};
  return HexOf(Encoder(options).Batch(1'750'000'000.25, events));
}

TEST(Encoder, MapsWithNumbers) {
  EXPECT_EQ(EveryKind({}),
            "93cb41da13b8601000009381a474797065b0416c6c426c6f636b73436c65617265648aa474797065"
            "ab426c6f636b53746f726564ac626c6f636b5f68617368657396cf18191a1b1c1d1e1f05cf8899aa"
            "bbccddeeffcd1234ce12345678ccc8b1706172656e745f626c6f636b5f68617368c0a9746f6b656e"
            "5f69647390aa626c6f636b5f73697a6500a76c6f72615f6964c0a66d656469756da3435055a96c6f"
            "72615f6e616d65c0a967726f75705f69647800a86c6f63616c697479a54c4f43414c85a474797065"
            "ac426c6f636b52656d6f766564ac626c6f636b5f6861736865739105a66d656469756da753544f52"
            "414745a967726f75705f696478cd012ca86c6f63616c697479a54c4f43414c00");
}

TEST(Encoder, MapsWithWholeHashes) {
  EXPECT_EQ(EveryKind({.whole_hashes = true}),
            "93cb41da13b8601000009381a474797065b0416c6c426c6f636b73436c65617265648aa474797065"
            "ab426c6f636b53746f726564ac626c6f636b5f68617368657396c420000102030405060708090a0b"
            "0c0d0e0f101112131415161718191a1b1c1d1e1fc40105c41000112233445566778899aabbccddee"
            "ffc4200000000000000000000000000000000000000000000000000000000000001234c420000000"
            "0000000000000000000000000000000000000000000000000012345678c401c8b1706172656e745f"
            "626c6f636b5f68617368c0a9746f6b656e5f69647390aa626c6f636b5f73697a6500a76c6f72615f"
            "6964c0a66d656469756da3435055a96c6f72615f6e616d65c0a967726f75705f69647800a86c6f63"
            "616c697479a54c4f43414c85a474797065ac426c6f636b52656d6f766564ac626c6f636b5f686173"
            "68657391c40105a66d656469756da753544f52414745a967726f75705f696478cd012ca86c6f6361"
            "6c697479a54c4f43414c00");
}

TEST(Encoder, ArraysWithNumbers) {
  EXPECT_EQ(EveryKind({.arrays = true}),
            "93cb41da13b8601000009391b0416c6c426c6f636b73436c65617265649cab426c6f636b53746f72"
            "656496cf18191a1b1c1d1e1f05cf8899aabbccddeeffcd1234ce12345678ccc8c09000c0a3435055"
            "c0c000c0c094ac426c6f636b52656d6f7665649105a753544f52414745cd012c00");
}

TEST(Encoder, ArraysWithWholeHashes) {
  EXPECT_EQ(EveryKind({.whole_hashes = true, .arrays = true}),
            "93cb41da13b8601000009391b0416c6c426c6f636b73436c65617265649cab426c6f636b53746f72"
            "656496c420000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fc40105"
            "c41000112233445566778899aabbccddeeffc4200000000000000000000000000000000000000000"
            "000000000000000000001234c4200000000000000000000000000000000000000000000000000000"
            "000012345678c401c8c09000c0a3435055c0c000c0c094ac426c6f636b52656d6f76656491c40105"
            "a753544f52414745cd012c00");
}

TEST(Encoder, LongLists) {
  Event stored{.kind = Event::Kind::kStored, .group = 1, .hashes = {}};
  for (unsigned i = 0; i < 20; ++i) stored.hashes.push_back(HashOf(1, {i}));
  std::vector<Event> events(17, Event{.kind = Event::Kind::kCleared, .hashes = {}});
  events.front() = stored;
  EXPECT_EQ(HexOf(Encoder({.arrays = true}).Batch(0, events)),
            "93cb0000000000000000dc00119cab426c6f636b53746f726564dc0014000102030405060708090a"
            "0b0c0d0e0f10111213c09000c0a3435055c0c001c0c091b0416c6c426c6f636b73436c6561726564"
            "91b0416c6c426c6f636b73436c656172656491b0416c6c426c6f636b73436c656172656491b0416c"
            "6c426c6f636b73436c656172656491b0416c6c426c6f636b73436c656172656491b0416c6c426c6f"
            "636b73436c656172656491b0416c6c426c6f636b73436c656172656491b0416c6c426c6f636b7343"
            "6c656172656491b0416c6c426c6f636b73436c656172656491b0416c6c426c6f636b73436c656172"
            "656491b0416c6c426c6f636b73436c656172656491b0416c6c426c6f636b73436c656172656491b0"
            "416c6c426c6f636b73436c656172656491b0416c6c426c6f636b73436c656172656491b0416c6c42"
            "6c6f636b73436c656172656491b0416c6c426c6f636b73436c656172656400");
}

TEST(Encoder, ABatchOfNothing) {
  EXPECT_EQ(HexOf(Encoder({}).Batch(0, {})), "93cb00000000000000009000");
}

}  // namespace
}  // namespace kvcove::kvevents
