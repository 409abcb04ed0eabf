// SPDX-License-Identifier: Apache-2.0
#include "kvcove/kvevents/publisher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "kvcove/kvevents/test_subscriber.h"

namespace kvcove::kvevents {
namespace {

constexpr long kPatienceMs = 20'000;

class PublisherTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoZmq(); !why.empty()) GTEST_SKIP() << why;
    zmq_ = *zmq::Functions::Open();
    router_.emplace(zmq_);
  }
  void Open(PublisherOptions options = {}) {
    options.events = "tcp://127.0.0.1:*";
    options.replay = "tcp://127.0.0.1:*";
    auto opened = Publisher::Open(options, SystemClock::Instance());
    ASSERT_TRUE(opened) << opened.error().ToString();
    publisher_ = std::move(*opened);
  }
  void Serve(long wait_ms = 10) {
    publisher_->Serve(wait_ms, [this] {
      ++snapshots_;
      return std::string("snapshot");
    });
  }
  void* Subscribe(const std::string& topic = "", int most_waiting = 0) {
    const auto before = publisher_->counts().subscribers.load();
    void* const socket = router_->Subscribe(publisher_->events_endpoint(), topic, most_waiting);
    // A subscription that has not come is no subscription: what is published meanwhile is missed.
    const std::int64_t until_ns = SystemClock::Instance().NowNs() + kPatienceMs * kMillisecond;
    while (publisher_->counts().subscribers == before &&
           SystemClock::Instance().NowNs() < until_ns) {
      Serve();
    }
    EXPECT_EQ(publisher_->counts().subscribers, before + 1);
    return socket;
  }
  // Serves until the replay's end has come, 20 s at most.
  std::vector<TestSubscriber::Numbered> Replay(std::uint64_t from) {
    void* const socket = router_->Connect(zmq::kDealer, publisher_->replay_endpoint());
    router_->Ask(socket, from);
    std::vector<TestSubscriber::Numbered> batches;
    const std::int64_t until_ns = SystemClock::Instance().NowNs() + kPatienceMs * kMillisecond;
    while (SystemClock::Instance().NowNs() < until_ns) {
      Serve();
      while (auto batch = router_->Next(socket, 0)) {
        if (batch->first == TestSubscriber::kEnd) return batches;
        batches.push_back(std::move(*batch));
      }
    }
    ADD_FAILURE() << "the replay has no end";
    return batches;
  }

  zmq::Functions zmq_;
  std::optional<TestSubscriber> router_;
  std::unique_ptr<Publisher> publisher_;
  int snapshots_ = 0;
};

TEST_F(PublisherTest, ASubscriberGetsTopicNumberAndBatch) {
  Open({.topic = "kv@pod@model"});
  void* const socket = Subscribe("kv@");
  publisher_->Publish("first");
  publisher_->Publish("second");
  const auto first = router_->Receive(socket, kPatienceMs);
  ASSERT_TRUE(first);
  EXPECT_EQ(*first, (std::vector<std::string>{"kv@pod@model", NumberFrame(0), "first"}));
  const auto second = router_->Receive(socket, kPatienceMs);
  ASSERT_TRUE(second);
  EXPECT_EQ(*second, (std::vector<std::string>{"kv@pod@model", NumberFrame(1), "second"}));
}

TEST_F(PublisherTest, AReplayBeginsAtTheNumberThatIsAskedFor) {
  Open();
  for (const char* const text : {"a", "b", "c"}) publisher_->Publish(text);
  using Batches = std::vector<TestSubscriber::Numbered>;
  EXPECT_EQ(Replay(1), (Batches{{1, "b"}, {2, "c"}}));
  EXPECT_EQ(Replay(0).size(), 3U);
  EXPECT_TRUE(Replay(3).empty());
  EXPECT_EQ(snapshots_, 0);
  EXPECT_EQ(publisher_->counts().replays, 3U);
}

TEST_F(PublisherTest, ANumberOfAProcessBeforeGetsAllBatches) {
  Open({.kept_batches = 2});
  publisher_->Publish("a");
  using Batches = std::vector<TestSubscriber::Numbered>;
  EXPECT_EQ(Replay(99), (Batches{{0, "a"}}));
  for (const char* const text : {"b", "c"}) publisher_->Publish(text);
  EXPECT_EQ(Replay(99), (Batches{{0, "snapshot"}, {1, "b"}, {2, "c"}}));
}

