// SPDX-License-Identifier: Apache-2.0
// Which slot a namespace and weight version gets, and when it is taken away again.
#include <gtest/gtest.h>

#include "kvcove/master/control/generations.h"
#include "kvcove/master/control/generations_fixture.h"

namespace kvcove::master {
namespace {

constexpr std::int64_t kLater = 2 * Registrations::kAllNamedNs;

class SlotsTest : public GenerationsFixture {
 protected:
  void UseSlots(std::uint32_t all, std::uint32_t of_a_tenant = kMaxSlots) {
    options_ = {.max_slots = all, .tenant_slots = of_a_tenant};
    generations_ = std::make_unique<Generations>(options_, Id128{.high = 1, .low = 1}, now_);
    now_ += kLater;  // after a start everything counts as named for a while
  }
  RegisterRequest For(const std::string& name, const std::string& version = "") {
    return {.name = name, .version = version, .engine = "e"};
  }
  void End(const std::string& name) { generations_->EndEngine(name, "e", {}); }
};

TEST_F(SlotsTest, NamespacesThatComeAndGoUseUpNoSlot) {
  UseSlots(64);
  std::set<Generation> seen;
  for (int i = 0; i < 5000; ++i) {
    const std::string name = "n" + std::to_string(i);
    const Registration registered = Register(For(name));
    EXPECT_LT(registered.slot, 64);
    EXPECT_TRUE(seen.insert(registered.generation).second) << "of a slot's former namespace";
    End(name);
  }
  EXPECT_EQ(generations_->registrations().size(), 0U);
  EXPECT_EQ(generations_->used_slots(), 64U);
  EXPECT_EQ(StoredKeys("slot/"), 64U);
  Restart();
  EXPECT_EQ(generations_->used_slots(), 64U);
}

TEST_F(SlotsTest, WhenAllAreNamedANewOneIsRefused) {
  UseSlots(4);
  for (const char* name : {"a", "b", "c", "d"}) Register(For(name));
  const auto refused = TryRegister(For("e"));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kLimit);
  EXPECT_NE(refused.error().detail.find("all 4 pairs"), std::string::npos);
  EXPECT_TRUE(Register(For("a")).open) << "what has a slot goes on";
}

TEST_F(SlotsTest, AResetOfANewNamespaceTakesNoSlotThatTheSameDecisionRaises) {
  UseSlots(1);
  const Registration model = Register(For(name_));
  End(name_);
  ResetRequest other = Request("e", std::nullopt, 0, false);
  other.name = "other";
  EXPECT_EQ(ResetAll({Request("e", std::nullopt, 0, false), other}), 1U);
  EXPECT_EQ(generations_->FindSlot(name_, ""), model.slot);
  EXPECT_FALSE(generations_->FindSlot("other", "")) << "a reset without room for a slot succeeds";
}

TEST_F(SlotsTest, ResetsOfNewNamespacesInOneDecisionStayWithinTheTenantsShare) {
  UseSlots(64, /*of_a_tenant=*/4);
  std::vector<ResetRequest> requests;
  for (int i = 0; i < 20; ++i) {
    requests.push_back(Request("e", std::nullopt, 0, false));
    requests.back().name = QualifiedName("acme", std::to_string(i));
  }
  EXPECT_EQ(ResetAll(requests), 0U);
  EXPECT_EQ(generations_->used_slots(), 4U);
}

TEST_F(SlotsTest, TheOneThatNobodyNamesForTheLongestTimeGivesWay) {
  UseSlots(3);
  const Registration a = Register(For("a"));
  const Registration b = Register(For("b"));
  const Registration c = Register(For("c"));
  Register(For("a"));  // b is the oldest now
  for (const char* name : {"c", "b", "a"}) End(name);
  EXPECT_EQ(Register(For("d")).slot, b.slot);
  EXPECT_EQ(Register(For("e")).slot, c.slot);
  EXPECT_EQ(Register(For("f")).slot, a.slot);
  EXPECT_FALSE(generations_->FindSlot("a", ""));
}

TEST_F(SlotsTest, NamingAVersionKeepsItYoung) {
  UseSlots(2);
  const Registration one = Register(For("m", "v1"));
  const Registration two = Register(For("m", "v2"));
  generations_->NameVersions("m", "e", {"v1"});
  generations_->NameVersions("m", "e", {});
  EXPECT_EQ(Register(For("m", "v3")).slot, two.slot);
  EXPECT_EQ(generations_->PublishedOf(one.slot).update.generation, one.generation);
}

TEST_F(SlotsTest, ForAMinuteAfterAStartWhatAnEarlierMasterKnewCountsAsNamed) {
  UseSlots(3);
  Register(For("a", "v"));
  Register(For("b", "v"));
  Restart();
  EXPECT_TRUE(generations_->UnnamedSlots(now_).empty());
  const Registration fresh = Register(For("c", "v"));
  End("c");
  EXPECT_EQ(generations_->UnnamedSlots(now_), std::vector<SlotId>{fresh.slot});
  now_ += Registrations::kAllNamedNs;
  EXPECT_EQ(generations_->UnnamedSlots(now_).size(), 3U);
}

TEST_F(SlotsTest, JustAfterAStartAFullTableRefusesNobody) {
  UseSlots(3);
  const Registration a = Register(For("a"));
  Register(For("b"));
  Restart();
  const Registration c = Register(For("c"));
  End("c");
  EXPECT_EQ(Register(For("d")).slot, c.slot) << "one that nobody names goes first";
  // Then those that an earlier master knew and whose engines have not come yet, the oldest first.
  Register(For("b"));
  EXPECT_EQ(Register(For("e")).slot, a.slot);
  EXPECT_EQ(TryRegister(For("f")).error().code, Code::kLimit) << "all are in use";
}

TEST_F(SlotsTest, OnlyVersionsCanBeUnnamed) {
  UseSlots(8);
  const Registration plain = Register(For("a"));
  const Registration versioned = Register(For("a", "v"));
  EXPECT_FALSE(generations_->Unnamed(versioned.slot, now_));
  End("a");
  EXPECT_EQ(generations_->UnnamedSlots(now_), std::vector<SlotId>{versioned.slot});
  EXPECT_FALSE(generations_->Unnamed(plain.slot, now_));
}

TEST_F(SlotsTest, ATenantHasAShareAndAnErrorOfItsOwn) {
  UseSlots(8, /*of_a_tenant=*/2);
  const std::string one = QualifiedName("acme", "one");
  Register(For(one));
  Register(For(QualifiedName("acme", "two")));
  const auto refused = TryRegister(For(QualifiedName("acme", "three")));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kLimit);
  EXPECT_EQ(generations_->refused().slots, 1U);
  EXPECT_NE(refused.error().detail.find("tenant 'acme'"), std::string::npos);
  EXPECT_TRUE(TryRegister(For(QualifiedName("other", "one")))) << "nobody else's share";
  EXPECT_TRUE(TryRegister(For("of nobody")));
  End(one);
  EXPECT_TRUE(TryRegister(For(QualifiedName("acme", "three"))));
}

