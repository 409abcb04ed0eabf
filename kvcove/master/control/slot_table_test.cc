// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/control/slot_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvcove::master {
namespace {

SlotUpdate Slot(SlotId slot, Generation generation, std::string name = "acme") {
  return {.slot = slot, .generation = generation, .name = std::move(name)};
}

TEST(SlotTableTest, LeadsFromAnyRevisionToTheLatest) {
  SlotTable table;
  table.Set(Slot(1, 5), 10);
  table.Set(Slot(2, 6), 11);
  table.Set(Slot(1, 7), 15);
  EXPECT_EQ(table.revision(), 15U);
  const wire::Changes all = table.Since(0);
  EXPECT_THAT(all.slots, testing::ElementsAre(Slot(2, 6), Slot(1, 7))) << "each slot once";
  EXPECT_EQ(all.from, 0U);
  EXPECT_EQ(all.to, 15U);
  EXPECT_FALSE(all.more);
  EXPECT_THAT(table.Since(11).slots, testing::ElementsAre(Slot(1, 7)));
  EXPECT_THAT(table.Since(13).slots, testing::ElementsAre(Slot(1, 7))) << "of another master";
  EXPECT_TRUE(table.Since(15).slots.empty());
  EXPECT_EQ(table.Since(15).to, 15U);
}

TEST(SlotTableTest, AnOwnerOfOneTenantSeesOtherTenantsSlotsAsFree) {
  SlotTable table;
  table.Set(Slot(1, 5, QualifiedName("acme", "llama")), 10);
  table.Set(Slot(2, 6, QualifiedName("other", "secret")), 11);
  EXPECT_THAT(table.Since(0, "acme").slots,
              testing::ElementsAre(Slot(1, 5, QualifiedName("acme", "llama")), Slot(2, 0, "")));
  EXPECT_EQ(table.TenantOfSlot(2), "other");
  // Reused by another tenant: what the owner held there is void.
  table.Set(Slot(1, 7, QualifiedName("other", "secret")), 12);
  EXPECT_THAT(table.Since(11, "acme").slots, testing::ElementsAre(Slot(1, 0, "")));
  EXPECT_EQ(table.Since(11, "acme").to, 12U);
}

TEST(SlotTableTest, AnEmptyTableLeadsNowhere) {
  const SlotTable table;
  EXPECT_EQ(table.revision(), 0U);
  EXPECT_EQ(table.Since(0).to, 0U);
  EXPECT_FALSE(table.Since(0).more);
}

TEST(SlotTableTest, PagesTogetherAreTheWholeTable) {
  SlotTable table(1000);
  for (SlotId slot = 0; slot < 500; ++slot) table.Set(Slot(slot, slot + 1U), slot / 3 + 1U);
  std::map<SlotId, Generation> seen;
  std::uint64_t have = 0;
  std::size_t pages = 0;
  while (true) {
    const wire::Changes page = table.Since(have);
    ASSERT_EQ(page.from, have);
    ++pages;
    for (const SlotUpdate& update : page.slots) seen[update.slot] = update.generation;
    ASSERT_LE(page.slots.size(), 20U);
    have = page.to;
    if (!page.more) break;
    ASSERT_FALSE(page.slots.empty());
  }
  EXPECT_EQ(have, table.revision());
  EXPECT_EQ(seen.size(), 500U);
  EXPECT_GT(pages, 20U);
}

TEST(SlotTableTest, AChangeWhilePagesAreReadComesWithALaterPage) {
  SlotTable table(1);
  for (SlotId slot = 0; slot < 5; ++slot) table.Set(Slot(slot, 1), slot + 1U);
  wire::Changes page = table.Since(0);
  ASSERT_EQ(page.to, 1U);
  table.Set(Slot(0, 9), 6);
  table.Set(Slot(3, 9), 7);
  std::vector<SlotUpdate> rest;
  while (page.more) {
    page = table.Since(page.to);
    rest.insert(rest.end(), page.slots.begin(), page.slots.end());
  }
  EXPECT_THAT(rest,
              testing::ElementsAre(Slot(1, 1), Slot(2, 1), Slot(4, 1), Slot(0, 9), Slot(3, 9)));
}

TEST(SlotTableTest, OneTransactionIsNeverCut) {
  SlotTable table(1);
  for (SlotId slot = 0; slot < 100; ++slot) table.Set(Slot(slot, 1), 4);
  table.Set(Slot(100, 1), 5);
  const wire::Changes page = table.Since(0);
  EXPECT_EQ(page.slots.size(), 100U);
  EXPECT_EQ(page.to, 4U);
  EXPECT_TRUE(page.more);
}

}  // namespace
}  // namespace kvcove::master
