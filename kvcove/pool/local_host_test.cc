// SPDX-License-Identifier: Apache-2.0
#include "kvcove/pool/local_host.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "kvcove/base/clock.h"
#include "kvcove/base/random.h"
#include "kvcove/base/size.h"
#include "kvcove/wire/carry_fields.h"

namespace kvcove::pool {
namespace {

class LocalHostTest : public testing::Test {
 protected:
  LocalHostTest() {
    std::string name = testing::TempDir() + "/kvcove-host-XXXXXX";
    directory_ = mkdtemp(name.data());
  }
  ~LocalHostTest() override {
    host_.reset();
    std::filesystem::remove_all(directory_);
  }
  void SetUp() override {
    options_.owner.memory_bytes = 4 * kMiB;
    options_.owner.populate = false;
    OpenHost();
  }
  void OpenHost() {
    host_.reset();
    auto host = LocalHost::Open(options_, SystemClock::Instance());
    ASSERT_TRUE(host) << host.error().ToString();
    host_ = std::move(*host);
  }
  // A session of the host, as a daemon makes one for each process.
  struct Process {
    wire::SessionNumber number = 0;
    std::unique_ptr<wire::HostService> service;
  };
  Process Begin() {
    const wire::SessionNumber number = host_->AddSession(getpid())->number;
    return {.number = number, .service = host_->ServiceFor(number)};
  }
  static std::int64_t Soon() { return SystemClock::Instance().NowNs() + 60 * kSecond; }
  static bool Open(const Process& process, const std::string& engine) {
    const auto registration = process.service->Register({.name = "n", .engine = engine}, Soon());
    EXPECT_TRUE(registration) << registration.error().ToString();
    return registration && registration->open;
  }
  static void Reset(const Process& process, const std::string& engine) {
    const auto reset =
        process.service->Reset({.name = "n", .engine = engine, .id = RandomId()}, Soon());
    ASSERT_TRUE(reset) << reset.error().ToString();
  }

  std::string directory_;
  LocalHostOptions options_;
  std::unique_ptr<LocalHost> host_;
};

// Its processes come and go; what it has reset it still knows while one of them is there.
TEST_F(LocalHostTest, AnEngineEndsWithTheLastSessionThatRegisteredIt) {
  const Process first = Begin();
  const Process second = Begin();
  ASSERT_TRUE(Open(first, "engine"));
  ASSERT_TRUE(Open(second, "engine"));
  ASSERT_NO_FATAL_FAILURE(Reset(first, "engine"));
  ASSERT_TRUE(Open(second, "engine"));
  host_->EndSession(first.number);
  const Process third = Begin();
  EXPECT_TRUE(Open(third, "engine")) << "the second session keeps it";
  host_->EndSession(second.number);
  host_->EndSession(third.number);
  const Process fourth = Begin();
  EXPECT_FALSE(Open(fourth, "engine")) << "nothing says that it has the weights of the reset";
}

TEST_F(LocalHostTest, ASessionThatHasEndedRegistersNothing) {
  const Process process = Begin();
  host_->EndSession(process.number);
  const auto registration = process.service->Register({.name = "n", .engine = "e"}, Soon());
  ASSERT_FALSE(registration);
  EXPECT_EQ(registration.error().code, Code::kUnavailable);
}

// Its sessions are the other process's, which continues. The end of one would let the memory that
// the session is reading be used again.
TEST_F(LocalHostTest, ATakeOverThatFailsEndsNoSession) {
  const Clock& clock = SystemClock::Instance();
  options_.data_directory = directory_ + "/data";
  ASSERT_NO_FATAL_FAILURE(OpenHost());
  const auto grant = host_->AddSession(getpid());
  ASSERT_TRUE(grant);
  segment::Lane& lane = grant->mapped->lanes[0];
  lane.slots[0].place.store(7);
  lane.used.store(1);
  owner::Owner& owner = host_->owner();
  owner.Freeze();
  ASSERT_TRUE(host_->Pause());
  StateWriter of_owner = *StateWriter::Open();
  StateWriter of_policies = *StateWriter::Open();
  StateWriter of_host = *StateWriter::Open();
  ASSERT_TRUE(owner.Save(of_owner, of_policies));
  CarryOne(of_host, *host_);
  const UniqueFd owner_file = *of_owner.Finish();
  const UniqueFd policies_file = *of_policies.Finish();
  const UniqueFd host_file = *of_host.Finish();
  owner::Owner::Files files = *owner.CopyFiles();
  auto next = owner::Owner::Map(owner.options(),
                                {.header = std::move(files.memory.header),
                                 .payload = std::move(files.memory.payload),
                                 .pages = {}},
                                clock);
  ASSERT_TRUE(next) << next.error().ToString();
  StateReader owner_state = *StateReader::Open(owner_file);
  StateReader policies = *StateReader::Open(policies_file);
  StateReader host_state = *StateReader::Open(host_file);
  ASSERT_TRUE((*next)->Restore(owner_state, policies, std::move(files)));
  auto taker = LocalHost::Adopt(options_, std::move(*next), host_state, {}, clock);
  ASSERT_TRUE(taker) << taker.error().ToString();
  const std::int64_t lease_ns = host_->LeaseUntilNs();
  (*taker)->EndSession(grant->number);
  taker->reset();
  EXPECT_EQ(lane.used.load(), 1U);
  EXPECT_EQ(lane.slots[0].place.load(), 7U);
  EXPECT_GE(host_->LeaseUntilNs(), lease_ns);
  owner.Thaw();
  host_->Resume();
  host_->EndSession(grant->number);
}

// Generations and removals are decided here, and the owner knows of them when the call returns.
TEST_F(LocalHostTest, AloneItDecidesForItself) {
  EXPECT_FALSE(host_->in_cluster());
  EXPECT_TRUE(host_->advertised().empty());
  EXPECT_EQ(host_->lineage_fd(), -1);
  const Process process = Begin();
  const auto registration = *process.service->Register({.name = "n", .engine = "e"}, Soon());
  const Token token{.incarnation = registration.incarnation,
                    .generation = registration.generation,
                    .slot = registration.slot};
  const std::byte value[100] = {};
  const wire::PutItem item{.key = "k", .size_bytes = sizeof(value), .value = value};
  ASSERT_EQ((*process.service->Put(token, {&item, 1}, Soon()))[0].code, Code::kOk);
  const std::string_view key = "k";
  EXPECT_EQ((*process.service->Remove(token, {&key, 1}, Soon()))[0], Code::kOk);
  EXPECT_EQ((*process.service->Remove(token, {&key, 1}, Soon()))[0], Code::kMiss);
  ASSERT_NO_FATAL_FAILURE(Reset(process, "e"));
  EXPECT_EQ((*process.service->Put(token, {&item, 1}, Soon()))[0].code, Code::kStale)
      << "the token is older than the reset";
}

}  // namespace
}  // namespace kvcove::pool
