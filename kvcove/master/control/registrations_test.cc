// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/control/registrations.h"

#include <gtest/gtest.h>

namespace kvcove::master {
namespace {

constexpr Id128 kHost{.high = 1, .low = 1};
constexpr Id128 kOther{.high = 1, .low = 2};
constexpr std::int64_t kStart = 10 * kSecond;

class RegistrationsTest : public testing::Test {
 protected:
  Registrations::Binding& Bind(const std::string& engine, const Id128& holder, SlotId slot = 3) {
    Registrations::Binding& binding = registrations_.Bind("model", engine, holder, now_);
    registrations_.Name(binding, slot);
    return binding;
  }
  void Wait(std::int64_t ns) {
    now_ += ns;
    registrations_.Expire(now_);
  }
  Registrations registrations_{kStart};
  std::int64_t now_ = kStart + Registrations::kAllNamedNs;
};

TEST_F(RegistrationsTest, AHolderThatIsHeardOfKeepsItsEngines) {
  Bind("e", kHost);
  for (int i = 0; i < 10; ++i) {
    Wait(Registrations::kHolderNs - 1);
    ASSERT_EQ(registrations_.size(), 1U);
    registrations_.Heard(kHost, now_);
  }
  Wait(Registrations::kHolderNs);
  EXPECT_EQ(registrations_.size(), 0U);
  EXPECT_FALSE(registrations_.Named(3, now_));
}

TEST_F(RegistrationsTest, AnEngineLivesAsLongAsOneOfItsHolders) {
  Bind("e", kHost);
  Bind("e", kOther);
  registrations_.EndHolder(kHost);
  EXPECT_EQ(registrations_.size(), 1U);
  registrations_.End("model", "e", kOther);
  EXPECT_EQ(registrations_.size(), 0U);
}

TEST_F(RegistrationsTest, AHolderEndsOnlyWhatItHolds) {
  Bind("mine", kHost);
  Bind("yours", kOther, 4);
  registrations_.EndHolder(kHost);
  EXPECT_EQ(registrations_.Find("model", "mine"), nullptr);
  EXPECT_NE(registrations_.Find("model", "yours"), nullptr);
  registrations_.End("model", "yours", kHost);
  EXPECT_NE(registrations_.Find("model", "yours"), nullptr) << "another process's";
}

TEST_F(RegistrationsTest, WithoutAHolderItEndsByACallOnly) {
  Bind("e", {});
  Wait(1000 * Registrations::kHolderNs);
  EXPECT_EQ(registrations_.size(), 1U);
  registrations_.End("model", "e", {});
  EXPECT_EQ(registrations_.size(), 0U);
}

TEST_F(RegistrationsTest, ASlotIsNamedUntilTheLastOfItsEnginesEnds) {
  for (const char* engine : {"a", "b", "c"}) Bind(engine, kHost);
  for (const char* engine : {"a", "b", "c"}) {
    EXPECT_TRUE(registrations_.Named(3, now_));
    registrations_.End("model", engine, kHost);
  }
  EXPECT_FALSE(registrations_.Named(3, now_));
}

TEST_F(RegistrationsTest, WhatAnEngineNamesReplacesWhatItNamedBefore) {
  Registrations::Binding& binding = Bind("e", kHost, 3);
  Bind("other", kHost, 3);
  const std::uint64_t before = registrations_.version();
  registrations_.SetNamed(binding, {4, 5});
  EXPECT_GT(registrations_.version(), before);
  EXPECT_TRUE(registrations_.Named(3, now_)) << "another engine does";
  EXPECT_TRUE(registrations_.Named(5, now_));
  const std::uint64_t same = registrations_.version();
  registrations_.SetNamed(binding, {5, 4});
  EXPECT_EQ(registrations_.version(), same) << "owners need not hear of that";
  registrations_.SetNamed(binding, {4});
  EXPECT_FALSE(registrations_.Named(5, now_));
}

TEST_F(RegistrationsTest, ASlotOfAnotherNamespaceIsNamedByNobody) {
  Bind("e", kHost, 3);
  registrations_.ForgetSlot(3);
  EXPECT_FALSE(registrations_.Named(3, now_));
  Bind("new", kHost, 3);
  registrations_.End("model", "e", kHost);  // must not take the other's name away
  EXPECT_TRUE(registrations_.Named(3, now_));
}

TEST_F(RegistrationsTest, ForAMinuteAfterAStartWhatAnEarlierMasterKnewIsNamed) {
  EXPECT_FALSE(registrations_.Named(9, kStart));
  registrations_.Inherit(9);
  EXPECT_TRUE(registrations_.Named(9, kStart));
  EXPECT_TRUE(registrations_.Named(9, kStart + Registrations::kAllNamedNs - 1));
  EXPECT_FALSE(registrations_.Named(9, kStart + Registrations::kAllNamedNs));
  EXPECT_FALSE(registrations_.Expire(kStart));
  EXPECT_TRUE(registrations_.Expire(kStart + Registrations::kAllNamedNs)) << "owners hear of it";
  EXPECT_FALSE(registrations_.Expire(kStart + Registrations::kAllNamedNs + 1));
}

TEST_F(RegistrationsTest, ManySessionsThatComeAndGoLeaveNothing) {
  for (std::uint64_t i = 0; i < 100'000; ++i) {
    const std::string engine = "e" + std::to_string(i);
    const Id128 holder{.high = 2, .low = i};
    ASSERT_TRUE(registrations_.CheckRoom("model", engine));
    Bind(engine, holder, static_cast<SlotId>(i % kMaxSlots));
    if (i % 3 == 0) registrations_.End("model", engine, holder);
    if (i % 3 == 1) registrations_.EndHolder(holder);
    if (i % 1000 == 0) Wait(Registrations::kHolderNs);  // the others are not heard of again
  }
  Wait(Registrations::kHolderNs);
  EXPECT_EQ(registrations_.size(), 0U);
  for (SlotId slot = 0; slot < kMaxSlots; ++slot) ASSERT_FALSE(registrations_.Named(slot, now_));
}

TEST_F(RegistrationsTest, ATenantHasAShare) {
  const std::string mine = QualifiedName("acme", "m");
  for (std::size_t i = 0; i < Registrations::kMaxBindings / 4; ++i) {
    registrations_.Bind(mine, "e" + std::to_string(i), kHost, now_);
  }
  const Status refused = registrations_.CheckRoom(mine, "one more");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kLimit);
  EXPECT_NE(refused.error().detail.find("tenant 'acme'"), std::string::npos);
  EXPECT_TRUE(registrations_.CheckRoom(mine, "e0")) << "it has its place already";
  EXPECT_TRUE(registrations_.CheckRoom(QualifiedName("other", "m"), "e"));
  EXPECT_TRUE(registrations_.CheckRoom("m", "e"));
  registrations_.End(mine, "e0", kHost);
  EXPECT_TRUE(registrations_.CheckRoom(mine, "one more"));
}

TEST_F(RegistrationsTest, ThereIsABoundForAll) {
  for (std::size_t i = 0; i < Registrations::kMaxBindings; ++i) {
    registrations_.Bind("m", "e" + std::to_string(i), kHost, now_);
  }
  EXPECT_EQ(registrations_.CheckRoom("m", "one more").error().code, Code::kLimit);
  registrations_.EndHolder(kHost);
  EXPECT_TRUE(registrations_.CheckRoom("m", "one more"));
}

}  // namespace
}  // namespace kvcove::master