TEST_F(SlotsTest, ATenantAtItsShareGivesUpItsOwnSlotsOnly) {
  UseSlots(8, /*of_a_tenant=*/1);
  const Registration other = Register(For(QualifiedName("other", "one")));
  End(QualifiedName("other", "one"));  // the oldest that nobody names
  const Registration mine = Register(For(QualifiedName("acme", "one")));
  End(QualifiedName("acme", "one"));
  EXPECT_EQ(Register(For(QualifiedName("acme", "two"))).slot, mine.slot);
  EXPECT_EQ(generations_->PublishedOf(other.slot).update.generation, other.generation);
}

TEST_F(SlotsTest, AShareIsCountedAgainAfterARestart) {
  UseSlots(8, /*of_a_tenant=*/1);
  Register(For(QualifiedName("acme", "one")));
  const Registration other = Register(For(QualifiedName("other", "one")));
  Restart();
  const Registration second = Register(For(QualifiedName("acme", "two")));
  EXPECT_NE(second.slot, other.slot) << "it takes the place of its own";
  EXPECT_FALSE(generations_->FindSlot(QualifiedName("acme", "one"), ""));
}

TEST_F(SlotsTest, AfterAVoidEverySlotIsFreeUnderNumbersNeverUsedBefore) {
  UseSlots(8);
  const Registration a = Register(For("a"));
  const Registration b = Register(For("b", "v"));
  const Generations::Plan plan = generations_->PlanVoid();
  EXPECT_EQ(generations_->PublishedOf(a.slot).update.generation, a.generation)
      << "not before it is stored";
  generations_->Void({.high = 2, .low = 2}, plan, Store(plan.changes));
  EXPECT_EQ(generations_->used_slots(), 0U);
  for (const Registration& of : {a, b}) {
    const Generations::Published published = generations_->PublishedOf(of.slot);
    EXPECT_EQ(published.update.generation, 0U);
    EXPECT_EQ(published.revision, revision_);
  }
  Restart();
  const Registration again = Register(For("a"));
  EXPECT_GT(Generations::CounterOf(again.generation), Generations::CounterOf(b.generation));
}

