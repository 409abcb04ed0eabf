// SPDX-License-Identifier: Apache-2.0
// The disk tier on real files: embedded, and through a daemon in another process that is killed.
#include <fcntl.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"
#include "kvcove/base/random.h"
#include "kvcove/disklog/disk_file.h"
#include "kvcove/pool/pool.h"
#include "kvcove/rpc/client.h"
#include "kvcove/segment/layout.h"
#include "kvcove/server/daemon.h"
#include "kvcove/wire/host_wire.h"
#include "tests/becomes.h"
#include "tests/call_time.h"
#include "tests/held_device.h"
#include "tests/must.h"
#include "tests/random_bytes.h"

extern char** environ;

namespace kvcove {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kDiskMemory = 8 << 20;
constexpr std::size_t kValue = 200'000;  // 40 fit in memory

std::string ValueOf(const std::string& key, std::size_t size = kValue) {
  return RandomBytes(key, size);
}

Code Put(Session& session, const std::string& key, const std::string& value) {
  const ConstBuffer piece{.data = value.data(), .size = value.size()};
  const PutItem item{.key = key, .value = {&piece, 1}, .after = {}};
  ItemResult result;
  const auto token = session.Capture({.timeout = kCallTime});
  if (!token) return token.error().code;
  (void)session.Put(*token, {&item, 1}, {&result, 1}, {.timeout = kCallTime});
  return result.code;
}

ItemResult Get(Session& session, const std::string& key, std::string& into,
               const CallOptions& options = {.timeout = milliseconds(20'000)}) {
  into.assign(kValue, '\0');
  const MutableBuffer piece{.data = into.data(), .size = into.size()};
  const GetItem item{.key = key, .into = {&piece, 1}};
  ItemResult result;
  (void)session.Get({&item, 1}, {&result, 1}, options);
  if (result.ok()) into.resize(result.bytes);
  return result;
}

ItemResult Look(Session& session, const std::string& key,
                const CallOptions& options = {.timeout = kCallTime}) {
  const std::string_view view = key;
  ItemResult result;
  (void)session.Exists({&view, 1}, {&result, 1}, options);
  return result;
}

Code Remove(Session& session, const std::string& key) {
  const std::string_view view = key;
  ItemResult result;
  (void)session.Remove({&view, 1}, {&result, 1}, {.timeout = milliseconds(20'000)});
  return result.code;
}

class DiskTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    std::string name = testing::TempDir() + "/kvcove-disk-XXXXXX";
    directory_ = mkdtemp(name.data());
    disk_ = directory_ + "/disk";
    std::filesystem::create_directory(disk_);
    const auto started = Open();
    if (!started && started.error().detail.find("O_DIRECT") != std::string::npos) {
      GTEST_SKIP() << started.error().ToString();
    }
    ASSERT_TRUE(started) << started.error().ToString();
  }
  void TearDown() override {
    Close();
    std::filesystem::remove_all(directory_);
  }
  void Close() {
    session_.reset();
    pool_.reset();
    daemon_.reset();
  }
  Status Open(const std::string& size = "128MiB", const std::string& admit = "policy") {
    Close();
    if (GetParam() == "embedded") {
      KVCOVE_ASSIGN(pool_,
                    Pool::Open(fmt::format("embedded:?memory={}&disk={}:{}&data={}&disk_admit={}",
                                           kDiskMemory, disk_, size, directory_ + "/data", admit),
                               kCallTime));
    } else {
      server::DaemonOptions options;
      options.socket_path = directory_ + "/kvcove.sock";
      options.host.owner.memory_bytes = kDiskMemory;
      options.host.data_directory = directory_ + "/data";
      const std::string disks = disk_ + ":" + size;
      KVCOVE_ASSIGN(options.host.owner.disks, owner::ParseDisks("disk", {&disks, 1}));
      KVCOVE_ASSIGN(options.host.owner.disk_admit, owner::ParseDiskAdmit("admit", admit));
      if (open_device_) options.host.owner.tier.open = open_device_;
      KVCOVE_ASSIGN(daemon_, server::Daemon::Open(options, SystemClock::Instance()));
      KVCOVE_ASSIGN(pool_, Pool::Open("unix:" + options.socket_path, kCallTime));
    }
    KVCOVE_ASSIGN(session_, pool_->OpenSession({.name = "model", .assume_weights = true}));
    return {};
  }
  void OpenAgain() {
    const Status opened = Open();
    ASSERT_TRUE(opened) << opened.error().ToString();
  }
  PoolStat Stat() { return AwaitStat(*pool_); }
  // Puts `count` values; the older ones go to the disk.
  void Fill(int count, const std::string& prefix = "key") {
    for (int i = 0; i < count; ++i) {
      const std::string key = prefix + std::to_string(i);
      const Code code = Put(*session_, key, ValueOf(key));
      ASSERT_TRUE(code == Code::kOk || code == Code::kExists) << CodeName(code);
      // The queue is small: without a look at it some would be dropped.
      ASSERT_TRUE(Becomes([&] { return Stat().disk_queued_bytes < (1 << 20); }));
    }
    ASSERT_TRUE(Becomes([&] { return Stat().disk_queued_bytes == 0; }))
        << Stat().disk_queued_bytes << " B queued, set aside: " << Stat().disk_aside
        << ", errors: " << Stat().disk_errors;
  }
  std::vector<std::string> OnDisk(int count, const std::string& prefix = "key") {
    std::vector<std::string> keys;
    for (int i = 0; i < count; ++i) {
      const std::string key = prefix + std::to_string(i);
      if (Look(*session_, key).tier == Tier::kDisk) keys.push_back(key);
    }
    return keys;
  }

  std::string directory_;
  std::string disk_;
  owner::DeviceOpener open_device_;  // of the daemon; empty: its own
  std::unique_ptr<server::Daemon> daemon_;
  std::unique_ptr<Pool> pool_;
  SessionPtr session_;
};

TEST_P(DiskTest, WhatMemoryEvictsIsReadFromTheDisk) {
  Fill(120);
  const auto keys = OnDisk(120);
  ASSERT_GT(keys.size(), 60U);
  std::string got;
  for (const std::string& key : keys) {
    const ItemResult result = Get(*session_, key, got);
    ASSERT_TRUE(result.ok()) << key << " " << MissReasonName(result.reason);
    ASSERT_EQ(got, ValueOf(key));
  }
  const PoolStat stat = Stat();
  EXPECT_GT(stat.disk_hits, 60U);
  EXPECT_EQ(stat.disk_errors + stat.disk_damaged, 0U);
  // From memory the second time.
  EXPECT_EQ(Get(*session_, keys.back(), got).tier, Tier::kMemory);
}

// A namespace that removes what it never stored costs the others nothing, and the disk no write.
TEST_P(DiskTest, RemovalsOfAbsentKeysWriteNothing) {
  Fill(120);
  const auto before = OnDisk(120);
  ASSERT_GT(before.size(), 60U);
  ASSERT_TRUE(Becomes([&] { return Stat().disk_queued_bytes == 0; }));
  const std::uint64_t written = Stat().disk_written_bytes;
  auto other = pool_->OpenSession({.name = "other", .assume_weights = true});
  ASSERT_TRUE(other) << other.error().ToString();
  std::vector<std::string> keys(1000);
  std::vector<std::string_view> views(keys.size());
  std::vector<ItemResult> results(keys.size());
  for (int round = 0; round < 60; ++round) {
    // In its own namespace, too, which has objects on the disk.
    Session& session = round % 2 == 0 ? *session_ : **other;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      keys[i] = fmt::format("absent-{}-{}", round, i);
      views[i] = keys[i];
    }
    const Status removed = session.Remove(views, results, {.timeout = kCallTime});
    ASSERT_TRUE(removed) << removed.error().ToString();
  }
  EXPECT_LE(Stat().disk_written_bytes - written, 1U << 20);
  EXPECT_FALSE(Stat().disk_aside);
  EXPECT_EQ(OnDisk(120), before);
}

TEST_P(DiskTest, WithKeepPutsAreRefusedWhileTheDiskIsBehindAndNothingIsLost) {
  const Status opened = Open("128MiB", "keep");
  ASSERT_TRUE(opened) << opened.error().ToString();
  constexpr int kCount = 400;  // 80 MB, as fast as they are taken; the queue has 16 MiB
  std::atomic<bool> stop{false};
  std::size_t wrong = 0;
  // Values that come up make room, too, while the queue is as full as puts may make it.
  std::thread reader([&] {
    std::string got;
    for (int i = 0; !stop; i = (i + 7) % kCount) {
      const std::string key = "key" + std::to_string(i);
      if (Get(*session_, key, got).ok() && got != ValueOf(key)) ++wrong;
    }
  });
  std::size_t refused = 0;
  for (int i = 0; i < kCount; ++i) {
    const std::string key = "key" + std::to_string(i);
    const std::string value = ValueOf(key);
    ASSERT_TRUE(Becomes([&] {
      const Code code = Put(*session_, key, value);
      refused += code == Code::kNoSpace ? 1 : 0;
      return code == Code::kOk;
    })) << key;
  }
  stop = true;
  reader.join();
  EXPECT_EQ(wrong, 0U);
  EXPECT_EQ(Stat().disk_dropped_full + Stat().disk_dropped_other, 0U) << refused << " refused";
  ASSERT_TRUE(Becomes([&] { return Stat().disk_queued_bytes == 0; }));
  std::string got;
  for (int i = 0; i < kCount; ++i) {
    const std::string key = "key" + std::to_string(i);
    // What the read before has evicted is in the queue for a moment.
    ASSERT_TRUE(Becomes([&] { return Get(*session_, key, got).ok(); })) << key;
    ASSERT_EQ(got, ValueOf(key));
  }
  EXPECT_EQ(Stat().disk_dropped_full, 0U);
}

// With one disk before, and again after.
TEST_P(DiskTest, SeveralDisksShareTheLoadBySize) {
  const std::string second = directory_ + "/second";
  std::filesystem::create_directory(second);
  const std::string both = "128MiB," + second + ":64MiB";
  Fill(90, "before");
  const auto alone = OnDisk(90, "before");
  ASSERT_GT(alone.size(), 30U);
  const Status opened = Open(both);
  ASSERT_TRUE(opened) << opened.error().ToString();
  EXPECT_TRUE(Becomes([&] { return Stat().disk_capacity_bytes > (180U << 20); }));
  EXPECT_LT(Stat().disk_capacity_bytes, 192U << 20);
  const PoolStat sums = Stat();
  ASSERT_EQ(sums.disks.size(), 2U);
  EXPECT_EQ(sums.disks[1].path, second);
  EXPECT_EQ(sums.disks[0].space.total_bytes + sums.disks[1].space.total_bytes,
            sums.disk_capacity_bytes);
  EXPECT_GT(sums.disks[0].space.total_bytes, sums.disks[1].space.total_bytes);
  EXPECT_GT(sums.disks[0].space.objects, 0U);
  EXPECT_EQ(sums.disks[0].aside + sums.disks[1].aside, 0U);
  const auto stayed = OnDisk(90, "before");
  EXPECT_LT(stayed.size(), alone.size()) << "some keys are the other disk's now";
  EXPECT_GT(stayed.size(), alone.size() / 3);
  Fill(240);
  const auto keys = OnDisk(240);
  ASSERT_GT(keys.size(), 150U);
  std::string got;
  for (const std::string& key : keys) {
    const ItemResult result = Get(*session_, key, got);
    ASSERT_TRUE(result.ok()) << key << " " << MissReasonName(result.reason);
    ASSERT_EQ(got, ValueOf(key));
  }
  ASSERT_EQ(Remove(*session_, keys[0]), Code::kOk);
  const auto left = OnDisk(240);
  ASSERT_TRUE(Open(both));
  const auto after = OnDisk(240);
  for (const std::string& key : left) {
    EXPECT_EQ(std::ranges::find(after, key) != after.end(), key != keys[0]) << key;
  }
  EXPECT_EQ(Look(*session_, keys[0]).code, Code::kMiss);
  Close();
  std::uint64_t records[2] = {};
  for (int i = 0; i < 2; ++i) {
    const auto shown = disklog::ShowFile((i == 0 ? disk_ : second) + "/kvcove.disk");
    ASSERT_TRUE(shown) << shown.error().ToString();
    for (const auto& zone : shown->zones) records[i] += zone.records;
  }
  EXPECT_GT(records[1], 40U);
  EXPECT_GT(records[0], records[1]);
  // The second one goes: what the first one has stays.
  OpenAgain();
  const auto first = OnDisk(240);
  EXPECT_GT(first.size(), left.size() / 3);
  EXPECT_LT(first.size(), left.size());
  EXPECT_EQ(Look(*session_, keys[0]).code, Code::kMiss);
}

TEST_P(DiskTest, OneDiskIsNotNamedTwice) {
  const std::string link = directory_ + "/link";
  std::filesystem::create_directory_symlink(disk_, link);
  for (const std::string& again : {disk_, link, disk_ + "/kvcove.disk"}) {
    const Status opened = Open("128MiB," + again + ":128MiB");
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, Code::kInvalid);
    EXPECT_NE(opened.error().detail.find("one disk"), std::string::npos) << opened.error().detail;
  }
  Status many = Open(
      "128MiB,x:1GiB,a:1GiB,b:1GiB,c:1GiB,d:1GiB,e:1GiB,f:1GiB,g:1GiB,h:1GiB,"
      "i:1GiB,j:1GiB,k:1GiB,l:1GiB,m:1GiB,n:1GiB,o:1GiB");
  ASSERT_FALSE(many);
  EXPECT_NE(many.error().detail.find("16 at most"), std::string::npos) << many.error().detail;
  OpenAgain();
}

TEST_P(DiskTest, OneCallReadsMoreThanMemoryHolds) {
  Fill(120);
  std::vector<std::string> keys;
  for (int i = 0; i < 120; ++i) keys.push_back("key" + std::to_string(i));
  // What was evicted a moment ago is found once it is written.
  ASSERT_TRUE(Becomes([&] {
    return std::ranges::all_of(keys, [&](auto& key) { return Look(*session_, key).ok(); });
  }));
  std::vector<std::string> values(keys.size(), std::string(kValue, '\0'));
  std::vector<MutableBuffer> pieces;
  std::vector<GetItem> items;
  pieces.reserve(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    pieces.push_back({.data = values[i].data(), .size = kValue});
    items.push_back({.key = keys[i], .into = {&pieces[i], 1}});
  }
  std::vector<ItemResult> results(items.size());
  ASSERT_TRUE(session_->Get(items, results, {.timeout = milliseconds(20'000)}));
  std::size_t from_disk = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    EXPECT_TRUE(results[i].ok()) << keys[i] << ": " << CodeName(results[i].code) << ", "
                                 << MissReasonName(results[i].reason);
    if (!results[i].ok()) continue;
    from_disk += results[i].tier == Tier::kDisk ? 1 : 0;
    EXPECT_EQ(values[i], ValueOf(keys[i])) << keys[i];
  }
  EXPECT_GT(from_disk, 60U);
}

TEST_P(DiskTest, ABorrowBringsUpWhatItLends) {
  Fill(80);
  std::vector<std::string> keys = OnDisk(80);
  ASSERT_GE(keys.size(), 3U);
  keys.resize(3);
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  auto without_time = session_->Borrow(views, {.timeout = milliseconds(0)});
  ASSERT_TRUE(without_time);
  EXPECT_EQ(without_time->result(0).reason, MissReason::kDiskTimeout)
      << "nobody waits for the disk";
  EXPECT_EQ(without_time->result(0).tier, Tier::kDisk);
  auto loan = session_->Borrow(views, {.timeout = milliseconds(20'000)});
  ASSERT_TRUE(loan);
  // A sixteenth of 8 MiB, and half of it for loans: one of these values.
  EXPECT_TRUE(loan->result(0).ok());
  EXPECT_EQ(loan->result(0).tier, Tier::kDisk);
  std::string bytes;
  for (const ConstBuffer& piece : loan->pieces(0)) {
    bytes.append(static_cast<const char*>(piece.data), piece.size);
  }
  EXPECT_EQ(bytes, ValueOf(keys[0]));
  EXPECT_EQ(loan->result(2).code, Code::kLimit);
  std::vector<ItemResult> results(3);
  ASSERT_TRUE(loan->Release(results));
  EXPECT_TRUE(results[0].ok());
}

TEST_P(DiskTest, ALookUpWithAHoldBringsKeysUp) {
  Fill(120);
  const auto keys = OnDisk(120);
  ASSERT_FALSE(keys.empty());
  EXPECT_EQ(Look(*session_, keys[0], {.timeout = kCallTime, .hold = milliseconds(10'000)}).tier,
            Tier::kDisk);
  EXPECT_TRUE(Becomes([&] { return Look(*session_, keys[0]).tier == Tier::kMemory; }));
}

TEST_P(DiskTest, AListHasWhatIsOnTheDisk) {
  Fill(120);
  const auto on_disk = OnDisk(120);
  ASSERT_FALSE(on_disk.empty());
  const auto all = session_->List("", {.timeout = milliseconds(20'000)});
  ASSERT_TRUE(all) << all.error().ToString();
  std::map<std::string, Tier> tiers;
  for (const StoredObject& one : *all) {
    EXPECT_EQ(one.size_bytes, kValue) << one.key;
    EXPECT_TRUE(tiers.emplace(one.key, one.tier).second) << one.key;
  }
  std::size_t found = 0;
  for (int i = 0; i < 120; ++i) found += Look(*session_, "key" + std::to_string(i)).ok() ? 1 : 0;
  EXPECT_EQ(tiers.size(), found);
  for (const std::string& key : on_disk) EXPECT_EQ(tiers.at(key), Tier::kDisk) << key;
  // Only what begins so, and nothing that was removed.
  ASSERT_EQ(Remove(*session_, on_disk[0]), Code::kOk);
  const auto some = session_->List(on_disk[0], {.timeout = milliseconds(20'000)});
  ASSERT_TRUE(some) << some.error().ToString();
  for (const StoredObject& one : *some) {
    EXPECT_TRUE(one.key.starts_with(on_disk[0]));
    EXPECT_NE(one.key, on_disk[0]);
  }
}

TEST_P(DiskTest, ARestartBringsBackWhatWasOnTheDisk) {
  Fill(120);
  const auto keys = OnDisk(120);
  ASSERT_EQ(Remove(*session_, keys[0]), Code::kOk);
  ASSERT_NO_FATAL_FAILURE(OpenAgain());
  std::string got;
  EXPECT_FALSE(Get(*session_, keys[0], got).ok());
  for (std::size_t i = 1; i < keys.size(); ++i) {
    ASSERT_TRUE(Get(*session_, keys[i], got).ok()) << keys[i];
    EXPECT_EQ(got, ValueOf(keys[i]));
  }
}

TEST_P(DiskTest, AResetVoidsTheDiskAlsoAfterARestart) {
  Fill(120);
  ASSERT_FALSE(OnDisk(120).empty());
  ASSERT_TRUE(session_->Reset({.timeout = milliseconds(20'000)}));
  EXPECT_TRUE(OnDisk(120).empty());
  std::string got;
  EXPECT_FALSE(Get(*session_, "key0", got).ok());
  ASSERT_NO_FATAL_FAILURE(OpenAgain());
  EXPECT_TRUE(OnDisk(120).empty());
  EXPECT_FALSE(Get(*session_, "key0", got).ok());
}

TEST_P(DiskTest, ARemovalByPatternMeetsTheDisk) {
  Fill(60, "a");
  Fill(60, "b");
  const auto removed = session_->RemoveMatching("a*", {.timeout = milliseconds(10'000)});
  ASSERT_TRUE(removed) << removed.error().ToString();
  EXPECT_EQ(*removed, 60U);
  EXPECT_TRUE(OnDisk(60, "a").empty());
  EXPECT_FALSE(OnDisk(60, "b").empty());
  ASSERT_NO_FATAL_FAILURE(OpenAgain());
  EXPECT_TRUE(OnDisk(60, "a").empty());
  EXPECT_FALSE(OnDisk(60, "b").empty());
}

TEST_P(DiskTest, AValueOnTheDiskIsReplacedByRemovingItFirst) {
  Fill(120);
  const std::string key = OnDisk(120).front();
  EXPECT_EQ(Put(*session_, key, ValueOf("other")), Code::kExists);
  ASSERT_EQ(Remove(*session_, key), Code::kOk);
  ASSERT_EQ(Put(*session_, key, ValueOf("other")), Code::kOk);
  Fill(60, "more");
  std::string got;
  ASSERT_TRUE(Get(*session_, key, got).ok());
  EXPECT_EQ(got, ValueOf("other"));
}

TEST_P(DiskTest, ADiskThatDoesNotFitStopsTheStart) {
  Close();
  const auto another = Open("256MiB");
  ASSERT_FALSE(another);
  EXPECT_NE(another.error().detail.find("it has 134217728 B"), std::string::npos)
      << another.error().detail;
  const auto small = [&] {
    disk_ = directory_ + "/small";
    return Open("1MiB");
  }();
  ASSERT_FALSE(small);
  EXPECT_NE(small.error().detail.find("too small"), std::string::npos) << small.error().detail;
  disk_ = "/dev/shm/kvcove-disk-test-" + std::to_string(getpid());
  const auto memory = Open();
  ASSERT_FALSE(memory);
  EXPECT_NE(memory.error().detail.find("tmpfs"), std::string::npos) << memory.error().detail;
  EXPECT_FALSE(std::filesystem::exists(disk_));
  // Its name would be that of the note that says which disk is known.
  disk_ = directory_ + "/data/disk";
  const auto note = Open();
  ASSERT_FALSE(note);
  EXPECT_NE(note.error().detail.find("a file of another name"), std::string::npos)
      << note.error().detail;
  disk_ = directory_ + "/data-of-somebody";
  std::ofstream(disk_) << std::string(10'000, 'x');
  const auto other = Open();
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().detail.find("kvcove disk format"), std::string::npos)
      << other.error().detail;
}

TEST_P(DiskTest, ADiskInUseOrOfAnotherPoolStopsTheStart) {
  const auto second = Pool::Open(fmt::format("embedded:?memory={}&disk={}:128MiB&data={}",
                                             kDiskMemory, disk_, directory_ + "/d2"),
                                 kCallTime);
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().detail.find("in use"), std::string::npos) << second.error().detail;
  Close();
  const auto foreign = Pool::Open(fmt::format("embedded:?memory={}&disk={}:128MiB&data={}",
                                              kDiskMemory, disk_, directory_ + "/d2"),
                                  kCallTime);
  ASSERT_FALSE(foreign);
  EXPECT_NE(foreign.error().detail.find("belongs to pool"), std::string::npos)
      << foreign.error().detail;
}

// Nobody tells a disk that is not there of a removal.
TEST_P(DiskTest, ADiskThatMissedARunStartsEmpty) {
  Fill(120);
  ASSERT_FALSE(OnDisk(120).empty());
  Close();
  {
    const auto without = Pool::Open(
        fmt::format("embedded:?memory={}&data={}", kDiskMemory, directory_ + "/data"), kCallTime);
    ASSERT_TRUE(without) << without.error().ToString();
  }
  ASSERT_NO_FATAL_FAILURE(OpenAgain());
  EXPECT_TRUE(OnDisk(120).empty());
}

INSTANTIATE_TEST_SUITE_P(Forms, DiskTest, testing::Values("embedded", "daemon"),
                         [](const auto& form) { return form.param; });

// ---- a disk that answers late

class HeldDiskTest : public DiskTest {
 protected:
  HeldDiskTest() {
    open_device_ = [this](const std::string& path) -> Result<std::unique_ptr<disklog::Device>> {
      KVCOVE_ASSIGN(auto device, disklog::OpenDevice(path));
      return std::make_unique<HeldDevice>(std::move(device), held_);
    };
  }
  std::size_t Waiting() { return daemon_->host().owner().removals().waits().size(); }
  static SessionPtr OpenNamed(Pool& pool, const std::string& name) {
    return Must(pool.OpenSession({.name = name, .assume_weights = true}));
  }
  std::string address() const { return "unix:" + directory_ + "/kvcove.sock"; }
  // Asks for a removal on a connection of its own, which closes without waiting for the answer.
  void RemoveAndLeave(const Token& token, std::string_view key) {
    struct Keep final : wire::Channel {
      Result<std::string> Call(wire::Method, std::span<const std::byte> bytes,
                               std::int64_t) override {
        body.assign(bytes.begin(), bytes.end());
        return Fail(Code::kUnavailable, "not sent");
      }
      std::vector<std::byte> body;
    } keep;
    (void)wire::MakeHostStub(keep)->Remove(token, {&key, 1}, 0);
    const std::int64_t soon_ns = SystemClock::Instance().NowNs() + 60 * kSecond;
    auto client = Must(rpc::Client::Connect(directory_ + "/kvcove.sock", soon_ns));
    const std::string hello =
        wire::EncodeHello({.name = "leaves", .layout = segment::kLayoutVersion});
    std::vector<UniqueFd> fds;
    (void)Must(client.Call(wire::Method::kHello, std::as_bytes(std::span(hello)), soon_ns, &fds));
    const std::size_t waiting = Waiting();
    const auto head =
        wire::EncodeFrameHeader({.method = static_cast<std::uint16_t>(wire::Method::kRemove),
                                 .body_bytes = static_cast<std::uint32_t>(keep.body.size()),
                                 .budget_ms = 60'000,
                                 .call = 77});
    EXPECT_EQ(send(client.fd(), head.data(), head.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(head.size()));
    EXPECT_EQ(send(client.fd(), keep.body.data(), keep.body.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(keep.body.size()));
    EXPECT_TRUE(Becomes([&] { return Waiting() > waiting; }));
  }

  std::atomic<bool> held_{false};
};

// More of them wait than the daemon has threads.
TEST_P(HeldDiskTest, RemovalsThatWaitForTheDiskHoldNobodyUp) {
  constexpr std::size_t kCallers = 40;
  Fill(160);
  const std::vector<std::string> keys = OnDisk(160);
  ASSERT_GT(keys.size(), kCallers + 1);
  const SessionPtr other = OpenNamed(*pool_, "other");
  std::vector<std::unique_ptr<Pool>> pools;
  std::vector<SessionPtr> sessions;
  for (std::size_t i = 0; i < kCallers; ++i) {
    pools.push_back(Must(Pool::Open(address(), kCallTime)));
    sessions.push_back(OpenNamed(*pools.back(), "model"));
  }
  held_ = true;
  RemoveAndLeave(Must(session_->Capture({.timeout = kCallTime})), keys[kCallers]);
  std::atomic<std::size_t> proven{0};
  std::vector<std::thread> callers;
  for (std::size_t i = 0; i < kCallers; ++i) {
    callers.emplace_back([&, i] {
      const bool removed =
          i % 2 == 0 ? Remove(*sessions[i], keys[i]) == Code::kOk
                     : sessions[i]->RemoveMatching(keys[i], {.timeout = kCallTime}).has_value();
      if (removed) ++proven;
    });
  }
  // On a machine that is slow enough, the disk counts as hanging by then, which proves them.
  EXPECT_TRUE(Becomes([&] { return Waiting() == kCallers + 1 || Stat().disk_aside != 0; }))
      << Waiting() << " wait";
  EXPECT_TRUE(other->Reset({.timeout = kCallTime}));
  EXPECT_EQ(Put(*other, "k", "v"), Code::kOk);
  const std::string_view last = keys.back();
  ItemResult late;
  (void)session_->Remove({&last, 1}, {&late, 1}, {.timeout = milliseconds(100)});
  EXPECT_TRUE(late.code == Code::kTimeout || Stat().disk_aside != 0) << CodeName(late.code);
  held_ = false;
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(proven, kCallers);
  EXPECT_TRUE(Becomes([&] { return Waiting() == 0; }));
  for (std::size_t i = 0; i <= kCallers; ++i) EXPECT_FALSE(Look(*session_, keys[i]).ok());
}

INSTANTIATE_TEST_SUITE_P(Forms, HeldDiskTest, testing::Values("daemon"),
                         [](const auto& form) { return form.param; });

// ---- kill -9

class DiskKillTest : public testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    std::string name = testing::TempDir() + "/kvcove-kill-XXXXXX";
    directory_ = mkdtemp(name.data());
    log_ = directory_ + "/log";
  }
  void TearDown() override {
    Kill();
    std::filesystem::remove_all(directory_);
  }
  void Start() {
    const std::string socket = directory_ + "/kvcove.sock";
    const std::vector<std::string> words = {KVCOVE_COMMAND, "serve",
                                            "--socket",     socket,
                                            "--memory",     "8MiB",
                                            "--disk",       directory_ + "/d:64MiB",
                                            "--data",       directory_ + "/data"};
    std::vector<char*> argv;
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 2, log_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
    ASSERT_EQ(posix_spawn(&pid_, KVCOVE_COMMAND, &files, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&files);
    bool ended = false;
    const bool opened = Becomes([&] {
      if (pool_ != nullptr || ended) return true;
      if (auto pool = Pool::Open("unix:" + socket, kCallTime)) pool_ = *std::move(pool);
      ended = waitpid(pid_, nullptr, WNOHANG) == pid_;
      return false;
    });
    ASSERT_TRUE(opened && pool_ != nullptr) << std::ifstream(log_).rdbuf();
    session_ = Must(pool_->OpenSession({.name = "model", .assume_weights = true}));
  }
  void Kill() {
    session_.reset();
    pool_.reset();
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, 0), nullptr, 0);
  }

  std::string directory_;
  std::string log_;
  pid_t pid_ = 0;
  std::unique_ptr<Pool> pool_;
  SessionPtr session_;
};

// Of all these keys those that are found, in one call.
std::map<std::string, std::string> GetAll(Session& session,
                                          const std::map<std::string, int>& keys) {
  std::vector<std::string> values(keys.size(), std::string(kValue, '\0'));
  std::vector<MutableBuffer> pieces;
  for (std::string& value : values) pieces.push_back({.data = value.data(), .size = kValue});
  std::vector<GetItem> items;
  for (const auto& [key, version] : keys) {
    items.push_back({.key = key, .into = {&pieces[items.size()], 1}});
  }
  std::vector<ItemResult> results(items.size());
  (void)session.Get(items, results, {.timeout = milliseconds(60'000)});
  std::map<std::string, std::string> found;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!results[i].ok()) continue;
    found[std::string(items[i].key)] = values[i].substr(0, results[i].bytes);
  }
  return found;
}

// Each round kills the daemon at some time, and looks what the next one finds.
TEST_F(DiskKillTest, NothingWrongOrRemovedIsFoundAfterAKill) {
  const char* asked = std::getenv("KVCOVE_KILLS");
  const int rounds = asked == nullptr ? 20 : std::max(1, std::atoi(asked));
  // A busy machine has fewer of them.
  const auto enough = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  Random random(7);
  std::map<std::string, int> versions;  // of each key: the next value's; 0: none was put
  std::map<std::string, int> last;      // removed for good up to this one
  std::size_t found = 0;
  for (int round = 0; round < rounds; ++round) {
    Start();
    if (HasFatalFailure()) return;
    if (asked == nullptr && round >= 5 && std::chrono::steady_clock::now() > enough) break;
    for (const auto& [key, got] : GetAll(*session_, versions)) {
      ++found;
      bool right = false;
      for (int v = last[key] + 1; v <= versions[key]; ++v)
        right |= got == ValueOf(key + "." + std::to_string(v));
      ASSERT_TRUE(right) << key << " in round " << round;
    }
    // Memory is full by then, so values go to the disk.
    std::atomic<int> calls{0};
    std::atomic<bool> killed{false};
    std::thread killer([this, &calls, &killed, after = 60 + static_cast<int>(random.Below(60)),
                        wait = random.Below(20)] {
      while (calls < after) std::this_thread::sleep_for(milliseconds(1));
      std::this_thread::sleep_for(milliseconds(wait));
      kill(pid_, SIGKILL);
      killed = true;
    });
    for (; !killed; ++calls) {
      const std::string key = std::to_string(random.Below(150));
      if (random.OneIn(5)) {
        if (Remove(*session_, key) == Code::kOk) last[key] = versions[key];
      } else {
        // It counts even if the answer does not come.
        const std::string value = ValueOf(key + "." + std::to_string(versions[key] + 1));
        const Code code = Put(*session_, key, value);
        if (code != Code::kExists) ++versions[key];
      }
    }
    killer.join();
    Kill();
  }
  EXPECT_GT(found, 100U);
}

TEST_F(DiskKillTest, WhatTheDiskHadIsFoundAfterAKill) {
  std::vector<std::string> before;
  for (int round = 0; round < 5; ++round) {
    Start();
    if (HasFatalFailure()) return;
    std::string got;
    for (const std::string& key : before) {
      const ItemResult result = Get(*session_, key, got);
      ASSERT_TRUE(result.ok()) << key << " in round " << round << ": " << CodeName(result.code)
                               << ", " << MissReasonName(result.reason);
      ASSERT_EQ(got, ValueOf(key));
    }
    const auto queue = [&] { return AwaitStat(*pool_).disk_queued_bytes; };
    std::vector<std::string> keys;
    for (int i = 0; i < 100; ++i) {
      keys.push_back(fmt::format("{}.{}", round, i));
      ASSERT_EQ(Put(*session_, keys.back(), ValueOf(keys.back())), Code::kOk);
      ASSERT_TRUE(Becomes([&] { return queue() < (1 << 20); }));
    }
    ASSERT_TRUE(Becomes([&] { return queue() == 0; }));
    before.clear();
    for (const std::string& key : keys) {
      if (Look(*session_, key).tier == Tier::kDisk) before.push_back(key);
    }
    ASSERT_GT(before.size(), 20U);
    Kill();
  }
}

// As from a snapshot of its volume, with a data directory on another one.
TEST_F(DiskKillTest, ADiskThatIsPutBackFromACopyBringsNothingBack) {
  ASSERT_NO_FATAL_FAILURE(Start());
  std::map<std::string, int> keys;
  const auto queue = [&] { return AwaitStat(*pool_).disk_queued_bytes; };
  for (int i = 0; i < 100; ++i) {
    const std::string key = std::to_string(i);
    ASSERT_EQ(Put(*session_, key, ValueOf(key)), Code::kOk);
    ASSERT_TRUE(Becomes([&] { return queue() < (1 << 20); }));
  }
  ASSERT_TRUE(Becomes([&] { return queue() == 0; }));
  for (int i = 0; i < 100; ++i) {
    const std::string key = std::to_string(i);
    if (Look(*session_, key).tier == Tier::kDisk) keys[key] = 1;
  }
  ASSERT_GT(keys.size(), 20U);
  Kill();
  std::filesystem::copy_file(directory_ + "/d", directory_ + "/copy");
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_EQ(GetAll(*session_, keys).size(), keys.size()) << "a kill alone costs nothing";
  for (const auto& [key, version] : keys) ASSERT_EQ(Remove(*session_, key), Code::kOk);
  Kill();
  std::filesystem::rename(directory_ + "/copy", directory_ + "/d");
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_EQ(GetAll(*session_, keys).size(), 0U);
  std::stringstream log;
  log << std::ifstream(log_).rdbuf();
  EXPECT_NE(log.str().find("put back from a copy"), std::string::npos) << log.str();
  EXPECT_EQ(Put(*session_, "0", ValueOf("0")), Code::kOk);
}

}  // namespace
}  // namespace kvcove
