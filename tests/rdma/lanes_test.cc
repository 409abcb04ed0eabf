// SPDX-License-Identifier: Apache-2.0
// Lanes on real verbs, between the first and the last RDMA device of this host. `make test-rdma`
// runs it in a virtual machine with two devices in software, which move some 10 MB/s.
#include <gtest/gtest.h>

#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include "kvcove/transport/verbs/lane_fixture.h"
#include "kvcove/transport/verbs/library.h"
#include "kvcove/transport/verbs/memory.h"
#include "kvcove/transport/verbs/reaper.h"
#include "tests/becomes.h"

namespace kvcove::transport::verbs {
namespace {

constexpr std::size_t kMiB = 1 << 20;

int NumberOf(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  int number = otherwise;
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), number);
  return number;
}

LaneOptions DeviceOptions() {
  LaneOptions options;
  options.route.gid_index = static_cast<std::uint8_t>(NumberOf("KVCOVE_RDMA_GID_INDEX", 1));
  return options;
}

class RdmaLanesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto verbs = VerbsOfProcess();
    ASSERT_TRUE(verbs) << verbs.error().ToString();
    const auto devices = (*verbs)->Devices();
    ASSERT_TRUE(devices) << devices.error().ToString();
    ASSERT_FALSE(devices->empty()) << "this host has no RDMA device";
    ends = std::make_unique<LaneEnds>(**verbs, devices->front(), devices->back(), DeviceOptions());
    ASSERT_NE(ends->owner, nullptr);
    ASSERT_NE(ends->requester, nullptr);
  }
  void Fill(std::size_t bytes) {
    source = std::make_unique<TestMemory>(ends->owner_context, bytes, Access::kLocal, 1);
    target = std::make_unique<TestMemory>(ends->requester_context, bytes, Access::kRemote, 2);
    ASSERT_NE(source->region, nullptr);
    ASSERT_NE(target->region, nullptr);
  }
  void TearDown() override {
    ends.reset();  // before the memory that its lanes may touch
    source.reset();
    target.reset();
  }
  void NewLanes() {
    ASSERT_TRUE(RetireAll(*ends->owner));
    ASSERT_TRUE(RetireAll(*ends->requester));
    ends->Reopen(DeviceOptions());
  }
  // Pulls the cable between the devices, or plugs it in again, by the command that knows how.
  void SetCable(const std::string& command, bool plugged) {
    ASSERT_EQ(std::system((command + (plugged ? " up" : " down")).c_str()), 0);
    if (!plugged) return;
    // The device at the other end notices some time later.
    for (Context* const context : {ends->owner_context.get(), ends->requester_context.get()}) {
      ASSERT_TRUE(Becomes([&] {
        const auto port = context->QueryPort(1);
        return port && port->active;
      }));
    }
  }
  // Writes all of `source` to `target`, again and again, until the cable is pulled. The bytes of
  // the writes have the values 1 and 2 in turn. Returns that of the last one.
  int WriteUntilPulled(const std::string& command) {
    std::atomic<bool> pulled{false};
    std::thread puller([&] {
      SetCable(command, false);
      pulled = true;
    });
    int value = 2;
    std::vector<Received> received;
    while (!pulled) {
      if (owner().idle()) {
        value = 3 - value;
        std::fill(source->data.begin(), source->data.end(), static_cast<std::byte>(value));
        if (!owner().Post(WriteOf(source->data.size()))) break;
      }
      // Sleeps, since the driver needs the processors, for a moment: `puller` may have ended.
      pollfd waits{.fd = owner().descriptor(), .events = POLLIN, .revents = 0};
      if (!owner().Arm()) break;
      const auto taken = owner().Advance(received);
      if (!taken) break;
      if (!*taken && poll(&waits, 1, 1) == 1) owner().TakeEvents();
    }
    puller.join();
    return value;
  }
  Lane& owner() { return *ends->owner; }
  Lane& requester() { return *ends->requester; }
  Move WriteOf(std::uint64_t bytes) { return MoveOf(Operation::kWrite, *source, *target, bytes); }
  void SleepSome() { std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000)); }

  std::unique_ptr<LaneEnds> ends;
  std::unique_ptr<TestMemory> source, target;
  std::mt19937 random{7};
  const int rounds = NumberOf("KVCOVE_RDMA_ROUNDS", 20);
};

