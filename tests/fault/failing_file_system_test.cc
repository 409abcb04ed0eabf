// SPDX-License-Identifier: Apache-2.0
// An owner whose disk, data directory or both are on a file system of their own, which fails or
// hangs.
#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "kvcove/base/interrupt.h"
#include "tests/fault/cluster_disk_fixture.h"
#include "tests/fault/mounted_file_system.h"

namespace kvcove {
namespace {

class MountedOwnerTest : public ClusterDiskTest {
 protected:
  void SetUp() override {}
  void Mount(const std::string& type, const std::string& place) {
    system_ = std::make_unique<MountedFileSystem>(type, directory() + "/image", place);
    if (!system_->Make()) GTEST_SKIP() << type << " cannot be mounted here";
  }
  void TearDown() override {
    EXPECT_TRUE(!system_ || system_->Thaw());
    for (const pid_t pid : owners()) {
      if (pid != 0) kill(pid, SIGKILL);
    }
    ClusterDiskTest::TearDown();
    if (owners().size() > 0 && owner(0) != 0) KillOwner(0);
    system_.reset();
  }
  // Restarts the owner on the file system as a loss of power leaves it: only what was synced, or
  // nothing in memory.
  void Restart() {
    KillOwner(0);
    ASSERT_TRUE(system_->Unmount());
    ASSERT_TRUE(system_->Mount());
    ASSERT_NO_FATAL_FAILURE(StartDiskOwner(0, 2));
  }

  static Code Remove(Session& session, const std::string& key) {
    const std::string_view view = key;
    ItemResult result;
    const Status removed =
        session.Remove({&view, 1}, {&result, 1}, {.timeout = milliseconds(2000)});
    return removed ? result.code : removed.error().code;
  }
  // Returns keys whose values only the disk has.
  std::vector<std::string> FillDisk() {
    Fill();
    std::vector<std::string> demoted;
    for (const auto& [key, result] : Look(*far_, Keys(kMany))) {
      if (result.tier == Tier::kDisk) demoted.push_back(key);
    }
    EXPECT_GE(demoted.size(), 10U);
    return demoted;
  }

  std::unique_ptr<MountedFileSystem> system_;
};

// Reads again and again, and counts the misses.
class SteadyReads {
 public:
  using Read = std::function<bool()>;  // returns true if it is a hit
  explicit SteadyReads(Read read) : thread_([this, read = std::move(read)] { Run(read); }) {}
  ~SteadyReads() {
    if (thread_.joinable()) End();
  }
  SteadyReads(const SteadyReads&) = delete;
  SteadyReads& operator=(const SteadyReads&) = delete;

  // Returns the number of misses.
  int End() {
    over_ = true;
    thread_.join();
    return missed_;
  }

 private:
  void Run(const Read& read) {
    for (; !over_; SleepNs(kMillisecond)) missed_ += slowness_.Holds(read) ? 0 : 1;
  }

