// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/disk/owner_disks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <thread>

#include "kvcove/owner/disk/disk_opening.h"
#include "kvcove/owner/disk/disks_report.h"
#include "kvcove/owner/disk/inventory_walk.h"
#include "kvcove/owner/disk/object_pages.h"
#include "kvcove/owner/disk/promotions.h"
#include "kvcove/owner/disk/removals.h"
#include "tests/becomes.h"
#include "tests/held_note.h"

namespace kvcove::owner {
namespace {

constexpr SlotId kNamedSlot = 3;
constexpr Generation kNow = 7;
constexpr Id128 kHistory{.high = 1, .low = 1};
const Token kCaptured{.incarnation = kHistory, .generation = kNow, .slot = kNamedSlot};

// An owner's parts, without the owner.
class OwnerDisksTest : public testing::Test {
 protected:
  OwnerDisksTest() {
    std::string name = testing::TempDir() + "/kvcove-disks-XXXXXX";
    directory_ = mkdtemp(name.data());
  }
  ~OwnerDisksTest() override { std::filesystem::remove_all(directory_); }

  static std::unique_ptr<Memory> MakeMemory(std::uint64_t tier_objects) {
    return *Memory::Create({.payload_bytes = 1 << 20,
                            .granule_bytes = 64,
                            .max_objects = 1024,
                            .tier_objects = tier_objects,
                            .available_bytes = {},
                            .populate = false},
                           SystemClock::Instance());
  }
  static void OpenCore(Memory& memory, OwnerDisks& disks) {
    ASSERT_TRUE(memory.OpenCore({.payload_bytes = 1 << 20,
                                 .max_objects = 1024,
                                 .policy = "lru",
                                 .quotas = {},
                                 .listed = disks.options().cluster,
                                 .lower = disks.lower()}));
    const MutexLock lock(memory.mutex);
    memory.SetSlots(kHistory, {{.slot = kNamedSlot, .generation = kNow, .name = "m"}});
  }
  // The parts of an owner with one disk, which is not open.
  struct Parts {
    Parts(const std::string& directory, bool cluster)
        : disks({.disks = {{.path = directory + "/disk", .size_bytes = 24 << 20}},
                 .quotas = {},
                 .tier = {.opening_again_ns = 0},
                 .memory_bytes = 1 << 20,
                 .cluster = cluster},
                *memory, clock) {
      OpenCore(*memory, disks);
    }
    std::unique_ptr<DiskOpening> MakeOpening() {
      return std::make_unique<DiskOpening>(disks, *memory, promotions, link_ends, clock);
    }
    std::unique_ptr<Removals> MakeRemovals() {
      return std::make_unique<Removals>(disks, *opening, *memory, link_ends, clock);
    }
    const Clock& clock = SystemClock::Instance();
    const std::unique_ptr<Memory> memory = MakeMemory(1024);
    OwnerDisks disks;
    std::atomic<bool> link_ends{false};
    Promotions promotions{disks, *memory, clock};
    std::unique_ptr<DiskOpening> opening = MakeOpening();
    std::unique_ptr<Removals> removals = MakeRemovals();
  };
  std::string directory_;
};

// Each call does nothing, so no caller has to ask whether there are disks.
TEST_F(OwnerDisksTest, AnOwnerWithoutDisksHasAllPartsOverNone) {
  const Clock& clock = SystemClock::Instance();
  const std::unique_ptr<Memory> memory = MakeMemory(/*tier_objects=*/0);
  OwnerDisks disks({.memory_bytes = 1 << 20}, *memory, clock);
  EXPECT_EQ(disks.lower(), nullptr);
  OpenCore(*memory, disks);
  const std::atomic<bool> link_ends{false};
  Promotions promotions(disks, *memory, clock);
  DiskOpening opening(disks, *memory, promotions, link_ends, clock);
  Removals removals(disks, opening, *memory, link_ends, clock);
  InventoryWalk inventory(disks, opening, *memory, link_ends, clock);

  const auto known = std::make_shared<KnownDisks>(directory_);
  EXPECT_TRUE(disks.Open({.known = known}, promotions));
  EXPECT_FALSE(disks.open());
  EXPECT_TRUE(known->Read()->empty()) << "the pool runs without the disks that it may have had";
  opening.Follow({});
  opening.TableKnown();
  opening.Tick();
  disks.Tick();
  EXPECT_TRUE(opening.settled());

  const std::vector<std::string_view> keys = {"a", "b"};
  bool answered = false;
  promotions.Read(1, {.token = kCaptured, .keys = keys, .wait_ns = kSecond, .hold_ns = 0},
                  [&](const auto& results) { answered = results && results->size() == 2; });
  EXPECT_TRUE(answered);
  EXPECT_EQ(promotions.BringUp(kCaptured, keys, {}), nullptr);

  const std::int64_t soon_ns = clock.NowNs() + 30 * kSecond;
  EXPECT_EQ(removals.Remove(kCaptured, keys, soon_ns),
            (std::vector<Code>{Code::kMiss, Code::kMiss}));
  EXPECT_EQ(removals.RemoveMatching(kCaptured, "*", soon_ns).value_or(9), 0U);
  std::size_t removed = 0;
  removals.RemoveThen(kCaptured, keys, soon_ns,
                      [&](const auto& codes) { removed = codes ? codes->size() : 0; });
  EXPECT_EQ(removed, 2U);
  std::optional<std::uint64_t> matched;
  removals.RemoveMatchingThen(kCaptured, "*", soon_ns,
                              [&](const auto& count) { matched = count.value_or(9); });
  EXPECT_EQ(matched, 0U);
  removals.Apply({.number = 1, .slot = kNamedSlot, .keys = {"a"}, .pattern = {}});
  EXPECT_FALSE(
      removals.BeginPattern({.number = 2, .slot = kNamedSlot, .keys = {}, .pattern = "*"}).open);
  EXPECT_TRUE(removals.TakeEndedPatterns().empty());
  EXPECT_TRUE(removals.AwaitApplied());
  removals.DropSlots({&kNamedSlot, 1});

  ObjectId cursor = 0;
  EXPECT_TRUE(inventory.Next(cursor, 10).empty());
  EXPECT_EQ(cursor, Core::kWalkDone);
  EXPECT_TRUE(inventory.TakeGone(10).empty());
  EXPECT_FALSE(inventory.TakeGoneOverflow());
  inventory.WalkEnds();
  inventory.Reported();
  const auto page = ListObjects(disks, *memory, clock, {.at_most = 10, .disks = true}, soon_ns);
  ASSERT_TRUE(page);
  EXPECT_FALSE(page->disks);

  PoolStat stat;
  AddDisks(disks, stat);
  wire::RenewRequest report;
  AddDisks(disks, report);
  Metrics metrics;
  CollectDisks(disks, metrics);
  EXPECT_TRUE(stat.disks.empty());
  EXPECT_EQ(report.disks, 0U);
  EXPECT_EQ(metrics.Text(), "");
  disks.Drain();
  EXPECT_TRUE(disks.Pause());
  EXPECT_FALSE(disks.TakePaused());
  disks.Stop();
  disks.LeaveHanging();
}

// The disk is not open yet, so it carries out none of them.
TEST_F(OwnerDisksTest, ABoundedNumberOfPatternsWaitsForADisk) {
  Parts parts(directory_, /*cluster=*/false);
  Removals& removals = *parts.removals;

  const std::int64_t late_ns = parts.clock.NowNs() + 600 * kSecond;
  std::optional<Result<std::uint64_t>> answer;
  const auto begins = [&] {
    removals.RemoveMatchingThen(kCaptured, "x*", late_ns,
                                [&](const auto& count) { answer = count; });
    return !answer;
  };
  std::size_t begun = 0;
  while (begun < 100 && begins()) ++begun;
  EXPECT_EQ(begun, 64U);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->error().code, Code::kLimit);
  const std::vector<std::string_view> keys = {"a"};
  removals.RemoveThen(kCaptured, keys, late_ns, [](const auto&) {});
  EXPECT_EQ(removals.waits().size(), begun + 1) << "those of keys are not affected";
  removals.waits().EndAll();
}

// The number by which the disk is known lasts over the pause.
TEST_F(OwnerDisksTest, ACopyInThePlaceOfADiskThatIsPausedStartsEmpty) {
  const Clock& clock = SystemClock::Instance();
  const std::string file = directory_ + "/file";
  const TierPlace place{.pool = {.high = 5, .low = 5},
                        .incarnation = kHistory,
                        .known = std::make_shared<KnownDisks>(directory_)};
  const auto number = [&] {
    const auto noted = place.known->Read();
    return noted && noted->size() == 1 ? noted->front().disk : Id128{};
  };
  const auto run = [&](const std::function<void(OwnerDisks&, Promoter&)>& use) {
    const std::unique_ptr<Memory> memory = MakeMemory(1024);
    OwnerDisks disks(
        {.disks = {{.path = file, .size_bytes = 24 << 20}}, .quotas = {}, .memory_bytes = 1 << 20},
        *memory, clock);
    OpenCore(*memory, disks);
    Promotions promotions(disks, *memory, clock);
    promotions.Open();
    const Status opened = disks.Open(place, promotions);
    if (!opened && opened.error().detail.find("O_DIRECT") != std::string::npos) {
      GTEST_SKIP() << opened.error().ToString();
    }
    ASSERT_TRUE(opened) << opened.error().ToString();
    use(disks, promotions);
    disks.Stop();
  };
  const auto resume = [&](OwnerDisks& disks, Promoter& promoter) {
    ASSERT_TRUE(disks.TakePaused());
    ASSERT_TRUE(disks.StartPaused(place, promoter, /*voids=*/false));
    ASSERT_TRUE(Becomes([&] { return number() != Id128{}; }));
  };
  run([](OwnerDisks&, Promoter&) {});
  if (IsSkipped()) return;
  std::filesystem::copy_file(file, directory_ + "/copy");
  run([&](OwnerDisks& disks, Promoter& promoter) {
    const Id128 before = number();
    ASSERT_TRUE(disks.Pause());
    resume(disks, promoter);
    EXPECT_EQ(number(), before) << "it is the disk that was paused";
    ASSERT_TRUE(disks.Pause());
    std::filesystem::rename(directory_ + "/copy", file);
    resume(disks, promoter);
    EXPECT_NE(number(), before);
  });
}

// The thread of a disk that was left behind in a write of the note may end it late, and would then
// overwrite the note of the directory's next process.
TEST_F(OwnerDisksTest, ANoteKeepsItsDirectoryFromOtherProcesses) {
  Parts parts(directory_, /*cluster=*/true);
  const auto facts = parts.opening->Prepare(directory_ + "/data");
  if (!facts && facts.error().detail.find("O_DIRECT") != std::string::npos) {
    GTEST_SKIP() << facts.error().ToString();
  }
  ASSERT_TRUE(facts) << facts.error().ToString();
  std::shared_ptr<KnownDisks> left_behind = parts.opening->Place().known;
  parts.removals.reset();
  parts.opening.reset();
  parts.disks.SetNote(nullptr);
  const auto refused = parts.MakeOpening()->Prepare(directory_ + "/data");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kUnavailable);
  left_behind.reset();
  EXPECT_TRUE(parts.MakeOpening()->Prepare(directory_ + "/data"));
}

