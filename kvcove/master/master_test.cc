// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/master.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

namespace kvcove::master {
namespace {

class Sink final : public GenerationSink {
 public:
  void Publish(const Id128&, const std::vector<SlotUpdate>& updates) override {
    for (const SlotUpdate& update : updates) generations[update.slot] = update.generation;
  }
  Status Await(std::int64_t) override { return {}; }
  std::map<SlotId, Generation> generations;
};

// Fails on demand.
class FlakyLog final : public GenerationLog {
 public:
  explicit FlakyLog(int* failures) : failures_(failures) {}
  Status Append(const std::vector<Record>&) override { return Answer(); }
  Status Rewrite(Id128, const std::vector<Record>&) override { return Answer(); }
  Status Close() override { return {}; }

 private:
  Status Answer() const {
    if (*failures_ == 0) return {};
    --*failures_;
    return Fail(Code::kInternal, "the disk refused");
  }
  int* failures_;
};

class Directory {
 public:
  Directory() {
    std::string name = "/tmp/kvcove-master-XXXXXX";
    path = mkdtemp(name.data());
  }
  ~Directory() { std::filesystem::remove_all(path); }
  std::string path;
};

const RegisterRequest kEngine{.name = "model", .version = "", .engine = "a", .follow_always = true};
ResetRequest ResetWith(std::uint64_t id) {
  return {.name = "model", .engine = "a", .version = {}, .id = {3, id}};
}

TEST(MasterTest, AFailedSyncVoidsEverythingUnderANewIncarnation) {
  int failures = 0;
  Sink sink;
  FakeClock clock;
  auto master =
      *Master::Open(std::make_unique<FlakyLog>(&failures), {.incarnation = {1, 1}}, sink, clock);
  const Registration before = *master->Register(kEngine);
  failures = 1;
  EXPECT_EQ(master->Reset(ResetWith(1), clock.NowNs() + kSecond).error().code, Code::kNotProven);
  EXPECT_EQ(sink.generations[before.slot], 0U) << "nothing old is found";
  const Registration after = *master->Register(kEngine);
  EXPECT_NE(after.incarnation, before.incarnation);
  EXPECT_GT(after.generation, before.generation);
}

TEST(MasterTest, ALogThatStaysBrokenKeepsThePoolClosed) {
  int failures = 0;
  Sink sink;
  FakeClock clock;
  auto master =
      *Master::Open(std::make_unique<FlakyLog>(&failures), {.incarnation = {1, 1}}, sink, clock);
  ASSERT_TRUE(master->Register(kEngine));
  failures = 1000;
  EXPECT_FALSE(master->Reset(ResetWith(1), clock.NowNs() + kSecond));
  EXPECT_FALSE(master->Register(kEngine));
  failures = 0;
  EXPECT_TRUE(master->Register(kEngine));
}

TEST(MasterTest, AResetWaitsForTheLeasesOfAnEarlierProcess) {
  Sink sink;
  FakeClock clock;
  const Restored restored{.incarnation = {1, 1},
                          .records = {{.kind = Record::Kind::kSlot,
                                       .slot = 0,
                                       .generation = 4,
                                       .name = "model",
                                       .version = {}}},
                          .running_lease_ns = kSecond};
  auto master = *Master::Open(std::make_unique<MemoryLog>(), restored, sink, clock);
  std::atomic<bool> done{false};
  std::thread waiter([&] {
    EXPECT_TRUE(master->Reset(ResetWith(1), clock.NowNs() + 10 * kSecond));
    EXPECT_GE(clock.NowNs(), kSecond + kSecond / 100 * 101);
    done = true;
  });
  clock.AdvanceNs(kSecond);
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  EXPECT_FALSE(done) << "1 % for clocks that drift";
  clock.AdvanceNs(kSecond / 50);
  waiter.join();
  EXPECT_TRUE(done);
}

TEST(MasterTest, WithoutTimeToWaitAResetIsNotProven) {
  Sink sink;
  FakeClock clock;
  auto master = *Master::Open(std::make_unique<MemoryLog>(),
                              {.incarnation = {1, 1}, .running_lease_ns = kSecond}, sink, clock);
  EXPECT_EQ(master->Reset(ResetWith(1), clock.NowNs()).error().code, Code::kNotProven);
}

TEST(MasterTest, ResetsAtOnceShareARaise) {
  const Directory directory;
  Sink sink;
  Restored restored;
  auto log = *FileLog::Open(directory.path, kSecond, restored);
  auto master = *Master::Open(std::move(log), restored, sink, SystemClock::Instance());
  const auto registered = master->Register(kEngine);
  ASSERT_TRUE(registered);
  std::atomic<std::uint32_t> raised{0};
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const auto outcome =
          master->Reset(ResetWith(i + 1), SystemClock::Instance().NowNs() + 5 * kSecond);
      ASSERT_TRUE(outcome);
      raised += outcome->raised > 0 ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sink.generations.begin()->second, registered->generation + 1)
      << "one raise for all of them";
}

TEST(FileLogTest, SurvivesARestartAndTellsARunningLease) {
  const Directory directory;
  Sink sink;
  Registration before;
  {
    Restored restored;
    auto log = *FileLog::Open(directory.path, kSecond, restored);
    EXPECT_EQ(restored.running_lease_ns, 0);
    auto master = *Master::Open(std::move(log), restored, sink, SystemClock::Instance());
    before = *master->Register(kEngine);
    // Killed: no Close.
  }
  {
    Restored restored;
    auto log = *FileLog::Open(directory.path, kSecond, restored);
    EXPECT_EQ(restored.running_lease_ns, kSecond);
    EXPECT_EQ(restored.incarnation, before.incarnation);
    ASSERT_EQ(restored.records.size(), 2U);
    EXPECT_EQ(restored.records[0].kind, Record::Kind::kStart);
    EXPECT_EQ(restored.records[1].generation, before.generation);
    auto master = *Master::Open(std::move(log), restored, sink, SystemClock::Instance());
    EXPECT_EQ(master->term(), 2U) << "grows with each start";
    ASSERT_TRUE(master->PersistMissed(before.slot));
    ASSERT_TRUE(master->Close());
  }
  Restored restored;
  auto log = FileLog::Open(directory.path, kSecond, restored);
  ASSERT_TRUE(log);
  EXPECT_EQ(restored.running_lease_ns, 0) << "it ended cleanly";
  auto master = *Master::Open(std::move(*log), restored, sink, SystemClock::Instance());
  EXPECT_EQ(master->term(), 3U);
  EXPECT_TRUE(master->missed_removals().contains(before.slot));
}

TEST(FileLogTest, WhatOthersMayHavePutThereIsNotUsed) {
  const Directory directory;
  const auto open = [](const std::string& path) {
    Restored restored;
    const auto log = FileLog::Open(path, kSecond, restored);
    return log ? Code::kOk : log.error().code;
  };
  std::filesystem::permissions(directory.path, std::filesystem::perms(0777));
  EXPECT_EQ(open(directory.path), Code::kDenied);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path));
  std::filesystem::permissions(directory.path, std::filesystem::perms(0755));
  EXPECT_EQ(open(directory.path), Code::kOk);
  std::filesystem::create_symlink(directory.path, directory.path + "/link");
  EXPECT_EQ(open(directory.path + "/link"), Code::kDenied);
  // Left from a time when the directory was open to all.
  const std::string file = directory.path + "/generations";
  std::ofstream(file) << EncodeHeader({1, 2}, kSecond);
  std::filesystem::permissions(file, std::filesystem::perms(0600));
  EXPECT_EQ(open(directory.path), Code::kOk);
  std::filesystem::permissions(file, std::filesystem::perms(0666));
  EXPECT_EQ(open(directory.path), Code::kDenied);
  std::filesystem::rename(file, directory.path + "/elsewhere");
  std::filesystem::create_symlink(directory.path + "/elsewhere", file);
  EXPECT_NE(open(directory.path), Code::kOk);
}

