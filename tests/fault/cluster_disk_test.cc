// SPDX-License-Identifier: Apache-2.0
// The disk tier in a cluster of real processes: values that memory evicted are had from everywhere,
// and come back with their owner, but for what a reset or a removal ended.
#include "tests/fault/cluster_disk_fixture.h"

namespace kvcove {
namespace {

TEST_F(ClusterDiskTest, WhatMemoryEvictsIsHadFromEverywhere) {
  const auto keys = Fill();
  auto there_pool = Open("host1");
  auto there = OpenSession(*there_pool);
  ASSERT_TRUE(Becomes([&] { return OnDisk(Look(*far_, keys)) >= kMany / 2; }));
  // Far more than memory holds, in one call.
  std::size_t expected = keys.size();
  for (Session* session : {far_.get(), there.get(), here_.get()}) {
    EXPECT_GE(Look(*session, keys).size(), expected);
    const Got got = Get(*session, keys);
    EXPECT_GE(got.keys.size(), expected);
    EXPECT_GE(got.from_disk, static_cast<std::size_t>(kMany / 3));
    // So many evictions at once do not all fit into the queue.
    expected = keys.size() * 3 / 4;
  }
  for (const auto& [key, result] : Look(*far_, keys)) {
    if (result.tier != Tier::kDisk) continue;
    const std::string_view view = key;
    const auto places = far_->Places({&view, 1}, {.timeout = kCallTime});
    ASSERT_TRUE(places) << places.error().ToString();
    ASSERT_EQ(places->front().size(), 1U);
    EXPECT_EQ(places->front().front().bytes, kValue);
  }
  for (const auto& [key, result] : Look(*far_, keys)) {
    EXPECT_EQ(Put(*far_, key), Code::kExists);
    EXPECT_EQ(Put(*here_, key), Code::kExists);
  }
  EXPECT_EQ(StatOf(0).disk_errors + StatOf(0).disk_damaged, 0U);
}

TEST_F(ClusterDiskTest, ALookUpWithAHoldStartsTheReadsOnAnotherHost) {
  std::vector<std::string> keys;
  for (const auto& [key, result] : Look(*far_, Fill())) {
    if (result.tier == Tier::kDisk && keys.size() < 8) keys.push_back(key);
  }
  ASSERT_EQ(keys.size(), 8U);  // of an eighth of the memory
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  std::vector<ItemResult> results(views.size());
  ASSERT_TRUE(far_->Exists(views, results, {.timeout = kCallTime, .hold = milliseconds(5000)}));
  for (const ItemResult& result : results) EXPECT_EQ(result.tier, Tier::kDisk);
  EXPECT_TRUE(Becomes([&] {
    const auto found = Look(*far_, keys);
    return found.size() == keys.size() && OnDisk(found) == 0;
  })) << OnDisk(Look(*far_, keys));
  const Got got = Get(*far_, keys);
  EXPECT_EQ(got.keys.size(), keys.size());
  EXPECT_EQ(got.from_disk, 0U);
}

TEST_F(ClusterDiskTest, AResetEndsWhatIsOnTheDiskForEverAndAlsoWhileItsOwnerIsAway) {
  auto keys = Fill();
  ASSERT_TRUE(here_->Reset({.timeout = kCallTime}));
  ASSERT_TRUE(Becomes([&] { return far_->Capture({.timeout = kCallTime}).has_value(); }));
  EXPECT_EQ(MostFound(keys), 0U);
  KillOwner(0);
  StartDiskOwner(0, 2);
  EXPECT_EQ(MostFound(keys), 0U);

  keys = Fill();
  KillOwner(0);
  ASSERT_TRUE(far_->Reset({.timeout = kCallTime}));
  StartDiskOwner(0, 2);
  EXPECT_EQ(MostFound(keys), 0U);
  EXPECT_EQ(Put(*here_, keys.front()), Code::kOk);
}

TEST_F(ClusterDiskTest, AKilledOwnerComesBackWithWhatWasOnItsDisk) {
  const auto keys = Fill();
  std::size_t on_disk = 0;
  ASSERT_TRUE(Becomes([&] {
    on_disk = StatOf(0).disk_objects;
    return on_disk >= kMany / 2;
  })) << on_disk;
  KillOwner(0);
  ASSERT_TRUE(Becomes([&] { return Look(*far_, keys).empty(); }));
  StartDiskOwner(0, 2);
  ExpectBack(keys, on_disk * 9 / 10);
  // A clean end loses nothing.
  const std::size_t before = StatOf(0).disk_objects;
  KillOwner(0, SIGTERM);
  StartDiskOwner(0, 2);
  ExpectBack(keys, before);
}

TEST_F(ClusterDiskTest, RemovalsReachTheDiskAlsoWhileItsOwnerIsAway) {
  const auto keys = Fill();
  const auto others = Keys(kMany / 2, "other");
  Fill(kMany / 2, "other");
  std::vector<std::string> removed(keys.begin(), keys.begin() + 20);
  const std::vector<std::string_view> views(removed.begin(), removed.end());
  std::vector<ItemResult> results(views.size());
  ASSERT_TRUE(far_->Remove(views, results, {.timeout = kCallTime}));
  EXPECT_EQ(MostFound(removed), 0U);
  const auto matched = far_->RemoveMatching("key-1*", {.timeout = kCallTime});
  ASSERT_TRUE(matched) << matched.error().ToString();
  for (const std::string& key : keys) {
    if (key.starts_with("key-1")) removed.push_back(key);
  }
  EXPECT_GT(*matched, 40U);
  EXPECT_EQ(MostFound(removed), 0U);
  KillOwner(0);
  // Proven by a barrier: the owner hears of them when it is back.
  const auto away = far_->RemoveMatching("key-*", {.timeout = kCallTime});
  ASSERT_TRUE(away) << away.error().ToString();
  StartDiskOwner(0, 2);
  EXPECT_EQ(MostFound(keys), 0U);
  ExpectBack(others, 10);
  for (const std::string& key : {keys[0], keys[30]}) EXPECT_EQ(Put(*here_, key), Code::kOk);
}

TEST_F(ClusterDiskTest, WhatIsAcknowledgedAsRemovedStaysRemovedThroughAKillRightAfterIt) {
  const auto keys = Fill();
  for (int round = 0; round < 3; ++round) {
    const std::vector<std::string> some(keys.begin() + round * 10, keys.begin() + round * 10 + 10);
    const std::vector<std::string_view> views(some.begin(), some.end());
    std::vector<ItemResult> results(views.size());
    ASSERT_TRUE(far_->Remove(views, results, {.timeout = kCallTime}));
    KillOwner(0);
    StartDiskOwner(0, 2);
    EXPECT_EQ(MostFound(some), 0U);
    EXPECT_TRUE(Becomes([&] { return !Look(*far_, {keys[40 + round]}).empty(); }));
  }
}

TEST_F(ClusterDiskTest, AMasterThatComesBackFindsTheDiskAndDropsWhatItCannotKnow) {
  const auto keys = Fill();
  const std::size_t on_disk = StatOf(0).disk_objects;
  RestartMaster();
  ASSERT_TRUE(Becomes([&] { return Live() == 2; }));
  ExpectBack(keys, on_disk * 9 / 10);
  // Both are away in turn: what was removed meanwhile is unknown to the later master.
  KillOwner(0);
  ASSERT_TRUE(Becomes([&] { return Live() == 1; }));
  const std::vector<std::string_view> one = {keys[0]};
  std::vector<ItemResult> results(1);
  ASSERT_TRUE(
      Becomes([&] { return far_->Remove(one, results, {.timeout = kCallTime}).has_value(); }));
  RestartMaster();
  ASSERT_TRUE(Becomes([&] { return Live() == 1; }));
  StartDiskOwner(0, 2);
  EXPECT_EQ(MostFound({keys[0]}), 0U);
  Code code = Code::kOk;
  ASSERT_TRUE(Becomes([&] {
    code = Put(*here_, "new");
    return code == Code::kOk || code == Code::kExists;  // after one that was not listed yet
  })) << CodeName(code)
      << "\n"
      << std::ifstream(LogOf(0)).rdbuf();
}

// Owners and the master are killed at any time, removals and resets come while some are away; each
// value that is found must have been put since the last of these that was proven.
class ClusterDiskKillTest : public ClusterDiskTest {
 protected:
  static constexpr std::uint64_t kKeys = 240;
  struct Versions {
    int next = 0;  // the highest that was begun
    int void_up_to = 0;
  };