TEST_F(RdmaLanesTest, AWriteAndTheImmediateBehindItArrive) {
  Fill(3 * kMiB + 5);
  ASSERT_TRUE(requester().PostReceive(0, {}));
  ASSERT_TRUE(owner().Post(WriteOf(3 * kMiB + 5)));
  Move head = WriteOf(0);
  head.operation = Operation::kWriteWithImmediate;
  head.immediate = 0x01020304;
  ASSERT_TRUE(owner().Post(head));
  // The requester alone waits: its completion says that the bytes before are visible here.
  std::vector<Received> received;
  const Status status = AdvanceUntil(requester(), received, [&] { return !received.empty(); });
  ASSERT_TRUE(status) << status.error().ToString();
  EXPECT_EQ(received[0].immediate, 0x01020304U);
  EXPECT_EQ(target->Count(1), 3 * kMiB + 5);
  ASSERT_TRUE(AdvanceUntilIdle(owner()));
  EXPECT_EQ(owner().moved_bytes(), 3 * kMiB + 5);
}

TEST_F(RdmaLanesTest, AReadTakesThePeersMemory) {
  Fill(2 * kMiB);
  ASSERT_TRUE(owner().Post(MoveOf(Operation::kRead, *source, *target, 2 * kMiB)));
  const Status status = AdvanceUntilIdle(owner());
  ASSERT_TRUE(status) << status.error().ToString();
  EXPECT_EQ(source->Count(2), 2 * kMiB);
}

TEST_F(RdmaLanesTest, AMessageArrivesInItsSlot) {
  Fill(1000);
  TestMemory heads(ends->owner_context, 1000, Access::kLocal, 0);
  TestMemory request(ends->requester_context, 1000, Access::kLocal, 5);
  ASSERT_TRUE(owner().PostReceive(3, heads.Segment(100, 900)));
  ASSERT_TRUE(requester().Post(MoveOf(Operation::kSend, request, heads, 800)));
  std::vector<Received> received;
  const Status status = AdvanceUntil(owner(), received, [&] { return !received.empty(); });
  ASSERT_TRUE(status) << status.error().ToString();
  EXPECT_EQ(received[0].slot, 3U);
  EXPECT_EQ(received[0].bytes, 800U);
  EXPECT_EQ(heads.Count(5), 800U);
  EXPECT_EQ(heads.data[99], std::byte{0});
}

