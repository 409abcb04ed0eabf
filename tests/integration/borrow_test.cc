// SPDX-License-Identifier: Apache-2.0
// What Borrow and Reserve promise over a real owner, in every form of a pool: embedded, through a
// daemon, with several owners on a host, and in a cluster.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "kvcove/server/daemons.h"
#include "tests/becomes.h"
#include "tests/integration/cluster_fixture.h"

namespace kvcove {
namespace {

constexpr std::uint64_t kMemory = 16 << 20;
constexpr std::size_t kSize = 100'000;

Borrowed Borrow(Session& session, const std::vector<std::string>& keys) {
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  return Must(session.Borrow(views, {.timeout = kCallTime}));
}

std::string Bytes(const Borrowed& loan, std::size_t i) {
  std::string bytes;
  for (const ConstBuffer& piece : loan.pieces(i)) {
    bytes.append(static_cast<const char*>(piece.data), piece.size);
  }
  return bytes;
}

std::vector<ItemResult> Release(Borrowed& loan) {
  std::vector<ItemResult> results(loan.size());
  EXPECT_TRUE(loan.Release(results));
  return results;
}

Reserved Reserve(Session& session, const Token& token, const std::vector<std::string>& keys,
                 std::size_t size = kSize) {
  std::vector<ReserveItem> items;
  for (const std::string& key : keys) items.push_back({.key = key, .size_bytes = size});
  return Must(session.Reserve(token, items, {.timeout = kCallTime}));
}

void Fill(const Reserved& space, std::size_t i, std::string_view value) {
  for (const MutableBuffer& piece : space.pieces(i)) {
    std::memcpy(piece.data, value.data(), piece.size);
    value.remove_prefix(piece.size);
  }
  EXPECT_TRUE(value.empty());
}

std::vector<ItemResult> Commit(Reserved& space) {
  std::vector<ItemResult> results(space.size());
  EXPECT_TRUE(space.Commit(results));
  return results;
}

// The helpers of ClusterFixture, over one host's pool.
class BorrowPoolTest : public ClusterFixture, public testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kError);
    std::string name = "/tmp/kvcove-borrow-XXXXXX";
    directory_ = mkdtemp(name.data());
    std::string address = fmt::format("embedded:?memory={}&policy=lru", kMemory);
    if (GetParam() != "embedded") {
      server::DaemonOptions whole;
      whole.socket_path = directory_ + "/kvcove.sock";
      whole.host.data_directory = directory_ + "/data";
      whole.host.owner.memory_bytes = kMemory;
      whole.host.owner.policy = "lru";
      const std::uint64_t half = kMemory / 2;
      auto parts = GetParam() == "process"
                       ? std::vector<server::DaemonOptions>{whole}
                       : Must(server::SplitDaemon(whole, {{.place = {}, .memory_bytes = half},
                                                          {.place = {}, .memory_bytes = half}}));
      owners_ = Must(server::OpenDaemons(parts, SystemClock::Instance()));
      address = "unix:" + whole.socket_path;
    }
    pool_ = Must(Pool::Open(address, kCallTime));
    session_ = Must(pool_->OpenSession({.name = "m", .engine = "e", .follow_always = true}));
    if (GetParam() == "several") {
      ASSERT_TRUE(Becomes([&] {
        const auto segments = session_->Segments({.timeout = kCallTime});
        return segments && segments->size() == 2;
      }));
    }
  }
  void TearDown() override {
    session_.reset();
    pool_.reset();
    ClusterFixture::TearDown();
  }
  // Puts until the key has given way.
  void Evict(const std::string& key) {
    for (int i = 0; i < 2000 && Exists(*session_, key).ok(); ++i) Press();
    EXPECT_EQ(Exists(*session_, key).reason, MissReason::kEvicted);
  }
  void Press() {
    ASSERT_EQ(Put(*session_, fmt::format("pressure-{}", ++pressure_), kSize), Code::kOk);
  }
  PoolStat Stat() { return AwaitStat(*pool_); }

  std::unique_ptr<Pool> pool_;
  SessionPtr session_;
  int pressure_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Forms, BorrowPoolTest, testing::Values("embedded", "process", "several"),
                         [](const auto& info) { return info.param; });

