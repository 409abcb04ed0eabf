// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/carry.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

namespace kvcove {
namespace {

struct Plain {
  std::uint32_t a = 0;
  std::uint64_t b = 0;
  bool operator==(const Plain&) const = default;
};

struct All {
  std::uint64_t number = 0;
  std::string text;
  std::vector<Plain> plain;
  std::vector<std::string> texts;
  std::deque<std::uint32_t> queue;
  std::array<std::deque<std::uint32_t>, 3> queues;
  std::map<std::string, Plain> map;
  std::unordered_map<std::uint64_t, std::string> hashed;
  std::set<std::pair<std::uint64_t, std::string>> set;
  std::optional<std::string> some;
  std::optional<std::string> none;
  bool operator==(const All&) const = default;

  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, number, text, plain, texts, queue, queues, map, hashed, set, some, none);
  }
};

template <typename T>
UniqueFd Written(T& value) {
  StateWriter writer = *StateWriter::Open();
  CarryOne(writer, value);
  return *writer.Finish();
}

All Some() {
  All all{.number = 7, .text = "text", .plain = {{1, 2}, {3, 4}}, .texts = {"", "b"}};
  all.queue = {1, 2, 3};
  all.queues[1] = {9};
  all.map = {{"a", {5, 6}}};
  all.hashed = {{1, "one"}, {2, "two"}};
  all.set = {{1, "x"}, {2, "y"}};
  all.some = "some";
  return all;
}

TEST(CarryTest, WhatIsWrittenIsRead) {
  All before = Some();
  const UniqueFd file = Written(before);
  StateReader reader = *StateReader::Open(file);
  All after;
  CarryOne(reader, after);
  EXPECT_TRUE(reader.ok());
  EXPECT_EQ(after, before);
}

TEST(CarryTest, LargeArraysGoPastTheBuffer) {
  std::vector<std::uint64_t> before(300'000);
  for (std::size_t i = 0; i < before.size(); ++i) before[i] = i;
  const UniqueFd file = Written(before);
  StateReader reader = *StateReader::Open(file);
  std::vector<std::uint64_t> after;
  CarryOne(reader, after);
  EXPECT_TRUE(reader.ok());
  EXPECT_EQ(after, before);
}

// Whether more or less comes than was expected.
TEST(CarryTest, MemoryThatWasThereBeforeIsNoState) {
  for (const std::uint64_t expected_bytes : {std::uint64_t{16}, std::uint64_t{1} << 22}) {
    std::vector<std::uint64_t> before(100'000, 7);
    StateWriter writer = *StateWriter::Open(expected_bytes);
    CarryOne(writer, before);
    const UniqueFd file = *writer.Finish();
    struct stat status{};
    ASSERT_EQ(fstat(file.get(), &status), 0);
    EXPECT_EQ(static_cast<std::uint64_t>(status.st_size), 8 + 4 + 800'000U);
    StateReader reader = *StateReader::Open(file);
    std::vector<std::uint64_t> after;
    CarryOne(reader, after);
    EXPECT_EQ(after, before);
    char more = 1;
    reader.Bytes(&more, 1);
    EXPECT_FALSE(reader.ok());
  }
}

TEST(CarryTest, AStructureOfAnotherSizeIsFoundOut) {
  std::vector<Plain> before(3);
  const UniqueFd file = Written(before);
  StateReader reader = *StateReader::Open(file);
  std::vector<std::uint64_t> after;
  CarryOne(reader, after);
  EXPECT_FALSE(reader.ok());
}

TEST(CarryTest, WhatIsCutShortIsFoundOut) {
  std::uint64_t count = 1ULL << 40;  // of elements that are not there
  const UniqueFd file = Written(count);
  StateReader reader = *StateReader::Open(file);
  std::uint32_t size = 0;
  reader.Bytes(&size, sizeof(size));  // of the number
  std::vector<std::string> after;
  CarryOne(reader, after);
  EXPECT_FALSE(reader.ok());
  EXPECT_TRUE(after.empty()) << "nothing is made of a number that cannot be right";
}

}  // namespace
}  // namespace kvcove
