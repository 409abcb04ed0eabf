// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/store/file_store.h"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <thread>

#include "kvcove/base/log.h"
#include "kvcove/master/store/file_store_fixture.h"
#include "kvcove/master/store/memory_store.h"

namespace kvcove::master {
namespace {

class FileStoreTest : public FileStoreFixture {};

TEST_F(FileStoreTest, AStartWritesNothingAndTheFirstCommitMakesTheFile) {
  ASSERT_TRUE(Open());
  EXPECT_TRUE(opened.found_nothing);
  EXPECT_FALSE(opened.damaged);
  EXPECT_EQ(opened.revision, 0U);
  Work();
  EXPECT_TRUE(disk->Names().empty());
  EXPECT_EQ(Must({{"a", "1"}, {"b", "2"}}), 1U);
  EXPECT_EQ(Must({{"b", "3"}}), 2U);
  EXPECT_EQ(Must({{"a", std::nullopt}, {"c", ""}}), 3U);
  ASSERT_TRUE(Open());
  EXPECT_FALSE(opened.found_nothing);
  EXPECT_EQ(opened.revision, 3U);
  EXPECT_EQ(opened.facts, (Facts{{"b", {"3", 2}}, {"c", {"", 3}}}));
}

TEST_F(FileStoreTest, WhatWaitsIsOneAppendAndOneSyncAndDoneComesInOrder) {
  ASSERT_TRUE(Open());
  Must({{"a", "1"}});
  const auto before = disk->counts();
  for (int i = 0; i < 100; ++i) Commit({{"key" + std::to_string(i), "value"}});
  EXPECT_EQ(disk->counts().steps, before.steps) << "a commit does not touch the disk";
  EXPECT_TRUE(store->Work());
  EXPECT_EQ(disk->counts().appends, before.appends + 1);
  EXPECT_EQ(disk->counts().syncs, before.syncs + 1);
  ASSERT_EQ(order.size(), 101U);
  for (std::size_t i = 0; i < order.size(); ++i) {
    EXPECT_EQ(order[i], i);
    EXPECT_EQ(**outcomes[i], i + 1) << "revisions grow by one";
  }
  EXPECT_FALSE(store->Work());
  EXPECT_EQ(store->stat().revision, 101U);
  EXPECT_EQ(store->stat().batches, 2U);
}

TEST_F(FileStoreTest, DoneMayCommit) {
  ASSERT_TRUE(Open());
  std::uint64_t second = 0;
  store->Commit({{"a", "1"}}, [&](const Result<std::uint64_t>& revision) {
    EXPECT_EQ(*revision, 1U);
    store->Commit({{"b", "2"}}, [&](const Result<std::uint64_t>& next) { second = *next; });
  });
  Work();
  EXPECT_EQ(second, 2U);
}

TEST_F(FileStoreTest, LimitsAreRefusedWithinTheCall) {
  ASSERT_TRUE(Open());
  const auto code = [&](Changes changes) {
    const std::size_t place = Commit(std::move(changes));
    return outcomes[place] && !*outcomes[place] ? outcomes[place]->error().code : Code::kOk;
  };
  EXPECT_EQ(code({{std::string(256, 'k'), std::string(64 << 10, 'v')}}), Code::kOk);
  EXPECT_EQ(code({{std::string(257, 'k'), "v"}}), Code::kLimit);
  EXPECT_EQ(code({{"k", std::string((64 << 10) + 1, 'v')}}), Code::kLimit);
  Changes large(kMaxTransactionBytes / (64 << 10), {"k", std::string(64 << 10, 'v')});
  EXPECT_EQ(code(large), Code::kLimit) << "the keys count, too";
  large.pop_back();
  EXPECT_EQ(code(large), Code::kOk);
  options.max_facts_bytes = 4096;
  ASSERT_TRUE(Open());
  EXPECT_EQ(code({{"k", std::string(2000, 'v')}}), Code::kOk);
  Work();
  EXPECT_EQ(code({{"l", std::string(2000, 'v')}}), Code::kLimit);
  EXPECT_EQ(code({{"k", std::nullopt}}), Code::kOk) << "what makes room is accepted";
}

TEST_F(FileStoreTest, AHangingDiskFillsTheQueueAndBlocksNobody) {
  options.max_queued = 10;
  options.max_queued_bytes = 1000;
  ASSERT_TRUE(Open());
  Must({{"a", "1"}});
  disk->SetHanging(true);
  for (int i = 0; i < 12; ++i) Commit({{"b", std::to_string(i)}});
  Work();
  EXPECT_EQ(store->stat().queued, 10U);
  EXPECT_FALSE(outcomes[10]);
  EXPECT_TRUE(Failed(11)) << "the queue is full";
  EXPECT_TRUE(Failed(12));
  disk->SetHanging(false);
  Work();
  EXPECT_EQ(**outcomes[10], 11U);
  const std::size_t large = Commit({{"c", std::string(2000, 'v')}});
  EXPECT_TRUE(Failed(large)) << "bytes are counted, too";
  EXPECT_EQ(Must({{"c", "v"}}), 12U);
}

TEST_F(FileStoreTest, AHangBetweenAppendAndSyncDelaysDone) {
  ASSERT_TRUE(Open());
  Must({{"a", "1"}});
  disk->HangAfter(1);
  const std::size_t first = Commit({{"a", "2"}});
  EXPECT_FALSE(store->Work());
  const std::size_t second = Commit({{"a", "3"}});
  EXPECT_FALSE(store->Work());
  EXPECT_FALSE(outcomes[first]);
  disk->SetHanging(false);
  Work();
  EXPECT_EQ(**outcomes[first], 2U);
  EXPECT_EQ(**outcomes[second], 3U);
}

TEST_F(FileStoreTest, AFailedWriteRefusesCommitsUntilTheFileIsRewritten) {
  for (const std::uint64_t skip : {0U, 1U}) {  // the append fails, or the sync
    ASSERT_TRUE(Open());
    const std::uint64_t base = Must({{"a", "1"}});
    ASSERT_NE(base, 0U);
    disk->FailNext(1, skip);
    const std::size_t failed = Commit({{"a", "failed"}, {"lost", "x"}});
    const std::size_t behind = Commit({{"b", "behind"}});
    Work();
    EXPECT_TRUE(Failed(failed));
    EXPECT_TRUE(Failed(behind));
    EXPECT_FALSE(store->stat().refuses.empty());
    const std::uint64_t steps = disk->counts().steps;
    EXPECT_TRUE(Failed(Commit({{"b", "at once"}})));
    clock.AdvanceNs(99 * kMillisecond);
    Work();
    EXPECT_EQ(disk->counts().steps, steps) << "not before 100 ms";
    clock.AdvanceNs(kMillisecond);
    Work();
    EXPECT_TRUE(store->stat().refuses.empty());
    EXPECT_EQ(Must({{"c", "2"}}), base + 1) << "failed commits have no revision";
    disk->CutPower(sim::Loss::kAll);
    ASSERT_TRUE(Open());
    EXPECT_EQ(opened.facts.at("a").value, "1");
    EXPECT_FALSE(opened.facts.contains("lost")) << "it does not come back";
    EXPECT_EQ(opened.facts.at("c").revision, base + 1);
  }
}

TEST_F(FileStoreTest, TheRetriesBackOff) {
  ASSERT_TRUE(Open());
  Must({{"a", "1"}});
  disk->SetFull(true);
  Must({{"a", std::string(2000, 'v')}});
  std::uint64_t attempts = 0;
  for (int i = 0; i < 1000; ++i) {  // 10 s
    clock.AdvanceNs(10 * kMillisecond);
    const std::uint64_t before = disk->counts().writes;
    Work();
    attempts += disk->counts().writes - before;
  }
  EXPECT_GE(attempts, 10U);
  EXPECT_LE(attempts, 14U);
  disk->SetFull(false);
  clock.AdvanceNs(kSecond);
  Work();
  EXPECT_EQ(Must({{"a", "2"}}), 2U) << "it works again by itself";
}

TEST_F(FileStoreTest, AFullDiskAtTheFirstCommitIsNoLoss) {
  ASSERT_TRUE(Open());
  EXPECT_EQ(Must({{"a", "1"}}), 1U);
  ASSERT_TRUE(Open());
  disk->SetFull(true);
  const std::size_t failed = Commit({{"a", "2"}});
  Work();
  EXPECT_TRUE(Failed(failed));
  disk->SetFull(false);
  clock.AdvanceNs(kSecond);
  Work();
  EXPECT_EQ(Must({{"b", "2"}}), 2U);
  ASSERT_TRUE(Open());
  EXPECT_EQ(opened.facts, (Facts{{"a", {"1", 1}}, {"b", {"2", 2}}}));
}

TEST_F(FileStoreTest, TheFileIsRewrittenWhenMostOfItIsDead) {
  ASSERT_TRUE(Open());
  Must({{"kept", "1"}});
  std::uint64_t largest = 0;
  for (int i = 0; i < 2000; ++i) {
    Must({{"a", std::to_string(i)}});
    largest = std::max(largest, store->stat().file_bytes);
  }
  EXPECT_LE(largest, (64U << 10) + 2048);
  EXPECT_GE(store->stat().rewrites, 10U);
  EXPECT_LE(store->stat().rewrites, 20U);
  ASSERT_TRUE(Open());
  EXPECT_EQ(opened.facts, (Facts{{"kept", {"1", 1}}, {"a", {"1999", 2001}}}));
  EXPECT_EQ(opened.revision, 2001U);
}

TEST_F(FileStoreTest, WithoutRoomToRewriteItGoesOnWithTheOldFile) {
  options.min_dead_bytes = 4096;
  ASSERT_TRUE(Open());
  for (int i = 0; i < 9; ++i) Must({{"a", std::to_string(i)}});
  const std::uint64_t rewrites = store->stat().rewrites;
  Commit({{"a", "due"}});
  ASSERT_TRUE(store->Work());
  disk->FailNext(1);
  EXPECT_EQ(Must({{"a", "more"}}), 11U);
  EXPECT_EQ(store->stat().rewrites, rewrites);
  EXPECT_EQ(Must({{"a", "later"}}), 12U);
  EXPECT_EQ(store->stat().rewrites, rewrites);
  clock.AdvanceNs(10 * kSecond);
  EXPECT_EQ(Must({{"a", "last"}}), 13U);
  EXPECT_EQ(store->stat().rewrites, rewrites + 1);
}

TEST_F(FileStoreTest, CloseWithoutAThreadWritesWhatWaits) {
  ASSERT_TRUE(Open());
  const std::size_t place = Commit({{"a", "1"}});
  EXPECT_TRUE(store->Close(clock.NowNs() + kSecond));
  EXPECT_EQ(**outcomes[place], 1U);
  EXPECT_TRUE(Failed(Commit({{"a", "2"}}))) << "closed";
  ASSERT_TRUE(Open());
  disk->SetHanging(true);
  const std::size_t waits = Commit({{"a", "3"}});
  EXPECT_EQ(store->Close(clock.NowNs() + kSecond).error().code, Code::kTimeout);
  EXPECT_TRUE(Failed(waits));
}

class FileStoreThreadTest : public testing::Test {
 protected:
  FileStoreThreadTest() {
    SetLogLevel(LogLevel::kOff);
    char name[] = "/tmp/kvcove-store-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~FileStoreThreadTest() override { std::filesystem::remove_all(path_); }
  static std::int64_t In(std::int64_t ns) { return SystemClock::Instance().NowNs() + ns; }

  std::string path_;
  Opened opened_;
};

TEST_F(FileStoreThreadTest, AFileThatIsRemovedIsWrittenAnewByItself) {
  {
    auto store = *FileStore::Open(*PosixFileSystem::Open(path_), {}, opened_);
    ASSERT_TRUE(store->Start());
    std::promise<bool> committed;
    store->Commit({{"a", "1"}}, [&](const Result<std::uint64_t>& revision) {
      committed.set_value(revision.has_value());
    });
    ASSERT_TRUE(committed.get_future().get());
    const std::uint64_t rewrites = store->stat().rewrites;
    std::filesystem::remove_all(path_);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (store->stat().rewrites == rewrites && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_GT(store->stat().rewrites, rewrites);
    EXPECT_EQ(store->stat().refuses, "");
  }
  Opened again;
  auto store = *FileStore::Open(*PosixFileSystem::Open(path_), {}, again);
  EXPECT_EQ(again.facts, (Facts{{"a", {"1", 1}}}));
}

TEST_F(FileStoreThreadTest, ManyThreadsCommitAndEachSeesItsOrder) {
  constexpr int kThreads = 4;
  constexpr int kCommits = 300;
  {
    auto store = *FileStore::Open(*PosixFileSystem::Open(path_), {}, opened_);
    EXPECT_TRUE(store->Start());
    std::atomic<std::uint64_t> next{1};  // `done` comes from one thread, in order
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kCommits; ++i) {
          store->Commit({{std::to_string(t), std::to_string(i)}},
                        [&](const Result<std::uint64_t>& revision) {
                          ASSERT_TRUE(revision);
                          EXPECT_EQ(*revision, next.fetch_add(1));
                        });
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_TRUE(store->Close(In(60 * kSecond)));
    EXPECT_EQ(next, 1U + kThreads * kCommits);
    EXPECT_EQ(store->stat().revision, std::uint64_t{kThreads * kCommits});
    EXPECT_LT(store->stat().batches, std::uint64_t{kThreads * kCommits});
  }
  auto store = *FileStore::Open(*PosixFileSystem::Open(path_), {}, opened_);
  ASSERT_EQ(opened_.facts.size(), std::size_t{kThreads});
  for (int t = 0; t < kThreads; ++t) {
    EXPECT_EQ(opened_.facts.at(std::to_string(t)).value, std::to_string(kCommits - 1));
  }
}

TEST_F(FileStoreThreadTest, TheDestructorWritesWhatWaits) {
  {
    auto store = *FileStore::Open(*PosixFileSystem::Open(path_), {}, opened_);
    EXPECT_TRUE(store->Start());
    store->Commit({{"a", "1"}}, [](const Result<std::uint64_t>& done) { EXPECT_TRUE(done); });
  }
  auto store = *FileStore::Open(*PosixFileSystem::Open(path_), {}, opened_);
  EXPECT_EQ(opened_.facts.size(), 1U);
}

// Blocks in Append until it may go on.
struct Gate {
  void Pass() {
    MutexLock lock(mutex);
    blocked = true;
    changed.NotifyAll();
    while (!open) changed.Wait(mutex);
  }
  void AwaitBlocked() {
    MutexLock lock(mutex);
    while (!blocked) changed.Wait(mutex);
  }
  void Open() {
    MutexLock lock(mutex);
    open = true;
    changed.NotifyAll();
  }
  void AwaitEnd() {
    MutexLock lock(mutex);
    while (!ended) changed.Wait(mutex);
  }
  Mutex mutex;
  CondVar changed;
  bool blocked KVCOVE_GUARDED_BY(mutex) = false;
  bool open KVCOVE_GUARDED_BY(mutex) = false;
  bool ended KVCOVE_GUARDED_BY(mutex) = false;
};

class BlockingDisk final : public FileSystem {
 public:
  BlockingDisk(std::unique_ptr<FileSystem> disk, std::shared_ptr<Gate> gate)
      : disk_(std::move(disk)), gate_(std::move(gate)) {}
  ~BlockingDisk() override {
    disk_.reset();
    MutexLock lock(gate_->mutex);
    gate_->ended = true;
    gate_->changed.NotifyAll();
  }
  Result<std::optional<std::string>> Read(const std::string& name) override {
    return disk_->Read(name);
  }
  Result<bool> Exists(const std::string& name) override { return disk_->Exists(name); }
  Status Append(const std::string& name, std::string_view bytes) override {
    gate_->Pass();
    return disk_->Append(name, bytes);
  }
  Status Sync(const std::string& name) override { return disk_->Sync(name); }
  Status Write(const std::string& name, std::string_view bytes) override {
    return disk_->Write(name, bytes);
  }
  Status Rename(const std::string& from, const std::string& to) override {
    return disk_->Rename(from, to);
  }
  std::string PathOf(const std::string& name) const override { return disk_->PathOf(name); }

 private:
  std::unique_ptr<FileSystem> disk_;
  const std::shared_ptr<Gate> gate_;
};

TEST_F(FileStoreThreadTest, CloseLeavesADiskThatHangsBehind) {
  const auto gate = std::make_shared<Gate>();
  std::vector<Code> codes;
  {
    auto store = *FileStore::Open(
        std::make_unique<BlockingDisk>(*PosixFileSystem::Open(path_), gate), {}, opened_);
    EXPECT_TRUE(store->Start());
    const auto done = [&codes](const Result<std::uint64_t>& revision) {
      codes.push_back(revision ? Code::kOk : revision.error().code);
    };
    store->Commit({{"a", "in the disk"}}, done);
    gate->AwaitBlocked();
    store->Commit({{"b", "in the queue"}}, done);
    EXPECT_TRUE(codes.empty());
    EXPECT_EQ(store->Close(In(20 * kMillisecond)).error().code, Code::kTimeout);
    EXPECT_EQ(codes, (std::vector<Code>{Code::kUnavailable, Code::kUnavailable}));
  }
  EXPECT_EQ(PosixFileSystem::Open(path_).error().code, Code::kUnavailable)
      << "the write may still land, so nobody else may use the directory";
  gate->Open();
  gate->AwaitEnd();
  EXPECT_EQ(codes.size(), 2U) << "no second answer";
  auto store = FileStore::Open(*PosixFileSystem::Open(path_), {}, opened_);
  ASSERT_TRUE(store);
  EXPECT_FALSE(opened_.facts.contains("b"));
}

TEST(MemoryStoreTest, RevisionsComeInOrderAlsoFromWithinDone) {
  MemoryStore store;
  std::vector<std::uint64_t> revisions;
  const auto keep = [&](const Result<std::uint64_t>& revision) { revisions.push_back(*revision); };
  store.Commit({{"a", "1"}}, [&](const Result<std::uint64_t>& revision) {
    store.Commit({{"a", std::nullopt}, {"b", "2"}}, keep);
    EXPECT_TRUE(revisions.empty()) << "the outer one first";
    keep(revision);
  });
  EXPECT_EQ(revisions, (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(store.facts(), (Facts{{"b", {"2", 2}}}));
  store.Commit({{std::string(300, 'k'), "v"}}, [](const Result<std::uint64_t>& revision) {
    EXPECT_EQ(revision.error().code, Code::kLimit);
  });
}

}  // namespace
}  // namespace kvcove::master