TEST_P(BorrowPoolTest, WhatWasPutIsBorrowedAndWhatWasReservedIsFound) {
  ASSERT_EQ(Put(*session_, "put", kSize), Code::kOk);
  Reserved space =
      Reserve(*session_, Must(session_->Capture({.timeout = kCallTime})), {"reserved", "put"});
  ASSERT_TRUE(space.result(0).ok());
  EXPECT_EQ(space.result(1).code, Code::kExists);
  EXPECT_EQ(Exists(*session_, "reserved").code, Code::kMiss) << "not before it is committed";
  Fill(space, 0, Value("reserved", kSize));
  EXPECT_TRUE(Commit(space)[0].ok());
  EXPECT_TRUE(Get(*session_, "reserved", kSize).ok());
  Borrowed loan = Borrow(*session_, {"put", "reserved", "never"});
  EXPECT_TRUE(Bytes(loan, 0) == Value("put", kSize));
  EXPECT_TRUE(Bytes(loan, 1) == Value("reserved", kSize));
  EXPECT_EQ(loan.result(2).reason, MissReason::kNeverPut);
  EXPECT_FALSE(loan.result(2).elsewhere) << "there are no other hosts";
  const std::vector<ItemResult> results = Release(loan);
  EXPECT_TRUE(results[0].ok() && results[1].ok());
}

TEST_P(BorrowPoolTest, EvictionsLeaveBorrowedMemoryAlone) {
  ASSERT_EQ(Put(*session_, "k", kSize), Code::kOk);
  Borrowed loan = Borrow(*session_, {"k"});
  Evict("k");
  EXPECT_TRUE(Bytes(loan, 0) == Value("k", kSize));
  EXPECT_GE(Stat().withdrawn_bytes, kSize);
  EXPECT_TRUE(Release(loan)[0].ok());
  EXPECT_TRUE(Becomes([&] { return Stat().withdrawn_bytes == 0; })) << "it comes back";
}

TEST_P(BorrowPoolTest, ARemovalAndANewValueLeaveTheBorrowedOneAsItWas) {
  ASSERT_EQ(Put(*session_, "k", kSize), Code::kOk);
  Borrowed loan = Borrow(*session_, {"k"});
  const std::string_view key = "k";
  ItemResult removed;
  ASSERT_TRUE(session_->Remove({&key, 1}, {&removed, 1}, {.timeout = kCallTime}));
  const std::string other(kSize, 'o');
  const ConstBuffer piece{.data = other.data(), .size = other.size()};
  const PutItem item{.key = key, .value = {&piece, 1}};
  ASSERT_TRUE(session_->Put({&item, 1}, {&removed, 1}, {.timeout = kCallTime}));
  ASSERT_TRUE(removed.ok());
  EXPECT_TRUE(Bytes(loan, 0) == Value("k", kSize));
  EXPECT_TRUE(Release(loan)[0].ok());
  EXPECT_TRUE(Bytes(Borrow(*session_, {"k"}), 0) == other);
}

TEST_P(BorrowPoolTest, AResetMakesWhatIsBorrowedAMissAndKeepsItsBytes) {
  ASSERT_EQ(Put(*session_, "k", kSize), Code::kOk);
  Borrowed loan = Borrow(*session_, {"k"});
  ASSERT_TRUE(session_->Reset({.timeout = kCallTime}));
  for (int i = 0; i < 150; ++i) Press();  // what the reset voided goes first
  EXPECT_TRUE(Bytes(loan, 0) == Value("k", kSize)) << "a device may still read there";
  EXPECT_EQ(Release(loan)[0].reason, MissReason::kReset);
}

