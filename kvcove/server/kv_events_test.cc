// SPDX-License-Identifier: Apache-2.0
#include "kvcove/server/kv_events.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "kvcove/base/size.h"
#include "kvcove/kvevents/test_subscriber.h"
#include "kvcove/pool/local_host.h"

namespace kvcove::server {
namespace {

using kvevents::TestSubscriber;
using nlohmann::json;

constexpr std::int64_t kPatienceNs = 20 * kSecond;

// What a router knows that has nothing but events.
class RouterIndex {
 public:
  // A block: medium, group, hash.
  using Block = std::tuple<std::string, std::uint32_t, std::uint64_t>;
  void Take(const std::string& payload) {
    const json batch = json::from_msgpack(payload);
    ASSERT_EQ(batch.size(), 3U);
    for (const json& event : batch[1]) {
      const std::string type = event.at("type");
      if (type == "AllBlocksCleared") {
        blocks_.clear();
        ++cleared_;
        continue;
      }
      EXPECT_EQ(event.at("locality"), "LOCAL");
      for (const json& hash : event.at("block_hashes")) {
        const Block block{event.at("medium"), event.at("group_idx"), hash};
        if (type == "BlockStored") {
          blocks_.insert(block);
        } else {
          blocks_.erase(block);
        }
      }
    }
  }
  const std::set<Block>& blocks() const { return blocks_; }
  int cleared() const { return cleared_; }

 private:
  std::set<Block> blocks_;
  int cleared_ = 0;
};

class KvEventsTest : public testing::Test {
 protected:
  KvEventsTest() {
    std::string name = testing::TempDir() + "/kvcove-events-XXXXXX";
    directory_ = mkdtemp(name.data());
    options_.owner.memory_bytes = 4 * kMiB;
    options_.owner.populate = false;
    options_.owner.key_changes_bytes = KvEvents::kKeyChangesBytes;
  }
  ~KvEventsTest() override {
    events_.reset();
    host_.reset();
    std::filesystem::remove_all(directory_);
  }
  void SetUp() override {
    if (const std::string why = kvevents::WhyNoZmq(); !why.empty()) GTEST_SKIP() << why;
    router_.emplace(*kvevents::zmq::Functions::Open());
  }
  void OpenHost() {
    auto host = pool::LocalHost::Open(options_, SystemClock::Instance());
    ASSERT_TRUE(host) << host.error().ToString();
    host_ = std::move(*host);
    session_ = host_->AddSession(getpid())->number;
    service_ = host_->ServiceFor(session_);
  }
  void OpenEvents(KvEventsOptions options = {}) {
    options.events = rpc::LoopbackAddress(0);
    options.replay = rpc::LoopbackAddress(0);
    const auto walk = [](const std::function<void()>& call) {
      call();
      return true;
    };
    auto events = KvEvents::Open(host_->owner(), options, walk, SystemClock::Instance());
    ASSERT_TRUE(events) << events.error().ToString();
    events_ = std::move(*events);
    socket_ = router_->Subscribe(events_->events_endpoint());
    Replay();
  }
  static std::int64_t Soon() { return SystemClock::Instance().NowNs() + kPatienceNs; }
  Token Open(const std::string& name) {
    const auto registration = service_->Register(
        {.name = name, .version = "", .engine = "engine", .last_incarnation = {}, .holder = {}},
        Soon());
    EXPECT_TRUE(registration) << registration.error().ToString();
    return {.incarnation = registration->incarnation,
            .generation = registration->generation,
            .slot = registration->slot};
  }
  static std::string KeyOf(std::uint32_t block) { return fmt::format("g0.h0of1@{:08x}", block); }
  Code Put(const Token& token, const std::string& key) {
    const std::string value(8192, 'v');
    const wire::PutItem item{.key = key,
                             .size_bytes = static_cast<std::uint32_t>(value.size()),
                             .value = std::as_bytes(std::span(value)),
                             .after = {}};
    return host_->owner().Put(session_, token, {&item, 1}, Soon()).front().code;
  }
  void PutBlocks(const Token& token, std::uint32_t count) {
    for (std::uint32_t block = 0; block < count; ++block) (void)Put(token, KeyOf(block));
    blocks_ = std::max(blocks_, count);
  }
  // What a router should know.
  std::set<RouterIndex::Block> Truth(const Token& token) {
    std::set<RouterIndex::Block> truth;
    for (std::uint32_t block = 0; block < blocks_; ++block) {
      const std::string key = KeyOf(block);
      const std::string_view view = key;
      const auto stat = host_->owner().StatObjects(token, {&view, 1}, Soon());
      if (stat && stat->front()) truth.emplace("CPU", 0, block);
      if (host_->owner().DiskTag(token.slot, token.generation, key) != 0) {
        truth.emplace("STORAGE", 0, block);
      }
    }
    return truth;
  }
  // Asks for all batches from the next one on, as a router that begins or has missed some.
  void Replay() {
    void* const socket = router_->Connect(kvevents::zmq::kDealer, events_->replay_endpoint());
    router_->Ask(socket, next_);
    while (auto batch = router_->Next(socket, kPatienceNs / kMillisecond)) {
      if (batch->first == TestSubscriber::kEnd) return;
      Apply(*batch);
    }
    FAIL() << "the replay has no end";
  }
  void Apply(const TestSubscriber::Numbered& batch) {
    if (batch.first < next_) return;
    index_.Take(batch.second);
    next_ = batch.first + 1;
  }
  // Takes batches until the condition holds. False: it does not, within 20 s.
  bool HearUntil(const std::function<bool()>& condition) {
    const std::int64_t until_ns = Soon();
    for (int silent = 0; !condition();) {
      if (SystemClock::Instance().NowNs() > until_ns) return false;
      const auto batch = router_->Next(socket_, 50);
      // The subscription may have reached the owner behind the last batch.
      if (!batch && ++silent % 6 == 0) Replay();
      if (!batch) continue;
      if (batch->first > next_) Replay();
      Apply(*batch);
    }
    return true;
  }
  bool HearsTruth(const Token& token) {
    return HearUntil([&] { return index_.blocks() == Truth(token); });
  }
  double Metric(const std::string& name) {
    Metrics metrics;
    events_->Collect(metrics, {});
    const std::string text = metrics.Text();
    const std::size_t at = text.find("\n" + name + " ");
    EXPECT_NE(at, std::string::npos) << name;
    return std::strtod(text.c_str() + at + name.size() + 2, nullptr);
  }

