// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/tier/load_queue.h"

#include <gtest/gtest.h>

#include "kvcove/owner/tier/disk_loads.h"

namespace kvcove::owner {
namespace {

constexpr std::uint64_t kBytes = 100;

std::shared_ptr<Load> LoadOf(disklog::ShareNumber share, const std::string& key) {
  auto load = std::make_shared<Load>();
  load->key = key;
  load->share = share;
  return load;
}

// The keys that are read in `reads` turns, one a turn.
std::string Read(LoadQueue& queue, std::int64_t now_ns, int reads) {
  std::string keys;
  for (; reads > 0; --reads) {
    const std::shared_ptr<Load> load = queue.Next(now_ns);
    if (load == nullptr) break;
    queue.Take(*load, kBytes);
    keys += load->key;
  }
  return keys;
}

TEST(LoadQueueTest, KeysOfOneShareComeInTheirOrder) {
  LoadQueue queue({}, 0);
  EXPECT_TRUE(queue.empty());
  for (const char* key : {"a", "b", "c"}) queue.Push(LoadOf(disklog::kNoShare, key));
  EXPECT_EQ(Read(queue, 0, 9), "abc");
  EXPECT_TRUE(queue.empty());
}

TEST(LoadQueueTest, AShareWithManyKeysDelaysAnotherByOneRead) {
  const std::uint64_t rates[] = {0, 0};
  LoadQueue queue(rates, 0);
  for (int i = 0; i < 1000; ++i) queue.Push(LoadOf(0, "a"));
  EXPECT_EQ(Read(queue, 0, 500).size(), 500U);
  for (const char* key : {"1", "2", "3"}) queue.Push(LoadOf(1, key));
  queue.Push(LoadOf(disklog::kNoShare, "x"));
  const std::string read = Read(queue, 0, 10);
  EXPECT_LE(read.find('1'), 2U) << read;
  EXPECT_LE(read.find('x'), 2U) << read;
  EXPECT_LE(read.find('3'), 7U) << read;
  EXPECT_EQ(queue.waiting(0), 1000 - 500 - 6U);
  EXPECT_EQ(queue.read_bytes(1), 3 * kBytes);
}

TEST(LoadQueueTest, TimeWithoutQuestionsEarnsNothing) {
  const std::uint64_t rates[] = {0, 0};
  LoadQueue queue(rates, 0);
  for (int i = 0; i < 200; ++i) queue.Push(LoadOf(0, "a"));
  (void)Read(queue, 0, 100);
  for (int i = 0; i < 200; ++i) queue.Push(LoadOf(1, "b"));
  const std::string read = Read(queue, 0, 100);
  EXPECT_NEAR(static_cast<double>(std::ranges::count(read, 'b')), 50, 2);
}

TEST(LoadQueueTest, AShareBeyondItsRateWaitsAndTheOthersGoOn) {
  const std::uint64_t rates[] = {2 * kBytes, 0};
  LoadQueue queue(rates, 0);
  for (int i = 0; i < 10; ++i) queue.Push(LoadOf(0, "a"));
  EXPECT_EQ(Read(queue, 0, 9), "aa") << "a second's worth";
  EXPECT_TRUE(queue.paced(0));
  EXPECT_FALSE(queue.empty());
  queue.Push(LoadOf(1, "b"));
  EXPECT_EQ(Read(queue, 0, 9), "b");
  EXPECT_EQ(Read(queue, 10 * kSecond, 9), "aa");
  // A load that was taken back waits no more, and costs nothing.
  const std::shared_ptr<Load> first = queue.First(0);
  queue.Take(*first, 0);
  EXPECT_EQ(queue.waiting(0), 5U);
  EXPECT_EQ(Read(queue, 11 * kSecond, 9), "aa");
}

TEST(LoadQueueTest, WhatIsNotFirstIsNotTaken) {
  LoadQueue queue({}, 0);
  const auto first = LoadOf(disklog::kNoShare, "a");
  const auto second = LoadOf(disklog::kNoShare, "b");
  queue.Push(first);
  queue.Push(second);
  queue.Take(*second, kBytes);
  EXPECT_EQ(Read(queue, 0, 9), "ab");
  queue.Push(first);
  queue.clear();
  EXPECT_EQ(queue.Next(0), nullptr);
}

}  // namespace
}  // namespace kvcove::owner