TEST_F(PublisherTest, PeersThatSendWithoutEndDoNotKeepItsCaller) {
  Open();
  void* const socket = router_->Connect(zmq::kDealer, publisher_->replay_endpoint());
  constexpr std::uint64_t kSent = 900;  // as many as wait at a connection
  for (std::uint64_t i = 0; i < kSent; ++i) router_->Send(socket, "bad", 0);
  std::uint64_t most = 0;
  const std::int64_t until_ns = SystemClock::Instance().NowNs() + kPatienceMs * kMillisecond;
  for (std::uint64_t before = 0; before < kSent && SystemClock::Instance().NowNs() < until_ns;) {
    Serve(/*wait_ms=*/100);
    const std::uint64_t bad = publisher_->counts().bad;
    most = std::max(most, bad - std::exchange(before, bad));
  }
  EXPECT_EQ(publisher_->counts().bad, kSent);
  EXPECT_LE(most, 256U) << "in one call";
}

TEST_F(PublisherTest, ASnapshotStandsForBatchesThatAreGone) {
  Open({.kept_batches = 2});
  for (const char* const text : {"a", "b", "c", "d", "e"}) publisher_->Publish(text);
  using Batches = std::vector<TestSubscriber::Numbered>;
  const Batches all{{2, "snapshot"}, {3, "d"}, {4, "e"}};
  EXPECT_EQ(Replay(0), all);
  EXPECT_EQ(Replay(2), all) << "its number is never below the one that is asked for";
  EXPECT_EQ(Replay(3), (Batches{{3, "d"}, {4, "e"}}));
  EXPECT_EQ(snapshots_, 1) << "one snapshot serves all, until batches behind it are gone";
  for (const char* const text : {"f", "g", "h"}) publisher_->Publish(text);
  EXPECT_EQ(Replay(0).size(), 3U);
  EXPECT_EQ(snapshots_, 2);
}

TEST_F(PublisherTest, ASlowSubscriberDelaysNobodyAndCatchesUp) {
  Open({.kept_batches = 100});
  void* const slow = Subscribe("", /*most_waiting=*/1);
  constexpr int kBatches = 5000;
  const std::string batch(16 << 10, 'x');
  for (int i = 0; i < kBatches; ++i) publisher_->Publish(batch);
  EXPECT_EQ(publisher_->counts().failed, 0U) << "they are dropped for the slow one alone";
  EXPECT_EQ(publisher_->buffer().next(), static_cast<std::uint64_t>(kBatches));
  EXPECT_EQ(publisher_->buffer().oldest(), kBatches - 100U);
  const auto first = router_->Next(slow, kPatienceMs);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->first, 0U);
  const auto missed = Replay(1);
  ASSERT_EQ(missed.size(), 101U);
  EXPECT_EQ(missed.front().second, "snapshot");
  EXPECT_EQ(missed.back().first, kBatches - 1U);
}

TEST_F(PublisherTest, AReplayThatIsNotReadStopsNoOther) {
  Open();
  for (int i = 0; i < 4000; ++i) publisher_->Publish(std::string(16 << 10, 'x'));
  void* const asleep = router_->Connect(zmq::kDealer, publisher_->replay_endpoint(), 1);
  router_->Ask(asleep, 0);
  Serve(/*wait_ms=*/kPatienceMs);
  EXPECT_EQ(publisher_->counts().replays, 1U);
  EXPECT_EQ(Replay(3990).size(), 10U);
}

TEST_F(PublisherTest, OtherRequestsAreCountedAndIgnored) {
  Open();
  publisher_->Publish("a");
  void* const socket = router_->Connect(zmq::kDealer, publisher_->replay_endpoint());
  router_->Send(socket, "", zmq::kMore);
  router_->Send(socket, "7 bytes", 0);
  router_->Send(socket, NumberFrame(0), 0);
  const std::int64_t until_ns = SystemClock::Instance().NowNs() + kPatienceMs * kMillisecond;
  while (publisher_->counts().bad < 2 && SystemClock::Instance().NowNs() < until_ns) Serve();
  EXPECT_EQ(publisher_->counts().bad, 2U);
  EXPECT_EQ(publisher_->counts().replays, 0U);
  EXPECT_EQ(Replay(0).size(), 1U);
}

TEST_F(PublisherTest, AnAddressInUseIsAnErrorThatNamesIt) {
  Open();
  const auto second =
      Publisher::Open({.events = publisher_->events_endpoint(), .replay = {}, .topic = {}},
                      SystemClock::Instance());
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kUnavailable);
  EXPECT_NE(second.error().detail.find(publisher_->events_endpoint()), std::string::npos);
}

TEST(Zmq, AMissingLibraryIsOneLineThatSaysWhatToInstall) {
  const auto none = zmq::Functions::Open("libzmq.so.of-no-version");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::kUnavailable);
  EXPECT_NE(none.error().detail.find("apt-get install libzmq5"), std::string::npos);
  EXPECT_EQ(none.error().detail.find('\n'), std::string::npos);
  const auto other = zmq::Functions::Open("libdl.so.2");
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().detail.find("has no zmq_"), std::string::npos);
}

}  // namespace
}  // namespace kvcove::kvevents