  std::string directory_;
  pool::LocalHostOptions options_;
  std::unique_ptr<pool::LocalHost> host_;
  wire::SessionNumber session_ = 0;
  std::unique_ptr<wire::HostService> service_;
  std::unique_ptr<KvEvents> events_;
  std::optional<TestSubscriber> router_;
  void* socket_ = nullptr;
  RouterIndex index_;
  std::uint64_t next_ = 0;
  std::uint32_t blocks_ = 0;
};

TEST_F(KvEventsTest, RoutersLearnOfStoresAndEvictions) {
  ASSERT_NO_FATAL_FAILURE(OpenHost());
  ASSERT_NO_FATAL_FAILURE(OpenEvents());
  EXPECT_TRUE(HearUntil([&] { return index_.cleared() >= 1; })) << "the first event";
  const Token token = Open("model");
  PutBlocks(token, 100);
  EXPECT_TRUE(HearsTruth(token));
  EXPECT_EQ(index_.blocks().size(), 100U);
  PutBlocks(token, 2000);
  EXPECT_TRUE(HearsTruth(token));
  EXPECT_LT(index_.blocks().size(), 1000U) << "most were evicted";
  EXPECT_GT(host_->owner().Stat().evictions, 0U);
}

TEST_F(KvEventsTest, AResetRemovesAllBlocksOfItsNamespace) {
  ASSERT_NO_FATAL_FAILURE(OpenHost());
  ASSERT_NO_FATAL_FAILURE(OpenEvents());
  const Token token = Open("model");
  PutBlocks(token, 100);
  EXPECT_TRUE(HearsTruth(token));
  ASSERT_TRUE(service_->Reset({.name = "model", .engine = "engine", .id = RandomId()}, Soon()));
  EXPECT_TRUE(HearUntil([&] { return index_.blocks().empty(); }));
  const Token next = Open("model");
  PutBlocks(next, 50);
  EXPECT_TRUE(HearsTruth(next));
  EXPECT_EQ(index_.blocks().size(), 50U);
}

TEST_F(KvEventsTest, WhatMemoryEvictsToADiskIsTold) {
  options_.owner.disks = *owner::ParseDisks("--disk", std::vector{directory_ + "/disk:64MiB"});
  options_.owner.disk_admit = owner::DiskAdmit::kAll;
  options_.data_directory = directory_ + "/data";
  ASSERT_NO_FATAL_FAILURE(OpenHost());
  ASSERT_NO_FATAL_FAILURE(OpenEvents());
  const Token token = Open("model");
  PutBlocks(token, 1500);
  EXPECT_TRUE(HearsTruth(token));
  const auto on_disk = [&] {
    return std::ranges::count_if(index_.blocks(),
                                 [](const auto& block) { return std::get<0>(block) == "STORAGE"; });
  };
  EXPECT_GT(on_disk(), 0);
  ASSERT_TRUE(service_->Reset({.name = "model", .engine = "engine", .id = RandomId()}, Soon()));
  EXPECT_TRUE(HearUntil([&] { return index_.blocks().empty(); }));
}

TEST_F(KvEventsTest, BlocksThatWereThereBeforeTheEventsAreTold) {
  ASSERT_NO_FATAL_FAILURE(OpenHost());
  const Token token = Open("model");
  PutBlocks(token, 2000);
  ASSERT_NO_FATAL_FAILURE(OpenEvents());
  EXPECT_TRUE(HearsTruth(token));
}

TEST_F(KvEventsTest, ChangesThatCameTooFastAreMadeGoodByAWalk) {
  options_.owner.key_changes_bytes = 2048;
  ASSERT_NO_FATAL_FAILURE(OpenHost());
  ASSERT_NO_FATAL_FAILURE(OpenEvents());
  const Token token = Open("model");
  EXPECT_TRUE(HearUntil([&] {
    // In one hold, so that nobody takes the changes meanwhile: more than there is room for.
    owner::Memory& memory = host_->owner().memory();
    PutBlocks(token, 100);
    {
      const MutexLock lock(memory.mutex);
      for (std::uint32_t block = 0; block < 100; ++block) {
        (void)memory.core().Remove(token.slot, KeyOf(block));
      }
    }
    return Metric("kvcove_owner_kv_events_lost_total") > 0;
  }));
  PutBlocks(token, 30);
  EXPECT_TRUE(HearsTruth(token));
  EXPECT_GE(index_.cleared(), 2);
}

TEST_F(KvEventsTest, OtherNamespacesAreNotTold) {
  ASSERT_NO_FATAL_FAILURE(OpenHost());
  KvEventsOptions options;
  options.namespaces = "model-*";
  ASSERT_NO_FATAL_FAILURE(OpenEvents(options));
  const Token other = Open("others");
  ASSERT_EQ(Put(other, KeyOf(1)), Code::kOk);
  const Token token = Open("model-8b");
  ASSERT_EQ(Put(token, KeyOf(2)), Code::kOk);
  const std::set<RouterIndex::Block> mine{{"CPU", 0, 2}};
  EXPECT_TRUE(HearUntil([&] { return index_.blocks() == mine; }));
  EXPECT_EQ(Metric("kvcove_owner_kv_events_blocks"), 1.0) << "others take no room";
  ASSERT_EQ(Put(other, "some key"), Code::kOk);
  ASSERT_EQ(Put(token, KeyOf(3)), Code::kOk);
  EXPECT_TRUE(HearUntil([&] { return index_.blocks().size() == 2; }));
  EXPECT_EQ(Metric("kvcove_owner_kv_events_foreign_total"), 0.0);
}

TEST_F(KvEventsTest, KeysOfOtherFormsAreCounted) {
  ASSERT_NO_FATAL_FAILURE(OpenHost());
  ASSERT_NO_FATAL_FAILURE(OpenEvents());
  const Token token = Open("model");
  ASSERT_EQ(Put(token, "some key"), Code::kOk);
  EXPECT_TRUE(HearUntil([&] { return Metric("kvcove_owner_kv_events_foreign_total") > 0; }));
  EXPECT_TRUE(index_.blocks().empty());
}

TEST_F(KvEventsTest, AnOwnerThatPublishesNothingNotesNothing) {
  options_.owner.key_changes_bytes = 0;
  ASSERT_NO_FATAL_FAILURE(OpenHost());
  PutBlocks(Open("model"), 10);
  owner::KeyChanges::Batch batch;
  host_->owner().TakeKeyChanges(batch, /*all=*/true);
  EXPECT_TRUE(batch.empty());
}

}  // namespace
}  // namespace kvcove::server