TEST_P(BorrowPoolTest, ACommitBehindAResetOrARemovalIsStale) {
  Reserved before = Reserve(*session_, Must(session_->Capture({.timeout = kCallTime})), {"k"});
  Fill(before, 0, Value("k", kSize));
  ASSERT_TRUE(session_->Reset({.timeout = kCallTime}));
  EXPECT_EQ(Commit(before)[0].code, Code::kStale);
  const Token token = Must(session_->Capture({.timeout = kCallTime}));
  Reserved space = Reserve(*session_, token, {"k"});
  ASSERT_TRUE(space.result(0).ok());
  const std::string_view key = "k";
  ItemResult removed;
  ASSERT_TRUE(session_->Remove({&key, 1}, {&removed, 1}, {.timeout = kCallTime}));
  Fill(space, 0, Value("k", kSize));
  EXPECT_EQ(Commit(space)[0].code, Code::kStale);
  EXPECT_EQ(Exists(*session_, "k").code, Code::kMiss);
  EXPECT_TRUE(Becomes([&] { return Stat().reserved_bytes == 0; }));
}

TEST_P(BorrowPoolTest, AStaleTokenReservesNothing) {
  const Token token = Must(session_->Capture({.timeout = kCallTime}));
  ASSERT_EQ(Put(*session_, "k", kSize), Code::kOk);  // else nothing is there to void
  ASSERT_TRUE(session_->Reset({.timeout = kCallTime}));
  const Reserved space = Reserve(*session_, token, {"k"});
  EXPECT_EQ(space.result(0).code, Code::kStale);
}

TEST_P(BorrowPoolTest, OneWriterHasAKeyUntilItIsAborted) {
  const Token token = Must(session_->Capture({.timeout = kCallTime}));
  Reserved space = Reserve(*session_, token, {"k"});
  ASSERT_TRUE(space.result(0).ok());
  EXPECT_GE(Stat().reserved_bytes, kSize);
  EXPECT_EQ(Reserve(*session_, token, {"k"}).result(0).code, Code::kInProgress);
  space.Abort();
  EXPECT_EQ(Stat().reserved_bytes, 0U);
  EXPECT_TRUE(Reserve(*session_, token, {"k"}).result(0).ok());
}

TEST_P(BorrowPoolTest, ReservationsBeyondAQuarterAreLimited) {
  const Token token = Must(session_->Capture({.timeout = kCallTime}));
  std::vector<std::string> keys;
  for (int i = 0; i < 60; ++i) keys.push_back(fmt::format("k{}", i));
  const Reserved space = Reserve(*session_, token, keys);
  std::size_t ok = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) ok += space.result(i).ok() ? 1 : 0;
  EXPECT_GE(ok, kMemory / 4 / kSize / 2);
  EXPECT_LE(ok, kMemory / 4 / kSize);
  EXPECT_EQ(space.result(59).code, Code::kLimit);
}

TEST_P(BorrowPoolTest, LoansOutliveTheSessionAndThePool) {
  ASSERT_EQ(Put(*session_, "k", kSize), Code::kOk);
  Borrowed loan = Borrow(*session_, {"k"});
  Reserved space = Reserve(*session_, Must(session_->Capture({.timeout = kCallTime})), {"r"});
  const auto segments = Must(session_->Segments({.timeout = kCallTime}));
  session_.reset();
  pool_.reset();
  EXPECT_TRUE(Bytes(loan, 0) == Value("k", kSize));
  Fill(space, 0, Value("r", kSize));
  EXPECT_TRUE(Commit(space)[0].ok());
  EXPECT_TRUE(Release(loan)[0].ok());
  std::atomic<char> byte = *static_cast<const char*>(segments[0].data);  // still mapped
  (void)byte;
}

