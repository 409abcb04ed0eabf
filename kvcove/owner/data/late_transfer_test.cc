// SPDX-License-Identifier: Apache-2.0
// An owner's memory under a transport that cannot stop a transfer at once: nothing is lent,
// reserved or unmapped anew while a device may still read or write it. Each test fills all other
// memory with other bytes before the device finishes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>

#include "kvcove/base/size.h"
#include "kvcove/owner/core/pieces.h"
#include "kvcove/owner/data/copier.h"
#include "kvcove/owner/data/data_server.h"
#include "kvcove/transport/fake_late_transport.h"
#include "kvcove/transport/fake_values.h"
#include "tests/becomes.h"
#include "tests/put_in_time.h"

namespace kvcove::owner {
namespace {

constexpr Generation kLateGeneration = 1ULL << 24;
constexpr SlotId kLateSlot = 3;
constexpr std::uint32_t kLateBytes = 256 * kKiB;
constexpr std::size_t kAllValues = 16 * kMiB / kLateBytes;
constexpr std::int64_t kLateNs = 200 * kMillisecond;

class LateDataTest : public testing::Test {
 protected:
  void SetUp() override {
    owner_ = *Owner::Open({.memory_bytes = 16 * kMiB, .huge_pages = HugePages::kOff}, clock_);
    owner_->link_side().Publish({1, 1},
                                {{.slot = kLateSlot, .generation = kLateGeneration, .name = "m"}});
    owner_->link_side().SetApplied(1);
    ASSERT_TRUE(owner_->Start());
    session_ = owner_->memory().AddSession(getpid())->number;
  }
  void Serve() {
    server_ = *DataServer::Open(*owner_, {.transport = &late_}, clock_);
    peer_ = late_.Connect(server_->address(), {}, clock_);
  }
  void Store(std::string_view key) { ASSERT_EQ(StoreFilled(key, 'v'), Code::kOk); }
  Code StoreFilled(std::string_view key, char with) {
    return PutInTime([&] { return StoreOnce(key, with); });
  }
  Code StoreOnce(std::string_view key, char with) {
    const PutItem item{.key = key, .size_bytes = kLateBytes, .value = {}, .after = {}};
    const PutResult places = owner_->data_side().Reserve(session_, token_, {&item, 1}).front();
    if (places.code != Code::kOk) return places.code;
    ForEachPiece(owner_->memory().payload(), places.extents, kLateBytes,
                 [&](std::byte* data, std::uint64_t bytes) { std::memset(data, with, bytes); });
    const FinishItem finish{.reservation = places.reservation, .commit = true};
    return owner_->Finish(session_, {&finish, 1}, clock_.NowNs() + 60 * kSecond).front();
  }
  // Takes all memory that nobody uses, whatever is evicted for it, and fills it with 'x'.
  void TakeAllOther() {
    while (true) {
      const std::string key = "other" + std::to_string(others_.size());
      if (const Code code = StoreFilled(key, 'x'); code != Code::kOk) {
        EXPECT_EQ(code, Code::kNoSpace);
        break;
      }
      const std::string_view name = key;
      others_.push_back(owner_->data_side().Lend(token_, {&name, 1}).front());  // so that it stays
      ASSERT_EQ(others_.back().code, Code::kOk);
    }
    EXPECT_GE(others_.size(), kAllValues - 2) << "the test shows nothing";
  }
  // Nothing has landed in memory that was taken since.
  bool OthersAreWhole() const {
    bool whole = true;
    for (const Loan& loan : others_) {
      ForEachPiece(owner_->memory().payload(), loan.extents, kLateBytes,
                   [&](const std::byte* data, std::uint64_t bytes) {
                     whole = whole && std::all_of(data, data + bytes, [](std::byte byte) {
                               return byte == std::byte{'x'};
                             });
                   });
    }
    return whole;
  }
  // One exchange, again until its deadline finds the device in the middle of the payload.
  bool RunUntilHeld(transport::Exchange call) {
    call.to = peer_.get();
    return Becomes([&] {
      transport::Exchange again = call;
      transport::Run({&again, 1}, clock_.NowNs() + kLateNs, clock_);
      return !again.status && again.status.error().code == Code::kBufferBusy;
    });
  }
  transport::Exchange Get(std::string& into) const {
    transport::Exchange call;
    call.method = wire::Method::kDataGet;
    call.head = wire::Encode(wire::DataGet{.token = token_, .keys = {"k"}, .room = {into.size()}});
    call.on_reply = [&into](std::span<const std::byte>) -> Result<std::vector<transport::Piece>> {
      return std::vector<transport::Piece>{
          {.data = reinterpret_cast<std::byte*>(into.data()), .size = into.size()}};
    };
    return call;
  }

