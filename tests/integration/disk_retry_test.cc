// SPDX-License-Identifier: Apache-2.0
// Real disk files whose devices fail on command: a disk's thread sets it aside and uses it again by
// itself, and the other disks do not notice.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"
#include "kvcove/owner/core/core_fixture.h"
#include "kvcove/owner/disk/disk_thread.h"
#include "tests/becomes.h"
#include "tests/breaking_device.h"
#include "tests/held_note.h"
#include "tests/must.h"

namespace kvcove::owner {
namespace {

constexpr SlotId kSlot = 2;
constexpr Generation kGeneration = (7ULL << 24) | 1;
constexpr std::uint32_t kValue = 100'000;

// A disk that hangs on command. While `hangs` is set, no operation ends, and the destructor waits.
// While `writes_held` is set, a thread that calls Write() waits inside that call.
class HangingDevice final : public BreakingDevice {
 public:
  struct Faults {
    std::atomic<bool> hangs{false};
    std::atomic<bool> writes_held{false};
    std::atomic<int> writes{0};
    std::atomic<int> closed{0};
    std::atomic<int> hangs_at_read{0};  // of a device, counted from 1; 0: at none
  };
  HangingDevice(std::unique_ptr<disklog::Device> device, const std::atomic<bool>& broken,
                std::shared_ptr<Faults> faults)
      : BreakingDevice(std::move(device), broken), faults_(std::move(faults)) {}
  ~HangingDevice() override {
    Await(faults_->hangs);
    ++faults_->closed;
  }
  void Write(std::uint64_t offset, std::span<const std::byte> from, Done done) override {
    ++faults_->writes;
    Await(faults_->writes_held);
    BreakingDevice::Write(offset, from, std::move(done));
  }
  void Read(std::uint64_t offset, std::span<std::byte> into, Done done) override {
    if (++reads_ == faults_->hangs_at_read) faults_->hangs = true;
    BreakingDevice::Read(offset, into, std::move(done));
  }
  std::size_t Poll(std::int64_t wait_ns) override {
    if (!faults_->hangs) return BreakingDevice::Poll(wait_ns);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return 0;
  }

 private:
  static void Await(const std::atomic<bool>& fault) {
    while (fault) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const std::shared_ptr<Faults> faults_;  // a test does not wait for a thread that closes it
  int reads_ = 0;
};

class DiskRetryTest : public testing::Test, private Promoter {
 protected:
  DiskRetryTest()
      : sizes_{.max_objects = 64, .payload_bytes = 8 << 20, .tier_objects = 4096},
        header_(segment::HeaderFileBytes(sizes_)),
        payload_(8 << 20) {}

  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    std::string name = testing::TempDir() + "/kvcove-retry-XXXXXX";
    directory_ = mkdtemp(name.data());
    ASSERT_TRUE(segment::FormatHeader(header_.data(), sizes_, {.high = 1, .low = 2}, 3));
    view_ = Must(segment::HeaderView::Open(header_.data(), header_.size()));
    Open({"a"});
  }
  void TearDown() override {
    Close();
    std::filesystem::remove_all(directory_);
  }
  void Close() {
    for (const auto& tier : tiers_) {
      // Its threads use what is destroyed below; their stacks say where they hang.
      if (!tier->Stop(60 * kSecond)) std::abort();
    }
    tiers_.clear();
    set_.reset();
  }
  // The disks of these names, of 64 MiB each.
  void Open(const std::vector<std::string>& names) {
    Close();
    std::vector<disklog::DiskSpec> specs;
    for (const std::string& name : names) {
      specs.push_back({.path = directory_ + "/file-" + name, .size_bytes = 64 << 20});
    }
    set_.emplace(names.size(), TieringOptions{}, DemotionOptions{}, view_,
                 segment::Payload{.data = payload_.data(), .granule = view_.granule()}, clock_);
    set_->SetSlots({{.slot = kSlot, .generation = kGeneration, .name = "m"}});
    known_ = std::make_shared<KnownDisks>(directory_);
    auto opened = OpenTiers(specs, Place(), *set_, *this, clock_, Options());
    for (OpenedTier& one : opened) {
      if (!one.status && one.status.error().detail.find("O_DIRECT") != std::string::npos) {
        GTEST_SKIP() << one.status.error().ToString();
      }
      ASSERT_TRUE(one.status) << one.status.error().ToString();
      tiers_.push_back(std::move(one.tier));
    }
    for (const auto& tier : tiers_) EXPECT_TRUE(tier->Start());
    tiering_ = &(*set_)[0];
    tier_ = tiers_[0].get();
    tier_file_ = tier_->path();
  }
  TierPlace Place() const {
    return {.pool = {.high = 1, .low = 1}, .incarnation = {.high = 2, .low = 2}, .known = known_};
  }
  TierOptions Options() {
    return {.least_retry_ns = kMillisecond,
            .most_retry_ns = 8 * kMillisecond,
            .opening_again_ns = opening_again_ns_,
            .open = [this](const std::string& path) { return OpenDevice(path); }};
  }
  // Only the disk `a` breaks.
  Result<std::unique_ptr<disklog::Device>> OpenDevice(const std::string& path) {
    if (!path.ends_with("-a")) return disklog::OpenDevice(path);
    ++opened_;
    if (broken_) return kvcove::Fail(Code::kUnavailable, "broken");
    KVCOVE_ASSIGN(auto device, disklog::OpenDevice(path));
    return std::make_unique<HangingDevice>(std::move(device), broken_, faults_);
  }
  // Whether no device has the file of the disk `a` open: an open one holds its lock.
  bool Closed() const { return disklog::OpenDevice(tier_file_).has_value(); }
  // As an owner takes its disks back after an upgrade that failed.
  void ResumeFirst(const Id128& number) {
    Promoter& promoter = *this;
    tiers_[0] =
        std::make_unique<DiskThread>(FoundDisk{.path = tier_file_, .device = {}, .super = {}},
                                     Place(), *tiering_, promoter, clock_, Options());
    tier_ = tiers_[0].get();
    ASSERT_TRUE(tier_->Resume({.disk = number, .shares = 0, .opening = {}}));
  }