TEST_F(OwnerDisksTest, ARemovalEndsAtItsDeadlineWhereTheFileSystemOfTheNoteHangs) {
  Parts parts(directory_, /*cluster=*/false);
  parts.promotions.Open();
  std::filesystem::create_directory(directory_ + "/data");
  const TierPlace place{.pool = {.high = 5, .low = 5},
                        .incarnation = kHistory,
                        .known = std::make_shared<KnownDisks>(directory_ + "/data")};
  const Status opened = parts.disks.Open(place, parts.promotions);
  if (!opened && opened.error().detail.find("O_DIRECT") != std::string::npos) {
    GTEST_SKIP() << opened.error().ToString();
  }
  ASSERT_TRUE(opened) << opened.error().ToString();
  parts.disks.set()[0].use().SetAside("a test");
  const std::vector<std::string_view> keys = {"a"};
  const auto remove = [&](std::int64_t within_ns) {
    return parts.removals->Remove(kCaptured, keys, parts.clock.NowNs() + within_ns).front();
  };
  HeldNote note(*place.known);
  EXPECT_EQ(remove(20 * kMillisecond), Code::kTimeout);
  note.End();
  EXPECT_EQ(remove(60 * kSecond), Code::kMiss);
  parts.disks.Stop();
}

// Neither the directory nor the master's store is written then.
TEST_F(OwnerDisksTest, NoOpeningOfTheDirectoryIsDrawnWhileDisksAndNoteAreAsTheyWere) {
  Parts parts(directory_, /*cluster=*/true);
  DiskOpening& opening = *parts.opening;
  const auto facts = opening.Prepare(directory_ + "/data");
  if (!facts && facts.error().detail.find("O_DIRECT") != std::string::npos) {
    GTEST_SKIP() << facts.error().ToString();
  }
  ASSERT_TRUE(facts) << facts.error().ToString();
  opening.Welcomed(Id128{});
  // The last opening is durable, and the master has stored it: returns whether another is drawn.
  const auto draws = [&] {
    EXPECT_TRUE(Becomes([&] {
      opening.Tick();
      return opening.ToldOpening() != Id128{};
    }));
    const Id128 last = opening.ToldOpening();
    opening.OpeningStored(last);
    opening.Tick();
    return opening.NamedOpenings().now != last;
  };
  EXPECT_TRUE(draws()) << "the start has written the note";
  EXPECT_FALSE(draws());
  EXPECT_FALSE(draws());
  // The opening that is drawn is not stored before the next call.
  const auto draws_once = [&] {
    const Id128 last = opening.NamedOpenings().now;
    opening.Tick();
    return opening.NamedOpenings().now != last && !draws();
  };
  parts.disks.set()[0].use().AddChanges(1);
  EXPECT_TRUE(draws_once());
  ASSERT_TRUE(parts.disks.ForgetAll());
  EXPECT_TRUE(draws_once());
}

