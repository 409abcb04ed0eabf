// SPDX-License-Identifier: Apache-2.0
// An owner with a disk as its link to the master drives it, over a real file, through restarts.
#include <fcntl.h>
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <set>
#include <thread>

#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"
#include "kvcove/owner/link/link_core.h"
#include "kvcove/owner/owner.h"
#include "tests/becomes.h"
#include "tests/breaking_device.h"
#include "tests/held_note.h"
#include "tests/put_in_time.h"

namespace kvcove::owner {
namespace {

constexpr std::uint32_t kTierValue = 50'000;  // so that 20 fit in memory
constexpr SlotId kTierSlot = 3;
constexpr Generation kGeneration = 9ULL << 24;
constexpr Id128 kPool{.high = 1, .low = 1};
constexpr Id128 kIncarnation{.high = 2, .low = 2};
const Token kToken{.incarnation = kIncarnation, .generation = kGeneration, .slot = kTierSlot};

// Writes wait while they are held: the disk's thread stands where it would write.
class HeldDevice final : public BreakingDevice {
 public:
  HeldDevice(std::unique_ptr<disklog::Device> device, const std::atomic<bool>& broken,
             const std::atomic<bool>& held, std::atomic<int>& waiting)
      : BreakingDevice(std::move(device), broken), held_(held), waiting_(waiting) {}
  void Write(std::uint64_t offset, std::span<const std::byte> from, Done done) override {
    ++waiting_;
    while (held_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --waiting_;
    BreakingDevice::Write(offset, from, std::move(done));
  }

 private:
  const std::atomic<bool>& held_;
  std::atomic<int>& waiting_;
};

class ClusterTierTest : public testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    std::string name = testing::TempDir() + "/kvcove-tier-XXXXXX";
    directory_ = mkdtemp(name.data());
    const auto facts = Begin();
    if (!facts && facts.error().detail.find("O_DIRECT") != std::string::npos) {
      GTEST_SKIP() << facts.error().ToString();
    }
    ASSERT_TRUE(facts) << facts.error().ToString();
    Join(*facts);
  }
  void TearDown() override {
    End();
    std::filesystem::remove_all(directory_);
  }