  void Evict(const std::string& key) {
    const auto granules = static_cast<std::uint32_t>(view_.granule().Count(kValue));
    const Extent extent{.start = 0, .count = granules};
    set_->Evicted({.slot = kSlot,
                   .generation = kGeneration,
                   .put = 1,
                   .key = key,
                   .size_bytes = kValue,
                   .extents = {&extent, 1}});
    for (const auto& tier : tiers_) tier->Wake();
  }
  // In memory.
  void Store(const std::string& key) {
    set_->Stored(kSlot, kGeneration, key, {.id = 1, .key = 1, .size_bytes = kValue},
                 /*comes_up=*/false);
  }
  // On which disk it is, or would be.
  std::size_t DiskOf(const std::string& key) const {
    const Id128 hash = segment::TierHash(set_->common().tags.seed(), kSlot, key);
    const std::uint64_t share = segment::ShareOf(segment::TierTag(hash, kGeneration));
    std::size_t disk = 0;
    while (((*set_)[disk].shares() & share) == 0) ++disk;
    return disk;
  }
  // Writes them, and waits until they are there.
  void Write(const std::vector<std::string>& keys) {
    for (const std::string& key : keys) {
      Evict(key);
      ASSERT_TRUE(Becomes([&] { return OnDisk(key) && Idle(); })) << key;
    }
  }
  static std::vector<std::string> Keys(const std::string& prefix, int count) {
    std::vector<std::string> keys;
    for (int i = 0; i < count; ++i) keys.push_back(prefix + std::to_string(i));
    return keys;
  }
  Status Remove(const std::string& key) {
    DisksRemoval removal;
    const std::string_view one = key;
    set_->Remove(kSlot, kGeneration, {&one, 1}, removal);
    for (std::size_t i = 0; i < removal.parts.size(); ++i) {
      if (removal.parts[i] == nullptr) continue;
      tiers_[i]->Wake();
      KVCOVE_TRY((*set_)[i].removals().Await(*removal.parts[i], clock_.NowNs() + 20 * kSecond));
    }
    return {};
  }
  // What is found may wait for the disk yet.
  bool Idle() const {
    for (std::size_t i = 0; i < set_->size(); ++i) {
      if (!(*set_)[i].Idle()) return false;
    }
    return true;
  }
  bool OnDisk(const std::string& key) const { return view_.tier().Holds(kSlot, kGeneration, key); }
  // Until it is set aside.
  void Break() {
    broken_ = true;
    int next = 0;
    ASSERT_TRUE(Becomes([&] {
      Evict("broken" + std::to_string(next++));
      return tiering_->use().state().aside();
    }));
  }
  bool Works() {
    return Becomes([&] { return !tiering_->use().state().aside(); });
  }
  wire::LoadResult Promote(const Load&, std::span<const std::byte>) override {
    return {.code = Code::kOk};
  }
  Puts PutsUnderWay() override {
    ++looked_;
    return {.next = 10, .oldest = oldest_put_};
  }