// The thread of a disk that hung is left behind, and may continue when its owner is gone.
TEST_F(OwnerDisksTest, ADiskMayReportAProofAfterTheEndOfItsOwner) {
  Parts parts(directory_, /*cluster=*/false);
  int answers = 0;
  const std::string_view key = "k";
  parts.removals->RemoveThen(kCaptured, {&key, 1}, parts.clock.NowNs() + kSecond,
                             [&](const auto&) { ++answers; });
  EXPECT_EQ(answers, 0);
  parts.removals.reset();
  EXPECT_EQ(answers, 1);
  parts.disks.set().common().on_proven();
}

// Others' removals are acknowledged in between, however many objects a pattern has taken.
TEST_F(OwnerDisksTest, TheKeysThatAWalkHasTakenAreUnlistedInSteps) {
  constexpr std::size_t kKeys = (1 << 16) + 1000;
  Parts parts(directory_, /*cluster=*/true);
  Removals& removals = *parts.removals;
  TierRemovals& disk = parts.disks.set()[0].removals();
  for (const std::uint64_t number : {1, 2}) {
    (void)removals.BeginPattern(
        {.number = number, .slot = kNamedSlot, .generation = kNow, .keys = {}, .pattern = "k*"});
  }
  // As the disk's thread does it, whose walk gives a key to the first pattern that matches.
  std::vector<TierOrder> orders = disk.TakeOrders();
  ASSERT_EQ(orders.size(), 2U);
  for (std::size_t i = 0; i < kKeys; ++i) {
    orders[0].removal->keys.push_back("k" + std::to_string(i));
  }
  disk.Proven(orders[1], 0);
  EXPECT_TRUE(removals.TakeEndedPatterns().empty()) << "keys of the second are listed yet";
  disk.Proven(orders[0], kKeys);
  EXPECT_TRUE(removals.TakeEndedPatterns().empty());
  const auto unlisted = [&] {
    const MutexLock lock(parts.memory->mutex);
    return parts.memory->core().TakeGone(2 * kKeys).size();
  };
  EXPECT_EQ(unlisted(), std::size_t{1} << 16);
  const auto ended = removals.TakeEndedPatterns();
  ASSERT_EQ(ended.size(), 2U);
  EXPECT_EQ(ended[0].objects, kKeys);
  EXPECT_EQ(unlisted(), 1000U);
}

