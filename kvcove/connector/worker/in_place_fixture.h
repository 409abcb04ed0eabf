// SPDX-License-Identifier: Apache-2.0
// A rank with a device on a real pool whose memory is pinned when the test says so: what the tests
// of transfers in place share.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvcove/base/log.h"
#include "kvcove/connector/worker/one_device.h"
#include "kvcove/requester/local/loan.h"
#include "kvcove/requester/local/reservation.h"

namespace kvcove::connector {

using transport::DeviceWay;

inline constexpr std::uint64_t kMemory = 16 << 20;  // of which 512 KiB may be borrowed
inline constexpr std::size_t kPlacedBlock = 40'000;
inline constexpr std::uint32_t kInPlaceBlocks = 64;
inline constexpr std::size_t kPressure = 100'000;

// What a test says of a session, and what was asked of it.
struct PoolFacts {
  std::shared_ptr<Session> session;
  std::uint64_t populated = ~std::uint64_t{0};  // at most
  std::atomic<bool> elsewhere{false};           // this host's owners have nothing, and take nothing
  std::atomic<int> borrows{0};
  std::atomic<int> reserves{0};
  std::atomic<int> gets{0};
};

class PoolStore final : public Store {
 public:
  explicit PoolStore(PoolFacts& facts) : facts_(facts), real_(StoreOf(facts.session)) {}
  Result<Token> Capture(std::string_view version, std::chrono::milliseconds timeout) override {
    return real_->Capture(version, timeout);
  }
  Status Exists(std::span<const std::string_view> keys, std::span<ItemResult> results,
                const CallOptions& options) override {
    return real_->Exists(keys, results, options);
  }
  Status Put(const Token& token, std::span<const PutItem> items, std::span<ItemResult> results,
             const CallOptions& options) override {
    return real_->Put(token, items, results, options);
  }
  Status Get(std::span<const GetItem> items, std::span<ItemResult> results,
             const CallOptions& options) override {
    ++facts_.gets;
    return real_->Get(items, results, options);
  }
  Result<Borrowed> Borrow(std::span<const std::string_view> keys,
                          const CallOptions& options) override {
    ++facts_.borrows;
    if (!facts_.elsewhere) return real_->Borrow(keys, options);
    auto loan =
        std::make_unique<requester::Loan>(keys.size(), SystemClock::Instance(), nullptr, nullptr);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      loan->SetResult(i, {.code = Code::kMiss, .reason = MissReason::kNeverPut, .elsewhere = true});
    }
    return Borrowed(std::move(loan));
  }
  Result<Reserved> Reserve(const Token& token, std::span<const ReserveItem> items,
                           const CallOptions& options) override {
    ++facts_.reserves;
    if (!facts_.elsewhere) return real_->Reserve(token, items, options);
    auto space = std::make_unique<requester::Reservation>(items.size(), SystemClock::Instance(),
                                                          nullptr, nullptr);
    for (std::size_t i = 0; i < items.size(); ++i) {
      space->SetResult(i, {.code = Code::kNoSpace, .elsewhere = true});
    }
    return Reserved(std::move(space));
  }
  // As if all were populated, however idle this host was.
  Result<std::vector<SegmentRange>> Segments(const CallOptions& options) override {
    auto ranges = real_->Segments(options);
    if (!ranges) return ranges;
    for (SegmentRange& range : *ranges) {
      range.populated_bytes = std::min(range.size_bytes, facts_.populated);
    }
    return ranges;
  }
  Status Remove(std::span<const std::string_view> keys, std::span<ItemResult> results,
                const CallOptions& options) override {
    return real_->Remove(keys, results, options);
  }
  Status Reset(const ResetOptions& options) override { return real_->Reset(options); }
  Status NameVersions(std::span<const std::string> versions,
                      std::chrono::milliseconds timeout) override {
    return real_->NameVersions(versions, timeout);
  }
  bool closed() const override { return real_->closed(); }

 private:
  PoolFacts& facts_;
  const std::unique_ptr<Store> real_;
};