  const Slowness slowness_;
  std::atomic<bool> over_ = false;
  int missed_ = 0;
  std::thread thread_;
};

class FailingFileSystemTest : public MountedOwnerTest {
 protected:
  void SetUp() override {
    Mount("ext4", DiskOf(0));
    if (!IsSkipped()) ClusterDiskTest::SetUp();
  }
};

TEST_F(FailingFileSystemTest, RemovalsAreProvenAndKeysFreeWithoutTheDisk) {
  const std::vector<std::string> demoted = FillDisk();
  ASSERT_FALSE(HasFailure());
  ASSERT_EQ(Put(*here_, "hot"), Code::kOk);
  const SessionPtr reader = OpenSession(*here_pool_);
  SteadyReads reads([&] { return !Get(*reader, {"hot"}).keys.empty(); });
  ASSERT_TRUE(system_->ShutDown());
  const std::string& removed = demoted[0];
  EXPECT_TRUE(Becomes([&] { return Remove(*far_, removed) == Code::kOk; })) << Said(0);
  EXPECT_TRUE(Becomes([&] { return Put(*here_, demoted[1]) == Code::kOk; }));
  EXPECT_TRUE(Becomes([&] { return Put(*far_, demoted[2]) == Code::kOk; }));
  EXPECT_EQ(reads.End(), 0) << "hits in memory continue";
  // The file system has an old note, which names the disk.
  ASSERT_NO_FATAL_FAILURE(Restart());
  EXPECT_EQ(MostFound({removed}), 0U);
  EXPECT_EQ(StatOf(0).disk_objects, 0U);
}

// The disk is set aside, and the master is asked to store that its contents are void.
TEST_F(FailingFileSystemTest, SoItIsWhileItHangs) {
  const std::vector<std::string> lying = FillDisk();
  ASSERT_FALSE(HasFailure());
  ASSERT_EQ(Put(*here_, "hot"), Code::kOk);
  const SessionPtr reader = OpenSession(*here_pool_);
  SteadyReads reads([&] { return !Get(*reader, {"hot"}).keys.empty(); });
  ASSERT_TRUE(system_->Freeze());
  const std::string& removed = lying[0];
  // A miss where an earlier call's removal was carried out after that call's deadline.
  for (const std::string& key : {removed, lying[1]}) {
    EXPECT_TRUE(Becomes([&] { return Remove(*far_, key) != Code::kTimeout; })) << Said(0);
  }
  EXPECT_TRUE(Becomes([&] { return Put(*here_, lying[2]) == Code::kOk; }));
  EXPECT_TRUE(Becomes([&] { return Put(*far_, lying[3]) == Code::kOk; }));
  EXPECT_EQ(reads.End(), 0) << "hits in memory continue";
  EXPECT_EQ(MostFound({removed}), 0U);
  ASSERT_TRUE(system_->Thaw());
  ASSERT_NO_FATAL_FAILURE(Restart());
  EXPECT_EQ(MostFound({removed}), 0U);
}

TEST_F(FailingFileSystemTest, AResetCostsNoHitInMemoryWhileItHangs) {
  ASSERT_TRUE(system_->Freeze());
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(far_->Reset({.timeout = kCallTime}));
    EXPECT_TRUE(Becomes([&] { return Put(*here_, "hot") == Code::kOk; }));
    const Slowness slowness;
    int hits = 0;
    for (int i = 0; i < 200; ++i, SleepNs(10 * kMillisecond)) {
      hits += slowness.Holds([&] { return !Get(*here_, {"hot"}).keys.empty(); }) ? 1 : 0;
    }
    EXPECT_EQ(hits, 200);
  }
  ASSERT_TRUE(system_->Thaw());
  EXPECT_TRUE(Becomes([&] { return Put(*here_, "after") == Code::kOk; }));
}

TEST_F(MountedOwnerTest, ADiskInMemoryEndsTheStart) {
  Mount("tmpfs", DiskOf(0));
  if (IsSkipped()) return;
  ASSERT_NO_FATAL_FAILURE(StartMaster());
  owners_ = {Spawn(DiskOwnerWords(0), "host0", {.launcher = {}, .log_file = LogOf(0), .more = {}})};
  int status = 0;
  ASSERT_TRUE(Becomes([&] { return waitpid(owner(0), &status, WNOHANG) == owner(0); }));
  owner(0) = 0;
  EXPECT_NE(status, 0);
  EXPECT_TRUE(Said(0).contains("tmpfs")) << Said(0);
}

struct Failing {
  std::string system;  // its type
  std::string part;    // that is on it: the disk's file, or --data
  std::string state;
};

void PrintTo(const Failing& failing, std::ostream* out) {
  *out << failing.system << ' ' << failing.part << ' ' << failing.state;
}

std::vector<Failing> AllFailing() {
  std::vector<Failing> all;
  for (const std::string system : {"ext4", "xfs", "btrfs", "tmpfs"}) {
    for (const std::string part : {"disk", "data"}) {
      for (const std::string state : {"full", "read_only", "shut_down", "frozen"}) {
        // There is no disk in memory, and nothing there can be shut down.
        if (system == "tmpfs" && (part == "disk" || state == "shut_down")) continue;
        // One type stands for all: writers are stopped before they reach the file system, or, for a
        // disk that becomes read-only, by an error that only ext4 has on demand.
        if ((state == "read_only" || state == "frozen") && system != "ext4") continue;
        all.push_back({system, part, state});
      }
    }
  }
  return all;
}

class FileSystemStatesTest : public MountedOwnerTest, public testing::WithParamInterface<Failing> {
 protected:
  void SetUp() override {
    data_apart_ = true;
    Mount(GetParam().system, on_disk() ? DiskOf(0) : DataOf(0));
    if (IsSkipped()) return;
    if (GetParam().state == "shut_down" && !system_->CanShutDown()) {
      GTEST_SKIP() << GetParam().system << " cannot be shut down here";
    }
    ClusterDiskTest::SetUp();
  }
  static bool on_disk() { return GetParam().part == "disk"; }