// An owner that returns to another master may have to drop many.
TEST_F(OwnerDisksTest, OneWalkServesAllSlotsThatAreDropped) {
  Parts parts(directory_, /*cluster=*/true);
  TierRemovals& disk = parts.disks.set()[0].removals();
  std::vector<SlotId> slots;
  for (SlotId slot = kNamedSlot; slot < kNamedSlot + 70; ++slot) slots.push_back(slot);
  {
    std::vector<SlotUpdate> updates;
    for (const SlotId slot : slots) {
      updates.push_back({.slot = slot, .generation = kNow, .name = "m"});
    }
    const MutexLock lock(parts.memory->mutex);
    parts.memory->SetSlots(kHistory, updates);
  }
  std::thread lane([&] { parts.removals->DropSlots(slots); });
  for (const std::size_t walked : {64, 6}) {
    std::vector<TierOrder> orders;
    EXPECT_TRUE(Becomes([&] {
      std::ranges::move(disk.TakeOrders(), std::back_inserter(orders));
      return orders.size() == walked;
    })) << orders.size();
    for (const TierOrder& order : orders) disk.Proven(order, 0);
  }
  lane.join();
}

TEST_F(OwnerDisksTest, ADropWaitsForNoWalk) {
  Parts parts(directory_, /*cluster=*/true);
  TierRemovals& disk = parts.disks.set()[0].removals();
  const std::vector<SlotId> slots(70, kNamedSlot);
  ASSERT_TRUE(parts.removals->BeginDrop(slots));
  EXPECT_EQ(parts.removals->PatternRoom(), 0U) << "each load looks at all of them";
  EXPECT_FALSE(parts.removals->DropEnded());
  for (const std::size_t walked : {64, 6}) {
    std::vector<TierOrder> orders = disk.TakeOrders();
    std::erase_if(
        orders, [](const TierOrder& order) { return order.kind == TierOrder::Kind::kGeneration; });
    ASSERT_EQ(orders.size(), walked);
    for (const TierOrder& order : orders) disk.Proven(order, 0);
    EXPECT_EQ(parts.removals->DropEnded(), walked == 6);
  }
  EXPECT_EQ(parts.removals->PatternRoom(), 64U);
  // What a hand-over cuts off is begun again by the successor.
  ASSERT_TRUE(parts.removals->BeginDrop(slots));
  parts.removals->ForgetPatterns();
  EXPECT_TRUE(parts.removals->DropEnded());
}