TEST(FileLogTest, ADirectoryThatIsExchangedMeanwhileIsNotFollowed) {
  const Directory directory;
  const std::string path = directory.path + "/data";
  Restored restored;
  auto log = *FileLog::Open(path, kSecond, restored);
  std::filesystem::rename(path, directory.path + "/aside");
  std::filesystem::create_directory(path);
  ASSERT_TRUE(log->Rewrite(restored.incarnation, {}));
  EXPECT_TRUE(std::filesystem::is_empty(path));
  EXPECT_TRUE(std::filesystem::exists(directory.path + "/aside/generations"));
}

TEST(FileLogTest, TwoProcessesCannotUseOneDirectory) {
  const Directory directory;
  Restored restored;
  const auto first = FileLog::Open(directory.path, kSecond, restored);
  const auto second = FileLog::Open(directory.path, kSecond, restored);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kUnavailable);
  EXPECT_NE(second.error().detail.find(directory.path), std::string::npos);
}

std::string SomeLog() {
  std::string bytes = EncodeHeader({5, 6}, kSecond);
  for (Generation g = 1; g <= 5; ++g) {
    bytes += EncodeRecord({.kind = Record::Kind::kSlot,
                           .slot = static_cast<SlotId>(g),
                           .generation = g,
                           .name = "name",
                           .version = "v" + std::to_string(g)});
  }
  return bytes;
}