  std::atomic<int> looked_{0};
  std::atomic<std::uint64_t> oldest_put_{10};
  std::int64_t opening_again_ns_ = 600 * kSecond;
  const SystemClock& clock_ = SystemClock::Instance();
  const segment::HeaderSizes sizes_;
  const ZeroedMemory header_;
  const ZeroedMemory payload_;
  segment::HeaderView view_;
  std::string directory_;
  std::atomic<bool> broken_{false};
  std::atomic<int> opened_{0};
  const std::shared_ptr<HangingDevice::Faults> faults_ = std::make_shared<HangingDevice::Faults>();
  std::optional<DiskSet> set_;
  std::vector<std::unique_ptr<DiskThread>> tiers_;
  std::shared_ptr<KnownDisks> known_;
  Tiering* tiering_ = nullptr;  // of the disk `a`, as the next
  DiskThread* tier_ = nullptr;
  std::string tier_file_;
};

TEST_F(DiskRetryTest, ADiskThatRecoversIsUsedAgainWithWhatItHeld) {
  ASSERT_NO_FATAL_FAILURE(Write({"before"}));
  ASSERT_NO_FATAL_FAILURE(Break());
  EXPECT_FALSE(OnDisk("before"));
  const int before = opened_;
  ASSERT_TRUE(Becomes([&] { return opened_ > before + 3; })) << "it is tried again and again";
  EXPECT_TRUE(tiering_->use().state().aside());
  broken_ = false;
  ASSERT_TRUE(Works());
  EXPECT_TRUE(OnDisk("before"));
  Evict("after");
  EXPECT_TRUE(Becomes([&] { return OnDisk("after"); }));
  EXPECT_TRUE(Becomes([&] { return Must(known_->Read()).size() == 1; }));
}

TEST_F(DiskRetryTest, NothingIsStoredOverWhatTheNextStartMayFind) {
  ASSERT_NO_FATAL_FAILURE(Write({"old", "other"}));
  ASSERT_NO_FATAL_FAILURE(Break());
  EXPECT_EQ(Must(known_->Read()).size(), 1U);
  EXPECT_TRUE(set_->Covers(kSlot, kGeneration, "old")) << "so a put of it is answered `exists`";
  EXPECT_FALSE(set_->Covers(kSlot, kGeneration, "new")) << "the disk does not have it";
  ASSERT_TRUE(Becomes([&] { return !set_->Covers(kSlot, kGeneration, "old"); }));
  EXPECT_TRUE(Must(known_->Read()).empty()) << "a start now would empty the disk";
  Store("old");
  broken_ = false;
  ASSERT_TRUE(Works());
  EXPECT_TRUE(Becomes([&] { return Must(known_->Read()).size() == 1; }));
  EXPECT_FALSE(OnDisk("old"));
  EXPECT_TRUE(OnDisk("other"));
  ASSERT_NO_FATAL_FAILURE(Open({"a"}));
  EXPECT_FALSE(OnDisk("old")) << "durably";
  EXPECT_TRUE(OnDisk("other"));
}

TEST_F(DiskRetryTest, APutThatBeganBeforeADiskWasOnKeepsItOutOfTheNote) {
  ASSERT_NO_FATAL_FAILURE(Write({"old"}));
  ASSERT_NO_FATAL_FAILURE(Break());
  (void)set_->Covers(kSlot, kGeneration, "old");
  ASSERT_TRUE(Becomes([&] { return Must(known_->Read()).empty(); }));
  oldest_put_ = 9;
  broken_ = false;
  ASSERT_TRUE(Works());
  const int looked = looked_;
  ASSERT_TRUE(Becomes([&] { return looked_ > looked + 3; }));
  EXPECT_TRUE(Must(known_->Read()).empty()) << "it may yet store what the disk has";
  Store("old");
  oldest_put_ = 10;
  EXPECT_TRUE(Becomes([&] { return Must(known_->Read()).size() == 1; }));
  EXPECT_FALSE(OnDisk("old"));
}

TEST_F(DiskRetryTest, ADiskThatMissedARemovalIsEmptied) {
  ASSERT_NO_FATAL_FAILURE(Write({"before", "removed"}));
  const auto known = Must(known_->Read());
  ASSERT_NO_FATAL_FAILURE(Break());
  const auto shared = std::make_shared<TierRemoval>();
  const std::string_view key = "removed";
  tiering_->removals().Remove(kSlot, kGeneration, {&key, 1}, shared);
  EXPECT_EQ(tiering_->removals().Await(*shared, clock_.NowNs() + kSecond).error().code,
            Code::kUnavailable);
  ASSERT_TRUE(tier_->Forget()) << "as the owner does before it answers the removal";
  broken_ = false;
  ASSERT_TRUE(Works());
  EXPECT_FALSE(OnDisk("removed"));
  EXPECT_FALSE(OnDisk("before"));
  EXPECT_NE(Must(known_->Read()), known);
  Evict("after");
  EXPECT_TRUE(Becomes([&] { return OnDisk("after"); }));
}

TEST_F(DiskRetryTest, AnUnmountedDiskIsNotTriedAgain) {
  ASSERT_NO_FATAL_FAILURE(Open({"a", "b"}));
  tiering_->use().Unmount("a test");
  EXPECT_FALSE(tiering_->use().state().tries_again());
  const int before = opened_;
  // Long enough for the other disk to be set aside and used again.
  (*set_)[1].use().SetAside("a test");
  ASSERT_TRUE(Becomes([&] { return !(*set_)[1].use().state().aside(); }));
  EXPECT_TRUE(tiering_->use().state().aside());
  EXPECT_EQ(opened_, before);
}

TEST_F(DiskRetryTest, ItStopsWhileTheDiskIsSetAside) {
  ASSERT_NO_FATAL_FAILURE(Break());
  EXPECT_TRUE(tier_->Stop(20 * kSecond));
}

// ---- one that stops while its device has something under way, in a process that goes on

TEST_F(DiskRetryTest, ADiskThatHangsWhileItStopsIsUsedAgainOnceItWorks) {
  ASSERT_NO_FATAL_FAILURE(Write({"before"}));
  const Id128 number = tier_->facts().disk;
  faults_->hangs = true;
  const int writes = faults_->writes;
  Evict("late");
  ASSERT_TRUE(Becomes([&] { return faults_->writes > writes; }));
  ASSERT_TRUE(tier_->Stop(0)) << "it does not wait for the device";
  ASSERT_TRUE(tiering_->use().Pause());
  const int opened = opened_;
  ResumeFirst(number);
  ASSERT_TRUE(Becomes([&] { return opened_ > opened + 1; }));
  EXPECT_FALSE(Closed()) << "the device may still write into memory of ours";
  EXPECT_FALSE(OnDisk("before"));
  faults_->hangs = false;
  EXPECT_TRUE(Becomes([&] { return OnDisk("before"); }));
  EXPECT_GT(faults_->closed, 0);
}

TEST_F(DiskRetryTest, ADiskWhoseThreadHungIsUsedAgainOnceThatHasEnded) {
  ASSERT_NO_FATAL_FAILURE(Write({"before"}));
  const Id128 number = tier_->facts().disk;
  faults_->writes_held = true;
  const int writes = faults_->writes;
  Evict("late");
  ASSERT_TRUE(Becomes([&] { return faults_->writes > writes; }));
  ASSERT_FALSE(tier_->Stop(0)) << "its thread is left behind";
  const DiskThread* const left = tiers_[0].release();
  (void)tiering_->use().Pause();
  ResumeFirst(number);
  EXPECT_FALSE(Closed());
  faults_->writes_held = false;
  EXPECT_TRUE(Becomes([&] { return OnDisk("before"); }));
  ASSERT_GT(faults_->closed, 0) << "its thread uses nothing of it any more";
  EXPECT_EQ(known_.use_count(), 2) << "it would keep the lock of the note's directory";
  delete left;
}

TEST_F(DiskRetryTest, AnOpeningThatHangsWhileItStopsIsLetGoOnceItEnds) {
  ASSERT_NO_FATAL_FAILURE(Write({"before"}));
  ASSERT_NO_FATAL_FAILURE(Break());
  // An opening waits for its first four reads, of the superblock's two copies, twice each. It hangs
  // at the one that follows.
  faults_->hangs_at_read = 5;
  broken_ = false;
  ASSERT_TRUE(Becomes([&] { return faults_->hangs.load(); }));
  ASSERT_TRUE(tier_->Stop(0));
  tiers_.clear();
  const int closed = faults_->closed;
  EXPECT_FALSE(Closed());
  faults_->hangs = false;
  EXPECT_TRUE(Becomes([&] { return faults_->closed > closed && Closed(); }));
}

// ---- several disks

TEST_F(DiskRetryTest, OneOfTwoBreaksAndTheOtherGoesOn) {
  ASSERT_NO_FATAL_FAILURE(Open({"a", "b"}));
  const auto keys = Keys("key", 40);
  ASSERT_NO_FATAL_FAILURE(Write(keys));
  const auto on = std::ranges::count_if(keys, [&](const auto& key) { return DiskOf(key) == 0; });
  EXPECT_GT(on, 8);
  EXPECT_LT(on, 32);
  ASSERT_NO_FATAL_FAILURE(Break());
  EXPECT_FALSE((*set_)[1].use().state().aside());
  for (const std::string& key : keys) EXPECT_EQ(OnDisk(key), DiskOf(key) == 1) << key;
  // What goes to the other disk while this one is set aside.
  for (const std::string& key : Keys("meanwhile", 20)) {
    if (DiskOf(key) == 0) continue;
    ASSERT_NO_FATAL_FAILURE(Write({key}));
    ASSERT_TRUE(Remove(key)) << "a removal asks the disk of its key only";
    EXPECT_FALSE(OnDisk(key));
  }
  EXPECT_EQ(Must(known_->Read()).size(), 2U) << "no disk has missed a removal";
  broken_ = false;
  ASSERT_TRUE(Works());
  for (const std::string& key : keys) EXPECT_TRUE(OnDisk(key)) << key;
}

TEST_F(DiskRetryTest, ARemovalThatOneMissesEmptiesThatOneAlone) {
  ASSERT_NO_FATAL_FAILURE(Open({"a", "b"}));
  const auto keys = Keys("key", 40);
  ASSERT_NO_FATAL_FAILURE(Write(keys));
  ASSERT_NO_FATAL_FAILURE(Break());
  const auto missed =
      *std::ranges::find_if(keys, [&](const auto& key) { return DiskOf(key) == 0; });
  EXPECT_EQ(Remove(missed).error().code, Code::kUnavailable);
  ASSERT_TRUE(tier_->Forget()) << "as the owner does before it answers the removal";
  EXPECT_EQ(Must(known_->Read()).size(), 1U);
  broken_ = false;
  ASSERT_TRUE(Works());
  for (const std::string& key : keys) EXPECT_EQ(OnDisk(key), DiskOf(key) == 1) << key;
  EXPECT_EQ(Must(known_->Read()).size(), 2U);
}

TEST_F(DiskRetryTest, TwoDisksHoldAfterARestartWhatTheyHeld) {
  ASSERT_NO_FATAL_FAILURE(Open({"a", "b"}));
  const auto keys = Keys("key", 40);
  ASSERT_NO_FATAL_FAILURE(Write(keys));
  ASSERT_TRUE(Remove(keys[0]));
  for (const auto& order : {std::vector<std::string>{"a", "b"}, {"b", "a"}}) {
    ASSERT_NO_FATAL_FAILURE(Open(order));
    for (const std::string& key : keys) EXPECT_EQ(OnDisk(key), key != keys[0]) << key;
  }
}

// A key's value is removed on the disk that it has now. What its former disk had of it must not
// come back when the former disks do.
TEST_F(DiskRetryTest, AnAddedDiskTakesItsShareAndNothingOlderComesBack) {
  const auto keys = Keys("key", 60);
  ASSERT_NO_FATAL_FAILURE(Write(keys));
  ASSERT_NO_FATAL_FAILURE(Open({"a", "b"}));
  EXPECT_EQ(std::popcount((*set_)[0].shares()), 32);
  std::vector<std::string> moved;
  for (const std::string& key : keys) {
    EXPECT_EQ(OnDisk(key), DiskOf(key) == 0) << key;
    if (DiskOf(key) == 1) moved.push_back(key);
  }
  ASSERT_GT(moved.size(), 10U);
  ASSERT_NO_FATAL_FAILURE(Write({moved[0], moved[1]}));
  ASSERT_TRUE(Remove(moved[0]));
  ASSERT_NO_FATAL_FAILURE(Open({"a"}));
  for (const std::string& key : moved) EXPECT_FALSE(OnDisk(key)) << key;
  for (const std::string& key : keys) {
    EXPECT_EQ(OnDisk(key), std::ranges::find(moved, key) == moved.end()) << key;
  }
  // The other disk was not there meanwhile.
  ASSERT_NO_FATAL_FAILURE(Open({"a", "b"}));
  EXPECT_FALSE(OnDisk(moved[1]));
}

// Of two with one number only the first may be what the note means.
TEST_F(DiskRetryTest, ACopyOfADiskStartsEmpty) {
  const auto keys = Keys("key", 40);
  ASSERT_NO_FATAL_FAILURE(Write(keys));
  Close();
  std::filesystem::copy_file(directory_ + "/file-a", directory_ + "/file-b");
  ASSERT_NO_FATAL_FAILURE(Open({"a", "b"}));
  for (const std::string& key : keys) EXPECT_EQ(OnDisk(key), DiskOf(key) == 0) << key;
  const auto known = Must(known_->Read());
  ASSERT_EQ(known.size(), 2U);
  EXPECT_NE(known[0].disk, known[1].disk);
}

// The copy is of a moment at which "removed" was there.
TEST_F(DiskRetryTest, ADiskThatIsPutBackFromACopyStartsEmpty) {
  const std::string copy = directory_ + "/copy";
  for (const bool while_open : {false, true}) {
    ASSERT_NO_FATAL_FAILURE(Write({"kept", "removed"}));
    if (while_open) std::filesystem::copy_file(tier_file_, copy);
    if (!while_open) {
      Close();
      std::filesystem::copy_file(tier_file_, copy);
      ASSERT_NO_FATAL_FAILURE(Open({"a"}));
      EXPECT_TRUE(OnDisk("removed")) << "an ordinary start keeps what the disk has";
    }
    ASSERT_TRUE(Remove("removed"));
    Close();
    const auto before = Must(known_->Read());
    std::filesystem::rename(copy, tier_file_);
    ASSERT_NO_FATAL_FAILURE(Open({"a"}));
    EXPECT_FALSE(OnDisk("removed")) << "while open: " << while_open;
    EXPECT_FALSE(OnDisk("kept")) << "nobody knows what else was removed";
    EXPECT_NE(Must(known_->Read()), before);
  }
  Evict("after");
  EXPECT_TRUE(Becomes([&] { return OnDisk("after"); })) << "it is an ordinary disk";
}

// The process is killed: the note remains as it was while the disk was open.
TEST_F(DiskRetryTest, ACopyOfADiskThatIsOpenIsAnotherOneAfterSomeTime) {
  opening_again_ns_ = kMillisecond;
  ASSERT_NO_FATAL_FAILURE(Open({"a"}));
  ASSERT_NO_FATAL_FAILURE(Write({"removed"}));
  std::filesystem::copy_file(tier_file_, directory_ + "/copy");
  const auto copied =
      Must(disklog::Log::ReadSuperblock(*Must(disklog::OpenDevice(directory_ + "/copy"))));
  ASSERT_TRUE(Remove("removed"));
  ASSERT_TRUE(Becomes([&] { return !copied.HasOpening(Must(known_->Read())[0].opening); }));
  std::filesystem::copy_file(directory_ + "/disk", directory_ + "/note");
  Close();
  std::filesystem::rename(directory_ + "/note", directory_ + "/disk");
  std::filesystem::rename(directory_ + "/copy", tier_file_);
  ASSERT_NO_FATAL_FAILURE(Open({"a"}));
  EXPECT_FALSE(OnDisk("removed"));
}

// The other disk draws numbers, so it was time for the first one, too.
TEST_F(DiskRetryTest, AnIdleDiskIsNotWritten) {
  opening_again_ns_ = kMillisecond;
  ASSERT_NO_FATAL_FAILURE(Open({"a", "b"}));
  const auto number_of = [&](std::size_t disk) {
    const std::vector<KnownDisk> noted = Must(known_->Read());
    return std::ranges::find(noted, (*set_)[disk].shares(), &KnownDisk::shares)->opening;
  };
  int next = 0;
  const auto write_to = [&](std::size_t disk) {
    while (DiskOf("key" + std::to_string(next)) != disk) ++next;
    const Id128 before = number_of(disk);
    Write({"key" + std::to_string(next++)});
    return !HasFatalFailure() && Becomes([&] { return number_of(disk) != before; });
  };
  ASSERT_TRUE(write_to(0));
  const int writes = faults_->writes;
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(write_to(1));
  EXPECT_LE(faults_->writes, writes + 5)
      << "a number that was drawn during the write is followed by another one";
}

TEST_F(DiskRetryTest, ADiskThatDrawsNumbersAllTheTimeIsKept) {
  opening_again_ns_ = kMillisecond;
  ASSERT_NO_FATAL_FAILURE(Open({"a"}));
  ASSERT_NO_FATAL_FAILURE(Write({"key"}));
  const auto first = Must(known_->Read());
  ASSERT_NO_FATAL_FAILURE(Write({"other"}));
  ASSERT_TRUE(Becomes([&] { return Must(known_->Read()) != first; }));
  ASSERT_NO_FATAL_FAILURE(Open({"a"}));
  EXPECT_TRUE(OnDisk("key"));
  ASSERT_NO_FATAL_FAILURE(Break());
  broken_ = false;
  ASSERT_TRUE(Works());
  EXPECT_TRUE(Becomes([&] { return OnDisk("key"); }));
}

// A file system that fails may keep the note as it was, or have the new one.
TEST_F(DiskRetryTest, ADiskWhoseNumbersCannotBeNotedIsKept) {
  opening_again_ns_ = kMillisecond;
  ASSERT_NO_FATAL_FAILURE(Open({"a"}));
  ASSERT_NO_FATAL_FAILURE(Write({"key"}));
  // In the place of the file that becomes the next note.
  const std::string in_the_way = directory_ + "/disk.new";
  std::error_code busy;
  ASSERT_TRUE(Becomes([&] { return std::filesystem::create_directory(in_the_way, busy); }));
  const auto noted = Must(known_->Read());
  ASSERT_NO_FATAL_FAILURE(Write({"later"}));
  const int writes = faults_->writes;
  ASSERT_TRUE(Becomes([&] { return faults_->writes > writes + 10; })) << "it tries again";
  EXPECT_EQ(Must(known_->Read()), noted);
  Close();
  std::filesystem::remove(in_the_way);
  ASSERT_NO_FATAL_FAILURE(Open({"a"}));
  EXPECT_TRUE(OnDisk("key"));
}

// While none is noted, the note cannot know a copy of the disk.
TEST_F(DiskRetryTest, ANumberThatCannotBeNotedIsLoggedNowAndThen) {
  opening_again_ns_ = kMillisecond;
  ASSERT_NO_FATAL_FAILURE(Open({"a"}));
  SetLogLevel(LogLevel::kWarn);
  testing::internal::CaptureStderr();
  const std::string in_the_way = directory_ + "/disk.new";
  std::error_code busy;
  const bool blocked = Becomes([&] { return std::filesystem::create_directory(in_the_way, busy); });
  Evict("key");
  const int writes = faults_->writes;
  const bool again = Becomes([&] { return faults_->writes > writes + 10; });
  (void)FlushLog(std::chrono::seconds(10));
  const std::string logged = testing::internal::GetCapturedStderr();
  SetLogLevel(LogLevel::kOff);
  EXPECT_TRUE(blocked && again);
  int lines = 0;
  for (std::size_t at = 0; (at = logged.find("cannot be noted", at)) != std::string::npos; ++at) {
    ++lines;
  }
  EXPECT_GE(lines, 1) << logged;
  EXPECT_LE(lines, 3) << logged;
}

TEST_F(DiskRetryTest, AFileSystemThatHangsInANoteKeepsNoDiskWaiting) {
  opening_again_ns_ = kMillisecond;
  ASSERT_NO_FATAL_FAILURE(Open({"a"}));
  // A pipe in the place of the file that becomes the next note: its writer waits for a reader.
  const std::string pipe = directory_ + "/disk.new";
  ASSERT_TRUE(Becomes([&] { return mkfifo(pipe.c_str(), 0600) == 0; }));
  Write(Keys("key", 5));
  const bool written = !HasFatalFailure();
  const UniqueFd reader(open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(written);
  const auto noted = Must(known_->Read());
  EXPECT_TRUE(Becomes([&] { return Must(known_->Read()) != noted; })) << "a later one is noted";
  ASSERT_NO_FATAL_FAILURE(Open({"a"}));
  EXPECT_TRUE(OnDisk("key0"));
}

TEST_F(DiskRetryTest, NorADiskThatIsToBeNamedInTheNoteAgain) {
  ASSERT_NO_FATAL_FAILURE(Write({"key"}));
  ASSERT_NO_FATAL_FAILURE(Break());
  oldest_put_ = 0;  // the disk is not named before
  broken_ = false;
  ASSERT_TRUE(Works());
  HeldNote note(*known_);
  oldest_put_ = 10;
  ASSERT_TRUE(Becomes([&] { return tier_->noting(); }));
  ASSERT_NO_FATAL_FAILURE(Write(Keys("later", 5)));
  EXPECT_TRUE(Remove("later0"));
  EXPECT_TRUE(tier_->noting());
  note.End();
  EXPECT_TRUE(Becomes([&] { return Must(known_->Read()).size() == 1; }));
  ASSERT_NO_FATAL_FAILURE(Open({"a"}));
  EXPECT_TRUE(OnDisk("key"));
  EXPECT_TRUE(OnDisk("later1"));
  EXPECT_FALSE(OnDisk("later0"));
}

TEST_F(DiskRetryTest, ADiskWhoseNoteIsPutBackFromACopyStartsEmpty) {
  ASSERT_NO_FATAL_FAILURE(Write({"key"}));
  Close();
  std::filesystem::copy_file(directory_ + "/disk", directory_ + "/copy");
  ASSERT_NO_FATAL_FAILURE(Open({"a"}));
  EXPECT_TRUE(OnDisk("key"));
  Close();
  std::filesystem::rename(directory_ + "/copy", directory_ + "/disk");
  ASSERT_NO_FATAL_FAILURE(Open({"a"}));
  EXPECT_FALSE(OnDisk("key"));
}

// As it is after an upgrade from a version without these numbers.
TEST_F(DiskRetryTest, ADiskWhoseNoteHasNoOpeningIsKept) {
  ASSERT_NO_FATAL_FAILURE(Write({"key"}));
  Close();
  auto known = Must(known_->Read());
  ASSERT_EQ(known.size(), 1U);
  EXPECT_NE(known[0].opening, Id128{});
  known[0].opening = {};
  ASSERT_TRUE(known_->Write(known));
  ASSERT_NO_FATAL_FAILURE(Open({"a"}));
  EXPECT_TRUE(OnDisk("key"));
  EXPECT_NE(Must(known_->Read())[0].opening, Id128{}) << "from now on a copy is noticed";
}

// A kill between two writes leaves the superblock ahead of the note.
TEST_F(DiskRetryTest, ADiskThatWasKilledBeforeItsOpeningWasNotedIsKept) {
  ASSERT_NO_FATAL_FAILURE(Write({"key"}));
  Close();
  {
    auto device = Must(disklog::OpenDevice(tier_file_));
    const auto noted = Must(known_->Read());
    disklog::LogOptions options{.pool = Place().pool, .incarnation = Place().incarnation};
    options.noted_opening = noted[0].opening;
    const auto log = Must(disklog::Log::Open(*device, options));
    while (!log->recovered() || !log->idle()) log->Poll(kMillisecond);
  }
  ASSERT_NO_FATAL_FAILURE(Open({"a"}));
  EXPECT_TRUE(OnDisk("key"));
}

// Its content is another one than that which this process has left.
TEST_F(DiskRetryTest, ACopyThatTakesTheDisksPlaceWhileItIsSetAsideStartsEmpty) {
  const std::string copy = directory_ + "/copy";
  ASSERT_NO_FATAL_FAILURE(Write({"removed"}));
  Close();
  std::filesystem::copy_file(tier_file_, copy);
  ASSERT_NO_FATAL_FAILURE(Open({"a"}));
  ASSERT_TRUE(Remove("removed"));
  ASSERT_NO_FATAL_FAILURE(Break());
  std::filesystem::rename(copy, tier_file_);
  broken_ = false;
  ASSERT_TRUE(Works());
  EXPECT_FALSE(OnDisk("removed"));
}

TEST_F(DiskRetryTest, ARemovedDiskLeavesTheOthersWhatTheyHave) {
  ASSERT_NO_FATAL_FAILURE(Open({"a", "b", "c"}));
  const auto keys = Keys("key", 60);
  ASSERT_NO_FATAL_FAILURE(Write(keys));
  std::map<std::string, std::size_t> disk_of;
  for (const std::string& key : keys) disk_of[key] = DiskOf(key);
  ASSERT_NO_FATAL_FAILURE(Open({"a", "c"}));
  for (const std::string& key : keys) EXPECT_EQ(OnDisk(key), disk_of[key] != 1) << key;
  EXPECT_EQ(std::popcount((*set_)[0].shares()) + std::popcount((*set_)[1].shares()), 64);
}

}  // namespace
}  // namespace kvcove::owner