// The note names the disk from before, so no value may be stored over what the disk holds.
TEST_F(OwnerDisksTest, ANoteThatCannotBeWrittenAtTheStartMayNameTheDisk) {
  const Clock& clock = SystemClock::Instance();
  const TierPlace place{.pool = {.high = 5, .low = 5},
                        .incarnation = kHistory,
                        .known = std::make_shared<KnownDisks>(directory_)};
  std::atomic<int> opens{0};
  const DeviceOpener open =
      [&](const std::string& path) -> Result<std::unique_ptr<disklog::Device>> {
    if (opens-- <= 0) return Fail(Code::kUnavailable, "a test");
    return disklog::OpenDevice(path);
  };
  // Returns the state of the disk after a start that can open it so often.
  const auto start = [&](int at_most) {
    opens = at_most;
    const std::unique_ptr<Memory> memory = MakeMemory(1024);
    OwnerDisks disks({.disks = {{.path = directory_ + "/file", .size_bytes = 24 << 20}},
                      .quotas = {},
                      .tier = {.open = open},
                      .memory_bytes = 1 << 20,
                      .cluster = true},
                     *memory, clock);
    OpenCore(*memory, disks);
    Promotions promotions(disks, *memory, clock);
    promotions.Open();
    disks.SetNote(place.known);
    const std::atomic<bool> stops{false};
    disks.OpenEach(place, promotions, stops);
    const DiskState state = disks.set()[0].use().state();
    disks.Stop();
    return state;
  };
  const DiskState first = start(/*at_most=*/10);
  if (first.why().find("O_DIRECT") != std::string::npos) GTEST_SKIP() << first.why();
  ASSERT_TRUE(first.on()) << first.why();
  std::filesystem::create_directories(directory_ + "/disk.new/in the way");
  const DiskState state = start(/*at_most=*/1);
  EXPECT_EQ(state.state(), DiskState::State::kAside);
  EXPECT_TRUE(state.unstruck());
  EXPECT_EQ(place.known->Read()->size(), 1U);
}