class InPlaceTest : public testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    Open({});
  }
  void TearDown() override {
    device_->fake->Reach();
    for (const DeviceWay way : {DeviceWay::kLoad, DeviceWay::kSave}) Hold(way, false);
    worker_.reset();
    while (device_->queue->Advance()) {
    }
    EXPECT_EQ(device_->queue->stats().lent_bytes, 0);
    EXPECT_EQ(device_->fake->unpinned(), 0) << "a device would have read or written anything";
    EXPECT_EQ(device_->fake->registered_bytes(), 0);
    EXPECT_EQ(pool_->Stat()->reserved_bytes, 0);
    SetLogLevel(LogLevel::kWarn);
  }
  void Open(const WorkerOptions& options, const SessionOptions& session = {}) {
    worker_.reset();
    facts_.session.reset();
    pool_ = *Pool::Open("embedded:?memory=16MiB&policy=lru");
    SessionOptions named = session;
    named.name = "m";
    named.engine = "e";
    named.follow_always = true;
    facts_.session = *pool_->OpenSession(named);
    device_ = std::make_unique<OneDevice>(
        transport::DeviceQueueOptions{.ring_bytes = 1 << 20, .thread = false, .poison = true},
        clock_);
    StartWorker(options);
  }
  void StartWorker(WorkerOptions options) {
    options.shape = {.model = "m", .hash_tokens = 4};
    options.shape.groups = {{.chunk_tokens = 4, .heads = 1}};
    options.threads = 0;
    options.batch_bytes = 2 * kPlacedBlock;
    options.pin_piece_bytes = 1 << 20;
    options.device = device_.get();
    worker_ = std::make_unique<WorkerRole>(options, clock_);
    worker_->Connect(std::make_unique<PoolStore>(facts_));
    ASSERT_TRUE(worker_->Register(Layers()));
  }
  // Two layers, one behind the other in a block.
  std::vector<LayerMemory> Layers() const {
    std::vector<LayerMemory> layers;
    for (std::size_t layer = 0; layer < 2; ++layer) {
      layers.push_back(
          {.name = std::to_string(layer),
           .base = reinterpret_cast<std::uintptr_t>(memory_.data()) + kFar +  // NOLINT
                   layer * kPlacedBlock / 2,
           .element_bytes = kPlacedBlock / 2,
           .axes = {
               {.kind = AxisKind::kBlock, .count = kInPlaceBlocks, .stride_bytes = kPlacedBlock}}});
    }
    return layers;
  }
  void PinAll() {
    for (int i = 0; i < 40; ++i) (void)worker_->PinOne();
    EXPECT_EQ(worker_->PinOne(), kMemory);
  }
  void Hold(DeviceWay way, bool hold) { device_->fake->Hold(way, hold); }
  void Move() {
    while (worker_->RunOne()) {
    }
  }
  // Chunk i of `count` is block 1 + i, full of the letter.
  void Save(std::uint32_t count, char letter = 'a') {
    for (std::uint32_t i = 0; i < count; ++i) {
      std::fill_n(memory_.begin() + (1 + i) * kPlacedBlock, kPlacedBlock,
                  static_cast<char>(letter + i));
    }
    SaveOrder order{.job = ++job_, .token = *facts_.session->Capture({})};
    for (std::uint32_t i = 0; i < count; ++i) {
      order.chunks.push_back({.chunk = i, .block = 1 + i, .hash = std::string(1, letter + i)});
    }
    Plan plan;
    plan.saves.push_back(std::move(order));
    worker_->Begin(std::move(plan), 7);
    worker_->FinishStep({}, 7);
    Move();
  }
  void Load(std::uint32_t count, BlockId first, bool sync = false, char letter = 'a') {
    LoadOrder order{.job = ++job_, .request = "r", .sync = sync};
    for (std::uint32_t i = 0; i < count; ++i) {
      order.chunks.push_back({.chunk = i, .block = first + i, .hash = std::string(1, letter + i)});
    }
    Plan plan;
    plan.loads.push_back(std::move(order));
    worker_->Begin(std::move(plan), 7);
    Move();
  }
  bool Has(BlockId block, char letter) const {
    const auto at = memory_.begin() + block * kPlacedBlock;
    return std::all_of(at, at + kPlacedBlock, [=](char each) { return each == letter; });
  }
  // What Save has stored, in so many blocks from `first` on.
  void ExpectLetters(std::uint32_t count, BlockId first) const {
    for (std::uint32_t i = 0; i < count; ++i) {
      EXPECT_TRUE(Has(first + i, static_cast<char>('a' + i))) << "block " << first + i;
    }
  }
  Counters Told() {
    counters_.Add(worker_->TakeReport().counters);
    return counters_;
  }
  // What is now, and not since the start.
  std::uint64_t Held() { return worker_->TakeReport().counters.device_in_place_bytes; }
  // Puts twice what the pool has room for; what is not protected gives way.
  void Press() {
    const std::string value(kPressure, 'P');
    for (int i = 0; i < 2 * static_cast<int>(kMemory / kPressure); ++i) {
      const std::string key = "pressure " + std::to_string(i);
      const ConstBuffer piece{.data = value.data(), .size = value.size()};
      const PutItem item{.key = key, .value = {&piece, 1}};
      ItemResult result;
      EXPECT_TRUE(facts_.session->Put({&item, 1}, {&result, 1}));
    }
  }
  std::size_t Stored() { return facts_.session->List("", {})->size(); }

  const Clock& clock_ = SystemClock::Instance();
  std::vector<char> memory_ = std::vector<char>(kInPlaceBlocks * kPlacedBlock);
  std::unique_ptr<Pool> pool_;
  PoolFacts facts_;
  std::unique_ptr<OneDevice> device_;
  std::unique_ptr<WorkerRole> worker_;
  JobId job_ = 0;
  Counters counters_;
};

}  // namespace kvcove::connector