  std::string KeyOf(std::uint64_t number) const { return fmt::format("k{}", number); }
  // Its answer may be lost, so it counts once it is begun.
  void PutNext(Session& session, std::uint64_t number) {
    Versions& versions = versions_[number];
    const std::string value = ValueOf(fmt::format("{}.{}", KeyOf(number), versions.next + 1));
    const ConstBuffer piece{.data = value.data(), .size = value.size()};
    const std::string key = KeyOf(number);
    const PutItem item{.key = key, .value = {&piece, 1}, .after = {}};
    ItemResult result;
    const auto token = session.Capture({.timeout = milliseconds(200)});
    if (!token) return;
    (void)session.Put(*token, {&item, 1}, {&result, 1}, {.timeout = milliseconds(500)});
    if (result.code != Code::kExists) ++versions.next;
  }
  void RemoveOne(Session& session, std::uint64_t number) {
    const std::string key = KeyOf(number);
    const std::string_view view = key;
    ItemResult result;
    const Status removed =
        session.Remove({&view, 1}, {&result, 1}, {.timeout = milliseconds(4000)});
    if (!removed || (result.code != Code::kOk && result.code != Code::kMiss)) return;
    versions_[number].void_up_to = versions_[number].next;
  }
  void RemoveMany(Session& session, std::uint64_t digit) {
    const auto removed =
        session.RemoveMatching(fmt::format("k*{}", digit), {.timeout = milliseconds(4000)});
    if (!removed) return;
    for (std::uint64_t i = digit; i < kKeys; i += 10) {
      versions_[i].void_up_to = versions_[i].next;
    }
  }
  void ResetAll(Session& session) {
    if (!session.Reset({.timeout = milliseconds(4000)})) return;
    for (auto& [number, versions] : versions_) versions.void_up_to = versions.next;
  }
  void DoOne(Random& random) {
    Session& session = random.OneIn(3) ? *far_ : *here_;
    const std::uint64_t number = random.Below(kKeys);
    if (random.OneIn(12)) return RemoveOne(session, number);
    if (random.OneIn(200)) return RemoveMany(session, random.Below(10));
    PutNext(session, number);
  }
  void Verify(Session& session) {
    for (std::uint64_t i = 0; i < kKeys; ++i) {
      const std::string key = KeyOf(i);
      std::string value(kValue, '\0');
      const MutableBuffer piece{.data = value.data(), .size = value.size()};
      const GetItem item{.key = key, .into = {&piece, 1}};
      ItemResult result;
      (void)session.Get({&item, 1}, {&result, 1}, {.timeout = milliseconds(3000)});
      if (!result.ok()) continue;
      ++found_;
      from_disk_ += result.tier == Tier::kDisk ? 1 : 0;
      bool right = false;
      const Versions& versions = versions_[i];
      for (int v = versions.void_up_to + 1; v <= versions.next + 1; ++v) {
        right |= value == ValueOf(fmt::format("{}.{}", key, v));
      }
      ASSERT_TRUE(right) << key << " has a value of before: void up to " << versions.void_up_to
                         << " of " << versions.next;
    }
  }

