// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/core/spaces.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

namespace kvcove::owner {
namespace {

constexpr std::uint64_t kPayload = 1000;

// A reservation that becomes an object at once.
void AddObject(Spaces& spaces, Spaces::Number number, std::uint64_t bytes) {
  spaces.Reserve(number, bytes);
  spaces.Publish(number, bytes);
}

TEST(SpacesTest, ATenantHasOneSpaceAndOtherNamespacesHaveTheirOwn) {
  Spaces spaces("lru", kPayload, {});
  const Spaces::Number a = spaces.Attach("m");
  EXPECT_EQ(spaces.Attach("m"), a);
  EXPECT_NE(spaces.Attach("n"), a);
  EXPECT_EQ(spaces.Attach(QualifiedName("blue", "m")), spaces.Attach(QualifiedName("blue", "n")));
}

TEST(SpacesTest, ReservationsCountAgainstTheMaximum) {
  Spaces spaces("lru", kPayload, {{"m", {.maximum_bytes = 100}}});
  const Spaces::Number m = spaces.Attach("m");
  spaces.Reserve(m, 60);
  EXPECT_TRUE(spaces.Fits(m, 40));
  EXPECT_FALSE(spaces.Fits(m, 41));
  spaces.Publish(m, 60);
  EXPECT_FALSE(spaces.Fits(m, 41)) << "published or not, it is the same memory";
  spaces.RemoveObject(m, 60, /*pinned=*/false);
  EXPECT_TRUE(spaces.Fits(m, 100));
}

TEST(SpacesTest, ASpaceReservesAtMostHalfOverAllItsSessions) {
  Spaces spaces("lru", kPayload, {});
  const Spaces::Number m = spaces.Attach("m");
  EXPECT_TRUE(spaces.MayReserve(m, 900)) << "one large object always may";
  spaces.Reserve(m, 300);
  EXPECT_TRUE(spaces.MayReserve(m, 200));
  EXPECT_FALSE(spaces.MayReserve(m, 201));
  spaces.Unreserve(m, 300);
  EXPECT_TRUE(spaces.MayReserve(m, 201));
}

TEST(SpacesTest, HardPinsLeaveOthersHalfOfWhatTheyAreGuaranteed) {
  Spaces spaces("lru", kPayload, {{"a", {.guaranteed_bytes = 400}}});
  const Spaces::Number a = spaces.Attach("a");
  const Spaces::Number b = spaces.Attach("b");
  AddObject(spaces, b, 600);
  AddObject(spaces, a, 400);
  EXPECT_TRUE(spaces.MayPin(b, 300));
  EXPECT_FALSE(spaces.MayPin(b, 301)) << "200 of the 500 that may be pinned are kept for a";
  spaces.SetPinned(b, 300, true);
  EXPECT_FALSE(spaces.MayPin(b, 1));
  EXPECT_TRUE(spaces.MayPin(a, 200));
  EXPECT_FALSE(spaces.MayPin(a, 201)) << "b has taken all that they share";
  spaces.RemoveObject(b, 300, /*pinned=*/true);
  EXPECT_TRUE(spaces.MayPin(a, 400));
}

TEST(SpacesTest, OneSpaceAlonePinsHalf) {
  Spaces spaces("lru", kPayload, {});
  const Spaces::Number a = spaces.Attach("a");
  AddObject(spaces, a, 1000);
  EXPECT_TRUE(spaces.MayPin(a, 500));
  EXPECT_FALSE(spaces.MayPin(a, 501));
}

TEST(SpacesTest, ReservationsLeaveWhatIsGuaranteedToOthers) {
  Spaces spaces("lru", kPayload,
                {{"a", {.guaranteed_bytes = 500}}, {"b", {.guaranteed_bytes = 200}}});
  const Spaces::Number a = spaces.Attach("a");
  const Spaces::Number b = spaces.Attach("b");
  const Spaces::Number c = spaces.Attach("c");
  spaces.Reserve(c, 200);
  EXPECT_TRUE(spaces.MayReserve(c, 100));
  EXPECT_FALSE(spaces.MayReserve(c, 101)) << "of 1000 nobody is guaranteed 300";
  EXPECT_TRUE(spaces.MayReserve(b, 300)) << "its own 200, and 100 that are left";
  EXPECT_FALSE(spaces.MayReserve(b, 301));
  EXPECT_TRUE(spaces.MayReserve(a, 500));
}

TEST(SpacesTest, TheVictimIsTheSpaceMostAboveItsGuarantee) {
  Spaces spaces("lru", kPayload, {{"a", {.guaranteed_bytes = 300}}, {"d", {.maximum_bytes = 50}}});
  const Spaces::Number a = spaces.Attach("a");
  const Spaces::Number b = spaces.Attach("b");
  const Spaces::Number c = spaces.Attach("c");
  const Spaces::Number d = spaces.Attach("d");
  EXPECT_EQ(spaces.Victim(a, 10), std::nullopt);
  AddObject(spaces, a, 290);
  AddObject(spaces, b, 60);
  AddObject(spaces, c, 50);
  EXPECT_EQ(spaces.Victim(a, 10), b);
  EXPECT_EQ(spaces.Victim(c, 10), b);
  spaces.Reserve(c, 20);
  EXPECT_EQ(spaces.Victim(a, 10), c) << "what it writes counts, too";
  spaces.Unreserve(c, 20);
  // Nothing can be taken from a space whose objects are all pinned.
  spaces.SetPinned(b, 60, true);
  EXPECT_EQ(spaces.Victim(a, 10), c);
  spaces.RemoveObject(c, 50, false);
  EXPECT_EQ(spaces.Victim(b, 10), std::nullopt) << "the other one is below its guarantee";
  EXPECT_EQ(spaces.Victim(a, 10), a);
  AddObject(spaces, d, 50);
  AddObject(spaces, a, 100);
  EXPECT_EQ(spaces.Victim(d, 10), d) << "at its maximum it gives its own";
}

TEST(SpacesTest, PrioritiesShiftTheSharesOfThoseWhoCompete) {
  Spaces spaces("lru", kPayload, {{"c", {.guaranteed_bytes = 300}}});
  const Spaces::Number low = spaces.Attach("a");
  const Spaces::Number normal = spaces.Attach("b");
  const Spaces::Number high = spaces.Attach("c");
  AddObject(spaces, low, 10);
  AddObject(spaces, normal, 39);
  AddObject(spaces, high, 300 + 160);
  EXPECT_EQ(spaces.Victim(normal, 10), high);
  spaces.SetPriority(high, NamespacePriority::kHigh);
  EXPECT_EQ(spaces.Victim(normal, 10), high) << "40 of 160: what is guaranteed is not weighed";
  spaces.SetPriority(low, NamespacePriority::kLow);
  AddObject(spaces, low, 1);
  EXPECT_EQ(spaces.Victim(normal, 10), low) << "11 count as 44";
  spaces.RemoveObject(low, 2, false);
  EXPECT_EQ(spaces.Victim(normal, 10), high);
  spaces.RemoveObject(high, 8, false);
  EXPECT_EQ(spaces.Victim(normal, 10), normal) << "39 against 38 and 36";
  spaces.RemoveObject(normal, 39, false);
  spaces.RemoveObject(low, 9, false);
  spaces.RemoveObject(high, 151, false);
  EXPECT_EQ(spaces.Victim(normal, 10), high) << "one byte above its guarantee can still be taken";
  spaces.SetPriority(high, NamespacePriority::kNormal);
  EXPECT_EQ(spaces.Victim(normal, 10), high);
}

TEST(SpacesTest, ATenantsNamespacesHaveNoPriority) {
  Spaces spaces("lru", kPayload, {});
  const Spaces::Number tenant = spaces.Attach(QualifiedName("blue", "m"));
  const Spaces::Number other = spaces.Attach("n");
  AddObject(spaces, tenant, 50);
  AddObject(spaces, other, 20);
  spaces.SetPriority(tenant, NamespacePriority::kHigh);
  EXPECT_EQ(spaces.Victim(other, 10), tenant);
}

TEST(SpacesTest, AnEntryIsReusedWhenNothingIsInIt) {
  Spaces spaces("lru", kPayload, {});
  const Spaces::Number a = spaces.Attach("a");
  const std::uint32_t serial = spaces.serial(a);
  AddObject(spaces, a, 10);
  spaces.Detach(a);
  EXPECT_NE(spaces.Attach("b"), a) << "an object is left in it";
  spaces.RemoveObject(a, 10, false);
  EXPECT_EQ(spaces.Attach("c"), a);
  EXPECT_NE(spaces.serial(a), serial) << "the memory of the one is foreign to the other";
  for (int i = 0; i < 100'000; ++i) spaces.Detach(spaces.Attach(fmt::format("n{}", i)));
  EXPECT_LE(spaces.entries(), 3U);
  std::vector<wire::NamespaceStat> stats;
  std::size_t cursor = 0;
  spaces.StatSome(cursor, 100, stats);
  EXPECT_EQ(stats.size(), 2U);
}

TEST(SpacesTest, TheBoundIsARefusal) {
  Spaces spaces("lru", kPayload, {});
  for (std::size_t i = 0; i < Spaces::kMaxSpaces; ++i) {
    ASSERT_NE(spaces.Attach(fmt::format("n{}", i)), Spaces::kNone);
  }
  EXPECT_EQ(spaces.Attach("one more"), Spaces::kNone);
  spaces.Detach(Spaces::kNone);
  spaces.Detach(7);
  EXPECT_EQ(spaces.Attach("one more"), 7);
}

}  // namespace
}  // namespace kvcove::owner