TEST_F(RdmaLanesTest, MoreMovesThanTheQueueHasRoomForArrive) {
  Fill(1000 * 64);
  for (std::size_t i = 0; i < 1000; ++i) {
    Move move = WriteOf(64);
    move.local += 64 * i;
    move.remote += 64 * i;
    ASSERT_TRUE(owner().Post(move));
  }
  const Status status = AdvanceUntilIdle(owner());
  ASSERT_TRUE(status) << status.error().ToString();
  EXPECT_EQ(target->Count(1), 64'000U);
}

TEST_F(RdmaLanesTest, MemoryInSeveralRegistrationsIsWrittenWhole) {
  Fill(kMiB);
  std::vector<std::byte> bytes(kMiB, std::byte{3});
  Memory memory(ends->requester_context, bytes, Access::kRemote, /*piece_bytes=*/100'000);
  while (true) {
    const auto over = memory.RegisterNext();
    ASSERT_TRUE(over) << over.error().ToString();
    if (*over) break;
  }
  std::vector<Keyed> parts;
  ASSERT_TRUE(memory.Cover(bytes.data(), bytes.size(), parts));
  std::byte* from = source->data.data();
  for (const Keyed& part : parts) {
    ASSERT_TRUE(owner().Post({.local = from,
                              .bytes = part.bytes,
                              .local_key = source->region->local_key(),
                              .remote = reinterpret_cast<std::uintptr_t>(part.data),
                              .remote_key = part.remote_key}));
    from += part.bytes;
  }
  const Status status = AdvanceUntilIdle(owner());
  ASSERT_TRUE(status) << status.error().ToString();
  EXPECT_EQ(bytes, source->data);
  ASSERT_TRUE(RetireAll(owner()));
  ASSERT_TRUE(memory.Deregister());
}

TEST_F(RdmaLanesTest, TheDeviceRefusesWhatNoKeyPermits) {
  Fill(4096);
  TestMemory own(ends->requester_context, 4096, Access::kLocal, 2);
  Move beyond = WriteOf(4096);
  beyond.remote += 1;
  Move wrong = WriteOf(4096);
  wrong.remote_key ^= 0x5500;
  const Move not_exposed = MoveOf(Operation::kWrite, *source, own, 4096);
  for (const Move& move : {beyond, wrong, not_exposed}) {
    ASSERT_TRUE(owner().Post(move));
    const Status status = AdvanceUntilIdle(owner());
    ASSERT_FALSE(status);
    EXPECT_NE(status.error().detail.find("refused"), std::string::npos) << status.error().detail;
    EXPECT_EQ(owner().state(), Lane::State::kDying);
    EXPECT_EQ(target->Count(2) + own.Count(2), 2 * 4096U);
    NewLanes();
  }
  // And an owner's lane permits nothing, whatever the key.
  TestMemory exposed(ends->owner_context, 4096, Access::kRemote, 4);
  ASSERT_TRUE(requester().Post(MoveOf(Operation::kWrite, own, exposed, 4096)));
  EXPECT_FALSE(AdvanceUntilIdle(requester()));
  EXPECT_EQ(exposed.Count(4), 4096U);
}

// P5. The owner's writes are under way when the requester ends its lane: from then on its memory is
// its own, although the owner goes on.
TEST_F(RdmaLanesTest, NothingLandsOnceTheRequestersLaneIsGone) {
  Fill(2 * kMiB);
  std::size_t half_way = 0;
  for (int round = 0; round < rounds; ++round) {
    ASSERT_TRUE(owner().Post(WriteOf(2 * kMiB)));
    SleepSome();
    ASSERT_TRUE(RetireAll(requester()));
    const std::size_t landed = target->Count(1);
    half_way += landed > 0 && landed < 2 * kMiB ? 1 : 0;
    std::fill(target->data.begin(), target->data.end(), std::byte{7});
    SleepSome();
    EXPECT_EQ(target->Count(7), 2 * kMiB) << round;
    (void)AdvanceUntilIdle(owner());  // fails once the device has no more retries
    EXPECT_EQ(target->Count(7), 2 * kMiB) << round;
    std::fill(target->data.begin(), target->data.end(), std::byte{2});
    NewLanes();
  }
  std::printf("stopped half-way in %zu of %d rounds\n", half_way, rounds);
  EXPECT_GT(half_way, 0U);
}

// P5. The owner ends its lane: from then on its memory may hold another value, and no byte of that
// reaches the requester.
TEST_F(RdmaLanesTest, NothingIsReadOnceTheOwnersLaneIsGone) {
  Fill(2 * kMiB);
  std::size_t half_way = 0;
  for (int round = 0; round < rounds; ++round) {
    ASSERT_TRUE(owner().Post(WriteOf(2 * kMiB)));
    SleepSome();
    ASSERT_TRUE(RetireAll(owner()));
    std::fill(source->data.begin(), source->data.end(), std::byte{9});
    SleepSome();
    NewLanes();  // packets with the former bytes may arrive until here
    const std::size_t landed = target->Count(1);
    half_way += landed > 0 && landed < 2 * kMiB ? 1 : 0;
    EXPECT_EQ(target->Count(9), 0U) << round;
    EXPECT_EQ(target->Count(2), 2 * kMiB - landed) << round;
    std::fill(source->data.begin(), source->data.end(), std::byte{1});
    std::fill(target->data.begin(), target->data.end(), std::byte{2});
  }
  std::printf("stopped half-way in %zu of %d rounds\n", half_way, rounds);
  EXPECT_GT(half_way, 0U);
}

// P5 while the network fails: the device has work that it would repeat, out of the same memory. The
// owner writes all the time while the cable is pulled, so that a write is under way then, however
// fast the device is.
TEST_F(RdmaLanesTest, NothingIsReadOnceTheOwnersLaneIsGoneThoughTheCableWasPulled) {
  const char* const cable = std::getenv("KVCOVE_RDMA_CABLE");
  if (cable == nullptr) GTEST_SKIP() << "KVCOVE_RDMA_CABLE names no command";
  Fill(2 * kMiB);
  int stuck = 0;
  int half_way = 0;
  int round = 0;
  // A write may also end just before the cable is pulled, or have its acknowledgement alone cut
  // off.
  for (; round < std::max(rounds, 10) && half_way < 3; ++round) {
    std::fill(target->data.begin(), target->data.end(), std::byte{3});
    int last = 0;
    ASSERT_NO_FATAL_FAILURE(last = WriteUntilPulled(cable));
    // Else it has ended, or the device has no more retries, and the round proves nothing.
    const bool pending = owner().state() == Lane::State::kReady && !owner().idle();
    ASSERT_TRUE(RetireAll(owner()));
    std::fill(source->data.begin(), source->data.end(), std::byte{9});
    ASSERT_NO_FATAL_FAILURE(SetCable(cable, true));
    SleepSome();
    NewLanes();
    const std::size_t landed = target->Count(last);
    stuck += pending ? 1 : 0;
    half_way += pending && landed > 0 && landed < 2 * kMiB ? 1 : 0;
    EXPECT_EQ(target->Count(9), 0U) << round;
  }
  std::printf("stopped with a write in a pulled cable in %d of %d rounds, half-way in %d\n", stuck,
              round, half_way);
  EXPECT_GT(half_way, 0);
  // The lanes made last work: no state of the pulled cable is left.
  ASSERT_TRUE(owner().Post(WriteOf(4096)));
  const Status status = AdvanceUntilIdle(owner());
  ASSERT_TRUE(status) << status.error().ToString();
}

// P5 for puts: reads of the requester's memory into what the owner has reserved.
TEST_F(RdmaLanesTest, NoReadLandsOnceTheOwnersLaneIsGone) {
  Fill(2 * kMiB);
  std::size_t half_way = 0;
  for (int round = 0; round < rounds; ++round) {
    ASSERT_TRUE(owner().Post(MoveOf(Operation::kRead, *source, *target, 2 * kMiB)));
    SleepSome();
    ASSERT_TRUE(RetireAll(owner()));
    const std::size_t landed = source->Count(2);
    half_way += landed > 0 && landed < 2 * kMiB ? 1 : 0;
    std::fill(source->data.begin(), source->data.end(), std::byte{7});
    SleepSome();
    EXPECT_EQ(source->Count(7), 2 * kMiB) << round;
    std::fill(source->data.begin(), source->data.end(), std::byte{1});
    NewLanes();
  }
  std::printf("stopped half-way in %zu of %d rounds\n", half_way, rounds);
  EXPECT_GT(half_way, 0U);
}

TEST_F(RdmaLanesTest, TheReaperEndsLanesWithWorkUnderWay) {
  Fill(2 * kMiB);
  auto reaper = Reaper::Start({}, SystemClock::Instance());
  ASSERT_TRUE(reaper);
  std::atomic<int> quiet{0};
  for (int round = 0; round < rounds; ++round) {
    ASSERT_TRUE(requester().PostReceive(0, {}));
    ASSERT_TRUE(owner().Post(WriteOf(2 * kMiB)));
    (*reaper)->Take(std::move(ends->owner), [&] { quiet.fetch_add(1); });
    (*reaper)->Take(std::move(ends->requester), [&] { quiet.fetch_add(1); });
    ends->Reopen(DeviceOptions());
  }
  reaper->reset();
  EXPECT_EQ(quiet, 2 * rounds);
}

TEST_F(RdmaLanesTest, ALaneEndsThatWasNeverConnected) {
  Fill(4096);
  for (int round = 0; round < rounds; ++round) {
    ASSERT_TRUE(RetireAll(*ends->owner));
    ends->owner = LaneEnds::Opened(ends->owner_context, DeviceOptions(), 1);
    ASSERT_NE(ends->owner, nullptr);
    for (std::uint32_t slot = 0; slot < 16; ++slot) {
      ASSERT_TRUE(owner().PostReceive(slot, source->Segment(0, 4096)));
    }
  }
  EXPECT_TRUE(RetireAll(owner()));
}

TEST_F(RdmaLanesTest, ALaneEndsWhosePeerIsOnNoNetworkOfThisHost) {
  PairAddress peer = requester().own();
  // 198.51.100.1, of a network for documentation.
  peer.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 198, 51, 100, 1};
  for (int round = 0; round < rounds; ++round) {
    ASSERT_TRUE(RetireAll(*ends->owner));
    ends->owner = LaneEnds::Opened(ends->owner_context, DeviceOptions(), 1);
    ASSERT_NE(ends->owner, nullptr);
    ASSERT_TRUE(owner().PostReceive(0, {}));
    EXPECT_FALSE(owner().Connect(peer));
    EXPECT_EQ(owner().state(), Lane::State::kDying);
  }
  EXPECT_TRUE(RetireAll(owner()));
}

std::size_t Descriptors() {
  const std::filesystem::directory_iterator begin("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin, std::filesystem::directory_iterator()));
}

TEST_F(RdmaLanesTest, ManyLanesLeaveNothingBehind) {
  for (int i = 0; i < 10; ++i) NewLanes();
  const std::size_t before = Descriptors();
  for (int i = 0; i < 10 * rounds; ++i) NewLanes();
  EXPECT_EQ(Descriptors(), before);
}

}  // namespace
}  // namespace kvcove::transport::verbs
