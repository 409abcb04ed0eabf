// SPDX-License-Identifier: Apache-2.0
// The master's tasks, and lists, over an owner with a disk: what lies on the disk only takes part.
#include <map>

#include "kvcove/base/size.h"
#include "kvcove/master/server/tasks.h"
#include "tests/becomes.h"
#include "tests/integration/cluster_fixture.h"

namespace kvcove {
namespace {

constexpr std::size_t kValue = 100'000;
constexpr int kMany = 200;  // of which 80 fit into the memory of owner 0

class DiskTasksTest : public DiskClusterFixture {
 protected:
  void SetUp() override {
    ClusterFixture::SetUp();
    if (HasFatalFailure() || IsSkipped()) return;
    tasks_ =
        std::make_unique<master::Tasks>(*master_, master::TaskOptions{}, SystemClock::Instance());
    EXPECT_TRUE(tasks_->Begin());
    pool_ = Open("host0");
    session_ = OpenSession(*pool_, "e1", /*assume_weights=*/true);
    Fill();
  }
  void TearDown() override {
    session_.reset();
    pool_.reset();
    tasks_.reset();
    ClusterFixture::TearDown();
  }
  void Configure(std::size_t number, server::DaemonOptions& options) override {
    DiskClusterFixture::Configure(number, options);
    if (number != 0) return;
    options.host.owner.memory_bytes = 8 * kMiB;
    options.host.owner.disk_admit = owner::DiskAdmit::kAll;
  }

