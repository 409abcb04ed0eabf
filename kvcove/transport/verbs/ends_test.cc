// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/verbs/ends.h"

#include <gtest/gtest.h>

#include "kvcove/base/random.h"
#include "kvcove/transport/verbs/fake_verbs.h"

namespace kvcove::transport::verbs {
namespace {

constexpr std::size_t kTotal = 3 << 20;

class EndsTest : public ::testing::Test {
 protected:
  static std::unique_ptr<Fabric> Open(FakeVerbs& verbs, const std::string& device,
                                      const Clock& clock) {
    // Registrations of a size that divides no piece of these tests.
    auto opened = Fabric::Open(
        verbs,
        {.ports = {{.device = device}}, .reaper = {.thread = false}, .piece_bytes = 1'000'001},
        clock);
    EXPECT_TRUE(opened);
    return opened ? std::move(*opened) : nullptr;
  }
  void SetUp() override {
    own = *owners->Register(source, Access::kLocal);
    exposed = *requesters->Register(target, Access::kRemote);
    Connect();
  }
  void Connect() {
    requester = *RequesterEnd::Open(*requesters);
    owner = *OwnerEnd::Accept(*owners, requester->hello());
    const Status connected = requester->Connect(owner->hello(), clock.NowNs() + kSecond, clock);
    ASSERT_TRUE(connected) << connected.error().ToString();
  }
  void EndBoth() {
    if (owner != nullptr) OwnerEnd::End(std::move(owner), nullptr);
    if (requester != nullptr) RequesterEnd::End(std::move(requester), nullptr);
    while (owners->reaper().Advance() || requesters->reaper().Advance()) {
    }
  }
  void TearDown() override {
    EndBoth();
    own.reset();
    exposed.reset();
    const FakeVerbsCounts counts = verbs.counts();
    EXPECT_EQ(counts.pairs + counts.queues + counts.regions, 0U);
    EXPECT_EQ(counts.mistakes, 0U);
  }
  template <typename AnyPiece>
  std::vector<AnyPiece> PiecesOf(std::vector<std::byte>& memory, std::vector<std::size_t> sizes) {
    std::vector<AnyPiece> pieces;
    std::size_t at = 0;
    for (const std::size_t size : sizes) {
      pieces.push_back({.data = memory.data() + at, .size = size});
      at += size;
    }
    return pieces;
  }
  // The message by which the requester names these pieces.
  template <typename AnyPiece>
  wire::LanePieces Named(const std::vector<AnyPiece>& pieces, std::uint64_t exchange) {
    const auto keys = requester->KeysTo(std::span<const AnyPiece>(pieces));
    EXPECT_TRUE(keys);
    return {.exchange = exchange, .pieces = keys.value_or(std::vector<wire::LanePiece>())};
  }
  void AdvanceOwner() {
    for (int i = 0; i < 1000 && !owner->idle(); ++i) ASSERT_TRUE(owner->Advance());
    EXPECT_TRUE(owner->idle());
  }
  static std::vector<std::byte> Pattern(std::size_t size, unsigned seed) {
    std::vector<std::byte> bytes(size);
    std::uint64_t state = seed;
    for (std::byte& byte : bytes) byte = static_cast<std::byte>((state = Mix64(state)) & 0xff);
    return bytes;
  }