TEST(LogFormatTest, ACutAtEveryByteLosesOnlyWhatWasNotWhole) {
  const std::string whole = SomeLog();
  const std::size_t record = (whole.size() - EncodeHeader({5, 6}, kSecond).size()) / 5;
  const std::size_t header = whole.size() - 5 * record;
  for (std::size_t cut = 0; cut < whole.size(); ++cut) {
    const auto parsed = ParseLog(std::string_view(whole).substr(0, cut));
    if (cut < header) {
      EXPECT_FALSE(parsed) << cut;
    } else {
      ASSERT_TRUE(parsed) << cut;
      EXPECT_EQ(parsed->records.size(), (cut - header) / record) << cut;
    }
  }
}

TEST(LogFormatTest, DamageInTheMiddleIsSeen) {
  const std::string whole = SomeLog();
  for (std::size_t at = 0; at < whole.size() - 60; ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    const auto parsed = ParseLog(damaged);
    // Either it is refused, or what is read is a prefix of the truth (a length that now reaches
    // past the end).
    if (parsed) {
      EXPECT_LT(parsed->records.size(), 5U) << at;
    }
  }
}

TEST(LogFormatTest, BytesAreWhatTheDocumentSays) {
  const std::string header = EncodeHeader({0x0102030405060708, 9}, 1000);
  ASSERT_EQ(header.size(), 48U);
  EXPECT_EQ(header.substr(0, 8), "kvcovegn");
  EXPECT_EQ(header[8], 1);
  EXPECT_EQ(header[16], 8) << "little-endian";
  const std::string record = EncodeRecord({.kind = Record::Kind::kRaise,
                                           .slot = 0x0201,
                                           .generation = 7,
                                           .reset_id = {1, 2},
                                           .name = {},
                                           .version = {}});
  ASSERT_EQ(record.size(), 8U + 31U);
  EXPECT_EQ(record[0], 31);
  EXPECT_EQ(record[8], 2);
  EXPECT_EQ(record[9], 1);
  EXPECT_EQ(record[10], 2);
  EXPECT_EQ(record[11], 7);
}

TEST(LogFormatTest, AnotherVersionIsNamed) {
  std::string bytes = SomeLog();
  bytes[8] = 9;
  const auto parsed = ParseLog(bytes);
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().code, Code::kIncompatible);
  EXPECT_NE(parsed.error().detail.find('9'), std::string::npos);
}

TEST(FileLogTest, ADamagedFileIsKeptAsideAndEverythingIsVoid) {
  const Directory directory;
  {
    std::string bytes = SomeLog();
    bytes[70] = static_cast<char>(bytes[70] ^ 1);
    std::ofstream(directory.path + "/generations", std::ios::binary) << bytes;
  }
  Restored restored;
  ASSERT_TRUE(FileLog::Open(directory.path, kSecond, restored));
  EXPECT_NE(restored.incarnation, (Id128{5, 6}));
  EXPECT_TRUE(restored.records.empty());
  EXPECT_EQ(restored.running_lease_ns, kSecond);
  EXPECT_TRUE(std::filesystem::exists(directory.path + "/generations.damaged"));
}

}  // namespace
}  // namespace kvcove::master
