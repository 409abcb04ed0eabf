// SPDX-License-Identifier: Apache-2.0
// Loans and reservations of one host's session, over a segment whose owner is this test: it puts,
// withdraws and resets between any two steps.
#include "kvcove/requester/borrow.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kvcove/base/random.h"
#include "kvcove/requester/local/host_session.h"
#include "kvcove/segment/index.h"

namespace kvcove::requester {
namespace {

constexpr std::uint64_t kPayload = 1 << 20;  // 64 KiB may be protected, 32 KiB by loans
constexpr Generation kGeneration = 7;
constexpr SlotId kSlot = 0;

// Zeroed pages, of which only those count that are touched.
class Memory {
 public:
  explicit Memory(std::size_t bytes)
      : bytes_(bytes),
        data_(static_cast<std::byte*>(
            mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}
  ~Memory() { munmap(data_, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* get() const { return data_; }

 private:
  const std::size_t bytes_;
  std::byte* const data_;
};

constexpr segment::HeaderSizes kSizes{.max_objects = 1024, .payload_bytes = kPayload};

// The owner of a segment; it notes what it is asked.
class TestOwner final : public wire::HostService {
 public:
  TestOwner() {
    EXPECT_TRUE(segment::FormatHeader(header_.get(), kSizes, RandomId(), 5));
    index = std::make_unique<segment::Index>(
        *segment::HeaderView::Open(header_.get(), segment::HeaderFileBytes(kSizes)));
    view().slot(kSlot).generation.store(kGeneration);
    SetLease(SystemClock::Instance().NowNs() + 3600 * kSecond);
    segment::FormatSessionPage(reinterpret_cast<std::byte*>(page.get()));
  }
  segment::HeaderView& view() { return index->view(); }
  void SetLease(std::int64_t deadline_ns) { view().header().lease_deadline_ns.store(deadline_ns); }
  // In two extents with a gap, if it is larger than a granule.
  segment::Place Store(const std::string& key, std::uint32_t size, char fill) {
    const std::uint32_t granules = static_cast<std::uint32_t>((size + 63) / 64);
    std::vector<Extent> extents = {{.start = next_, .count = std::min(granules, 2U)}};
    next_ += extents[0].count + 1;
    if (granules > 2) {
      extents.push_back({.start = next_, .count = granules - 2});
      next_ += granules - 2;
    }
    for (const Extent& extent : extents) {
      std::memset(payload.get() + std::size_t{extent.start} * 64, fill, extent.count * 64UL);
    }
    return *index->Insert({.key = key,
                           .hash = view().HashKey(kSlot, key),
                           .slot = kSlot,
                           .generation = kGeneration,
                           .size_bytes = size,
                           .object = 1,
                           .version = ++version_,
                           .extents = extents});
  }
  // In a place of its own, again and again.
  segment::Place StoreAt(std::uint32_t region, std::uint32_t size, char fill) {
    const std::string key = "region " + std::to_string(region);
    const std::uint32_t granules = (size + 63) / 64;
    const Extent extent{.start = region * granules, .count = granules};
    std::memset(payload.get() + std::size_t{extent.start} * 64, fill, size);
    return *index->Insert({.key = key,
                           .hash = view().HashKey(kSlot, key),
                           .slot = kSlot,
                           .generation = kGeneration,
                           .size_bytes = size,
                           .object = 1,
                           .version = ++version_,
                           .extents = {&extent, 1}});
  }
  // As an eviction does. True: no reader protects it, so its memory may be used again.
  bool Evict(segment::Place place, const std::string& key) {
    index->Withdraw(place, view().HashKey(kSlot, key));
    segment::FullFence();
    return !Protects(place);
  }
  bool Protects(segment::Place place) const {
    std::vector<segment::Place> places;
    segment::CollectProtected(*page, places);
    return std::ranges::find(places, place) != places.end();
  }
  std::size_t Protected() const {
    std::vector<segment::Place> places;
    segment::CollectProtected(*page, places);
    return places.size();
  }

  Result<wire::Registration> Register(const wire::RegisterRequest&, std::int64_t) override {
    return wire::Registration{.slot = kSlot, .generation = kGeneration, .open = true};
  }
  Result<wire::ResetOutcome> Reset(const wire::ResetRequest&, std::int64_t) override {
    return Fail(Code::kUnavailable, "it is not proven");
  }
  Status NameVersions(std::string_view, std::string_view, std::span<const std::string>,
                      std::int64_t) override {
    return No();
  }
  Status EndEngine(std::string_view, std::string_view, std::int64_t) override { return {}; }
  Result<wire::PruneOutcome> Prune(const wire::PruneRequest&, std::int64_t) override {
    return No();
  }
  Result<std::vector<wire::PutResult>> Put(const Token&, std::span<const wire::PutItem> items,
                                           std::int64_t) override {
    std::vector<wire::PutResult> answers;
    for (const wire::PutItem& item : items) {
      EXPECT_FALSE(item.whole());
      wire::PutResult& answer = answers.emplace_back();
      answer.code =
          refuse.contains(std::string(item.key)) ? refuse[std::string(item.key)] : Code::kOk;
      if (answer.code != Code::kOk) continue;
      const std::uint32_t granules = (item.size_bytes + 63) / 64;
      answer.reservation = ++reservations;
      answer.extents = {{.start = next_, .count = granules}};
      next_ += granules;
    }
    return answers;
  }
  Result<std::vector<Code>> Finish(std::span<const wire::FinishItem> items, std::int64_t) override {
    ++finish_calls;
    if (finish_fails) return Fail(Code::kTimeout, "no answer");
    std::vector<Code> codes;
    for (const wire::FinishItem& item : items) {
      finished.push_back({item.reservation, item.commit});
      const auto at = outcomes.find(item.reservation);
      codes.push_back(at == outcomes.end() ? Code::kOk : at->second);
    }
    return codes;
  }
  Result<std::vector<Code>> Remove(const Token&, std::span<const std::string_view>,
                                   std::int64_t) override {
    return No();
  }
  Result<std::uint64_t> RemoveMatching(const Token&, std::string_view, std::int64_t) override {
    return No();
  }
  Result<std::vector<Code>> Pin(const Token&, std::span<const std::string_view>,
                                std::optional<PinKind>, std::int64_t, std::int64_t) override {
    return No();
  }
  Result<std::vector<std::optional<ObjectStat>>> StatObjects(const Token&,
                                                             std::span<const std::string_view>,
                                                             std::int64_t) override {
    return No();
  }
  Result<wire::InventoryReply> Page(const wire::InventoryRequest&, std::int64_t) override {
    return No();
  }
  Result<PoolStat> Stat(std::int64_t) override {
    PoolStat stat;
    stat.populated_bytes = kPayload / 2;
    return stat;
  }

  std::unique_ptr<segment::Index> index;
  Memory payload{kPayload};
  std::unique_ptr<segment::SessionPage> page = std::make_unique<segment::SessionPage>();
  std::map<std::string, Code> refuse;
  std::map<std::uint64_t, Code> outcomes;
  std::vector<std::pair<std::uint64_t, bool>> finished;
  std::uint64_t reservations = 0;
  int finish_calls = 0;
  bool finish_fails = false;

 private:
  static std::unexpected<Error> No() { return Fail(Code::kUnavailable, "not in this test"); }
  Memory header_{segment::HeaderFileBytes(kSizes)};
  std::uint32_t next_ = 1;
  segment::Version version_ = 0;
};

class TestAttachment final : public Attachment {
 public:
  explicit TestAttachment(TestOwner& owner)
      : Attachment(owner.view(), owner.payload.get(), owner.page.get()), owner_(owner) {}
  wire::HostService& service() override { return owner_; }

 private:
  TestOwner& owner_;
};

class TestHost final : public OwnerTie {
 public:
  std::shared_ptr<Attachment> Current() override { return current; }
  std::shared_ptr<Attachment> current;
};

std::shared_ptr<LocalOwners> OwnersOf(std::shared_ptr<OwnerTie> host) {
  auto owners = std::make_shared<LocalOwners>();
  EXPECT_TRUE(owners->Add({.socket = "", .host = std::move(host)}));
  return owners;
}

class BorrowTest : public testing::Test {
 protected:
  BorrowTest() { host_->current = std::make_shared<TestAttachment>(owner_); }
  Borrowed Borrow(const std::vector<std::string>& keys) {
    const std::vector<std::string_view> views(keys.begin(), keys.end());
    auto loan = session_->Borrow(views, {.timeout = std::chrono::milliseconds(5)});
    EXPECT_TRUE(loan) << loan.error().ToString();
    return std::move(*loan);
  }
  static std::string Bytes(const Borrowed& loan, std::size_t i) {
    std::string bytes;
    for (const ConstBuffer& piece : loan.pieces(i)) {
      bytes.append(static_cast<const char*>(piece.data), piece.size);
    }
    return bytes;
  }
  static ItemResult ReleaseOne(Borrowed& loan) {
    ItemResult result;
    EXPECT_TRUE(loan.Release({&result, 1}));
    return result;
  }
  Reserved Reserve(const std::vector<ReserveItem>& items) {
    auto reserved = session_->Reserve({.generation = kGeneration, .slot = kSlot}, items, {});
    EXPECT_TRUE(reserved) << reserved.error().ToString();
    return std::move(*reserved);
  }
  void Open(const SessionOptions& options) {
    session_ = std::make_unique<HostSession>(owners_, *owners_, options, SystemClock::Instance());
  }

  TestOwner owner_;
  const std::shared_ptr<TestHost> host_ = std::make_shared<TestHost>();
  const std::shared_ptr<LocalOwners> owners_ = OwnersOf(host_);
  std::unique_ptr<HostSession> session_ = std::make_unique<HostSession>(
      owners_, *owners_, SessionOptions{.name = "n", .engine = "e"}, SystemClock::Instance());
};

TEST_F(BorrowTest, LendsWholeValuesInPlace) {
  owner_.Store("a", 1000, 'a');
  owner_.Store("b", 64, 'b');
  Borrowed loan = Borrow({"a", "none", "b", ""});
  ASSERT_EQ(loan.size(), 4U);
  EXPECT_TRUE(loan.result(0).ok());
  EXPECT_EQ(loan.result(0).bytes, 1000U);
  EXPECT_EQ(loan.result(0).tier, Tier::kMemory);
  EXPECT_EQ(loan.pieces(0).size(), 2U) << "it lies in two extents";
  EXPECT_EQ(Bytes(loan, 0), std::string(1000, 'a'));
  EXPECT_EQ(loan.result(1).reason, MissReason::kNeverPut);
  EXPECT_TRUE(loan.pieces(1).empty());
  EXPECT_EQ(Bytes(loan, 2), std::string(64, 'b'));
  EXPECT_EQ(loan.result(3).code, Code::kInvalid);
  EXPECT_EQ(loan.bytes(), 1064U);
  EXPECT_EQ(owner_.Protected(), 2U);
  ItemResult results[4];
  ASSERT_TRUE(loan.Release(results));
  EXPECT_TRUE(results[0].ok());
  EXPECT_EQ(results[1].code, Code::kMiss);
  EXPECT_TRUE(results[2].ok());
  EXPECT_EQ(results[3].code, Code::kInvalid);
  EXPECT_EQ(owner_.Protected(), 0U);
  EXPECT_TRUE(loan.pieces(0).empty()) << "nobody gets an address after the end";
  EXPECT_EQ(loan.Release(results).error().code, Code::kInvalid);
}

TEST_F(BorrowTest, MemoryIsNotUsedAgainWhileItIsLentWhateverBecomesOfTheValue) {
  const segment::Place place = owner_.Store("a", 1000, 'a');
  Borrowed loan = Borrow({"a"});
  EXPECT_FALSE(owner_.Evict(place, "a"));
  EXPECT_EQ(Bytes(loan, 0), std::string(1000, 'a'));
  EXPECT_TRUE(ReleaseOne(loan).ok()) << "it was valid all the time";
  EXPECT_EQ(owner_.Protected(), 0U);
}

TEST_F(BorrowTest, WhatWasWithdrawnBeforeIsNotLent) {
  const segment::Place place = owner_.Store("a", 1000, 'a');
  EXPECT_TRUE(owner_.Evict(place, "a"));
  EXPECT_EQ(Borrow({"a"}).result(0).code, Code::kMiss);
  EXPECT_EQ(owner_.Protected(), 0U);
}

TEST_F(BorrowTest, AResetDuringTheCopyMakesItAMiss) {
  owner_.Store("a", 1000, 'a');
  Borrowed loan = Borrow({"a"});
  ItemResult result;
  ASSERT_TRUE(loan.Revalidate({&result, 1}));
  EXPECT_TRUE(result.ok());
  owner_.view().slot(kSlot).generation.store(kGeneration + 1);
  ASSERT_TRUE(loan.Revalidate({&result, 1}));
  EXPECT_EQ(result.reason, MissReason::kReset);
  EXPECT_EQ(owner_.Protected(), 1U) << "a device may still be copying";
  EXPECT_EQ(ReleaseOne(loan).reason, MissReason::kReset);
}

// It was away, and applies what was removed meanwhile.
TEST_F(BorrowTest, AnOwnerThatHidesTheSlotHasNotReset) {
  owner_.Store("a", 1000, 'a');
  Borrowed loan = Borrow({"a"});
  owner_.view().slot(kSlot).generation.store(0);
  EXPECT_EQ(ReleaseOne(loan).reason, MissReason::kLease);
  EXPECT_EQ(Borrow({"a"}).result(0).reason, MissReason::kLease);
}

TEST_F(BorrowTest, ALeaseThatRanOutDuringTheCopyMakesItAMiss) {
  owner_.Store("a", 1000, 'a');
  Borrowed loan = Borrow({"a"});
  owner_.SetLease(SystemClock::Instance().NowNs() - 1);
  EXPECT_EQ(ReleaseOne(loan).reason, MissReason::kLease);
}

TEST_F(BorrowTest, AnOwnerThatWentMakesItAMissAndItsMemoryStaysReadable) {
  owner_.Store("a", 1000, 'a');
  Borrowed loan = Borrow({"a"});
  host_->current->Disconnect();
  host_->current.reset();
  EXPECT_EQ(Bytes(loan, 0), std::string(1000, 'a'));
  EXPECT_EQ(ReleaseOne(loan).reason, MissReason::kUnavailable);
}

TEST_F(BorrowTest, ASessionWhoseResetIsNotProvenHasNoValidLoans) {
  owner_.Store("a", 1000, 'a');
  Borrowed loan = Borrow({"a"});
  EXPECT_EQ(session_->Reset({.timeout = std::chrono::milliseconds(1)}).error().code,
            Code::kNotProven);
  EXPECT_EQ(ReleaseOne(loan).reason, MissReason::kClosed);
  EXPECT_EQ(Borrow({"a"}).result(0).reason, MissReason::kClosed);
}

TEST_F(BorrowTest, ALoanOutlivesItsSessionAndItsEndIsItsRelease) {
  owner_.Store("a", 1000, 'a');
  {
    const Borrowed loan = Borrow({"a"});
    session_.reset();
    host_->current.reset();
    EXPECT_EQ(Bytes(loan, 0), std::string(1000, 'a'));
    EXPECT_EQ(owner_.Protected(), 1U);
  }
  EXPECT_EQ(owner_.Protected(), 0U);
}

TEST_F(BorrowTest, MovingALoanReleasesWhatWasThere) {
  owner_.Store("a", 1000, 'a');
  owner_.Store("b", 1000, 'b');
  Borrowed loan = Borrow({"a"});
  loan = Borrow({"b"});
  EXPECT_EQ(owner_.Protected(), 1U);
  Borrowed moved = std::move(loan);
  EXPECT_EQ(Bytes(moved, 0), std::string(1000, 'b'));
  moved = Borrowed();
  EXPECT_EQ(owner_.Protected(), 0U);
}

TEST_F(BorrowTest, BeyondTheBudgetKeysAreLimitedAtOnceAndTheRestGoesOn) {
  std::vector<std::string> keys;
  for (int i = 0; i < 6; ++i) {
    keys.push_back("key " + std::to_string(i));
    owner_.Store(keys.back(), 10'000, 'x');
  }
  Borrowed loan = Borrow(keys);  // 32 KiB are half of 1/16 of the segment
  EXPECT_EQ(loan.bytes(), 30'000U);
  EXPECT_TRUE(loan.result(2).ok());
  EXPECT_EQ(loan.result(3).code, Code::kLimit);
  EXPECT_EQ(loan.result(3).bytes, 10'000U);
  EXPECT_EQ(owner_.Protected(), 3U);
  EXPECT_EQ(Borrow({keys[5]}).result(0).code, Code::kLimit);
  ItemResult results[6];
  ASSERT_TRUE(loan.Release(results));
  EXPECT_EQ(results[3].code, Code::kLimit);
  EXPECT_TRUE(Borrow({keys[5]}).result(0).ok());
}

TEST_F(BorrowTest, ASessionsOwnBudgetIsSmallerAndAlwaysOneValue) {
  Open({.name = "n", .engine = "e", .borrow_bytes = 5'000});
  owner_.Store("large", 10'000, 'x');
  owner_.Store("a", 3'000, 'a');
  owner_.Store("b", 3'000, 'b');
  {
    const Borrowed loan = Borrow({"large"});
    EXPECT_TRUE(loan.result(0).ok());
    EXPECT_EQ(Borrow({"a"}).result(0).code, Code::kLimit);
  }
  const Borrowed loan = Borrow({"a", "b"});
  EXPECT_TRUE(loan.result(0).ok());
  EXPECT_EQ(loan.result(1).code, Code::kLimit);
}

TEST_F(BorrowTest, MoreValuesThanSlotsAreLimited) {
  std::vector<std::string> keys;
  for (std::uint32_t i = 0; i < ReaderSlots::kMostLoans + 3; ++i) {
    keys.push_back("key " + std::to_string(i));
    owner_.Store(keys.back(), 8, 'x');
  }
  Borrowed loan = Borrow(keys);
  EXPECT_TRUE(loan.result(ReaderSlots::kMostLoans - 1).ok());
  EXPECT_EQ(loan.result(ReaderSlots::kMostLoans).code, Code::kLimit);
  EXPECT_EQ(loan.bytes(), 8UL * ReaderSlots::kMostLoans);
  // Gets have lanes of their own.
  char byte[8];
  const MutableBuffer into{.data = byte, .size = sizeof(byte)};
  const GetItem item{.key = keys.back(), .into = {&into, 1}};
  ItemResult result;
  ASSERT_TRUE(session_->Get({&item, 1}, {&result, 1}, {}));
  EXPECT_TRUE(result.ok());
  loan.Release();
  EXPECT_TRUE(Borrow({keys.back()}).result(0).ok());
}

// The owner stores into memory again as soon as nobody protects it; four threads borrow and get.
TEST_F(BorrowTest, NobodyWritesWhereSomeThreadReads) {
  constexpr std::uint32_t kRegions = 8;
  constexpr std::uint32_t kSize = 1024;
  std::array<segment::Place, kRegions> places{};
  for (std::uint32_t r = 0; r < kRegions; ++r) places[r] = owner_.StoreAt(r, kSize, 1);
  std::atomic<bool> done = false;
  std::atomic<std::uint64_t> read = 0;
  std::atomic<std::uint64_t> wrong = 0;
  const auto same = [](const char* bytes, std::size_t size) {
    return std::all_of(bytes, bytes + size, [&](char byte) { return byte == bytes[0]; });
  };
  const auto reader = [&](std::uint64_t seed) {
    Random random(seed);
    std::string into(kSize, 0);
    while (!done) {
      const std::string key = "region " + std::to_string(random.Below(kRegions));
      if (random.OneIn(2)) {
        Borrowed loan = Borrow({key, "region 0"});
        for (std::size_t i = 0; i < loan.size(); ++i) {
          if (!loan.result(i).ok()) continue;
          const std::string bytes = Bytes(loan, i);
          wrong += same(bytes.data(), bytes.size()) ? 0 : 1;
          ++read;
        }
      } else {
        const MutableBuffer piece{.data = into.data(), .size = into.size()};
        const GetItem item{.key = key, .into = {&piece, 1}};
        ItemResult result;
        (void)session_->Get({&item, 1}, {&result, 1}, {});
        if (!result.ok()) continue;
        wrong += same(into.data(), into.size()) ? 0 : 1;
        ++read;
      }
    }
  };
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < 4; ++i) threads.emplace_back(reader, i);
  Random random(99);
  std::uint64_t stored = 0;
  // Until readers had a turn, too: on a busy machine that may take long.
  while (stored < 500 || read < 500) {
    if (stored >= 500) std::this_thread::yield();
    const auto r = static_cast<std::uint32_t>(random.Below(kRegions));
    const std::string key = "region " + std::to_string(r);
    bool free = owner_.Evict(places[r], key);
    while (!free) {
      std::this_thread::yield();
      free = !owner_.Protects(places[r]);
    }
    owner_.index->Release(places[r]);
    places[r] = owner_.StoreAt(r, kSize, static_cast<char>(++stored));
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0U);
  EXPECT_EQ(owner_.Protected(), 0U);
}

TEST_F(BorrowTest, AForkedChildDropsItsCopyWithoutEffect) {
  owner_.Store("a", 1000, 'a');
  ForkCount();
  auto loan = std::make_unique<Borrowed>(Borrow({"a"}));
  auto reserved = std::make_unique<Reserved>(Reserve({{.key = "r", .size_bytes = 100}}));
  const pid_t child = fork();
  if (child == 0) {
    ItemResult result;
    const bool refused = loan->Release({&result, 1}).error().code == Code::kUnavailable &&
                         reserved->Commit({&result, 1}).error().code == Code::kUnavailable;
    loan.reset();
    reserved.reset();
    _exit(refused && owner_.Protected() == 1 && owner_.finish_calls == 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(ReleaseOne(*loan).ok());
}

TEST_F(BorrowTest, SegmentsSayWhatIsMappedAndPopulated) {
  const auto segments = session_->Segments({});
  ASSERT_TRUE(segments);
  ASSERT_EQ(segments->size(), 1U);
  EXPECT_EQ((*segments)[0].data, owner_.payload.get());
  EXPECT_EQ((*segments)[0].size_bytes, kPayload);
  EXPECT_EQ((*segments)[0].populated_bytes, kPayload / 2);
  const std::weak_ptr<Attachment> mapped = host_->current;
  host_->current.reset();
  EXPECT_FALSE(mapped.expired()) << "a device may have it registered";
  EXPECT_TRUE(session_->Segments({})->empty());
}

// ---- reservations

TEST_F(BorrowTest, ReservesFillsAndCommitsTheWholeBatchInOneCall) {
  owner_.Store("there", 100, 'x');
  owner_.refuse = {{"busy", Code::kInProgress}};
  Reserved space = Reserve({{.key = "a", .size_bytes = 100},
                            {.key = "there", .size_bytes = 100},
                            {.key = "busy", .size_bytes = 100},
                            {.key = "b", .size_bytes = 30},
                            {.key = "empty", .size_bytes = 0}});
  EXPECT_TRUE(space.result(0).ok());
  EXPECT_EQ(space.result(1).code, Code::kExists);
  EXPECT_EQ(space.result(2).code, Code::kInProgress);
  EXPECT_TRUE(space.result(3).ok());
  EXPECT_EQ(space.result(4).code, Code::kInvalid);
  EXPECT_EQ(space.bytes(), 130U);
  ASSERT_EQ(space.pieces(3).size(), 1U);
  EXPECT_EQ(space.pieces(3)[0].size, 30U) << "no more than the value has";
  owner_.outcomes = {{2, Code::kStale}};
  ItemResult results[5];
  ASSERT_TRUE(space.Commit(results));
  EXPECT_TRUE(results[0].ok());
  EXPECT_EQ(results[1].code, Code::kExists);
  EXPECT_EQ(results[3].code, Code::kStale);
  EXPECT_EQ(owner_.finish_calls, 1);
  EXPECT_TRUE(space.pieces(0).empty()) << "it is a value now, and others read it";
  EXPECT_EQ(space.bytes(), 0U);
}

TEST_F(BorrowTest, ASecondCommitAnswersTheSameWithoutACall) {
  Reserved space = Reserve({{.key = "a", .size_bytes = 100}});
  owner_.outcomes = {{1, Code::kStale}};
  ItemResult result;
  ASSERT_TRUE(space.Commit({&result, 1}));
  result = {};
  ASSERT_TRUE(space.Commit({&result, 1}));
  EXPECT_EQ(result.code, Code::kStale);
  space.Abort();
  EXPECT_EQ(owner_.finish_calls, 1);
}

TEST_F(BorrowTest, WhatIsDroppedIsGivenUpWithTheOthersCommit) {
  Reserved space = Reserve({{.key = "a", .size_bytes = 100}, {.key = "b", .size_bytes = 100}});
  space.Drop(0);
  ItemResult results[2];
  ASSERT_TRUE(space.Commit(results));
  EXPECT_EQ(results[0].code, Code::kCorrupt);
  EXPECT_TRUE(results[1].ok());
  EXPECT_EQ(owner_.finished, (std::vector<std::pair<std::uint64_t, bool>>{{1, false}, {2, true}}));
}

TEST_F(BorrowTest, TheEndOfAReservationGivesEverythingBack) {
  {
    const Reserved space = Reserve({{.key = "a", .size_bytes = 100}});
  }
  EXPECT_EQ(owner_.finished, (std::vector<std::pair<std::uint64_t, bool>>{{1, false}}));
  Reserved space = Reserve({{.key = "a", .size_bytes = 100}});
  space.Abort();
  EXPECT_TRUE(space.pieces(0).empty());
  ItemResult result;
  EXPECT_EQ(space.Commit({&result, 1}).error().code, Code::kInvalid);
  EXPECT_EQ(owner_.finished.size(), 2U);
}

TEST_F(BorrowTest, ACommitThatTheOwnerDidNotAnswerIsToldToItLaterAsGivenUp) {
  Reserved space = Reserve({{.key = "a", .size_bytes = 100}});
  owner_.finish_fails = true;
  ItemResult result;
  EXPECT_EQ(space.Commit({&result, 1}).error().code, Code::kTimeout);
  EXPECT_EQ(result.code, Code::kTimeout);
  owner_.finish_fails = false;
  (void)Reserve({{.key = "b", .size_bytes = 100}});
  ASSERT_FALSE(owner_.finished.empty());
  EXPECT_EQ(owner_.finished.front(), (std::pair<std::uint64_t, bool>{1, false}));
}

TEST_F(BorrowTest, AClosedSessionStoresNothingThatItHadReserved) {
  Reserved space = Reserve({{.key = "a", .size_bytes = 100}});
  EXPECT_FALSE(session_->Reset({.timeout = std::chrono::milliseconds(1)}));
  ItemResult result;
  ASSERT_TRUE(space.Commit({&result, 1}));
  EXPECT_EQ(result.code, Code::kClosed);
  EXPECT_EQ(owner_.finished, (std::vector<std::pair<std::uint64_t, bool>>{{1, false}}));
}

TEST_F(BorrowTest, AnOwnerThatNamesForeignMemoryIsNotBelieved) {
  Reserved space = Reserve({{.key = "a", .size_bytes = kPayload + 64}});
  EXPECT_EQ(space.result(0).code, Code::kInternal);
  EXPECT_TRUE(space.pieces(0).empty());
}

}  // namespace
}  // namespace kvcove::requester
