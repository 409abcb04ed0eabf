// SPDX-License-Identifier: Apache-2.0
#include "kvcove/wire/tasks.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

namespace kvcove::wire {
namespace {

std::span<const std::byte> TextBytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST(TasksTest, AnInventoryGoesOnWhereItStopped) {
  const InventoryRequest request{.cursor = 7,
                                 .at_most = 9,
                                 .slot = std::nullopt,
                                 .prefix = "p",
                                 .with_keys = true,
                                 .disks = true,
                                 .within = 11,
                                 .since = 13};
  const auto read = DecodeInventory(TextBytes(Encode(request)));
  ASSERT_TRUE(read);
  EXPECT_FALSE(read->slot.has_value());
  EXPECT_TRUE(read->disks);
  EXPECT_EQ(read->within, 11U);
  EXPECT_EQ(read->since, 13U);
}

TEST(TasksTest, AnObjectMayBeInBothTiers) {
  InventoryReply reply{.cursor = 1, .within = 2, .since = 3, .disks = true, .objects = {}};
  reply.objects.push_back({.version = 4, .id = 5, .on_disk = true, .key = "both"});
  reply.objects.push_back({.hard_pinned = true, .key = "memory"});
  reply.objects.push_back({.tier = Tier::kDisk, .key = "disk"});
  const auto read = DecodeInventoryReply(TextBytes(Encode(reply)));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->since, 3U);
  EXPECT_TRUE(read->disks);
  ASSERT_EQ(read->objects.size(), 3U);
  EXPECT_TRUE(read->objects[0].on_disk);
  EXPECT_EQ(read->objects[0].tier, Tier::kMemory);
  EXPECT_FALSE(read->objects[1].on_disk);
  EXPECT_TRUE(read->objects[1].hard_pinned);
  EXPECT_EQ(read->objects[2].tier, Tier::kDisk);
}

CopyRequest Mixed() {
  return {.to = "10.0.0.1:7401",
          .move = true,
          .items = {{.id = 1, .version = 2},
                    {.key = "on-disk", .slot = 3, .generation = 4, .size_bytes = 5}},
          .budget_ms = 6};
}

TEST(TasksTest, ACopyNamesWhatIsInMemoryByItsNumberAndWhatIsOnADiskByItsKey) {
  const auto read = DecodeCopy(TextBytes(Encode(Mixed())));
  ASSERT_TRUE(read);
  ASSERT_EQ(read->items.size(), 2U);
  EXPECT_EQ(read->items[0].id, 1U);
  EXPECT_EQ(read->items[0].version, 2U);
  EXPECT_TRUE(read->items[0].key.empty());
  EXPECT_EQ(read->items[1].key, "on-disk");
  EXPECT_EQ(read->items[1].slot, 3U);
  EXPECT_EQ(read->items[1].generation, 4U);
  EXPECT_EQ(read->items[1].size_bytes, 5U);
}

// An owner of the version before reads these bytes: nothing is added to a copy from memory.
TEST(TasksTest, ACopyFromMemoryAloneHasTheBytesOfBefore) {
  CopyRequest memory = Mixed();
  memory.items.pop_back();
  std::string hex;
  for (const char byte : Encode(memory)) {
    hex += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  EXPECT_EQ(
      hex,
      "180000000000000000000e001800080007000c00100014000e00000000000001100000002c0000001c0000000600"
      "00000d00000031302e302e302e313a373430310000000100000002000000000000000100000001000000");
}

TEST(TasksTest, ACopyOfWhatCannotBeIsRefused) {
  CopyRequest long_key = Mixed();
  long_key.items[1].key = std::string(kMaxKeyBytes + 1, 'k');
  EXPECT_EQ(DecodeCopy(TextBytes(Encode(long_key))).error().code, Code::kCorrupt);
  CopyRequest many = Mixed();
  many.items.resize(kMaxPage + 1, many.items[1]);
  EXPECT_EQ(DecodeCopy(TextBytes(Encode(many))).error().code, Code::kCorrupt);
  CopyRequest slot = Mixed();
  slot.items[1].slot = kMaxSlots;
  EXPECT_EQ(DecodeCopy(TextBytes(Encode(slot))).error().code, Code::kCorrupt);
}

}  // namespace
}  // namespace kvcove::wire