  // A process begins; no master is heard of yet.
  Result<OwnerFacts> Begin() {
    OwnerOptions options;
    options.memory_bytes = 1 << 20;
    options.populate = false;
    options.policy = "lru";
    options.cluster = true;
    options.disks = {{.path = directory_ + "/disk", .size_bytes = 24 << 20}};
    options.tier = {
        .least_retry_ns = kMillisecond,
        .most_retry_ns = 8 * kMillisecond,
        .opening_again_ns = opening_again_ns_,
        .opening_await_ns = 600 * kSecond,  // no test waits for the end of it
        .strike_ns = 20 * kMillisecond,
        .hang_ns = hang_ns_,
        .open = [this](const std::string& path) { return OpenDevice(path); },
        .write_facts = [this](const std::string& directory,
                              const OwnerFacts& facts) { return WriteFacts(directory, facts); }};
    KVCOVE_ASSIGN(owner_, Owner::Open(options, SystemClock::Instance()));
    KVCOVE_ASSIGN(OwnerFacts facts, owner_->PrepareDisks(directory_ + "/data"));
    EXPECT_TRUE(owner_->Start());
    session_ = owner_->data_side().AddRemoteSession();
    return facts;
  }
  Result<std::unique_ptr<disklog::Device>> OpenDevice(const std::string& path) {
    if (broken_) return kvcove::Fail(Code::kUnavailable, "broken");
    ++waiting_;
    while (held_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --waiting_;
    KVCOVE_ASSIGN(auto device, disklog::OpenDevice(path));
    ++opened_;
    if (!writes_held_) return std::make_unique<BreakingDevice>(std::move(device), broken_);
    return std::make_unique<HeldDevice>(std::move(device), broken_, writes_held_, waiting_);
  }
  Status WriteFacts(const std::string& directory, const OwnerFacts& facts) {
    while (facts_held_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return WriteOwnerFacts(directory, facts);
  }
  bool AwaitKept(const OwnerFacts& facts) const {
    return Becomes([&] { return *ReadOwnerFacts(directory_ + "/data") == facts; });
  }
  // The opening that renewals name, once it is another one than `last`.
  Id128 NextOpening(const Id128& last = {}) {
    Id128 named;
    EXPECT_TRUE(Becomes([&] {
      named = owner_->link_side().Report().opening;
      return named != Id128{} && named != last;
    }));
    return named;
  }
  // The disks are open, and puts are taken: the opener publishes the generations behind that.
  bool AwaitServed() const {
    return Becomes([&] { return owner_->disks().open() && !owner_->data_side().Awaits(kToken); });
  }
  // The disk's thread waits where it opens the disk, or where it writes to it.
  bool AwaitHeld() const {
    return Becomes([&] { return waiting_ > 0; });
  }
  // The disk has been opened since `opened`, and its thread has let it go again.
  bool AwaitLetGo(int opened) const {
    return Becomes(
        [&] { return opened_ > opened && disklog::OpenDevice(directory_ + "/disk").has_value(); });
  }
  // Until it is set aside.
  void Break() {
    broken_ = true;
    int next = 0;
    ASSERT_TRUE(Becomes([&] {
      (void)Put("broken-" + std::to_string(next++));
      return owner_->Stat().disk_aside != 0;
    }));
  }
  // The disk works, and what it holds is to be reported.
  void Mend() {
    broken_ = false;
    ASSERT_TRUE(Becomes([&] { return owner_->link_side().ReportAgainFrom().has_value(); }));
  }
  // It is used again, and holds nothing.
  bool AwaitEmpty() const {
    return Becomes([&] {
      const PoolStat stat = owner_->Stat();
      return stat.disk_aside == 0 && stat.disk_objects == 0;
    });
  }
  // All is reported to the master anew, once the note names no disk that is away.
  bool BeginsEpoch() {
    return Becomes([&] { return owner_->link_side().TakeGoneOverflow(); });
  }
  std::vector<KnownDisk> Noted() const { return *KnownDisks(directory_ + "/data").Read(); }
  void Publish(Generation generation = kGeneration) {
    owner_->link_side().Publish(kIncarnation,
                                {{.slot = kTierSlot, .generation = generation, .name = "m"}});
  }
  // The master has welcomed it and sent all generations.
  void Join(OwnerFacts facts, Generation generation = kGeneration) {
    facts.pool = kPool;
    facts.incarnation = kIncarnation;
    facts.seen = {.term = 1, .tag = 2, .revision = 3};
    facts_ = facts;
    owner_->link_side().Follow(facts);
    Publish(generation);
    owner_->link_side().TableKnown();
    ASSERT_TRUE(AwaitServed());
  }
  // The master knows it as another one, or is another pool's: as the link says it to its target.
  void Follow(const OwnerFacts& other) {
    owner_->link_side().Follow(other);
    owner_->link_side().Publish(kIncarnation, {{.slot = kTierSlot, .name = {}}});
    owner_->link_side().DropVoidSlot(kTierSlot);
    Publish();
  }
  void End() {
    if (owner_ == nullptr) return;
    owner_->link_side().EndDiskWaits();
    owner_->Stop();
    owner_.reset();
  }
  // As a process gives it to its successor; the link is paused, or has never been.
  void BeginHandOver() {
    owner_->disks().Drain();
    ASSERT_NO_FATAL_FAILURE(AwaitOpen());
    owner_->Freeze();
    owner_->link_side().EndDiskWaits();
    ASSERT_TRUE(owner_->PauseDisks());
  }
  void HandOver() {
    BeginHandOver();
    StateWriter state = *StateWriter::Open();
    StateWriter policies = *StateWriter::Open();
    ASSERT_TRUE(owner_->Save(state, policies));
    Owner::Files files = *owner_->CopyFiles();
    const auto pages = *state.Finish();
    const auto learned = *policies.Finish();
    auto next = Owner::Map(owner_->options(),
                           {.header = std::move(files.memory.header),
                            .payload = std::move(files.memory.payload),
                            .pages = {}},
                           SystemClock::Instance());
    ASSERT_TRUE(next) << next.error().ToString();
    StateReader reads = *StateReader::Open(pages);
    StateReader policy = *StateReader::Open(learned);
    const auto loaded = (*next)->Restore(reads, policy, std::move(files));
    ASSERT_TRUE(loaded) << loaded.error().ToString();
    owner_ = std::move(*next);
    EXPECT_TRUE(owner_->ResumeClusterDisks());
    EXPECT_TRUE(owner_->Start());
  }
  void AwaitOpen() {
    ASSERT_TRUE(Becomes([&] { return owner_->MayPauseDisks().has_value(); }));
  }
  void Restart(Generation generation = kGeneration) {
    End();
    const auto facts = Begin();
    ASSERT_TRUE(facts) << facts.error().ToString();
    ASSERT_EQ(*facts, facts_) << "it is what it was";
    Join(*facts, generation);
  }

  // As Restart, but `held` is set, so that the disks do not open.
  void BeginHeld(std::atomic<bool>& held) {
    End();
    hang_ns_ = kSecond;
    const auto facts = Begin();
    ASSERT_TRUE(facts) << facts.error().ToString();
    held = true;
    owner_->link_side().Follow(facts_);
    owner_->link_side().Publish(facts_.incarnation,
                                {{.slot = kTierSlot, .generation = kGeneration, .name = "m"}});
    owner_->link_side().TableKnown();
  }

  static std::string ValueOf(const std::string& key) {
    std::string value(kTierValue, '\0');
    Random random(std::hash<std::string>()(key));
    for (char& byte : value) byte = static_cast<char>(random.Next());
    return value;
  }
  // The master lists it at once.
  Code Put(const std::string& key, std::uint32_t group = 7) {
    return PutInTime([&] { return PutOnce(key, group); });
  }
  Code PutOnce(const std::string& key, std::uint32_t group) {
    const PutItem item{.key = key, .size_bytes = kTierValue, .value = {}, .after = {}};
    const PutResult place = owner_->data_side().Reserve(session_, kToken, {&item, 1}).front();
    if (place.code != Code::kOk) return place.code;
    const std::string value = ValueOf(key);
    std::size_t at = 0;
    for (const Extent& extent : place.extents) {
      const auto room = owner_->data_side().payload().At(extent);
      const std::size_t count = std::min(room.size(), value.size() - at);
      std::memcpy(room.data(), value.data() + at, count);
      at += count;
    }
    Code outcome = Code::kInProgress;
    const FinishItem finish{
        .reservation = place.reservation, .commit = true, .group = group, .copies = 2};
    owner_->data_side().FinishThen(
        session_, {&finish, 1}, [&](const std::vector<Code>& codes) { outcome = codes.front(); });
    for (Listing& listing : owner_->link_side().TakeListings(10)) {
      owner_->link_side().CompleteListing(std::move(listing), std::vector{Code::kOk});
    }
    return outcome;
  }
  void Fill(int count, const std::string& prefix = "key") {
    const PoolStat before = owner_->Stat();
    const std::uint64_t lost = before.disk_puts - before.disk_objects;
    for (int i = 0; i < count; ++i) {
      ASSERT_EQ(Put(fmt::format("{}-{}", prefix, i)), Code::kOk);
      ASSERT_TRUE(Becomes([&] { return owner_->Stat().disk_queued_bytes < (1 << 20); }));
    }
    ASSERT_TRUE(Becomes([&] {
      const PoolStat stat = owner_->Stat();
      return stat.disk_queued_bytes == 0 && stat.disk_objects + lost == stat.disk_puts;
    }));
  }
  std::vector<InventoryItem> Inventory(ObjectId from = 0) {
    // A walk that waits for ever is ended as when the link ends, and fails its test.
    std::promise<void> done;
    std::atomic<bool> late{false};
    std::thread watch([&, ended = done.get_future()] {
      if (ended.wait_for(std::chrono::seconds(30)) == std::future_status::ready) return;
      ADD_FAILURE() << "a walk over what this owner has does not end";
      late = true;
      owner_->link_side().EndDiskWaits();
    });
    std::vector<InventoryItem> all;
    for (ObjectId cursor = from; cursor != Core::kWalkDone && !late;) {
      const auto some = owner_->link_side().Inventory(cursor, 7);
      all.insert(all.end(), some.begin(), some.end());
    }
    done.set_value();
    watch.join();
    return all;
  }
  // Removes the key, as the link does, and returns whether the removal is proven.
  bool RemoveKey(const std::string& key) {
    owner_->link_side().ApplyKeys(
        {.number = 1, .slot = kTierSlot, .generation = kGeneration, .keys = {key}, .pattern = {}});
    return owner_->link_side().AwaitApplied();
  }
  // Removes by pattern, as the link does, and returns the number of objects.
  std::uint64_t RemoveMatching(const std::string& pattern) {
    std::uint64_t objects = owner_->link_side()
                                .BeginPattern({.number = 2,
                                               .slot = kTierSlot,
                                               .generation = kGeneration,
                                               .keys = {},
                                               .pattern = pattern})
                                .objects;
    EXPECT_TRUE(Becomes([&] {
      const auto ended = owner_->link_side().TakeEndedPatterns();
      for (const wire::RemovalsRequest::Count& count : ended) objects += count.objects;
      return !ended.empty();
    }));
    return objects;
  }
  // The master has accepted what the walk reported.
  void Reported() {
    owner_->link_side().WalkEnds();
    owner_->link_side().Reported();
  }
  static std::set<std::string> OnDisk(const std::vector<InventoryItem>& items) {
    std::set<std::string> keys;
    for (const InventoryItem& item : items) {
      if (item.item.tier == kvcove::Tier::kDisk) keys.insert(item.key);
    }
    return keys;
  }
  static bool Reports(const std::vector<InventoryItem>& items, const std::string& key, bool gone) {
    return std::ranges::any_of(items, [&](const InventoryItem& reported) {
      return reported.item.hash == DirectoryHash(kTierSlot, key) && reported.item.gone == gone;
    });
  }
  // Brought up for another host, and held for it as long.
  Loan Get(const std::string& key, std::int64_t within_ns = 10 * kSecond) {
    const std::string_view view = key;
    Loan loan = owner_->data_side().Lend(kToken, {&view, 1}).front();
    if (loan.code == Code::kOk) return loan;
    std::atomic<bool> done{false};
    const auto brought = owner_->data_side().BringUp(
        kToken, {&view, 1},
        {.session = [this] { return session_; },
         .deadline_ns = SystemClock::Instance().NowNs() + within_ns,
         .done = [&](const std::vector<wire::LoadResult>&) { done = true; }});
    if (brought == nullptr) return loan;
    EXPECT_TRUE(Becomes([&] { return done.load(); }));
    return owner_->data_side().Lend(kToken, {&view, 1}).front();
  }
  std::string TextOf(const Loan& loan) const {
    std::string text;
    for (const Extent& extent : loan.extents) {
      const auto room = owner_->data_side().payload().At(extent);
      text.append(reinterpret_cast<const char*>(room.data()), room.size());
    }
    return text.substr(0, loan.size_bytes);
  }

  std::atomic<bool> broken_{false};
  std::atomic<bool> held_{false};         // nothing opens a disk meanwhile
  std::atomic<bool> writes_held_{false};  // nor writes to one that was opened since
  std::atomic<bool> facts_held_{false};   // nor are the facts written
  std::atomic<int> waiting_{0};
  std::atomic<int> opened_{0};
  std::int64_t opening_again_ns_ = 600 * kSecond;
  std::int64_t hang_ns_ = 600 * kSecond;
  std::string directory_;
  std::unique_ptr<Owner> owner_;
  SessionNumber session_ = 0;
  OwnerFacts facts_;
};

TEST_F(ClusterTierTest, WhatGoesDownStaysListedAndIsToldToBeThere) {
  Fill(60);
  const auto reported = owner_->link_side().TakeGone(1000);
  EXPECT_GE(reported.size(), 40U);
  for (const auto& [item, id, version, key] : reported) {
    EXPECT_FALSE(item.gone);
    EXPECT_EQ(item.tier, kvcove::Tier::kDisk);
    EXPECT_EQ(item.group, 7U);
    EXPECT_EQ(item.copies, 2U);
    EXPECT_EQ(item.hash, DirectoryHash(kTierSlot, key));
  }
  const auto all = Inventory();
  EXPECT_EQ(all.size(), 60U) << "each once";
  EXPECT_EQ(OnDisk(all).size(), reported.size());
  EXPECT_EQ(Put("key-0"), Code::kExists);
}

TEST_F(ClusterTierTest, WhatComesUpIsSentAndToldToBeInMemory) {
  Fill(60);
  (void)owner_->link_side().TakeGone(1000);
  const Loan loan = Get("key-3");
  ASSERT_EQ(loan.code, Code::kOk);
  EXPECT_EQ(TextOf(loan), ValueOf("key-3"));
  owner_->data_side().Return({&loan, 1});
  const auto reported = owner_->link_side().TakeGone(1000);
  const auto moved = std::ranges::find(reported, "key-3", &InventoryItem::key);
  ASSERT_NE(moved, reported.end());
  EXPECT_EQ(moved->item.hash, DirectoryHash(kTierSlot, "key-3"));
  EXPECT_FALSE(moved->item.gone);
  EXPECT_EQ(moved->item.tier, kvcove::Tier::kMemory);
  EXPECT_EQ(moved->item.group, 7U) << "it is the same put";
  EXPECT_EQ(Get("never").code, Code::kMiss);
}

TEST_F(ClusterTierTest, ALoadFromAHiddenSlotSaysNothingOfAReset) {
  Fill(60);
  owner_->link_side().SetHidden({kTierSlot});
  const std::string_view key = "key-3";
  std::promise<std::vector<wire::LoadResult>> answer;
  const auto brought = owner_->data_side().BringUp(
      kToken, {&key, 1},
      {.session = [this] { return session_; },
       .deadline_ns = SystemClock::Instance().NowNs() + 10 * kSecond,
       .done = [&](const std::vector<wire::LoadResult>& results) { answer.set_value(results); }});
  ASSERT_NE(brought, nullptr) << "the disk has it";
  const std::vector<wire::LoadResult> results = answer.get_future().get();
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(results[0].reason, MissReason::kLease);
}

// Else another owner could store the key meanwhile, and it would have two values.
TEST_F(ClusterTierTest, WhatMemoryGivesUpOfAHiddenSlotStaysListedIfTheDiskHasIt) {
  Fill(60);
  // Not held for longer, so that memory may give it up.
  ASSERT_TRUE(Becomes([&] {
    const Loan loan = Get("key-3", /*within_ns=*/100 * kMillisecond);
    if (loan.code == Code::kOk) owner_->data_side().Return({&loan, 1});
    return loan.code == Code::kOk;
  }));
  ASSERT_EQ(Put("memory-only"), Code::kOk);
  (void)owner_->link_side().TakeGone(1000);
  owner_->link_side().SetHidden({kTierSlot});
  std::vector<InventoryItem> reported;
  const auto reports = [&](const std::string& key) {
    return Reports(reported, key, /*gone=*/true) || Reports(reported, key, /*gone=*/false);
  };
  int next = 0;
  ASSERT_TRUE(Becomes([&] {
    (void)Put("later-" + std::to_string(next++));
    std::ranges::move(owner_->link_side().TakeGone(1000), std::back_inserter(reported));
    return reports("key-3") && reports("memory-only");
  }));
  EXPECT_TRUE(Reports(reported, "key-3", /*gone=*/false)) << "it lies on the disk from now on";
  EXPECT_TRUE(Reports(reported, "memory-only", /*gone=*/true));
  owner_->link_side().SetHidden({});
  EXPECT_EQ(Put("key-3"), Code::kExists);
  EXPECT_EQ(Put("memory-only"), Code::kOk);
}

TEST_F(ClusterTierTest, AnotherProcessTellsWhatTheDiskHasAndNothingBeforeItIsKnown) {
  Fill(60);
  const auto before = OnDisk(Inventory());
  ASSERT_GE(before.size(), 40U);
  End();
  const auto facts = Begin();
  ASSERT_TRUE(facts);
  EXPECT_EQ(*facts, facts_);
  ObjectId cursor = 0;
  EXPECT_TRUE(owner_->link_side().Inventory(cursor, 100).empty());
  EXPECT_EQ(cursor, 0U);
  Publish();
  EXPECT_EQ(Put("key-0"), Code::kUnavailable) << "the disk may have it";
  Join(*facts);
  const auto all = Inventory();
  EXPECT_EQ(OnDisk(all), before);
  EXPECT_EQ(all.front().item.group, 7U);
  EXPECT_EQ(all.front().item.copies, 2U);
  EXPECT_EQ(Put(*before.begin()), Code::kExists);
  const Loan loan = Get(*before.begin());
  EXPECT_EQ(TextOf(loan), ValueOf(*before.begin()));
  owner_->data_side().Return({&loan, 1});
}

TEST_F(ClusterTierTest, WhatMemoryEvictsWhileTheDiskOpensAgainStaysListedIfTheDiskHasIt) {
  Fill(60);
  const Loan loan = Get("key-3", kSecond);
  const std::int64_t held_until_ns = SystemClock::Instance().NowNs() + kSecond;
  ASSERT_EQ(loan.code, Code::kOk);
  owner_->data_side().Return({&loan, 1});
  (void)owner_->link_side().TakeGone(1000);
  ASSERT_TRUE(Becomes([&] { return SystemClock::Instance().NowNs() > held_until_ns; }));
  held_ = true;
  HandOver();
  for (int i = 0; i < 60; ++i) ASSERT_EQ(Put(fmt::format("more-{}", i)), Code::kOk);
  held_ = false;
  AwaitOpen();
  const auto reported = owner_->link_side().TakeGone(1000);
  EXPECT_FALSE(Reports(reported, "key-3", /*gone=*/true));
  EXPECT_TRUE(Reports(reported, "key-3", /*gone=*/false)) << "it has moved";
  EXPECT_TRUE(Reports(reported, "more-0", /*gone=*/true));
  EXPECT_EQ(TextOf(Get("key-3")), ValueOf("key-3"));
}

TEST_F(ClusterTierTest, AResetEndsWhatIsOnTheDiskAlsoForTheNextProcess) {
  Fill(60);
  Publish(kGeneration + (1ULL << 24));
  EXPECT_TRUE(Inventory().empty());
  Restart(kGeneration + (1ULL << 24));
  EXPECT_TRUE(Inventory().empty());
}

TEST_F(ClusterTierTest, RemovalsAreProvenBeforeTheyAreAcknowledged) {
  Fill(60);
  const auto before = OnDisk(Inventory());
  (void)owner_->link_side().TakeGone(1000);
  owner_->link_side().ApplyKeys({.number = 1,
                                 .slot = kTierSlot,
                                 .generation = kGeneration,
                                 .keys = {"key-0"},
                                 .pattern = {}});
  EXPECT_EQ(RemoveMatching("key-1*"), 11U);
  EXPECT_TRUE(owner_->link_side().AwaitApplied());
  const auto reported = owner_->link_side().TakeGone(1000);
  EXPECT_TRUE(Reports(reported, "key-10", /*gone=*/true))
      << "the master does not know what matched";
  Restart();
  const auto after = OnDisk(Inventory());
  EXPECT_FALSE(after.contains("key-0"));
  EXPECT_FALSE(after.contains("key-1"));
  EXPECT_FALSE(after.contains("key-10"));
  EXPECT_TRUE(after.contains("key-2"));
  EXPECT_EQ(Put("key-0"), Code::kOk);
}

TEST_F(ClusterTierTest, APatternEndsOnceDisksHaveProvenItAndItsKeysAreReportedAsGone) {
  Fill(60);
  (void)owner_->link_side().TakeGone(1000);
  const wire::Removal removal = {
      .number = 2, .slot = kTierSlot, .generation = kGeneration, .keys = {}, .pattern = "key-1*"};
  const LinkTarget::BegunPattern begun = owner_->link_side().BeginPattern(removal);
  ASSERT_TRUE(begun.open);
  EXPECT_FALSE(Get("key-10").code == Code::kOk) << "it is hidden while the disk is walked";
  std::vector<wire::RemovalsRequest::Count> ended;
  ASSERT_TRUE(Becomes([&] {
    ended = owner_->link_side().TakeEndedPatterns();
    return !ended.empty();
  }));
  ASSERT_EQ(ended.size(), 1U);
  EXPECT_EQ(ended[0].number, 2U);
  EXPECT_EQ(begun.objects + ended[0].objects, 11U);
  const auto reported = owner_->link_side().TakeGone(1000);
  EXPECT_TRUE(Reports(reported, "key-10", /*gone=*/true));
  Restart();
  const auto after = OnDisk(Inventory());
  EXPECT_FALSE(after.contains("key-1"));
  EXPECT_FALSE(after.contains("key-10"));
  EXPECT_TRUE(after.contains("key-2"));
}

// Nobody knows which keys the walk has taken: everything is reported to the master anew.
TEST_F(ClusterTierTest, APatternThatAHandOverCutsOffHasTheInventoryToldAgain) {
  Fill(60);
  (void)owner_->link_side().TakeGoneOverflow();
  owner_->link_side().ForgetPatterns();
  EXPECT_FALSE(owner_->link_side().TakeGoneOverflow()) << "none was open";
  (void)owner_->link_side().BeginPattern(
      {.number = 2, .slot = kTierSlot, .generation = kGeneration, .keys = {}, .pattern = "key-1*"});
  owner_->link_side().ForgetPatterns();
  EXPECT_TRUE(owner_->link_side().TakeGoneOverflow());
  EXPECT_TRUE(owner_->link_side().TakeEndedPatterns().empty());
}

// The walk would be cut off, and the successor would have to empty the disk.
TEST_F(ClusterTierTest, AnUpgradeIsRefusedWhileADiskIsWalkedForAPattern) {
  Fill(5);
  AwaitOpen();
  DiskSet& set = owner_->disks().set();
  {
    const MutexLock lock(owner_->memory().mutex);
    set.BeginMatching(kTierSlot, "key-1*");
  }
  const Status may = owner_->MayPauseDisks();
  ASSERT_FALSE(may);
  EXPECT_EQ(may.error().code, Code::kInProgress);
  EXPECT_THAT(may.error().detail, testing::HasSubstr("removal by pattern"));
  {
    const MutexLock lock(owner_->memory().mutex);
    set.EndMatching(kTierSlot, "key-1*");
  }
  AwaitOpen();
}

TEST_F(ClusterTierTest, SoItIsWhenTheWalkHasBegunWhileTheProcessWasBeingFrozen) {
  Fill(5);
  AwaitOpen();
  owner_->Freeze();
  owner_->link_side().EndDiskWaits();
  DiskSet& set = owner_->disks().set();
  {
    const MutexLock lock(owner_->memory().mutex);
    set.BeginMatching(kTierSlot, "key-1*");
  }
  const Status paused = owner_->PauseDisks();
  EXPECT_FALSE(paused);
  EXPECT_EQ(Noted().size(), 1U) << "the disk remains open";
  {
    const MutexLock lock(owner_->memory().mutex);
    set.EndMatching(kTierSlot, "key-1*");
  }
  owner_->Thaw();
  AwaitOpen();
}

// The hand-over writes the note, too, and would wait for that file system with all frozen.
TEST_F(ClusterTierTest, AnUpgradeIsRefusedWhileTheOpeningOfADiskIsBeingNoted) {
  opening_again_ns_ = kMillisecond;
  ASSERT_NO_FATAL_FAILURE(Restart());
  // A pipe in the place of the file that becomes the next note: its writer waits for a reader.
  const std::string pipe = directory_ + "/data/disk.new";
  ASSERT_TRUE(Becomes([&] { return mkfifo(pipe.c_str(), 0600) == 0; }));
  Fill(60);
  const auto refused = [&] {
    const Status may = owner_->MayPauseDisks();
    return !may && may.error().code == Code::kInProgress &&
           may.error().detail.find("note of its disks") != std::string::npos;
  };
  EXPECT_TRUE(Becomes(refused));
  const UniqueFd reader(open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  std::filesystem::remove(pipe);
  ASSERT_NO_FATAL_FAILURE(AwaitOpen());
}

TEST_F(ClusterTierTest, APatternThatItsDiskHasMissedEndsOnceTheDiskIsStruck) {
  Fill(60);
  broken_ = true;
  (void)owner_->link_side().BeginPattern(
      {.number = 2, .slot = kTierSlot, .generation = kGeneration, .keys = {}, .pattern = "key-1*"});
  ASSERT_TRUE(Becomes([&] { return !owner_->link_side().TakeEndedPatterns().empty(); }));
  EXPECT_TRUE(Noted().empty());
}

// Loads look at all patterns.
TEST_F(ClusterTierTest, ABoundedNumberOfPatternsIsOpen) {
  const wire::Removal removal = {
      .number = 2, .slot = kTierSlot, .generation = kGeneration, .keys = {}, .pattern = "key-1*"};
  std::size_t begun = 0;
  for (; begun < 100 && owner_->link_side().PatternRoom() > 0; ++begun) {
    ASSERT_TRUE(owner_->link_side().BeginPattern(removal).open);
  }
  EXPECT_EQ(begun, 64U);
  ASSERT_TRUE(Becomes([&] {
    (void)owner_->link_side().TakeEndedPatterns();
    return owner_->link_side().PatternRoom() == 64;
  }));
}

TEST_F(ClusterTierTest, WhatGaveWayAndDroppedSlotsDoNotComeBack) {
  Fill(60);
  std::vector<InventoryItem> second;
  for (const InventoryItem& item : Inventory()) {
    if (item.key == "key-0" || item.key == "key-5") second.push_back(item);
  }
  ASSERT_EQ(second.size(), 2U);
  owner_->link_side().DropObjects(second);
  Restart();
  auto left = OnDisk(Inventory());
  EXPECT_FALSE(left.contains("key-0"));
  EXPECT_FALSE(left.contains("key-5"));
  EXPECT_TRUE(left.contains("key-6"));
  owner_->link_side().DropSlots({&kTierSlot, 1});
  EXPECT_TRUE(Inventory().empty());
  EXPECT_TRUE(Reports(owner_->link_side().TakeGone(1000), "key-6", /*gone=*/true));
  Restart();
  EXPECT_TRUE(Inventory().empty());
}

TEST_F(ClusterTierTest, WhatGaveWayGoesAlsoIfItWentToTheDiskMeanwhile) {
  Fill(10, "old");
  std::vector<InventoryItem> reported;
  for (const InventoryItem& item : Inventory()) {
    if (item.id != kNoObject) reported.push_back(item);
  }
  ASSERT_GE(reported.size(), 5U);
  Fill(60, "new");  // what was reported has left memory
  ASSERT_GT(OnDisk(Inventory()).size(), reported.size());
  owner_->link_side().DropObjects(reported);
  std::set<Id128> left;
  for (const InventoryItem& item : Inventory()) left.insert(item.item.hash);
  for (const InventoryItem& item : reported) EXPECT_FALSE(left.contains(item.item.hash));
}

// The control store was restored or lost, or the owner was away for too long.
TEST_F(ClusterTierTest, WhatTheMasterVoidsIsEmptiedAndUsedAgain) {
  std::vector<OwnerFacts> others(3, facts_);
  others[0].incarnation = others[1].incarnation = others[2].incarnation = {.high = 77, .low = 1};
  others[1].pool = others[2].pool = {.high = 77, .low = 2};
  others[2].identity = {.high = 77, .low = 3};
  for (std::size_t i = 0; i < others.size(); ++i) {
    SCOPED_TRACE(i);
    const std::string before = fmt::format("before{}", i);
    Fill(60, before);
    ASSERT_GE(OnDisk(Inventory()).size(), 40U);
    ASSERT_NO_FATAL_FAILURE(Follow(others[i]));
    EXPECT_TRUE(BeginsEpoch()) << "all is reported again";
    ASSERT_TRUE(AwaitEmpty());
    EXPECT_TRUE(Inventory().empty());
    EXPECT_EQ(Get(before + "-0").code, Code::kMiss);
    EXPECT_EQ(Put(before + "-0"), Code::kOk);
    EXPECT_TRUE(Becomes([&] { return Noted().size() == 1; }));
  }
  Fill(60, "new");
  const auto held = OnDisk(Inventory());
  EXPECT_GE(held.size(), 40U);
  // It is an ordinary disk again.
  End();
  const auto facts = Begin();
  ASSERT_TRUE(facts) << facts.error().ToString();
  EXPECT_EQ(*facts, others.back());
  Publish();
  owner_->link_side().TableKnown();
  ASSERT_TRUE(Becomes([&] { return owner_->disks().open(); }));
  EXPECT_EQ(OnDisk(Inventory()), held);
}

TEST_F(ClusterTierTest, ADiskThatIsVoidedWhileItDoesNotWorkIsUsedWhenItDoes) {
  Fill(60);
  ASSERT_NO_FATAL_FAILURE(Break());
  OwnerFacts other = facts_;
  other.pool = other.incarnation = {.high = 77, .low = 77};
  ASSERT_NO_FATAL_FAILURE(Follow(other));
  EXPECT_EQ(owner_->Stat().disk_aside, 1U);
  EXPECT_GT(owner_->Stat().disk_capacity_bytes, 0U) << "operators see that there is one";
  broken_ = false;
  ASSERT_TRUE(AwaitEmpty());
  Fill(60, "new");
  EXPECT_GE(OnDisk(Inventory()).size(), 40U);
  EXPECT_FALSE(OnDisk(Inventory()).contains("key-1"));
}

// A process that came back as what is written down would use a disk that the note still names.
TEST_F(ClusterTierTest, WithoutANoteThatCanBeWrittenNoVoidedDiskIsUsedAgain) {
  Fill(60);
  const std::string note = directory_ + "/data/disk";
  std::filesystem::rename(note, note + "-kept");
  std::filesystem::create_directories(note + "/in the way");
  OwnerFacts other = facts_;
  other.identity = {.high = 77, .low = 77};
  ASSERT_NO_FATAL_FAILURE(Follow(other));
  EXPECT_EQ(owner_->Stat().disk_aside, 1U);
  EXPECT_EQ(*ReadOwnerFacts(directory_ + "/data"), facts_);
  std::filesystem::remove_all(note);
  std::filesystem::rename(note + "-kept", note);
  other.seen.revision += 1;
  owner_->link_side().Follow(other);
  EXPECT_TRUE(AwaitKept(other));
  EXPECT_TRUE(AwaitEmpty());
  EXPECT_TRUE(OnDisk(Inventory()).empty());
}

TEST_F(ClusterTierTest, ADiskThatFailedIsToldBeforeItIsUsedAgain) {
  Fill(60);
  const auto before = OnDisk(Inventory());
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(before.contains(fmt::format("key-{}", i)));
  (void)owner_->link_side().TakeGone(1000);
  ASSERT_NO_FATAL_FAILURE(Break());
  EXPECT_FALSE(owner_->link_side().Report().disk_away) << "the note names it";
  EXPECT_TRUE(BeginsEpoch()) << "a new epoch, in which it is not reported";
  EXPECT_TRUE(owner_->link_side().Report().disk_away);
  EXPECT_TRUE(Noted().empty()) << "before anybody else may store what it has";
  EXPECT_FALSE(owner_->link_side().ReportAgainFrom());
  EXPECT_TRUE(OnDisk(Inventory()).empty());
  EXPECT_EQ(Put("key-0", /*group=*/8), Code::kOk);
  owner_->link_side().ApplyKeys({.number = 1,
                                 .slot = kTierSlot,
                                 .generation = kGeneration,
                                 .keys = {"key-1"},
                                 .pattern = {}});
  owner_->link_side().AwaitApplied();

  ASSERT_NO_FATAL_FAILURE(Mend());
  owner_->link_side().ApplyKeys({.number = 2,
                                 .slot = kTierSlot,
                                 .generation = kGeneration,
                                 .keys = {"key-2"},
                                 .pattern = {}});
  owner_->link_side().AwaitApplied();
  EXPECT_EQ(Put("key-3", /*group=*/8), Code::kOk) << "nothing is found on it yet";
  EXPECT_EQ(Get("key-4").code, Code::kMiss);
  EXPECT_TRUE(owner_->link_side().Report().disk_away);
  const auto reported = Inventory(*owner_->link_side().ReportAgainFrom());
  const auto there = OnDisk(reported);
  EXPECT_GE(there.size(), before.size() - 10);
  for (const char* gone : {"key-0", "key-1", "key-2", "key-3"}) EXPECT_FALSE(there.contains(gone));
  std::vector<InventoryItem> refused;
  for (const InventoryItem& item : reported) {
    EXPECT_TRUE(item.item.returns);
    if (item.key == "key-5") refused.push_back(item);
  }
  owner_->link_side().DropObjects(refused);
  EXPECT_EQ(Get("key-4").code, Code::kMiss) << "not before the master has accepted it";
  Reported();
  EXPECT_FALSE(owner_->link_side().Report().disk_away);
  EXPECT_FALSE(owner_->link_side().ReportAgainFrom());
  EXPECT_TRUE(Becomes([&] { return Noted().size() == 1; }));
  const Loan loan = Get("key-4");
  ASSERT_EQ(loan.code, Code::kOk);
  EXPECT_EQ(TextOf(loan), ValueOf("key-4"));
  owner_->data_side().Return({&loan, 1});
  Restart();
  const auto after = OnDisk(Inventory());
  EXPECT_GE(after.size(), there.size() - 2);
  for (const char* gone : {"key-1", "key-2", "key-5"}) {
    EXPECT_FALSE(after.contains(gone)) << gone;
    EXPECT_EQ(Get(gone).code, Code::kMiss);
  }
}

TEST_F(ClusterTierTest, ANewEpochWaitsUntilTheNoteForgetsTheDisk) {
  Fill(60);
  const std::string note = directory_ + "/data/disk";
  std::filesystem::rename(note, note + "-kept");
  std::filesystem::create_directories(note + "/in the way");
  ASSERT_NO_FATAL_FAILURE(Break());
  EXPECT_TRUE(Becomes([&] {
    EXPECT_FALSE(owner_->link_side().TakeGoneOverflow()) << "a process that starts would find it";
    return owner_->link_side().Report().disks_void;
  })) << "it cannot be written";
  std::filesystem::remove_all(note);
  std::filesystem::rename(note + "-kept", note);
  EXPECT_TRUE(BeginsEpoch());
  EXPECT_TRUE(Noted().empty());
  EXPECT_FALSE(owner_->link_side().TakeGoneOverflow()) << "once";
}

// A file system that has failed takes disk and note.
TEST_F(ClusterTierTest, WhereTheNoteCannotBeWrittenTheMasterStoresThatTheDiskIsVoid) {
  Fill(60);
  const std::string note = directory_ + "/data/disk";
  std::filesystem::rename(note, note + "-kept");
  std::filesystem::create_directories(note + "/in the way");
  ASSERT_NO_FATAL_FAILURE(Break());
  EXPECT_EQ(Put("key-0"), Code::kExists) << "the next process would find the older value";
  for (const std::string key : {"key-1", "key-2"}) {
    std::promise<bool> applied;
    auto proven = applied.get_future();
    std::thread lane([&] { applied.set_value(RemoveKey(key)); });
    EXPECT_TRUE(Becomes([&] { return owner_->link_side().Report().disks_void; }));
    EXPECT_EQ(proven.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout)
        << "this master has not stored it yet";
    owner_->link_side().SetDisksVoid(true);
    lane.join();
    EXPECT_TRUE(proven.get());
    EXPECT_TRUE(Becomes([&] { return Put(key) == Code::kOk; }));
    if (key == "key-1") {
      EXPECT_TRUE(owner_->link_side().TakeGoneOverflow()) << "others may store what it held";
    }
    facts_.seen.term += 1;
    owner_->link_side().Follow(facts_);
  }
}

TEST_F(ClusterTierTest, SoItDoesWhereTheFileSystemOfTheNoteHangs) {
  Fill(60);
  HeldNote note(*owner_->disks().note());
  ASSERT_NO_FATAL_FAILURE(Break());
  std::promise<bool> applied;
  auto proven = applied.get_future();
  std::thread lane([&] { applied.set_value(RemoveKey("key-1")); });
  EXPECT_TRUE(Becomes([&] { return owner_->link_side().Report().disks_void; }));
  EXPECT_FALSE(owner_->link_side().TakeGoneOverflow()) << "nor do listings wait";
  EXPECT_FALSE(owner_->link_side().Report().disk_away) << "others may not store its keys yet";
  EXPECT_EQ(Put("key-0"), Code::kExists);
  EXPECT_EQ(proven.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout)
      << "this master has not stored it yet";
  owner_->link_side().SetDisksVoid(true);
  lane.join();
  EXPECT_TRUE(proven.get());
  EXPECT_TRUE(owner_->link_side().TakeGoneOverflow());
  EXPECT_TRUE(owner_->link_side().Report().disk_away);
  EXPECT_TRUE(Becomes([&] { return Put("key-0") == Code::kOk; }));
  note.End();
  ASSERT_NO_FATAL_FAILURE(Mend());
}

// The disk has missed that they were dropped, and no master has stored that it is void.
TEST_F(ClusterTierTest, ListingsDoNotWaitUntilObjectsThatGaveWayAreProvenGone) {
  Fill(60);
  std::vector<InventoryItem> second;
  for (const InventoryItem& item : Inventory()) {
    if (item.key == "key-0") second.push_back(item);
  }
  ASSERT_EQ(second.size(), 1U);
  HeldNote note(*owner_->disks().note());
  ASSERT_NO_FATAL_FAILURE(Break());
  std::atomic<bool> dropped{false};
  std::thread lane([&] {
    owner_->link_side().DropObjects(second);
    dropped = true;
  });
  EXPECT_TRUE(Becomes([&] { return dropped.load(); }));
  note.End();
  lane.join();
  EXPECT_TRUE(BeginsEpoch());
  EXPECT_TRUE(Noted().empty());
  ASSERT_NO_FATAL_FAILURE(Mend());
  EXPECT_FALSE(OnDisk(Inventory()).contains("key-0"));
}

// The process is frozen meanwhile, and continues then.
TEST_F(ClusterTierTest, AnUpgradeWaitsForNoFileSystemOfTheNote) {
  Fill(60);
  owner_->disks().Drain();
  ASSERT_NO_FATAL_FAILURE(AwaitOpen());
  HeldNote note(*owner_->disks().note());
  owner_->Freeze();
  owner_->link_side().EndDiskWaits();
  const Status paused = owner_->PauseDisks();
  ASSERT_FALSE(paused);
  EXPECT_EQ(paused.error().code, Code::kTimeout);
  note.End();
  owner_->Thaw();
  ASSERT_NO_FATAL_FAILURE(AwaitOpen());
  EXPECT_TRUE(OnDisk(Inventory()).contains("key-0"));
  EXPECT_TRUE(Becomes([&] { return Noted().size() == 1; }));
}

// The disk is being opened meanwhile, and its thread hangs with the file system of the note.
TEST_F(ClusterTierTest, NoRemovalWaitsForThatFileSystemAfterAnUpgradeThatFailed) {
  hang_ns_ = kSecond;
  ASSERT_NO_FATAL_FAILURE(Restart());
  Fill(60);
  owner_->disks().Drain();
  ASSERT_NO_FATAL_FAILURE(AwaitOpen());
  HeldNote note(*owner_->disks().note());
  owner_->Freeze();
  owner_->link_side().EndDiskWaits();
  EXPECT_FALSE(owner_->PauseDisks());
  owner_->Thaw();
  std::promise<bool> applied;
  auto proven = applied.get_future();
  std::thread lane([&] { applied.set_value(RemoveKey("key-0")); });
  EXPECT_TRUE(Becomes([&] { return owner_->link_side().Report().disks_void; }));
  owner_->link_side().SetDisksVoid(true);
  EXPECT_TRUE(Becomes(
      [&] { return proven.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }));
  note.End();
  lane.join();
  EXPECT_TRUE(proven.get());
  ASSERT_TRUE(Becomes([&] { return owner_->Stat().disk_aside == 0; }));
  EXPECT_FALSE(OnDisk(Inventory()).contains("key-0"));
}

// So it is where the disk's own file system hangs as a successor opens the disk.
TEST_F(ClusterTierTest, NoRemovalWaitsForADiskThatHangsWhileASuccessorOpensIt) {
  hang_ns_ = kSecond;
  ASSERT_NO_FATAL_FAILURE(Restart());
  Fill(60);
  held_ = true;
  ASSERT_NO_FATAL_FAILURE(HandOver());
  ASSERT_TRUE(AwaitHeld());
  std::promise<bool> applied;
  auto proven = applied.get_future();
  std::thread lane([&] { applied.set_value(RemoveKey("key-0")); });
  EXPECT_TRUE(Becomes(
      [&] { return proven.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }));
  held_ = false;
  lane.join();
  EXPECT_TRUE(proven.get());
  ASSERT_TRUE(Becomes([&] { return owner_->Stat().disk_aside == 0; }));
  EXPECT_FALSE(OnDisk(Inventory()).contains("key-0"));
}

// Nor where it hangs as the process starts. Nothing is known of the disk then, so the removal is
// proven once the master has stored that no later process uses it.
TEST_F(ClusterTierTest, NoRemovalWaitsForADiskThatHangsAtTheStart) {
  Fill(60);
  ASSERT_TRUE(OnDisk(Inventory()).contains("key-0"));
  ASSERT_NO_FATAL_FAILURE(BeginHeld(held_));
  EXPECT_TRUE(AwaitHeld());
  std::promise<bool> applied;
  auto proven = applied.get_future();
  std::thread lane([&] { applied.set_value(RemoveKey("key-0")); });
  EXPECT_TRUE(Becomes([&] { return owner_->link_side().Report().disks_void; }));
  EXPECT_EQ(proven.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout)
      << "this master has not stored it yet";
  EXPECT_TRUE(owner_->data_side().Awaits(kToken)) << "a put would replace what the disk holds";
  ObjectId cursor = 0;
  EXPECT_TRUE(owner_->link_side().Inventory(cursor, 7).empty());
  EXPECT_EQ(cursor, 0U);
  owner_->link_side().SetDisksVoid(true);
  EXPECT_TRUE(Becomes(
      [&] { return proven.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }));
  EXPECT_TRUE(Becomes([&] { return !owner_->data_side().Awaits(kToken); })) << "memory serves";
  EXPECT_EQ(Put("key-1"), Code::kOk);
  EXPECT_TRUE(OnDisk(Inventory()).empty());

  // The file system answers after all.
  held_ = false;
  lane.join();
  EXPECT_TRUE(proven.get());
  EXPECT_TRUE(AwaitEmpty());
  EXPECT_EQ(Put("key-0"), Code::kOk);
  Fill(60, "new");
  EXPECT_FALSE(OnDisk(Inventory()).empty()) << "it is used";
}

// A file system that is frozen for a snapshot: as long as no master has stored that the disks are
// void, nothing relies on it, and the next start keeps what they hold.
TEST_F(ClusterTierTest, AnOpeningThatHangsForAMomentAsksForNothingMoreThen) {
  Fill(60);
  const std::set<std::string> before = OnDisk(Inventory());
  ASSERT_FALSE(before.empty());
  ASSERT_NO_FATAL_FAILURE(BeginHeld(held_));
  EXPECT_TRUE(Becomes([&] { return owner_->link_side().Report().disks_void; }));
  held_ = false;
  ASSERT_TRUE(AwaitServed());
  EXPECT_TRUE(Becomes([&] { return !owner_->link_side().Report().disks_void; }));
  EXPECT_EQ(OnDisk(Inventory()), before);
}

// What must be written before the disks may be opened is no reason to wait, either.
TEST_F(ClusterTierTest, NoRemovalWaitsForFactsThatCannotBeWrittenAtTheStart) {
  Fill(60);
  facts_.incarnation = {.high = 7, .low = 7};
  ASSERT_NO_FATAL_FAILURE(BeginHeld(facts_held_));
  std::promise<bool> applied;
  auto proven = applied.get_future();
  std::thread lane([&] { applied.set_value(RemoveKey("key-0")); });
  EXPECT_TRUE(Becomes([&] { return owner_->link_side().Report().disks_void; }));
  owner_->link_side().SetDisksVoid(true);
  EXPECT_TRUE(Becomes(
      [&] { return proven.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }));
  EXPECT_FALSE(owner_->disks().open());
  facts_held_ = false;
  lane.join();
  EXPECT_TRUE(proven.get());
  EXPECT_TRUE(Becomes([&] { return owner_->disks().open(); }));
  EXPECT_TRUE(AwaitEmpty());
}

// A master that has not stored it may let the next process use the disk.
TEST_F(ClusterTierTest, AStrikeThatHangsIsToldToTheNextMasterToo) {
  Fill(60);
  HeldNote note(*owner_->disks().note());
  ASSERT_NO_FATAL_FAILURE(Break());
  std::promise<bool> applied;
  auto proven = applied.get_future();
  std::thread lane([&] { applied.set_value(RemoveKey("key-1")); });
  EXPECT_TRUE(Becomes([&] { return owner_->link_side().Report().disks_void; }));
  for (int masters = 0; masters < 3; ++masters) {
    facts_.seen.term += 1;
    owner_->link_side().Follow(facts_);
    EXPECT_TRUE(owner_->link_side().Report().disks_void);
    EXPECT_EQ(proven.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  }
  owner_->link_side().SetDisksVoid(true);
  EXPECT_TRUE(Becomes(
      [&] { return proven.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }));
  // The proof under the last master is none under the next.
  facts_.seen.term += 1;
  owner_->link_side().Follow(facts_);
  std::promise<bool> again;
  auto next = again.get_future();
  lane.join();
  lane = std::thread([&] { again.set_value(RemoveKey("key-2")); });
  EXPECT_EQ(next.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  note.End();
  lane.join();
  EXPECT_TRUE(next.get()) << "the note was written without the disk";
  EXPECT_TRUE(proven.get());
}

TEST_F(ClusterTierTest, NorDoesItBeginBehindAStrikeThatHangs) {
  Fill(60);
  ASSERT_NO_FATAL_FAILURE(AwaitOpen());
  HeldNote note(*owner_->disks().note());
  ASSERT_NO_FATAL_FAILURE(Break());
  EXPECT_FALSE(owner_->link_side().TakeGoneOverflow());
  const Status may = owner_->MayPauseDisks();
  ASSERT_FALSE(may);
  EXPECT_THAT(may.error().detail, testing::HasSubstr("note of its disks"));
  note.End();
  ASSERT_NO_FATAL_FAILURE(AwaitOpen());
}

TEST_F(ClusterTierTest, ADiskThatFailsWhileItIsToldIsToldOnceMore) {
  Fill(60);
  ASSERT_NO_FATAL_FAILURE(Break());
  EXPECT_TRUE(BeginsEpoch());
  ASSERT_NO_FATAL_FAILURE(Mend());
  (void)Inventory(*owner_->link_side().ReportAgainFrom());
  broken_ = true;
  owner_->link_side().ApplyKeys({.number = 1,
                                 .slot = kTierSlot,
                                 .generation = kGeneration,
                                 .keys = {"key-1"},
                                 .pattern = {}});
  ASSERT_TRUE(Becomes([&] { return owner_->Stat().disk_aside != 0; }));
  owner_->link_side().AwaitApplied();
  Reported();
  EXPECT_TRUE(owner_->link_side().Report().disk_away) << "what was reported is of before";
  EXPECT_TRUE(BeginsEpoch());
  broken_ = false;
  // It failed with a removal under way.
  ASSERT_TRUE(Becomes([&] { return !owner_->disks().set().Any(&DiskState::away); }));
  ASSERT_TRUE(Becomes([&] { return owner_->Stat().disk_objects == 0; }));
  EXPECT_TRUE(OnDisk(Inventory()).empty());
  Fill(60, "new");
  EXPECT_GE(OnDisk(Inventory()).size(), 40U);
}

TEST_F(ClusterTierTest, AnotherMasterEmptiesADiskThatIsAway) {
  for (const bool reported : {false, true}) {
    Fill(60, reported ? "told" : "away");
    ASSERT_NO_FATAL_FAILURE(Break());
    if (reported) {
      ASSERT_NO_FATAL_FAILURE(Mend());
    }
    facts_.seen.term += 1;
    facts_.seen.tag += 1;
    owner_->link_side().Follow(facts_);
    broken_ = false;
    ASSERT_TRUE(Becomes([&] { return !owner_->disks().set().Any(&DiskState::away); }));
    ASSERT_TRUE(Becomes([&] { return owner_->Stat().disk_objects == 0; }));
    EXPECT_TRUE(OnDisk(Inventory()).empty()) << reported;
    EXPECT_EQ(Get(reported ? "told-1" : "away-1").code, Code::kMiss);
  }
  Fill(60, "new");
  Restart();
  EXPECT_GE(OnDisk(Inventory()).size(), 40U);
}

TEST_F(ClusterTierTest, ADiskThatCannotBeOpenedAtTheStartIsTriedAgainAndStartsEmpty) {
  Fill(60);
  ASSERT_FALSE(OnDisk(Inventory()).empty());
  End();
  broken_ = true;
  const auto facts = Begin();
  ASSERT_TRUE(facts) << facts.error().ToString();
  Join(*facts);
  ASSERT_EQ(owner_->Stat().disk_aside, 1U);
  EXPECT_TRUE(Noted().empty());
  EXPECT_EQ(Put("key-0"), Code::kOk) << "memory goes on";
  broken_ = false;
  ASSERT_TRUE(Becomes([&] { return owner_->Stat().disk_aside == 0; }));
  EXPECT_EQ(Noted().size(), 1U);
  EXPECT_TRUE(OnDisk(Inventory()).empty()) << "it may have missed a removal";
  Fill(60, "later");
  EXPECT_FALSE(OnDisk(Inventory()).empty());
}

TEST_F(ClusterTierTest, ADiskThatWasAwayWhenItsProcessEndedStartsEmpty) {
  Fill(60);
  ASSERT_NO_FATAL_FAILURE(Break());
  EXPECT_TRUE(BeginsEpoch());
  broken_ = false;
  Restart();
  EXPECT_TRUE(OnDisk(Inventory()).empty());
}

TEST_F(ClusterTierTest, WithoutItsIdentityADiskStartsEmpty) {
  Fill(60);
  End();
  std::filesystem::remove(directory_ + "/data/owner");
  const auto facts = Begin();
  ASSERT_TRUE(facts);
  EXPECT_NE(facts->identity, facts_.identity);
  EXPECT_EQ(facts->seen, wire::Position{});
  Join(*facts);
  EXPECT_TRUE(Inventory().empty());
}

TEST_F(ClusterTierTest, ASuccessorHasWhatTheDiskHasAndTellsWhatWasNotToldYet) {
  Fill(60);
  const auto before = OnDisk(Inventory());
  ASSERT_NO_FATAL_FAILURE(HandOver());
  ASSERT_NO_FATAL_FAILURE(AwaitOpen());
  EXPECT_FALSE(owner_->link_side().TakeGoneOverflow()) << "nothing is reported anew";
  const auto reported = owner_->link_side().TakeGone(1000);
  EXPECT_EQ(reported.size(), before.size());
  for (const InventoryItem& item : reported) {
    EXPECT_TRUE(before.contains(item.key)) << "moves are reported with their keys";
  }
  EXPECT_EQ(OnDisk(Inventory()), before);
  const Loan loan = Get("key-3");
  ASSERT_EQ(loan.code, Code::kOk);
  EXPECT_EQ(TextOf(loan), ValueOf("key-3"));
  owner_->data_side().Return({&loan, 1});
  EXPECT_EQ(Put("key-5"), Code::kExists);
  // The directory stays locked by the successor, and the disk is its own after a restart.
  auto other = *Owner::Open(owner_->options(), SystemClock::Instance());
  EXPECT_EQ(other->PrepareDisks(directory_ + "/data").error().code, Code::kUnavailable);
  other.reset();
  Restart();
  EXPECT_GE(OnDisk(Inventory()).size(), before.size());
}

TEST_F(ClusterTierTest, AWalkOverTheDiskBeginsAgainBehindAHandOver) {
  Fill(60);
  const auto before = OnDisk(Inventory());
  ObjectId cursor = 0;
  std::size_t reported = 0;
  while (reported < 30)
    reported += owner_->link_side().Inventory(cursor, 5).size();  // some are of the disk
  ASSERT_NE(cursor, Core::kWalkDone);
  ASSERT_NO_FATAL_FAILURE(HandOver());
  std::vector<InventoryItem> rest;
  ASSERT_TRUE(Becomes([&] {
    const auto some = owner_->link_side().Inventory(cursor, 7);
    rest.insert(rest.end(), some.begin(), some.end());
    return cursor == Core::kWalkDone;
  }));
  EXPECT_EQ(OnDisk(rest), before) << "it is not taken for empty while it opens";
}

TEST_F(ClusterTierTest, WhatCannotBeHandedOverGoesOn) {
  Fill(60);
  const auto before = OnDisk(Inventory());
  for (int round = 0; round < 3; ++round) {
    ASSERT_NO_FATAL_FAILURE(BeginHandOver());
    EXPECT_EQ(Get("key-3").code, Code::kMiss);
    EXPECT_FALSE(owner_->link_side().AwaitApplied())
        << "nothing is acknowledged while the link is cut off";
    owner_->Thaw();
    ASSERT_NO_FATAL_FAILURE(AwaitOpen());
    EXPECT_TRUE(owner_->link_side().AwaitApplied());
    EXPECT_EQ(OnDisk(Inventory()), before);
  }
  EXPECT_FALSE(owner_->link_side().TakeGoneOverflow());
}

TEST_F(ClusterTierTest, RemovalsMeetASuccessorWhoseDiskIsNotOpenYet) {
  Fill(60);
  ASSERT_NO_FATAL_FAILURE(HandOver());
  owner_->link_side().ApplyKeys({.number = 1,
                                 .slot = kTierSlot,
                                 .generation = kGeneration,
                                 .keys = {"key-0"},
                                 .pattern = {}});
  (void)RemoveMatching("key-1*");
  EXPECT_TRUE(owner_->link_side().AwaitApplied()) << "it waits until the disk is open";
  Restart();
  const auto after = OnDisk(Inventory());
  EXPECT_FALSE(after.contains("key-0"));
  EXPECT_FALSE(after.contains("key-10"));
  EXPECT_TRUE(after.contains("key-2"));
}

TEST_F(ClusterTierTest, ADiskThatIsSetAsideIsEmptiedAndUsedAgainBehindAHandOver) {
  Fill(60);
  owner_->disks().Unmount();
  EXPECT_TRUE(BeginsEpoch());
  EXPECT_EQ(Put("key-0"), Code::kOk) << "another value, in memory";
  held_ = true;
  ASSERT_NO_FATAL_FAILURE(HandOver());
  EXPECT_TRUE(OnDisk(Inventory()).empty());
  EXPECT_EQ(Get("key-5").code, Code::kMiss);
  held_ = false;
  ASSERT_TRUE(AwaitEmpty());
  EXPECT_TRUE(OnDisk(Inventory()).empty()) << "others may have stored its keys meanwhile";
  Fill(60, "new");
  const auto held = OnDisk(Inventory());
  EXPECT_GE(held.size(), 40U);
  Restart();
  EXPECT_EQ(OnDisk(Inventory()), held);
}

TEST_F(ClusterTierTest, ASuccessorThatIsKilledBeforeItsDiskIsOpenBringsNothingOlderBack) {
  Fill(60);
  EXPECT_EQ(Noted().size(), 1U);
  held_ = true;
  ASSERT_NO_FATAL_FAILURE(HandOver());
  EXPECT_TRUE(Noted().empty()) << "a process that starts now does not find what is replaced here";
  EXPECT_EQ(Put("key-0"), Code::kOk) << "over the value on the disk";
  held_ = false;
  EXPECT_TRUE(Becomes([&] { return Noted().size() == 1; }));
  Restart();
  EXPECT_FALSE(OnDisk(Inventory()).contains("key-0")) << "it is removed there";
  EXPECT_FALSE(OnDisk(Inventory()).empty());
}

TEST_F(ClusterTierTest, WithoutANoteThatCanBeWrittenNothingIsStoredOverADisk) {
  Fill(60);
  owner_->disks().Drain();
  owner_->Freeze();
  owner_->link_side().EndDiskWaits();
  const std::string note = directory_ + "/data/disk";
  std::filesystem::rename(note, note + "-kept");
  std::filesystem::create_directories(note + "/in the way");
  EXPECT_FALSE(owner_->PauseDisks()) << "so it is not handed over";
  std::filesystem::remove_all(note);
  std::filesystem::rename(note + "-kept", note);
  EXPECT_EQ(Noted().size(), 1U);
  EXPECT_EQ(Put("key-0"), Code::kExists) << "a process that starts now finds it";
  owner_->Thaw();
  ASSERT_NO_FATAL_FAILURE(AwaitOpen());
  EXPECT_TRUE(OnDisk(Inventory()).contains("key-0"));
}

TEST_F(ClusterTierTest, ASuccessorWhoseIdentityIsForgottenUsesNothingOfTheDisk) {
  Fill(60);
  ASSERT_NO_FATAL_FAILURE(HandOver());
  ASSERT_NO_FATAL_FAILURE(AwaitOpen());
  OwnerFacts other = facts_;
  other.identity = {.high = 77, .low = 77};
  ASSERT_NO_FATAL_FAILURE(Follow(other));
  EXPECT_TRUE(BeginsEpoch());
  EXPECT_TRUE(Becomes([&] { return Put("key-0") == Code::kOk; })) << "the note names no disk";
  facts_ = other;
  Restart();
  EXPECT_TRUE(Inventory().empty());
}

TEST_F(ClusterTierTest, NorDoesOneThatIsForgottenWhileItsDiskOpens) {
  Fill(60);
  ASSERT_NO_FATAL_FAILURE(HandOver());
  OwnerFacts other = facts_;
  other.identity = {.high = 77, .low = 77};
  owner_->link_side().Follow(other);
  EXPECT_TRUE(BeginsEpoch());
  EXPECT_EQ(Get("key-0").code, Code::kMiss);
  EXPECT_TRUE(OnDisk(Inventory()).empty());
}

TEST_F(ClusterTierTest, AWalkEndsAtADiskThatIsVoidedWhileItIsOpened) {
  Fill(60);
  held_ = true;
  ASSERT_NO_FATAL_FAILURE(HandOver());
  ASSERT_TRUE(AwaitHeld());
  OwnerFacts other = facts_;
  other.identity = {.high = 77, .low = 77};
  owner_->link_side().Follow(other);
  held_ = false;
  EXPECT_TRUE(OnDisk(Inventory()).empty());
  ASSERT_TRUE(Becomes([&] { return owner_->Stat().disk_aside == 0; }));
  EXPECT_TRUE(OnDisk(Inventory()).empty()) << "the attempt that found what it held has failed";
}

TEST_F(ClusterTierTest, AWalkEndsAtADiskThatIsUnmountedWhileItIsEmptied) {
  Fill(60);
  ASSERT_NO_FATAL_FAILURE(Break());
  facts_.seen.term += 1;
  owner_->link_side().Follow(facts_);  // another master, so what the disk holds is void
  const int opened = opened_;
  writes_held_ = true;
  broken_ = false;
  ASSERT_TRUE(AwaitHeld());
  owner_->disks().Unmount();
  writes_held_ = false;
  ASSERT_TRUE(AwaitLetGo(opened));
  EXPECT_EQ(owner_->Stat().disk_aside, 1U);
  EXPECT_TRUE(Noted().empty()) << "nobody uses it";
  EXPECT_TRUE(OnDisk(Inventory()).empty());
  EXPECT_EQ(Put("key-0"), Code::kOk) << "memory goes on";
}

LinkIdentity LinkIdentityOf(const OwnerFacts& facts) {
  return {.owner = facts.identity,
          .process = {.high = 200, .low = 1},
          .address = "h:1",
          .socket = {},
          .host = "h",
          .tenant = {},
          .disk = true,
          .before = facts};
}

wire::OwnerWelcome WelcomeAt(const wire::Position& position) {
  return {.pool = kPool,
          .incarnation = kIncarnation,
          .position = position,
          .number = 3,
          .epoch = 7,
          .lease_ns = 60 * kSecond,
          .removals = 1};
}

// The link's lanes as a master drives them. Its answers are in the order of a reset elsewhere.
TEST_F(ClusterTierTest, LeaseAndGenerationsDoNotWaitForAFileSystemThatHangs) {
  LinkCore core(owner_->link_side(), LinkIdentityOf(facts_), 250 * kMillisecond,
                SystemClock::Instance());
  const auto answer = [&](LinkCore::Lane lane, const std::string& reply) {
    ASSERT_TRUE(Becomes([&] { return core.Next(lane).call.has_value(); }));
    core.Answer(lane, reply);
  };
  facts_held_ = true;
  OwnerFacts now = facts_;
  now.seen.term += 1;
  answer(LinkCore::Lane::kLease, wire::Encode(WelcomeAt(now.seen)));
  constexpr Generation kNext = kGeneration + (1ULL << 24);
  const wire::Changes changes{.incarnation = kIncarnation,
                              .to = 50,
                              .slots = {{.slot = kTierSlot, .generation = kNext, .name = "m"}},
                              .unnamed = {}};
  answer(LinkCore::Lane::kWatch, wire::Encode(changes));
  Token token = kToken;
  token.generation = kNext;
  EXPECT_FALSE(owner_->data_side().Awaits(token)) << "the generation of now is published";
  const std::int64_t before_ns = SystemClock::Instance().NowNs();
  answer(LinkCore::Lane::kLease,
         wire::Encode(wire::RenewReply{
             .granted = true,
             .lease_ns = 60 * kSecond,
             .revision = 50,
             .hidden = {},
             .changes = {
                 .incarnation = kIncarnation, .from = 50, .to = 50, .slots = {}, .unnamed = {}}}));
  EXPECT_GE(owner_->memory().LeaseUntilNs(), before_ns + (30 * kSecond));
  EXPECT_EQ(*ReadOwnerFacts(directory_ + "/data"), facts_);
  facts_held_ = false;
  now.seen.revision = 50;
  EXPECT_TRUE(AwaitKept(now)) << "the newest";
}

// Each page has all that the owner has not begun.
TEST_F(ClusterTierTest, AnOwnerThatHasMissedManyPatternsAppliesThemAFewWalksLater) {
  constexpr std::uint64_t kLast = 201;
  Fill(60);
  LinkCore core(owner_->link_side(), LinkIdentityOf(facts_), 250 * kMillisecond,
                SystemClock::Instance());
  ASSERT_TRUE(core.Next(LinkCore::Lane::kLease).call);
  core.Answer(LinkCore::Lane::kLease, wire::Encode(WelcomeAt(facts_.seen)));
  const auto list = [&] {
    const auto call = core.Next(LinkCore::Lane::kList).call;
    if (!call) return;
    const auto request = wire::DecodeList(wire::AsBytes(call->body));
    ASSERT_TRUE(request);
    const std::vector<Code> codes(request->items.size(), Code::kOk);
    core.Answer(LinkCore::Lane::kList, wire::Encode(wire::ListReply{codes, 4096}));
  };
  std::uint64_t after = 0;
  int pages = 0;
  ASSERT_TRUE(Becomes([&] {
    list();
    const auto call = core.Next(LinkCore::Lane::kRemovals).call;
    if (!call) return after == kLast;
    const auto request = wire::DecodeRemovalsRequest(wire::AsBytes(call->body));
    after = request ? request->after : 0;
    wire::RemovalsPage page{.drop = {}, .removals = {}, .upto = kLast};
    for (std::uint64_t number = request->seen() + 1; number <= kLast; ++number) {
      page.removals.push_back({.number = number,
                               .slot = kTierSlot,
                               .generation = kGeneration,
                               .keys = {},
                               .pattern = fmt::format("key-{}", number % 60)});
    }
    if (!page.removals.empty()) ++pages;
    core.Answer(LinkCore::Lane::kRemovals, wire::Encode(page));
    return after == kLast;
  })) << after;
  EXPECT_GE(pages, 4) << "64 are open at a time";
  EXPECT_TRUE(OnDisk(Inventory()).empty());
  EXPECT_EQ(Put("key-1"), Code::kOk);
}

// The disks open only once a master has sent all generations, over the lane that is answered here.
TEST_F(ClusterTierTest, AnOwnerThatIsForgottenBeforeItsDisksOpenSaysHelloAgain) {
  Fill(60);
  End();
  ASSERT_TRUE(Begin());
  LinkCore core(owner_->link_side(), LinkIdentityOf(facts_), 250 * kMillisecond,
                SystemClock::Instance());
  ASSERT_TRUE(core.Next(LinkCore::Lane::kLease).call);
  core.Answer(LinkCore::Lane::kLease, wire::Encode(WelcomeAt(facts_.seen)));
  ASSERT_TRUE(core.Next(LinkCore::Lane::kWatch).call);
  core.Answer(
      LinkCore::Lane::kWatch,
      wire::Encode(wire::Changes{.incarnation = kIncarnation,
                                 .to = 50,
                                 .more = true,
                                 .slots = {{.slot = kTierSlot, .generation = 7, .name = "m"}},
                                 .unnamed = {}}));
  core.Disconnected();
  ASSERT_TRUE(core.Next(LinkCore::Lane::kLease).call);
  std::promise<void> answered;
  auto in_time = answered.get_future();
  std::thread lane([&] {
    wire::OwnerWelcome forgotten{.pool = kPool, .incarnation = kIncarnation};
    forgotten.forgotten = true;
    core.Answer(LinkCore::Lane::kLease, wire::Encode(forgotten));
    answered.set_value();
  });
  EXPECT_EQ(in_time.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  owner_->link_side().EndDiskWaits();
  lane.join();
  const auto hello = core.Next(LinkCore::Lane::kLease).call;
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->method, wire::Method::kOwnerHello);
}

TEST_F(ClusterTierTest, ADiskIsNotOpenedBeforeTheFactsOfItsOwnerAreKept) {
  Fill(60);
  End();
  std::filesystem::remove(directory_ + "/data/owner");
  const auto facts = Begin();
  ASSERT_TRUE(facts) << facts.error().ToString();
  facts_held_ = true;
  const int opened = opened_;
  std::promise<void> joined;
  std::thread join([&] {
    Join(*facts);
    joined.set_value();
  });
  EXPECT_EQ(joined.get_future().wait_for(std::chrono::milliseconds(200)),
            std::future_status::timeout);
  EXPECT_EQ(opened_, opened);
  facts_held_ = false;
  join.join();
  EXPECT_TRUE(OnDisk(Inventory()).empty());
  Restart();
}

// The opener has named the disk in the note by then.
TEST_F(ClusterTierTest, NorDoesOneThatIsForgottenWhileItsDiskIsOpenedForTheFirstTime) {
  Fill(60);
  End();
  const auto facts = Begin();
  ASSERT_TRUE(facts) << facts.error().ToString();
  held_ = true;
  owner_->link_side().Follow(facts_);
  Publish();
  owner_->link_side().TableKnown();
  ASSERT_TRUE(AwaitHeld());
  OwnerFacts other = facts_;
  other.identity = {.high = 77, .low = 77};
  owner_->link_side().Follow(other);
  held_ = false;
  ASSERT_TRUE(Becomes([&] { return owner_->disks().open(); }));
  EXPECT_TRUE(AwaitKept(other));
  EXPECT_TRUE(Becomes([&] { return Noted().size() == 1; }));
  EXPECT_TRUE(AwaitEmpty());
  EXPECT_TRUE(OnDisk(Inventory()).empty());
}

// A copy that was made before that is known by the master.
TEST_F(ClusterTierTest, ItsDiskIsOpenedOnceTheMasterHasStoredTheOpeningOfItsDirectory) {
  End();
  ASSERT_TRUE(Begin());
  LinkSide& link = owner_->link_side();
  const auto kept = [&] { return **ReadOwnerFacts(directory_ + "/data"); };
  link.Follow(facts_);
  link.Welcomed(Id128{});
  Publish();
  link.TableKnown();
  const Id128 first = NextOpening();
  EXPECT_EQ(kept().opening, first) << "the directory has it before the master";
  EXPECT_FALSE(owner_->disks().open());
  link.OpeningStored(first);
  ASSERT_TRUE(Becomes([&] { return owner_->disks().open(); }));
  link.EndOpening();
  const Id128 last = link.Report().opening;
  EXPECT_NE(last, Id128{});
  EXPECT_NE(last, first);
  EXPECT_EQ(kept().opening, last);
  EXPECT_EQ(kept().opening_before, first) << "the goodbye may be lost";
}

// So a copy of its directory that is older is known, also if the process is killed.
TEST_F(ClusterTierTest, ARunningOwnerDrawsAnotherOpeningFromTimeToTime) {
  opening_again_ns_ = kMillisecond;
  End();
  ASSERT_TRUE(Begin());
  LinkSide& link = owner_->link_side();
  link.Follow(facts_);
  link.Welcomed(Id128{});
  Publish();
  link.TableKnown();
  Id128 last = NextOpening();
  link.OpeningStored(last);
  ASSERT_TRUE(AwaitServed());
  for (int i = 0; i < 4; ++i) {
    Fill(40, fmt::format("key{}", i));
    const Id128 next = NextOpening(last);
    ASSERT_NE(next, last);
    const OwnerFacts kept = **ReadOwnerFacts(directory_ + "/data");
    EXPECT_EQ(kept.opening, next);
    EXPECT_EQ(kept.opening_before, last);
    link.OpeningStored(next);
    last = next;
  }
}

TEST_F(ClusterTierTest, MistakesAreToldAtTheStart) {
  OwnerOptions options = owner_->options();
  auto other = Owner::Open(options, SystemClock::Instance());
  ASSERT_TRUE(other);
  EXPECT_EQ((*other)->PrepareDisks(directory_ + "/data").error().code, Code::kUnavailable);
  EXPECT_EQ((*other)->PrepareDisks(directory_ + "/data2").error().code, Code::kUnavailable)
      << "the disk is in use";
  End();
  options.disks.front().size_bytes = 32 << 20;
  other = Owner::Open(options, SystemClock::Instance());
  const auto resized = (*other)->PrepareDisks(directory_ + "/data");
  EXPECT_EQ(resized.error().code, Code::kInvalid);
  EXPECT_THAT(resized.error().detail, testing::HasSubstr("give its size"));
}

}  // namespace
}  // namespace kvcove::owner