TEST_P(BorrowPoolTest, BorrowedAndReservedPiecesLieInTheSegments) {
  ASSERT_EQ(Put(*session_, "k", kSize), Code::kOk);
  const Borrowed loan = Borrow(*session_, {"k"});
  const Reserved space = Reserve(*session_, Must(session_->Capture({.timeout = kCallTime})), {"r"});
  const auto segments = Must(session_->Segments({.timeout = kCallTime}));
  const auto lies_within = [&](const void* data, std::size_t size) {
    const auto* at = static_cast<const std::byte*>(data);
    return std::ranges::any_of(segments, [&](const SegmentRange& range) {
      const auto* from = static_cast<const std::byte*>(range.data);
      return at >= from && at + size <= from + range.size_bytes;
    });
  };
  for (const ConstBuffer& piece : loan.pieces(0)) EXPECT_TRUE(lies_within(piece.data, piece.size));
  for (const MutableBuffer& piece : space.pieces(0)) {
    EXPECT_TRUE(lies_within(piece.data, piece.size));
  }
}

// Readers borrow and check, writers reserve and fill, evictions run all the time and resets now and
// then: nothing wrong, nothing from before a reset that was proven.
TEST_P(BorrowPoolTest, ManyThreadsBorrowWhatManyThreadsReserve) {
  constexpr int kKeys = 300;
  std::atomic<bool> done = false;
  std::atomic<std::uint64_t> proven = 0;
  std::atomic<std::uint64_t> called = 0;
  std::atomic<std::uint64_t> read = 0;
  std::atomic<std::uint64_t> stored = 0;
  std::atomic<std::uint64_t> wrong = 0;
  const auto words = [](std::uint64_t key, std::uint64_t resets) {
    std::vector<std::uint64_t> value(kSize / 8, Mix64(key ^ Mix64(resets)));
    value[0] = key;
    value[1] = resets;
    return value;
  };
  const auto writer = [&](std::uint64_t seed) {
    Random random(seed);
    while (!done) {
      const auto token = session_->Capture({.timeout = kCallTime});
      if (!token) continue;
      const std::uint64_t resets = called;
      const std::uint64_t key = random.Below(kKeys);
      Reserved space = Reserve(*session_, *token, {fmt::format("key-{}", key)}, kSize / 8 * 8);
      if (!space.result(0).ok()) continue;
      const auto value = words(key, resets);
      Fill(space, 0, {reinterpret_cast<const char*>(value.data()), value.size() * 8});
      if (random.OneIn(10)) continue;  // its end gives it back
      stored += Commit(space)[0].ok() ? 1 : 0;
    }
  };
  const auto reader = [&](std::uint64_t seed) {
    Random random(seed);
    while (!done) {
      std::vector<std::string> keys;
      for (int i = 0; i < 2; ++i) keys.push_back(fmt::format("key-{}", random.Below(kKeys)));
      const std::uint64_t before = proven;
      Borrowed loan = Borrow(*session_, keys);
      for (std::size_t i = 0; i < keys.size(); ++i) {
        if (!loan.result(i).ok()) continue;
        const std::string bytes = Bytes(loan, i);
        std::uint64_t head[2];
        std::memcpy(head, bytes.data(), sizeof(head));
        const auto value = words(head[0], head[1]);
        const bool right = fmt::format("key-{}", head[0]) == keys[i] && head[1] >= before &&
                           bytes.size() == value.size() * 8 &&
                           std::memcmp(bytes.data(), value.data(), bytes.size()) == 0;
        wrong += right ? 0 : 1;
        ++read;
      }
      // What a reset, proven before this, had voided is no hit.
      const std::uint64_t at_end = proven;
      std::vector<std::uint64_t> resets(keys.size(), ~0ULL);
      for (std::size_t i = 0; i < keys.size(); ++i) {
        if (loan.result(i).ok()) std::memcpy(&resets[i], Bytes(loan, i).data() + 8, 8);
      }
      const std::vector<ItemResult> results = Release(loan);
      for (std::size_t i = 0; i < keys.size(); ++i) {
        wrong += results[i].ok() && resets[i] < at_end ? 1 : 0;
      }
    }
  };
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] { InThread([&] { writer(i); }); });
  }
  for (std::uint64_t i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] { InThread([&] { reader(10 + i); }); });
  }
  // On a busy machine for longer, a minute at most.
  for (int i = 0; i < 20 || (i < 1500 && (read <= 50 || stored <= 50)); ++i) {
    std::this_thread::sleep_for(milliseconds(40));
    const std::uint64_t number = ++called;
    if (session_->Reset({.timeout = kCallTime, .all_void = true})) proven = number;
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0U);
  EXPECT_GT(read, 50U);
  EXPECT_GT(stored, 50U);
  EXPECT_GT(Stat().evictions + Stat().swept, 0U);
  EXPECT_EQ(Stat().reserved_bytes, 0U);
}