// A disk may take minutes to be read, and is not given up while it is. One that answers nothing, or
// a file system that lets nobody open it, is.
TEST_F(OwnerDisksTest, AnOpeningHangsOnceItMakesNoProgress) {
  FakeClock clock;
  const std::unique_ptr<Memory> memory = MakeMemory(1024);
  std::atomic<bool> held{true};
  std::atomic<bool> waits{false};
  OwnerDisks disks(
      {.disks = {{.path = directory_ + "/file", .size_bytes = 24 << 20}},
       .quotas = {},
       .tier = {.hang_ns = 10 * kSecond,
                .open = [&](const std::string&) -> Result<std::unique_ptr<disklog::Device>> {
                  waits = true;
                  while (held) {
                    std::this_thread::sleep_for(std::chrono::milliseconds(1));
                  }
                  return Fail(Code::kUnavailable, "a test");
                }},
       .memory_bytes = 1 << 20,
       .cluster = true},
      *memory, clock);
  OpenCore(*memory, disks);
  Promotions promotions(disks, *memory, clock);
  promotions.Open();
  const TierPlace place{.pool = {.high = 5, .low = 5},
                        .incarnation = kHistory,
                        .known = std::make_shared<KnownDisks>(directory_)};
  disks.SetNote(place.known);
  const auto tick = [&](int ticks) {
    for (int i = 0; i < ticks; ++i) {
      clock.AdvanceNs(100 * kMillisecond);
      disks.Tick();
    }
    return disks.opening_hangs();
  };
  EXPECT_FALSE(tick(200)) << "no opening has begun";
  const std::atomic<bool> stops{false};
  std::thread opener([&] { disks.OpenEach(place, promotions, stops); });
  EXPECT_TRUE(Becomes([&] { return waits.load(); }));
  DiskUse& use = disks.set()[0].use();
  use.NoteProgress();
  EXPECT_FALSE(tick(99));
  clock.AdvanceNs(60 * kSecond);
  EXPECT_FALSE(tick(1)) << "this process was stopped";
  use.NoteProgress();
  EXPECT_FALSE(tick(99)) << "it goes on";
  EXPECT_TRUE(tick(5));
  use.NoteProgress();
  EXPECT_FALSE(tick(1));
  use.ages()->NoteOldest(DiskOperation::kRead, use.ages()->now_ns());
  bool hangs = false;
  for (int i = 0; i < 105; ++i) {
    use.NoteProgress();
    hangs = tick(1);
    EXPECT_TRUE(i < 99 ? !hangs : true);
  }
  EXPECT_TRUE(hangs) << "a read has no answer";
  held = false;
  opener.join();
  EXPECT_TRUE(disks.open());
  EXPECT_TRUE(disks.set().Any(&DiskState::aside));
  disks.Stop();
}