  const Clock& clock = SystemClock::Instance();
  FakeVerbs verbs;
  std::unique_ptr<Fabric> owners = Open(verbs, "fake0", clock);
  std::unique_ptr<Fabric> requesters = Open(verbs, "fake1", clock);
  std::vector<std::byte> source = Pattern(kTotal, 1);
  std::vector<std::byte> target = Pattern(kTotal, 2);
  std::unique_ptr<Registered> own, exposed;
  std::unique_ptr<OwnerEnd> owner;
  std::unique_ptr<RequesterEnd> requester;
};

TEST_F(EndsTest, AGetIsWrittenAndThenAnnounced) {
  const auto into = PiecesOf<Piece>(target, {5, 1 << 20, kTotal - (1 << 20) - 5});
  ASSERT_TRUE(requester->Expect(7));
  EXPECT_FALSE(*requester->Advance());
  owner->Begin(Named(into, 7));
  const auto out = PiecesOf<ConstPiece>(source, {1'500'000, kTotal - 1'500'000});
  const auto begun = owner->Write(out);
  ASSERT_TRUE(begun && *begun);
  AdvanceOwner();
  EXPECT_EQ(owner->moved(), kTotal);
  const auto arrived = requester->Advance();
  ASSERT_TRUE(arrived);
  EXPECT_TRUE(*arrived);
  EXPECT_EQ(target, source);
}

TEST_F(EndsTest, ManySmallPiecesTakeTurnsWithOtherConnections) {
  const std::vector<std::size_t> sizes(2000, 100);
  ASSERT_TRUE(requester->Expect(1));
  owner->Begin(Named(PiecesOf<Piece>(target, sizes), 1));
  ASSERT_TRUE(*owner->Write(PiecesOf<ConstPiece>(source, sizes)));
  int turns = 0;
  for (; !owner->idle() && turns < 100; ++turns) {
    const auto moved = owner->Advance();
    ASSERT_TRUE(moved);
    EXPECT_TRUE(*moved);
  }
  EXPECT_GT(turns, 2);
  EXPECT_LT(turns, 20);
  EXPECT_TRUE(*requester->Advance());
  EXPECT_TRUE(std::equal(source.begin(), source.begin() + 200'000, target.begin()));
}

TEST_F(EndsTest, TheAnnouncementIsBehindTheLastByte) {
  ASSERT_TRUE(requester->Expect(1));
  owner->Begin(Named(PiecesOf<Piece>(target, {kTotal}), 1));
  verbs.HoldAfter(100);
  ASSERT_TRUE(*owner->Write(PiecesOf<ConstPiece>(source, {kTotal})));
  EXPECT_FALSE(*requester->Advance());
  EXPECT_FALSE(owner->idle());
  verbs.Land();
  AdvanceOwner();
  EXPECT_TRUE(*requester->Advance());
  EXPECT_EQ(target, source);
}

TEST_F(EndsTest, APutIsReadInSteps) {
  owner->Begin(Named(PiecesOf<ConstPiece>(target, {100, kTotal - 100}), 0));
  const std::vector<Piece> into = PiecesOf<Piece>(source, {60, 1'200'000, kTotal - 1'200'060});
  for (const Piece& piece : into) {
    ASSERT_TRUE(*owner->Read(std::span(&piece, 1)));
    AdvanceOwner();
    EXPECT_EQ(owner->moved(), piece.size);
  }
  EXPECT_EQ(source, target);
}

TEST_F(EndsTest, NullPiecesArePassedOver) {
  const std::vector<std::byte> before = source;
  owner->Begin(Named(PiecesOf<ConstPiece>(target, {kTotal}), 0));
  const std::vector<Piece> into = {{.data = nullptr, .size = 10},
                                   {.data = source.data(), .size = 20},
                                   {.data = nullptr, .size = 1 << 20},
                                   {.data = source.data() + 20, .size = 1 << 20}};
  verbs.HoldCompletions();
  ASSERT_TRUE(*owner->Read(into));
  EXPECT_EQ(owner->moved(), 10U);
  verbs.Deliver();
  AdvanceOwner();
  EXPECT_EQ(owner->moved(), 30U + (2 << 20));
  EXPECT_TRUE(std::equal(source.begin(), source.begin() + 20, target.begin() + 10));
  EXPECT_TRUE(std::equal(source.begin() + 20, source.begin() + 20 + (1 << 20),
                         target.begin() + 30 + (1 << 20)));
  EXPECT_TRUE(
      std::equal(source.begin() + 20 + (1 << 20), source.end(), before.begin() + 20 + (1 << 20)));
  // And a step of nothing else ends at once.
  owner->Begin(Named(PiecesOf<ConstPiece>(target, {kTotal}), 0));
  ASSERT_TRUE(*owner->Read(std::vector<Piece>{{.data = nullptr, .size = kTotal}}));
  EXPECT_TRUE(owner->idle());
  EXPECT_EQ(owner->moved(), kTotal);
}

TEST_F(EndsTest, MemoryThatIsNotRegisteredTakesAnotherWay) {
  std::vector<std::byte> other(100);
  EXPECT_FALSE(requester->KeysTo(std::span<const Piece>(PiecesOf<Piece>(other, {100}))));
  const Piece beyond{.data = target.data() + kTotal - 1, .size = 2};
  EXPECT_FALSE(requester->KeysTo(std::span<const Piece>(&beyond, 1)));
  const std::uint64_t works = verbs.counts().works;
  owner->Begin(Named(PiecesOf<Piece>(target, {200}), 0));
  const std::vector<ConstPiece> out = {{.data = source.data(), .size = 100},
                                       {.data = other.data(), .size = 100}};
  const auto begun = owner->Write(out);
  ASSERT_TRUE(begun);
  EXPECT_FALSE(*begun);
  EXPECT_EQ(verbs.counts().works, works);
}

TEST_F(EndsTest, PiecesThatDoNotFitAreGarbage) {
  owner->Begin(Named(PiecesOf<Piece>(target, {200}), 0));
  EXPECT_EQ(owner->Write(PiecesOf<ConstPiece>(source, {199})).error().code, Code::kCorrupt);
  EXPECT_EQ(owner->Write(PiecesOf<ConstPiece>(source, {201})).error().code, Code::kCorrupt);
  EXPECT_EQ(owner->Read(PiecesOf<Piece>(source, {201})).error().code, Code::kCorrupt);
  ASSERT_TRUE(*owner->Read(PiecesOf<Piece>(source, {150})));
  EXPECT_EQ(owner->Read(PiecesOf<Piece>(source, {51})).error().code, Code::kCorrupt);
  AdvanceOwner();
}

TEST_F(EndsTest, AnotherExchangesAnnouncementIsGarbage) {
  ASSERT_TRUE(requester->Expect(7));
  owner->Begin(Named(PiecesOf<Piece>(target, {200}), 8));
  ASSERT_TRUE(*owner->Write(PiecesOf<ConstPiece>(source, {200})));
  const auto arrived = requester->Advance();
  ASSERT_FALSE(arrived);
  EXPECT_EQ(arrived.error().code, Code::kCorrupt);
}

TEST_F(EndsTest, AnExchangeWhoseReplyTookTheConnectionLeavesItsReceive) {
  ASSERT_TRUE(requester->Expect(1));
  ASSERT_TRUE(requester->Expect(2));
  owner->Begin(Named(PiecesOf<Piece>(target, {200}), 2));
  ASSERT_TRUE(*owner->Write(PiecesOf<ConstPiece>(source, {200})));
  EXPECT_TRUE(*requester->Advance());
  ASSERT_TRUE(requester->Expect(3));
  EXPECT_FALSE(*requester->Advance());
}

// P5 at both ends, through the reaper.
TEST_F(EndsTest, QuietIsReportedWhenNothingMovesAnyMore) {
  ASSERT_TRUE(requester->Expect(1));
  owner->Begin(Named(PiecesOf<Piece>(target, {kTotal}), 1));
  verbs.HoldAfter(100);
  ASSERT_TRUE(*owner->Write(PiecesOf<ConstPiece>(source, {kTotal})));
  bool owner_quiet = false;
  bool requester_quiet = false;
  OwnerEnd::End(std::move(owner), [&] { owner_quiet = true; });
  RequesterEnd::End(std::move(requester), [&] { requester_quiet = true; });
  (void)owners->reaper().Advance();
  EXPECT_FALSE(owner_quiet);
  EXPECT_TRUE(requesters->reaper().Advance());
  EXPECT_TRUE(requester_quiet);
  std::fill(target.begin(), target.end(), std::byte{7});
  verbs.Land();
  EXPECT_TRUE(owners->reaper().Advance());
  EXPECT_TRUE(owner_quiet);
  EXPECT_EQ(static_cast<std::size_t>(std::count(target.begin(), target.end(), std::byte{7})),
            kTotal);
}

TEST_F(EndsTest, ANetworkThatPassesNoPacketConnectsNobody) {
  EndBoth();
  requester = *RequesterEnd::Open(*requesters);
  owner = *OwnerEnd::Accept(*owners, requester->hello());
  verbs.SetCable(false);
  EXPECT_EQ(requester->Connect(owner->hello(), clock.NowNs() + kSecond, clock).error().code,
            Code::kUnavailable);
  EndBoth();
  EXPECT_FALSE(RequesterEnd::Open(*requesters));
  verbs.SetCable(true);
  // Its answer does not arrive.
  requester = *RequesterEnd::Open(*requesters);
  owner = *OwnerEnd::Accept(*owners, requester->hello());
  verbs.HoldCompletions();
  EXPECT_EQ(
      requester->Connect(owner->hello(), clock.NowNs() + 20 * kMillisecond, clock).error().code,
      Code::kTimeout);
  verbs.Deliver();
}

TEST_F(EndsTest, TenThousandConnectsLeaveNothing) {
  EndBoth();
  const FakeVerbsCounts before = verbs.counts();
  for (int i = 0; i < 10'000; ++i) {
    requester = *RequesterEnd::Open(*requesters);
    wire::LaneEnd hello = requester->hello();
    if (i % 4 == 1) hello.number = 0;  // garbage
    auto accepted = OwnerEnd::Accept(*owners, hello);
    ASSERT_EQ(accepted.has_value(), i % 4 != 1);
    if (accepted) owner = std::move(*accepted);
    // Some connections end before the requester has its answer.
    if (accepted && i % 4 != 2) {
      ASSERT_TRUE(requester->Connect(owner->hello(), clock.NowNs() + kSecond, clock));
    }
    EndBoth();
  }
  const FakeVerbsCounts after = verbs.counts();
  EXPECT_EQ(after.pairs + after.queues, 0U);
  EXPECT_EQ(after.regions, before.regions);
  EXPECT_EQ(owners->reaper().stats().dying + requesters->reaper().stats().dying, 0U);
}

// All that one exchange makes, in the order in which it is made.
struct ExchangeOverEnds {
  std::unique_ptr<Fabric> owners, requesters;
  std::unique_ptr<Registered> own, exposed;
  std::unique_ptr<RequesterEnd> requester;
  std::unique_ptr<OwnerEnd> owner;

  Status Try(FakeVerbs& verbs, std::vector<std::byte>& source, std::vector<std::byte>& target) {
    const Clock& clock = SystemClock::Instance();
    const ReaperOptions reaper{.thread = false};
    KVCOVE_ASSIGN(
        owners,
        Fabric::Open(verbs,
                     {.ports = {{.device = "fake0"}}, .reaper = reaper, .piece_bytes = 1'000'001},
                     clock));
    KVCOVE_ASSIGN(requesters,
                  Fabric::Open(verbs, {.ports = {{.device = "fake1"}}, .reaper = reaper}, clock));
    KVCOVE_ASSIGN(own, owners->Register(source, Access::kLocal));
    KVCOVE_ASSIGN(exposed, requesters->Register(target, Access::kRemote));
    KVCOVE_ASSIGN(requester, RequesterEnd::Open(*requesters));
    KVCOVE_ASSIGN(owner, OwnerEnd::Accept(*owners, requester->hello()));
    KVCOVE_TRY(requester->Connect(owner->hello(), clock.NowNs() + kSecond, clock));
    KVCOVE_TRY(requester->Expect(1));
    const Piece into{.data = target.data(), .size = target.size()};
    const auto keys = requester->KeysTo(std::span(&into, 1));
    if (!keys) return Fail(Code::kInternal, "no keys");
    owner->Begin({.exchange = 1, .pieces = *keys});
    const ConstPiece out{.data = source.data(), .size = source.size()};
    KVCOVE_TRY(owner->Write(std::span(&out, 1)));
    for (int i = 0; i < 10; ++i) {
      KVCOVE_TRY(owner->ArmAndLook());
      KVCOVE_ASSIGN(const bool arrived, requester->Advance());
      if (arrived && owner->idle()) return {};
    }
    return Fail(Code::kTimeout, "no immediate");
  }
  void End() {
    if (owner != nullptr) OwnerEnd::End(std::move(owner), nullptr);
    if (requester != nullptr) RequesterEnd::End(std::move(requester), nullptr);
    // A call on the way to the end may fail, too; the next look repeats it.
    for (Fabric* const fabric : {owners.get(), requesters.get()}) {
      if (fabric == nullptr) continue;
      for (int i = 0; i < 3; ++i) (void)fabric->reaper().Advance();
      EXPECT_EQ(fabric->reaper().stats().dying, 0U);
    }
    own.reset();
    exposed.reset();
  }
};

TEST(EndsFaultTest, NoMemoryInAnyCallOfAnExchangeLeavesNothingBehind) {
  int failed = 0;
  for (std::int64_t call = 0;; ++call) {
    SCOPED_TRACE(call);
    FakeVerbs verbs;
    verbs.FailCall(call);
    std::vector<std::byte> source(kTotal, std::byte{1});
    std::vector<std::byte> target(kTotal, std::byte{2});
    bool reached = false;
    {
      ExchangeOverEnds exchange;
      const Status status = exchange.Try(verbs, source, target);
      reached = verbs.failed();
      if (status) {
        EXPECT_EQ(source, target);
      } else {
        ++failed;
      }
      exchange.End();
    }
    const FakeVerbsCounts counts = verbs.counts();
    EXPECT_EQ(counts.pairs + counts.queues + counts.regions, 0U);
    EXPECT_EQ(counts.mistakes, 0U);
    if (!reached) break;
  }
  EXPECT_GE(failed, 25);
}

TEST_F(EndsTest, AnEndThatIsNoneIsRefused) {
  wire::LaneEnd none;
  const auto accepted = OwnerEnd::Accept(*owners, none);
  ASSERT_FALSE(accepted);
  EXPECT_EQ(accepted.error().code, Code::kInvalid);
  EndBoth();
}

}  // namespace
}  // namespace kvcove::transport::verbs
