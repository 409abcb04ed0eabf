// SPDX-License-Identifier: Apache-2.0
// Batches of gets and puts as exchanges, against an endpoint that answers as it is told.
#include "kvcove/requester/cluster/remote_read.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "kvcove/requester/cluster/remote_write.h"

namespace kvcove::requester {
namespace {

// Owners are told apart by their endpoints; nothing is started.
class NoEndpoint final : public transport::Endpoint {
 public:
  transport::Transport& transport() override { std::abort(); }
  Result<std::unique_ptr<transport::Transfer>> Start(transport::Exchange&, std::int64_t,
                                                     std::int64_t) override {
    return Fail(Code::kUnavailable, "nobody is there");
  }
};

std::uint64_t HashOf(std::string_view text) { return Hash64(text, 0); }

class RemoteReadTest : public testing::Test {
 protected:
  // Each item has room for `room` bytes, in pieces of 3.
  void Make(std::size_t count, std::size_t room) {
    buffers_.assign(count, std::string(room, '.'));
    pieces_.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      keys_.push_back("key" + std::to_string(i));
      for (std::size_t at = 0; at < room; at += 3) {
        pieces_[i].push_back({.data = buffers_[i].data() + at, .size = std::min(room - at, 3UL)});
      }
    }
    for (std::size_t i = 0; i < count; ++i) items_.push_back({.key = keys_[i], .into = pieces_[i]});
    results_.resize(count);
  }
  static wire::DataValue Value(std::string_view text) {
    return {.code = Code::kOk,
            .size_bytes = static_cast<std::uint32_t>(text.size()),
            .checksum = HashOf(text)};
  }
  // The reply's head, then as much of its payload as there is, some bytes at a time.
  static void Answer(transport::Exchange& exchange, const std::vector<wire::DataValue>& values,
                     std::string_view payload, std::uint64_t at_a_time) {
    const std::string head = wire::Encode(std::span(values));
    const auto into = exchange.on_reply(std::as_bytes(std::span(head)));
    ASSERT_TRUE(into);
    std::uint64_t arrived = 0;
    for (const transport::Piece& piece : *into) {
      for (std::uint64_t at = 0; at < piece.size && arrived < payload.size();) {
        const std::uint64_t bytes =
            std::min({at_a_time, piece.size - at, payload.size() - arrived});
        std::memcpy(piece.data + at, payload.data() + arrived, bytes);
        at += bytes;
        arrived += bytes;
        exchange.on_bytes(arrived);
      }
    }
  }