  bool Begin() {
    const std::string& state = GetParam().state;
    if (state == "full") return system_->Fill();
    if (state == "read_only") return system_->MakeReadOnly(on_disk());
    return state == "frozen" ? system_->Freeze() : system_->ShutDown();
  }
  // Returns false if it lasts until the file system is mounted anew.
  bool End() {
    const std::string& state = GetParam().state;
    if (state == "full") return system_->Empty();
    if (state == "read_only") return !on_disk() && system_->MakeWritable();
    return state == "frozen" && system_->Thaw();
  }
  // A miss: only the disk had the value, and it is set aside.
  static bool Removed(Session& session, const std::string& key) {
    const Code code = Remove(session, key);
    return code == Code::kOk || code == Code::kMiss;
  }
  // Values are stored, evicted to the disk and read from there.
  void ExpectWorks(const std::string& prefix) {
    std::vector<std::string> keys;
    EXPECT_TRUE(Becomes([&] {
      keys.push_back(fmt::format("{}-{}", prefix, keys.size()));
      (void)Put(*here_, keys.back());
      AwaitQueue(1 << 20);
      return keys.size() % 20 == 0 && OnDisk(Look(*far_, keys)) > 0 &&
             Get(*far_, keys).from_disk > 0;
    })) << Said(0);
  }
};

// Where the disk fails, the note in --data says that it misses removals. Where --data fails, the
// disk continues.
TEST_P(FileSystemStatesTest, CostNoHitInMemoryAndNoRemovedValueReturns) {
  const std::vector<std::string> demoted = FillDisk();
  ASSERT_FALSE(HasFailure());
  ASSERT_EQ(Put(*here_, "hot"), Code::kOk);
  const SessionPtr reader = OpenSession(*here_pool_);
  SteadyReads reads([&] { return !Get(*reader, {"hot"}).keys.empty(); });
  ASSERT_TRUE(Begin());
  const std::vector<std::string> removed = {demoted[0], demoted[1]};
  EXPECT_TRUE(Becomes([&] { return Removed(*far_, removed[0]); })) << Said(0);
  EXPECT_TRUE(Becomes([&] { return Removed(*here_, removed[1]); })) << Said(0);
  for (const std::string& key : {demoted[2], demoted[3]}) {
    EXPECT_TRUE(Becomes([&] { return Removed(*far_, key); })) << Said(0);
    EXPECT_TRUE(Becomes([&] { return Put(*here_, key) == Code::kOk; }));
  }
  // A key that the disk holds has its value, or is free.
  EXPECT_TRUE(Becomes([&] {
    return Put(*far_, demoted[4]) == Code::kOk || Get(*far_, {demoted[4]}).keys.size() == 1;
  }));
  // They evict others, which are to be written.
  for (const std::string& key : Keys(30, "meanwhile")) {
    EXPECT_TRUE(Becomes([&] { return Put(*here_, key) == Code::kOk; }));
  }
  (void)Get(*far_, {demoted[5], demoted[6]});
  EXPECT_EQ(reads.End(), 0) << "hits in memory continue";
  EXPECT_EQ(MostFound(removed), 0U);
  const bool disk_is_full = on_disk() && GetParam().state == "full";
  // Each place of the disk is written again: its file is allocated ahead.
  if (disk_is_full) Fill(700, "more");
  // The machine's own disk may be slow for seconds beside other work. It is set aside for that, as
  // it should be.
  const bool machine_is_slow = Said(0).contains("it has not answered a");
  if ((!on_disk() || disk_is_full) && !machine_is_slow) {
    EXPECT_EQ(StatOf(0).disk_asides, 0U) << Said(0);
  }
  if (End()) {
    EXPECT_TRUE(Becomes([&] { return StatOf(0).disk_aside == 0; })) << Said(0);
    ExpectWorks("ended");
    EXPECT_EQ(MostFound(removed), 0U);
  }
  ASSERT_NO_FATAL_FAILURE(Restart());
  EXPECT_EQ(MostFound(removed), 0U);
  ExpectWorks("restarted");
}

INSTANTIATE_TEST_SUITE_P(All, FileSystemStatesTest, testing::ValuesIn(AllFailing()),
                         [](const auto& one) {
                           return fmt::format("{}_{}_{}", one.param.system, one.param.part,
                                              one.param.state);
                         });

}  // namespace
}  // namespace kvcove