  static std::string KeyOf(int i) { return fmt::format("{}-{}", i % 2 == 0 ? "even" : "odd", i); }
  owner::Owner& OwnerAt(std::size_t i) { return owners_[i]->host().owner(); }
  std::string AddressOf(std::size_t i) { return owners_[i]->host().address(); }
  // All at owner 0, whose host stores at home; nothing is lost on the way to the disk.
  void Fill() {
    for (int i = 0; i < kMany; ++i) {
      ASSERT_EQ(Put(*session_, KeyOf(i), kValue), Code::kOk) << i;
      ASSERT_TRUE(Becomes([&] { return OwnerAt(0).Stat().disk_queued_bytes < kMiB; }));
    }
    ASSERT_TRUE(Becomes([&] { return OwnerAt(0).Stat().disk_queued_bytes == 0; }));
    const PoolStat stat = OwnerAt(0).Stat();
    ASSERT_EQ(stat.disk_dropped_full, 0U);
    ASSERT_GE(stat.disk_objects, static_cast<std::uint64_t>(kMany / 2));
  }
  master::TaskStat Run(const master::TaskRequest& request) {
    const auto id = tasks_->Start(request);
    EXPECT_TRUE(id) << id.error().ToString();
    master::TaskStat ended;
    EXPECT_TRUE(Becomes(
        [&] {
          for (const master::TaskStat& task : tasks_->List()) {
            if (task.id == id.value_or(0) && task.state > master::TaskState::kRunning) ended = task;
          }
          return ended.id != 0;
        },
        milliseconds(60'000)));
    return ended;
  }
  // Without owner 0, each of them is at owner 1.
  void ExpectElsewhere(const std::vector<int>& numbers) {
    session_.reset();
    pool_.reset();
    owners_.erase(owners_.begin());
    const auto far = Open();
    const auto reader = OpenSession(*far, "e2", /*assume_weights=*/true);
    for (const int i : numbers) EXPECT_TRUE(Get(*reader, KeyOf(i), kValue).ok()) << KeyOf(i);
  }
  static std::vector<int> Numbers(int from, int step) {
    std::vector<int> numbers;
    for (int i = from; i < kMany; i += step) numbers.push_back(i);
    return numbers;
  }
  // One page of owner 0's list; `request` goes on behind it.
  std::vector<wire::HeldObject> Page(wire::InventoryRequest& request) {
    const auto page = OwnerAt(0).Page(request, SystemClock::Instance().NowNs() + 5 * kSecond);
    EXPECT_TRUE(page) << page.error().ToString();
    if (!page) {
      request.cursor = wire::kInventoryDone;
      return {};
    }
    EXPECT_TRUE(page->disks);
    request.cursor = page->cursor;
    request.within = page->within;
    request.since = page->since;
    return page->objects;
  }

  // How often each key of owner 0 is listed. `between` runs before the first page of the disk.
  std::map<std::string, int> List(
      const std::string& prefix, std::optional<SlotId> slot = std::nullopt,
      const std::function<void()>& between = [] {}) {
    wire::InventoryRequest request{
        .at_most = 16, .slot = slot, .prefix = prefix, .with_keys = true, .disks = true};
    std::map<std::string, int> listed;
    on_both_ = 0;
    bool on_disk = false;
    while (request.cursor != wire::kInventoryDone) {
      if (request.cursor >= owner::kZonesFrom && !std::exchange(on_disk, true)) between();
      for (const wire::HeldObject& object : Page(request)) {
        ++listed[object.key];
        on_both_ += object.on_disk ? 1 : 0;
      }
    }
    return listed;
  }

  int on_both_ = 0;  // of the last list
  std::unique_ptr<master::Tasks> tasks_;
  std::unique_ptr<Pool> pool_;
  SessionPtr session_;
};

TEST_F(DiskTasksTest, ADrainMovesWhatLiesOnTheDiskOnly) {
  const master::TaskStat task = Run({.kind = master::TaskKind::kDrain, .from = AddressOf(0)});
  EXPECT_EQ(task.state, master::TaskState::kDone) << task.message;
  EXPECT_EQ(task.left, 0U);
  EXPECT_THAT(task.message, testing::HasSubstr("may be stopped"));
  EXPECT_EQ(task.copied, static_cast<std::uint64_t>(kMany));
  EXPECT_EQ(OwnerAt(0).Stat().objects, 0U);
  EXPECT_TRUE(Becomes([&] { return OwnerAt(0).Stat().disk_objects == 0; }));
  ExpectElsewhere(Numbers(0, 1));
}

TEST_F(DiskTasksTest, AnOwnerThatWasDrainedTakesObjectsWhenItIsStartedAgain) {
  ASSERT_EQ(Run({.kind = master::TaskKind::kDrain, .from = AddressOf(0)}).state,
            master::TaskState::kDone);
  owners_.erase(owners_.begin());
  next_owner_ = 0;
  ASSERT_NO_FATAL_FAILURE(StartOwner());  // at the same place, with the same disk
  owner::Owner& back = owners_.back()->host().owner();
  int next = 0;
  EXPECT_TRUE(Becomes([&] {
    (void)Put(*session_, fmt::format("later-{}", next++), kValue);
    return back.Stat().objects > 0;
  }));
}

TEST_F(DiskTasksTest, AMoveTakesItsPrefixFromBothTiersAndACopyLeavesIt) {
  const master::TaskStat copied = Run({.kind = master::TaskKind::kCopy,
                                       .from = AddressOf(0),
                                       .to = AddressOf(1),
                                       .prefix = "even-"});
  EXPECT_EQ(copied.state, master::TaskState::kDone) << copied.message;
  EXPECT_EQ(copied.copied, static_cast<std::uint64_t>(kMany / 2));
  // What was copied is here, too: in memory or on the disk.
  EXPECT_EQ(List("even-").size(), static_cast<std::size_t>(kMany / 2));
  const master::TaskStat moved = Run({.kind = master::TaskKind::kMove,
                                      .from = AddressOf(0),
                                      .to = AddressOf(1),
                                      .prefix = "odd-"});
  EXPECT_EQ(moved.state, master::TaskState::kDone) << moved.message;
  EXPECT_EQ(moved.copied, static_cast<std::uint64_t>(kMany / 2));
  EXPECT_TRUE(Becomes([&] { return List("odd-").empty(); }));
  ExpectElsewhere(Numbers(0, 1));
}

TEST_F(DiskTasksTest, ADrainWithoutRoomKeepsWhatItCannotMove) {
  StartOwner(4 * kMiB);
  owners_.erase(owners_.begin() + 1);  // 8 MiB with the disk, and 4 MiB
  WaitLive(2);
  const master::TaskStat task = Run({.kind = master::TaskKind::kDrain, .from = AddressOf(0)});
  EXPECT_EQ(task.state, master::TaskState::kFailed);
  EXPECT_THAT(task.message, testing::HasSubstr("no room"));
  EXPECT_GT(task.copied, 10U);
  EXPECT_GT(task.left, static_cast<std::uint64_t>(kMany / 2));
  int found = 0;
  for (int i = 0; i < kMany; ++i) found += Get(*session_, KeyOf(i), kValue).ok() ? 1 : 0;
  EXPECT_EQ(found, kMany);
}

TEST_F(DiskTasksTest, AKeyInBothTiersIsListedOnce) {
  // What is read comes up, and stays on the disk.
  int both = 0;
  for (int i = 0; i < 10; ++i) {
    const ItemResult got = Get(*session_, KeyOf(i), kValue);
    EXPECT_TRUE(got.ok());
    both += got.tier == Tier::kDisk ? 1 : 0;
  }
  ASSERT_GT(both, 0);
  ASSERT_TRUE(Becomes([&] { return OwnerAt(0).Stat().disk_queued_bytes == 0; }));
  const SlotId slot = Must(session_->Capture({.timeout = kCallTime})).slot;
  for (const std::optional<SlotId> of : {std::optional(slot), std::optional<SlotId>()}) {
    const auto listed = List("", of);
    EXPECT_EQ(listed.size(), static_cast<std::size_t>(kMany));
    for (const auto& [key, count] : listed) EXPECT_EQ(count, 1) << key;
    EXPECT_GE(on_both_, both);
  }
  // What comes up behind the walk over memory is listed with the disk. What gives way to it was
  // listed already, and may be again.
  const auto listed = List("", slot, [&] {
    for (int i = 20; i < 28; ++i) EXPECT_TRUE(Get(*session_, KeyOf(i), kValue).ok());
  });
  EXPECT_EQ(listed.size(), static_cast<std::size_t>(kMany));
  // Without `since` the owner lists a key in both tiers twice.
  wire::InventoryRequest request{.at_most = wire::kMaxPage, .with_keys = true, .disks = true};
  std::size_t lines = 0;
  while (request.cursor != wire::kInventoryDone) {
    lines += Page(request).size();
    request.since = 0;
  }
  EXPECT_GT(lines, static_cast<std::size_t>(kMany));
}

}  // namespace
}  // namespace kvcove