  std::vector<std::string> keys_;
  std::vector<std::string> buffers_;
  std::vector<std::vector<MutableBuffer>> pieces_;
  std::vector<GetItem> items_;
  std::vector<ItemResult> results_;
  NoEndpoint one_;
  NoEndpoint other_;
};

TEST_F(RemoteReadTest, ItemsArePartedByOwnerAndBytes) {
  Make(5, 6);
  for (ItemResult& result : results_) result.bytes = 30ULL << 20;
  RemoteRead read({}, true, items_, results_);
  for (const std::size_t i : {0, 1, 2, 4}) read.Add(i, one_, "one");
  read.Add(3, other_, "other");
  const auto exchanges = read.Exchanges();
  ASSERT_EQ(exchanges.size(), 3U) << "64 MiB hold two values of 30 MiB";
  std::vector<std::vector<std::string>> keys;
  for (const transport::Exchange& exchange : exchanges) {
    const auto get = wire::DecodeDataGet(std::as_bytes(std::span(exchange.head)));
    ASSERT_TRUE(get);
    keys.emplace_back(get->keys.begin(), get->keys.end());
    EXPECT_EQ(get->room[0], 6U);
  }
  EXPECT_EQ(keys[0], (std::vector<std::string>{"key0", "key1"}));
  EXPECT_EQ(keys[1], (std::vector<std::string>{"key2", "key4"}));
  EXPECT_EQ(keys[2], (std::vector<std::string>{"key3"}));
  EXPECT_EQ(exchanges[2].to, &other_);
}

TEST_F(RemoteReadTest, ValuesAreCheckedHoweverTheyArrive) {
  for (const std::uint64_t at_a_time : {1, 2, 5, 100}) {
    keys_.clear();
    items_.clear();
    pieces_.clear();
    Make(4, 10);
    RemoteRead read({}, true, items_, results_);
    for (std::size_t i = 0; i < 4; ++i) read.Add(i, one_, "one");
    const auto exchanges = read.Exchanges();
    ASSERT_EQ(exchanges.size(), 1U);
    auto wrong = Value("0123456789");
    wrong.checksum ^= 1;
    Answer(exchanges[0], {Value("abcdefg"), {.reason = MissReason::kEvicted}, wrong, Value("xyz")},
           "abcdefg0123456789xyz", at_a_time);
    exchanges[0].status = {};
    read.Finish();
    EXPECT_EQ(results_[0].code, Code::kOk);
    EXPECT_EQ(results_[0].bytes, 7U);
    EXPECT_EQ(buffers_[0], "abcdefg...");
    EXPECT_EQ(results_[1].code, Code::kMiss);
    EXPECT_EQ(results_[1].reason, MissReason::kEvicted);
    EXPECT_EQ(results_[2].code, Code::kCorrupt);
    EXPECT_EQ(results_[3].code, Code::kOk);
  }
}

TEST_F(RemoteReadTest, WhatHadArrivedWhenTheExchangeFailedCounts) {
  for (const auto& [code, reason] : {std::pair{Code::kTimeout, MissReason::kTimeout},
                                     std::pair{Code::kDenied, MissReason::kDenied},
                                     std::pair{Code::kUnavailable, MissReason::kOwnerGone}}) {
    keys_.clear();
    items_.clear();
    pieces_.clear();
    Make(3, 10);
    RemoteRead read({}, true, items_, results_);
    for (std::size_t i = 0; i < 3; ++i) read.Add(i, one_, "one");
    const auto exchanges = read.Exchanges();
    Answer(exchanges[0], {Value("first"), Value("second"), Value("third")}, "firstsec", 4);
    exchanges[0].status = Fail(code, "it ended");
    read.Finish();
    EXPECT_EQ(results_[0].code, Code::kOk);
    for (const std::size_t i : {1, 2}) {
      EXPECT_EQ(results_[i].code, Code::kMiss);
      EXPECT_EQ(results_[i].reason, reason);
    }
  }
}

TEST_F(RemoteReadTest, BytesThatMayStillLandAreSaidToBeBusy) {
  Make(1, 10);
  RemoteRead read({}, true, items_, results_);
  read.Add(0, one_, "one");
  read.Exchanges()[0].status = Fail(Code::kBufferBusy, "the device still writes");
  read.Finish();
  EXPECT_EQ(results_[0].code, Code::kBufferBusy);
}

TEST_F(RemoteReadTest, AnOwnerThatSendsMoreThanThereIsRoomForIsCorrupt) {
  Make(1, 10);
  RemoteRead read({}, true, items_, results_);
  read.Add(0, one_, "one");
  const std::vector<wire::DataValue> values = {Value("longer than ten")};
  const std::string head = wire::Encode(std::span(values));
  transport::Exchange& exchange = read.Exchanges()[0];
  const auto into = exchange.on_reply(std::as_bytes(std::span(head)));
  ASSERT_FALSE(into);
  exchange.status = std::unexpected(into.error());
  read.Finish();
  EXPECT_EQ(results_[0].code, Code::kCorrupt);
}

TEST_F(RemoteReadTest, WhatIsOnDiskGoesInPartsOfItsOwn) {
  constexpr std::uint64_t kSize = 4ULL << 20;
  Make(4, 3);
  for (ItemResult& result : results_) result = {.bytes = kSize, .tier = Tier::kRemoteMemory};
  for (const std::size_t i : {1, 2, 3}) results_[i].tier = Tier::kDisk;
  RemoteRead read({}, true, items_, results_);
  for (std::size_t i = 0; i < 4; ++i) read.Add(i, one_, "one");
  const auto exchanges = read.Exchanges();
  std::vector<std::vector<std::string>> keys;
  for (const transport::Exchange& exchange : exchanges) {
    const auto get = wire::DecodeDataGet(std::as_bytes(std::span(exchange.head)));
    ASSERT_TRUE(get);
    keys.emplace_back(get->keys.begin(), get->keys.end());
  }
  EXPECT_THAT(keys, testing::ElementsAre(std::vector<std::string>{"key0"},
                                         std::vector<std::string>{"key1", "key2"},
                                         std::vector<std::string>{"key3"}));
}

TEST_F(RemoteReadTest, ALongGetFromDiskTakesFewConnections) {
  constexpr std::size_t kCount = 4096;
  Make(kCount, 3);
  for (ItemResult& result : results_) result = {.bytes = 1ULL << 20, .tier = Tier::kDisk};
  RemoteRead read({}, true, items_, results_);
  for (std::size_t i = 0; i < kCount; ++i) read.Add(i, one_, "one");
  EXPECT_EQ(read.Exchanges().size(), kDiskParts + (kCount - 64) / 64);
}

TEST(RemoteWriteTest, AnsweredCopiesAreCountedAndTheFirstRefusalStays) {
  const std::string value = "value";
  const ConstBuffer piece{.data = value.data(), .size = value.size()};
  const std::vector<PutItem> items = {{.key = "a", .value = {&piece, 1}, .after = {}},
                                      {.key = "b", .value = {&piece, 1}, .after = {}}};
  std::vector<ItemResult> results(2, ItemResult{.code = Code::kUnavailable, .replicas = 0});
  const std::vector<std::uint32_t> groups = {7, 9};
  NoEndpoint owner;
  RemoteWrite write({.deadline_ns = kSecond}, items, groups, results);
  const std::vector<std::size_t> which = {0, 1};
  write.Add(which, owner, 0);
  write.Add(which, owner, 0);
  const auto exchanges = write.Exchanges();
  ASSERT_EQ(exchanges.size(), 2U);
  const auto put = wire::DecodeDataPut(std::as_bytes(std::span(exchanges[0].head)));
  ASSERT_TRUE(put);
  EXPECT_EQ(put->items[1].checksum, HashOf(value));
  EXPECT_EQ(put->items[1].group, 9U);
  EXPECT_EQ(put->items[1].after, "a");
  EXPECT_EQ(put->budget_ms, 900U);
  EXPECT_EQ(exchanges[0].out.size(), 2U);
  const std::vector<Code> codes = {Code::kNotListed, Code::kNoSpace};
  const std::string head = wire::Encode(std::span<const Code>(codes));
  ASSERT_TRUE(exchanges[0].on_reply(std::as_bytes(std::span(head))));
  exchanges[0].status = {};
  exchanges[1].status = Fail(Code::kUnavailable, "gone");
  write.Finish();
  EXPECT_EQ(results[0].code, Code::kOk);
  EXPECT_EQ(results[0].replicas, 1U);
  EXPECT_FALSE(results[0].listed);
  EXPECT_EQ(results[1].code, Code::kUnavailable) << "the last answer, while nobody has it";
}

// The caller may change a value again when it has the result: as long as one owner may still read
// it, no other owner's answer says so.
TEST(RemoteWriteTest, AValueThatMayStillBeReadIsBusyWhateverOtherOwnersSay) {
  const ConstBuffer piece{.data = "value", .size = 5};
  const std::vector<PutItem> items = {{.key = "a", .value = {&piece, 1}, .after = {}}};
  const std::vector<std::uint32_t> groups = {7};
  const std::vector<std::size_t> which = {0};
  const std::vector<Code> codes = {Code::kOk};
  const std::string stored = wire::Encode(std::span<const Code>(codes));
  NoEndpoint owner;
  for (const std::size_t busy : {0, 1, 2}) {
    std::vector<ItemResult> results(1, ItemResult{.code = Code::kUnavailable, .replicas = 0});
    RemoteWrite write({.deadline_ns = kSecond}, items, groups, results);
    for (int i = 0; i < 3; ++i) write.Add(which, owner, 0);
    const auto exchanges = write.Exchanges();
    exchanges[(busy + 1) % 3].status = Fail(Code::kNoSpace, "full");
    ASSERT_TRUE(exchanges[(busy + 2) % 3].on_reply(std::as_bytes(std::span(stored))));
    exchanges[(busy + 2) % 3].status = {};
    exchanges[busy].status = Fail(Code::kBufferBusy, "the device still reads");
    write.Finish();
    EXPECT_EQ(results[0].code, Code::kBufferBusy) << busy;
    // Nor does the next owner that is asked.
    RemoteWrite next({.deadline_ns = kSecond}, items, groups, results);
    next.Add(which, owner, 0);
    next.Exchanges()[0].status = Fail(Code::kUnavailable, "gone");
    next.Finish();
    EXPECT_EQ(results[0].code, Code::kBufferBusy) << busy;
  }
}

}  // namespace
}  // namespace kvcove::requester