// Other owners may store the keys of a disk that is away in any new epoch, whatever has begun it.
TEST_F(OwnerDisksTest, NoEpochBeginsBeforeEachDiskThatIsAwayIsStruck) {
  const Clock& clock = SystemClock::Instance();
  const std::unique_ptr<Memory> memory = MakeMemory(1024);
  OwnerDisks disks({.disks = {{.path = directory_ + "/a", .size_bytes = 24 << 20},
                              {.path = directory_ + "/b", .size_bytes = 24 << 20}},
                    .quotas = {},
                    .memory_bytes = 1 << 20,
                    .cluster = true},
                   *memory, clock);
  OpenCore(*memory, disks);
  const auto known = std::make_shared<KnownDisks>(directory_);
  disks.SetNote(known);
  const std::atomic<bool> link_ends{false};
  Promotions promotions(disks, *memory, clock);
  DiskOpening opening(disks, *memory, promotions, link_ends, clock);
  InventoryWalk inventory(disks, opening, *memory, link_ends, clock);
  const auto next = [&] {
    ObjectId cursor = 0;
    EXPECT_TRUE(inventory.Next(cursor, 10).empty());
    return cursor;
  };
  disks.set()[0].use().SetOn();
  EXPECT_NE(next(), 0U);

  disks.set()[0].use().SetAside("it failed");
  disks.set()[1].inventory().LoseAll();
  EXPECT_FALSE(inventory.TakeGoneOverflow()) << "no thread strikes disks here";
  EXPECT_FALSE(inventory.TakeGoneOverflow());
  EXPECT_EQ(next(), 0U) << "nor is the present epoch reported as a whole";
  EXPECT_FALSE(disks.set().Any(&DiskState::away_and_struck));
  known->SetVoid(true);
  EXPECT_TRUE(inventory.TakeGoneOverflow());
  EXPECT_TRUE(disks.set().Any(&DiskState::away_and_struck));
  EXPECT_FALSE(inventory.TakeGoneOverflow()) << "once";
  EXPECT_NE(next(), 0U);
}

TEST_F(OwnerDisksTest, ADiskThatIsNotTriedAgainGathersNoOrders) {
  Parts parts(directory_, /*cluster=*/true);
  DiskSet& set = parts.disks.set();
  const auto reset = [&](Generation generation) {
    set.SetSlots({{.slot = kNamedSlot, .generation = generation, .name = "m"}});
  };
  reset(kNow + 1);
  EXPECT_EQ(set[0].removals().TakeOrders().size(), 1U);
  parts.disks.Unmount();
  reset(kNow + 2);
  EXPECT_TRUE(set[0].removals().TakeOrders().empty());
  EXPECT_EQ(set[0].removals().Slots().back().generation, kNow + 2) << "it knows the generation";
}

TEST_F(OwnerDisksTest, NoSlotIsDroppedOnceTheLinkEnds) {
  Parts parts(directory_, /*cluster=*/true);
  parts.link_ends = true;
  parts.removals->DropSlots({&kNamedSlot, 1});
  EXPECT_EQ(parts.disks.set().Patterns(), 0U);
}

// The master does not list what such a disk holds, and may know newer values of its keys. A
// successor that took the disk for one that is only paused would serve the older ones.
TEST_F(OwnerDisksTest, ADiskThatWasPausedWhileItWasReportedIsHandedOverAsOneSetAside) {
  const std::unique_ptr<Memory> memory = MakeMemory(1024);
  OwnerDisks disks({.disks = {{.path = directory_ + "/disk", .size_bytes = 24 << 20}},
                    .quotas = {},
                    .memory_bytes = 1 << 20,
                    .cluster = true},
                   *memory, SystemClock::Instance());
  OpenCore(*memory, disks);
  Tiering& disk = disks.set()[0];
  EXPECT_EQ(disks.HandOver().asides, std::vector<std::string>{""});
  disk.use().SetAside("the disk failed");
  EXPECT_EQ(disks.HandOver().asides, std::vector<std::string>{"the disk failed"});
  ASSERT_TRUE(disk.use().BeginReport());
  EXPECT_TRUE(disk.use().Pause());
  ASSERT_EQ(disks.HandOver().asides.size(), 1U);
  EXPECT_NE(disks.HandOver().asides[0], "");

  const std::unique_ptr<Memory> same = MakeMemory(1024);
  OwnerDisks successor({.disks = {{.path = directory_ + "/disk", .size_bytes = 24 << 20}},
                        .quotas = {},
                        .memory_bytes = 1 << 20,
                        .cluster = true},
                       *same, SystemClock::Instance());
  OpenCore(*same, successor);
  successor.Adopt(disks.HandOver());
  EXPECT_TRUE(successor.set().Any(&DiskState::away));
}