  std::map<std::uint64_t, Versions> versions_;
  std::size_t found_ = 0;
  std::size_t from_disk_ = 0;
};

TEST_F(ClusterDiskKillTest, NothingThatEndedComesBackWhoeverIsKilled) {
  const char* rounds = std::getenv("KVCOVE_DISK_ROUNDS");
  Random random(rounds == nullptr ? 11 : RandomU64());
  for (int round = 0; round < (rounds == nullptr ? 6 : std::atoi(rounds)); ++round) {
    for (int i = 0; i < 250; ++i) DoOne(random);
    const bool master_goes = random.OneIn(2);
    const std::size_t owner_goes = random.Below(3);  // 2: none
    if (owner_goes < 2) KillOwner(owner_goes);
    if (master_goes) RestartMaster();
    // What is said meanwhile, the owner hears of when it is back, or the master has forgotten.
    for (int i = 0; i < 20; ++i) DoOne(random);
    RemoveMany(*far_, random.Below(10));
    if (random.OneIn(3)) ResetAll(*far_);
    if (owner_goes < 2 && random.OneIn(3)) RestartMaster();
    if (owner_goes < 2) StartDiskOwner(owner_goes, 2);
    if (HasFatalFailure()) return;
    ASSERT_TRUE(Becomes([&] { return Live() == 2; }));
    ASSERT_TRUE(Becomes([&] {
      return far_->Capture({.timeout = kCallTime}).has_value() &&
             here_->Capture({.timeout = kCallTime}).has_value();
    }));
    for (Session* session : {here_.get(), far_.get()}) {
      Verify(*session);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(found_, 100U);
  EXPECT_GT(from_disk_, 10U);
}

TEST_F(ClusterDiskTest, ADiskThatFailsIsUsedAgainWithoutWhatWasRemovedMeanwhile) {
  const auto keys = Fill();
  const auto on_disk = Look(*far_, keys);
  ASSERT_GE(OnDisk(on_disk), static_cast<std::size_t>(kMany / 2));
  ASSERT_NO_FATAL_FAILURE(LimitFiles(0, 1 << 20));
  int next = 0;
  ASSERT_TRUE(Becomes([&] {
    for (int i = 0; i < 20; ++i) (void)Put(*here_, fmt::format("broken-{}", next++));
    return StatOf(0).disk_aside != 0;
  }));
  // Memory goes on, and a miss of what is on the disk says why. What was still queued when the disk
  // failed is lost.
  std::vector<std::string> missing;
  ASSERT_TRUE(Becomes([&] {
    const std::vector<std::string_view> views(keys.begin(), keys.end());
    std::vector<ItemResult> results(keys.size());
    EXPECT_TRUE(far_->Exists(views, results, {.timeout = kCallTime}));
    missing.clear();
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto before = on_disk.find(keys[i]);
      if (before == on_disk.end() || before->second.tier != Tier::kDisk) continue;
      if (results[i].reason == MissReason::kDiskFailed) missing.push_back(keys[i]);
    }
    return missing.size() >= kMany / 2;
  })) << missing.size();
  const std::string removed = missing.front();
  missing.erase(missing.begin());
  const std::string_view one = removed;
  ItemResult result;
  ASSERT_TRUE(far_->Remove({&one, 1}, {&result, 1}, {.timeout = kCallTime}));
  EXPECT_EQ(Put(*far_, missing.front()), Code::kOk) << "it may be stored again";
  ASSERT_NO_FATAL_FAILURE(LimitFiles(0, RLIM_INFINITY));
  // Tried again after 10 s.
  ASSERT_TRUE(Becomes([&] { return StatOf(0).disk_aside == 0; }));
  EXPECT_EQ(MostFound({removed}), 0U);
  EXPECT_TRUE(Becomes([&] { return Look(*far_, missing).size() == missing.size(); }))
      << Look(*far_, missing).size() << " of " << missing.size();
  // The master has heard of them, so the disk is about to be on.
  EXPECT_TRUE(Becomes([&] { return Get(*far_, missing).keys.size() >= missing.size() * 9 / 10; }));
  EXPECT_EQ(MostFound({removed}), 0U);
}

// What is stored is void then, and nobody is started again for that.
TEST_F(ClusterDiskTest, ADiskIsUsedAgainAfterTheMastersDataWereLost) {
  const auto keys = Fill();
  ASSERT_GE(StatOf(0).disk_objects, static_cast<std::uint64_t>(kMany / 2));
  End(std::exchange(master(), 0), SIGKILL);
  std::filesystem::remove_all(directory() + "/master");
  StartMaster();
  ASSERT_TRUE(Becomes([&] {
    return Live() == 2 && here_->Reset({.timeout = kCallTime}).has_value() &&
           here_->Capture({.timeout = kCallTime}).has_value();
  }));
  ASSERT_TRUE(Becomes([&] { return StatOf(0).disk_aside == 0; })) << Said(0);
  EXPECT_EQ(MostFound(keys), 0U);
  Fill(kMany, "later");
  EXPECT_GE(StatOf(0).disk_objects, static_cast<std::uint64_t>(kMany / 2));
  EXPECT_EQ(MostFound(keys), 0U);
}

TEST_F(ClusterDiskTest, AnOwnerWithoutItsIdentityStartsEmpty) {
  const auto keys = Fill();
  KillOwner(0);
  std::filesystem::remove_all(DiskOf(0) + "/kvcove.disk.data");
  StartDiskOwner(0, 2);
  EXPECT_EQ(MostFound(keys), 0U);
  EXPECT_EQ(Put(*here_, keys.front()), Code::kOk);
}

TEST_F(ClusterDiskTest, WhatTheDiskHasNoRoomForIsForgottenEverywhere) {
  const auto keys = Fill(1200);  // twice what memory and disk hold
  ASSERT_GT(StatOf(0).disk_evictions, 100U);
  // Each that is said to be there is there.
  EXPECT_TRUE(Becomes([&] {
    const auto found = Look(*far_, keys);
    return !found.empty() && found.size() < 700;
  })) << Look(*far_, keys).size();
  std::vector<std::string> said;
  for (const auto& [key, result] : Look(*far_, keys)) said.push_back(key);
  const std::size_t count = said.size();
  // More than once: on a busy machine the owner's lease may end for a moment. The 80 values of
  // memory go down as others come up, so the disk gives up about as many.
  EXPECT_TRUE(Becomes([&] {
    const Got got = Get(*far_, said);
    std::erase_if(said, [&](const std::string& key) { return got.keys.contains(key); });
    return said.size() <= 80 + count / 20;
  })) << said.size()
      << " of " << count;
  // What came up made room for itself: what the disk lost with that is forgotten, too.
  EXPECT_TRUE(Becomes([&] {
    std::vector<std::string> listed;
    for (const auto& [key, result] : Look(*far_, said)) listed.push_back(key);
    if (listed.empty()) return true;
    const Got got = Get(*far_, listed);
    std::erase_if(said, [&](const std::string& key) { return got.keys.contains(key); });
    return false;
  })) << Look(*far_, said).size()
      << " are listed, and nobody has them";
  EXPECT_EQ(Put(*far_, keys.front()), Code::kOk);
}

}  // namespace
}  // namespace kvcove