TEST_F(SlotsTest, AClosedEngineIsNotOpenedByAVoid) {
  UseSlots(8);
  name_ = "m";
  Register("a");
  Register("b");
  Reset("a");  // b has not heard of it yet
  const Generations::Plan plan = generations_->PlanVoid();
  generations_->Void({.high = 2, .low = 2}, plan, Store(plan.changes));
  EXPECT_TRUE(Register("a").open);
  EXPECT_FALSE(Register("b").open) << "it has other weights than a";
}

TEST_F(SlotsTest, AResetThatMakesTheSlotAnewClosesWhoeverWasBoundToTheLastOne) {
  UseSlots(2);
  ASSERT_TRUE(Register("bound").open);
  Register("bound", "v1");
  generations_->NameVersions(name_, "bound", {"v1"});
  Register(For("other"));
  ASSERT_FALSE(generations_->FindSlot(name_, "")) << "it gave way";
  End("other");
  Reset("another");
  ASSERT_TRUE(generations_->FindSlot(name_, ""));
  EXPECT_FALSE(Register("bound").open) << "the weights of its values are others";
  EXPECT_TRUE(Register("another").open);
  Reset("bound");
  EXPECT_TRUE(Register("bound").open);
}

TEST_F(SlotsTest, AnEngineThatResetsWithoutARegistrationLeavesNothingBehind) {
  UseSlots(8);
  name_ = "m";
  Register("a");
  for (int i = 0; i < 1000; ++i) Reset("gone" + std::to_string(i));
  now_ += Registrations::kHolderNs;
  generations_->registrations().Expire(now_);
  EXPECT_EQ(generations_->registrations().size(), 1U) << "a, which is registered";
}

TEST_F(SlotsTest, AResetKeepsTheRegistrationOfWhoeverRegistersAfterIt) {
  UseSlots(8);
  name_ = "m";
  Reset("a");
  Register("a");  // without a holder: it ends by a call
  now_ += Registrations::kHolderNs;
  generations_->registrations().Expire(now_);
  EXPECT_EQ(generations_->registrations().size(), 1U);
}

TEST_F(SlotsTest, NamesThatNobodyMayUseAreRefused) {
  EXPECT_EQ(TryRegister({.name = "a\nb", .engine = "e"}).error().code, Code::kInvalid);
  EXPECT_EQ(
      TryRegister({.name = "a", .version = std::string(600, 'v'), .engine = "e"}).error().code,
      Code::kInvalid);
  EXPECT_EQ(TryRegister({.name = "a", .engine = ""}).error().code, Code::kInvalid);
}

}  // namespace
}  // namespace kvcove::master