  const Clock& clock_ = SystemClock::Instance();
  const Token token_{.incarnation = {1, 1}, .generation = kLateGeneration, .slot = kLateSlot};
  transport::LateTransport late_;
  std::unique_ptr<Owner> owner_;
  SessionNumber session_ = 0;
  std::unique_ptr<DataServer> server_;
  std::shared_ptr<transport::Peer> peer_;
  std::vector<Loan> others_;
};

TEST_F(LateDataTest, WhatADeviceStillSendsIsNobodyElsesMemory) {
  Serve();
  Store("k");
  late_.HoldAfter(1000);
  std::string into(kLateBytes, '.');
  ASSERT_TRUE(RunUntilHeld(Get(into)));
  TakeAllOther();
  late_.Land();
  EXPECT_EQ(into, std::string(kLateBytes, 'v'));
  const std::size_t before = others_.size();
  TakeAllOther();
  EXPECT_GT(others_.size(), before) << "the loan is given back";
}

TEST_F(LateDataTest, WhereADeviceStillWritesIsNobodyElsesMemory) {
  Serve();
  late_.HoldAfter(1000);
  const std::string value(kLateBytes, 'v');
  transport::Exchange call;
  call.method = wire::Method::kDataPut;
  call.head =
      wire::Encode(wire::DataPut{.token = token_,
                                 .items = {{.key = "k", .after = {}, .size_bytes = kLateBytes}},
                                 .no_checksum = true,
                                 .budget_ms = 1000});
  call.out = {{.data = reinterpret_cast<const std::byte*>(value.data()), .size = value.size()}};
  call.on_reply = [](std::span<const std::byte>) { return std::vector<transport::Piece>(); };
  ASSERT_TRUE(RunUntilHeld(call));
  TakeAllOther();
  late_.Land();
  EXPECT_TRUE(OthersAreWhole());
  const std::size_t before = others_.size();
  TakeAllOther();
  EXPECT_GT(others_.size(), before) << "the reservation is given up";
}

TEST_F(LateDataTest, ADataServerEndsWhenNothingCanLandAnyMore) {
  Serve();
  Store("k");
  late_.HoldAfter(1000);
  std::string into(kLateBytes, '.');
  ASSERT_TRUE(RunUntilHeld(Get(into)));
  std::atomic<bool> ended{false};
  std::thread ending([&] {
    server_.reset();
    ended = true;
  });
  EXPECT_TRUE(Becomes([&] {
    transport::Exchange call = Get(into);
    call.to = peer_.get();
    transport::Run({&call, 1}, clock_.NowNs() + kLateNs, clock_);
    return !call.status && call.status.error().code == Code::kUnavailable;
  })) << "nobody is served any more";
  EXPECT_FALSE(ended);
  late_.Land();
  ending.join();
  EXPECT_EQ(into, std::string(kLateBytes, 'v'));
}

class LateCopierTest : public LateDataTest {
 protected:
  void SetUp() override {
    LateDataTest::SetUp();
    other_ = std::move(*late_.Serve({}, gate_, values_, clock_));
    copier_ = std::make_unique<Copier>(
        *owner_, CopierOptions{.checksum = false, .transport = &late_}, clock_);
    Store("k");
    late_.HoldAfter(1000);
  }
  Code Copy(std::uint32_t budget_ms) {
    const wire::CopyRequest request{.to = other_->address().ToString(),
                                    .move = true,
                                    .items = {{.key = "k",
                                               .slot = kLateSlot,
                                               .generation = kLateGeneration,
                                               .size_bytes = kLateBytes}},
                                    .budget_ms = budget_ms};
    const auto codes = copier_->Copy(request);
    return codes ? codes->front() : codes.error().code;
  }
  bool CopyUntilHeld() {
    return Becomes([&] {
      EXPECT_EQ(Copy(kLateNs / kMillisecond), Code::kTimeout);
      return late_.landing() > 0;
    });
  }

  transport::FakeValues values_{""};
  rpc::Gate gate_{nullptr};
  std::unique_ptr<transport::Server> other_;
  std::unique_ptr<Copier> copier_;
};

TEST_F(LateCopierTest, WhatIsStillReadForACopyIsNobodyElsesMemory) {
  ASSERT_TRUE(CopyUntilHeld());
  TakeAllOther();
  late_.Land();
  EXPECT_EQ(values_.taken, std::string(kLateBytes, 'v')) << "bytes of another object were sent";
  const std::size_t before = others_.size();
  TakeAllOther();
  EXPECT_GT(others_.size(), before) << "the loan is given back";
}

TEST_F(LateCopierTest, ItsEndWaitsForWhatIsStillRead) {
  ASSERT_TRUE(CopyUntilHeld());
  std::atomic<bool> landed{false};
  std::thread device([&] {
    landed = true;
    late_.Land();
  });
  copier_.reset();
  EXPECT_TRUE(landed);
  EXPECT_EQ(values_.taken, std::string(kLateBytes, 'v'));
  device.join();
}

TEST_F(LateCopierTest, ACopyThatArrivesGivesItsMemoryBackAtOnce) {
  late_.Land();  // the device is not held any more
  EXPECT_EQ(Copy(60'000), Code::kOk);
  EXPECT_EQ(values_.taken, std::string(kLateBytes, 'v'));
  TakeAllOther();
  EXPECT_EQ(others_.size(), kAllValues) << "the value was moved, so all memory is free";
}

}  // namespace
}  // namespace kvcove::owner