TEST_F(OwnerDisksTest, ADiskThatWasNeverOpenReportsItsConfiguredSizeEverywhere) {
  const std::unique_ptr<Memory> memory = MakeMemory(1024);
  OwnerDisks disks({.disks = {{.path = directory_ + "/disk", .size_bytes = 24 << 20}},
                    .quotas = {},
                    .memory_bytes = 1 << 20},
                   *memory, SystemClock::Instance());
  OpenCore(*memory, disks);
  disks.set()[0].use().SetAside("it does not open");
  PoolStat stat;
  AddDisks(disks, stat);
  ASSERT_EQ(stat.disks.size(), 1U);
  EXPECT_EQ(stat.disks[0].space.total_bytes, 24U << 20);
  wire::RenewRequest report;
  AddDisks(disks, report);
  EXPECT_EQ(report.disk_capacity_bytes, 24U << 20);
  Metrics metrics;
  CollectDisks(disks, metrics);
  const std::string text = metrics.Text();
  const std::size_t line = text.find("\nkvcove_owner_capacity_bytes{");
  ASSERT_NE(line, std::string::npos) << text;
  const std::string value = text.substr(text.find("} ", line) + 2);
  EXPECT_EQ(std::stod(value), 24 << 20) << text;
}

// An endpoint of several owners has a sample of each, and a scrape no sample twice.
TEST_F(OwnerDisksTest, WhatAllDisksOfAnOwnerShareHasTheOwnersLabels) {
  const std::unique_ptr<Memory> memory = MakeMemory(1024);
  OwnerDisks disks({.disks = {{.path = directory_ + "/disk", .size_bytes = 24 << 20}},
                    .quotas = {},
                    .memory_bytes = 1 << 20},
                   *memory, SystemClock::Instance());
  OpenCore(*memory, disks);
  Metrics metrics;
  CollectDisks(disks, metrics, {{"socket", "s"}});
  const std::string text = metrics.Text();
  EXPECT_NE(text.find("\nkvcove_owner_disk_budget_bytes{socket=\"s\"} "), std::string::npos)
      << text;
}

// Its thread may use the set one day, so it is left there, and others find none.
TEST_F(OwnerDisksTest, BehindADiskThatHungNothingIsReported) {
  const Clock& clock = SystemClock::Instance();
  const std::unique_ptr<Memory> memory = MakeMemory(1024);
  // These outlive the test, because the thread may continue after it.
  static std::atomic<bool> held{true};
  static std::atomic<bool> waits{false};
  OwnerDisks disks({.disks = {{.path = directory_ + "/disk", .size_bytes = 24 << 20}},
                    .quotas = {},
                    .tier = {.open =
                                 [](const std::string& path) {
                                   waits = true;
                                   while (held)
                                     std::this_thread::sleep_for(std::chrono::milliseconds(1));
                                   return disklog::OpenDevice(path);
                                 }},
                    .memory_bytes = 1 << 20},
                   *memory, clock);
  EXPECT_EQ(disks.lower(), &disks.set());
  OpenCore(*memory, disks);
  Promotions promotions(disks, *memory, clock);
  promotions.Open();
  const TierPlace place{.pool = {.high = 5, .low = 5},
                        .incarnation = kHistory,
                        .known = std::make_shared<KnownDisks>(directory_)};
  disks.SetNote(place.known);
  disks.Adopt({.shares = {segment::kAllTierShares}, .numbers = {}, .asides = {}, .slots = {}});
  ASSERT_TRUE(disks.StartPaused(place, promotions, /*voids=*/false));
  ASSERT_TRUE(Becomes([] { return waits.load(); }));
  DisksRemoval removal;
  const std::string_view key = "k";
  {
    const MutexLock lock(memory->mutex);
    disks.set().Remove(kNamedSlot, kNow, {&key, 1}, removal);
  }
  EXPECT_EQ(disks.Pause().error().code, Code::kUnavailable);
  disks.LeaveHanging();
  EXPECT_EQ(disks.set().size(), 0U);
  PoolStat stat;
  AddDisks(disks, stat);
  EXPECT_TRUE(stat.disks.empty());
  Metrics metrics;
  CollectDisks(disks, metrics);
  EXPECT_EQ(metrics.Text(), "");
  EXPECT_TRUE(disks.HandOver().shares.empty());
  EXPECT_TRUE(disks.AwaitRemoval(removal, clock.NowNs() + kSecond));
  held = false;
}

}  // namespace
}  // namespace kvcove::owner
