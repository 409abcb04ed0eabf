// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/link/generation_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvcove::owner {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class GenerationTableTest : public testing::Test {
 protected:
  static wire::Changes Page(std::uint64_t from, std::uint64_t to, std::vector<SlotUpdate> slots) {
    return {.incarnation = {}, .from = from, .to = to, .slots = std::move(slots), .unnamed = {}};
  }
  // Names: all slots but these are named.
  static wire::Changes Names(std::uint64_t at, std::uint64_t naming, std::vector<SlotId> unnamed) {
    wire::Changes changes = Page(at, at, {});
    changes.naming = naming;
    changes.names_changed = true;
    changes.unnamed = std::move(unnamed);
    return changes;
  }
  std::vector<SlotUpdate> Apply(const wire::Changes& changes) {
    const auto updates = table_.Take(changes);
    EXPECT_TRUE(updates);
    (void)table_.Acknowledge(changes);
    return updates.value_or(std::vector<SlotUpdate>{});
  }

  const SlotUpdate one_{.slot = 1, .generation = 9, .name = "a"};
  const SlotUpdate two_{.slot = 2, .generation = 8, .name = "b"};
  GenerationTable table_;
};

TEST_F(GenerationTableTest, APageIsAcknowledgedOnlyWhenItIsPublished) {
  const wire::Changes page = Page(0, 5, {one_});
  EXPECT_THAT(*table_.Take(page), ElementsAre(one_));
  EXPECT_EQ(table_.revision(), 0U);
  EXPECT_TRUE(table_.Acknowledge(page));
  EXPECT_EQ(table_.revision(), 5U);
}

TEST_F(GenerationTableTest, APageThatDoesNotContinueChangesNothing) {
  (void)Apply(Page(0, 5, {one_}));
  EXPECT_FALSE(table_.Take(Page(0, 5, {two_}))) << "repeated";
  EXPECT_FALSE(table_.Take(Page(6, 7, {two_}))) << "one before it is missing";
  EXPECT_FALSE(table_.Take(Page(5, 4, {two_})));
  EXPECT_FALSE(table_.Acknowledge(Page(0, 5, {})));
  EXPECT_EQ(table_.revision(), 5U);
}

TEST_F(GenerationTableTest, APartIsNotAllThatIsCurrent) {
  wire::Changes part = Page(0, 5, {one_});
  part.more = true;
  ASSERT_TRUE(table_.Take(part));
  EXPECT_FALSE(table_.Acknowledge(part));
  EXPECT_TRUE(table_.partial());
  ASSERT_TRUE(table_.Take(Page(5, 6, {two_})));
  EXPECT_TRUE(table_.Acknowledge(Page(5, 6, {two_})));
  EXPECT_FALSE(table_.partial());
}

TEST_F(GenerationTableTest, NamesUpdateTheSlotsThatTheyChange) {
  (void)Apply(Page(0, 5, {one_, two_}));
  SlotUpdate unnamed = two_;
  unnamed.named = false;
  EXPECT_THAT(Apply(Names(5, 77, {2})), ElementsAre(unnamed));
  EXPECT_EQ(table_.naming(), 77U);
  EXPECT_THAT(Apply(Names(5, 78, {2})), IsEmpty()) << "no name has changed";
}

// The other lane has applied the page, but not these names.
TEST_F(GenerationTableTest, NamesOfAPageThatIsAppliedAlreadyCount) {
  (void)Apply(Page(0, 5, {one_, two_}));
  wire::Changes late = Names(0, 77, {2});
  late.to = 5;
  late.slots = {one_, two_};
  const std::vector<SlotUpdate> updates = Apply(late);
  ASSERT_EQ(updates.size(), 1U);
  EXPECT_EQ(updates[0].slot, 2);
  EXPECT_FALSE(updates[0].named);
  EXPECT_EQ(table_.revision(), 5U);
}

TEST_F(GenerationTableTest, ASlotKeepsItsNameUnderANewGeneration) {
  (void)Apply(Page(0, 5, {one_}));
  (void)Apply(Names(5, 77, {1}));
  const std::vector<SlotUpdate> updates =
      Apply(Page(5, 6, {{.slot = 1, .generation = 10, .name = "a"}}));
  ASSERT_EQ(updates.size(), 1U);
  EXPECT_EQ(updates[0].generation, 10U);
  EXPECT_FALSE(updates[0].named);
}

TEST_F(GenerationTableTest, AVoidTableNamesAllSlotsAndBeginsAnew) {
  (void)Apply(Page(0, 5, {one_, two_}));
  (void)Apply(Names(5, 77, {}));
  const std::vector<SlotUpdate> nothing = table_.Void();
  ASSERT_EQ(nothing.size(), 2U);
  for (const SlotUpdate& update : nothing) EXPECT_EQ(update.generation, 0U);
  EXPECT_EQ(table_.revision(), 0U);
  EXPECT_EQ(table_.naming(), 0U);
  EXPECT_THAT(table_.Void(), IsEmpty());
}

}  // namespace
}  // namespace kvcove::owner