// ---- a cluster

class BorrowClusterTest : public ClusterFixture {};

TEST_F(BorrowClusterTest, WhatThisHostHasIsBorrowedAndOfTheRestItSaysSo) {
  auto near_pool = Open("host0");
  auto far_pool = Open("host1");
  auto near = OpenSession(*near_pool);
  auto far = OpenSession(*far_pool);
  ASSERT_EQ(Put(*near, "near"), Code::kOk);
  ASSERT_EQ(Put(*far, "far"), Code::kOk);
  Borrowed loan = Borrow(*near, {"near", "far", ""});
  EXPECT_TRUE(Bytes(loan, 0) == Value("near", 5000));
  EXPECT_EQ(loan.result(1).code, Code::kMiss);
  EXPECT_TRUE(loan.result(1).elsewhere);
  EXPECT_EQ(loan.result(2).code, Code::kInvalid);
  EXPECT_FALSE(loan.result(2).elsewhere);
  EXPECT_TRUE(Get(*near, "far").ok()) << "that is what elsewhere means";
  EXPECT_TRUE(Release(loan)[0].ok());
  auto nowhere_pool = Open();
  auto nowhere = OpenSession(*nowhere_pool);
  const Borrowed none = Borrow(*nowhere, {"near"});
  EXPECT_TRUE(none.result(0).elsewhere);
  EXPECT_TRUE(Must(nowhere->Segments({.timeout = kCallTime})).empty());
}

TEST_F(BorrowClusterTest, WhatIsCommittedHereIsListedForAll) {
  auto near_pool = Open("host0");
  auto far_pool = Open("host1");
  auto near = OpenSession(*near_pool);
  auto far = OpenSession(*far_pool);
  Reserved space = Reserve(*near, Must(near->Capture({.timeout = kCallTime})), {"k"}, 5000);
  ASSERT_TRUE(space.result(0).ok());
  Fill(space, 0, Value("k", 5000));
  const std::vector<ItemResult> results = Commit(space);
  EXPECT_TRUE(results[0].ok());
  EXPECT_TRUE(results[0].listed);
  EXPECT_TRUE(Get(*far, "k").ok());
}

TEST_F(BorrowClusterTest, ASessionThatPutsElsewhereReservesNothingHere) {
  auto pool = Open("host0");
  auto copies = Must(pool->OpenSession({.name = "acme/llama", .engine = "e1", .replicas = 2}));
  const Reserved space =
      Reserve(*copies, Must(copies->Capture({.timeout = kCallTime})), {"k"}, 5000);
  EXPECT_EQ(space.result(0).code, Code::kUnavailable);
  EXPECT_TRUE(space.result(0).elsewhere);
  EXPECT_TRUE(space.pieces(0).empty());
}

TEST_F(BorrowClusterTest, AResetOfTheClusterMakesWhatIsBorrowedAMiss) {
  auto pool = Open("host0");
  auto session = OpenSession(*pool);
  ASSERT_EQ(Put(*session, "k"), Code::kOk);
  Borrowed loan = Borrow(*session, {"k"});
  ASSERT_TRUE(session->Reset({.timeout = kCallTime}));
  EXPECT_TRUE(Bytes(loan, 0) == Value("k", 5000));
  EXPECT_EQ(Release(loan)[0].reason, MissReason::kReset);
}

}  // namespace
}  // namespace kvcove
