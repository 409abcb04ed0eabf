// SPDX-License-Identifier: Apache-2.0
// A real owner of 300 GiB, of which only what is written takes memory: attaching to it, and values
// that lie beyond what granules of 64 B reach.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "kvcove/base/log.h"
#include "kvcove/base/size.h"
#include "kvcove/pool/pool.h"
#include "kvcove/server/daemon.h"
#include "tests/call_time.h"
#include "tests/must.h"

namespace kvcove {
namespace {

constexpr std::uint64_t kLargeMemory = 300 * kGiB;

// Of this process, in bytes.
std::uint64_t PageTables() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmPTE:")) return std::strtoull(line.c_str() + 6, nullptr, 10) * kKiB;
  }
  return 0;
}

std::uint64_t Faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_minflt);
}

class LargeSegmentTest : public testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kError);
    std::string name = "/tmp/kvcove-large-XXXXXX";
    directory_ = mkdtemp(name.data());
    server::DaemonOptions options;
    options.socket_path = directory_ + "/private/kvcove.sock";
    options.host.owner.memory_bytes = kLargeMemory;
    options.host.owner.available_bytes = kLargeMemory;  // nothing is populated
    options.host.owner.populate = false;
    auto daemon = server::Daemon::Open(options, SystemClock::Instance());
    ASSERT_TRUE(daemon) << daemon.error().ToString();
    daemon_ = std::move(*daemon);
  }
  void TearDown() override {
    daemon_.reset();
    std::filesystem::remove_all(directory_);
  }
  std::unique_ptr<Pool> Attach() {
    return Must(Pool::Open("unix:" + directory_ + "/private/kvcove.sock", kCallTime));
  }
  owner::Owner& owner() { return daemon_->host().owner(); }
  // Objects of 256 MiB that nobody writes.
  void Occupy(const Token& token, int from, int to) {
    const wire::SessionNumber number = owner().data_side().AddRemoteSession();
    for (int i = from; i < to; ++i) {
      const std::string key = fmt::format("large-{}", i);
      const wire::PutItem item{.key = key, .size_bytes = 256 << 20, .value = {}, .after = {}};
      const wire::PutResult result = owner().data_side().Reserve(number, token, {&item, 1}).front();
      ASSERT_EQ(result.code, Code::kOk);
      const wire::FinishItem finish{.reservation = result.reservation, .commit = true};
      ASSERT_EQ(
          owner().Finish(number, {&finish, 1}, SystemClock::Instance().NowNs() + kSecond).front(),
          Code::kOk);
    }
    owner().data_side().EndSession(number);
  }

  std::string directory_;
  std::unique_ptr<server::Daemon> daemon_;
};

// What a process maps costs nothing before it is touched.
TEST_F(LargeSegmentTest, AttachingTouchesNextToNothing) {
  const std::uint64_t tables = PageTables();
  const std::uint64_t faults = Faults();
  const auto begin = std::chrono::steady_clock::now();
  const auto pool = Attach();
  const double ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  const std::uint64_t grown = PageTables() - tables;
  fmt::print(
      "{{\"bench\":\"attach\",\"payload_gib\":300,\"ms\":{:.2f},\"faults\":{},"
      "\"page_tables_kib\":{}}}\n",
      ms, Faults() - faults, grown / kKiB);
  // Of 78 million pages; sanitizers touch some of their own.
  EXPECT_LT(Faults() - faults, 5000U);
  EXPECT_LT(grown, kMiB);
}

TEST_F(LargeSegmentTest, ValuesBeyondWhatSmallGranulesReachArePutAndGot) {
  EXPECT_EQ(owner().memory().header().granule().bytes(), 128U);
  const auto pool = Attach();
  auto session = Must(pool->OpenSession({.name = "m", .engine = "e"}));
  const Token token = Must(session->Capture({.timeout = kCallTime}));
  Occupy(token, 0, 1030);
  std::string value(100'001, '\0');
  for (std::size_t i = 0; i < value.size(); ++i) value[i] = static_cast<char>(i * 7);
  const ConstBuffer piece{value.data(), value.size()};
  const PutItem item{.key = "far", .value = {&piece, 1}};
  ItemResult result;
  ASSERT_TRUE(session->Put(token, {&item, 1}, {&result, 1}, {.timeout = kCallTime}));
  ASSERT_TRUE(result.ok());
  const segment::HeaderView view = owner().memory().header();
  const segment::Found found =
      view.Find(token.slot, {.key = "far", .hash = view.HashKey(token.slot, "far")});
  ASSERT_TRUE(found);
  EXPECT_GT(view.granule().BytesOf(found.first_granule), 256 * kGiB);

  const auto other = Attach();
  auto reader = Must(other->OpenSession({.name = "m", .engine = "e"}));
  std::string read(value.size(), '\0');
  const MutableBuffer into{read.data(), read.size()};
  const GetItem wanted{.key = "far", .into = {&into, 1}};
  ASSERT_TRUE(reader->Get({&wanted, 1}, {&result, 1}, {.timeout = kCallTime}));
  EXPECT_TRUE(result.ok());
  EXPECT_EQ(read, value);
}

// When nothing is free any more, the oldest gives way, and what lies at the end is still right.
TEST_F(LargeSegmentTest, ItFillsToItsEndAndThenEvicts) {
  const auto pool = Attach();
  auto session = Must(pool->OpenSession({.name = "m", .engine = "e"}));
  const Token token = Must(session->Capture({.timeout = kCallTime}));
  Occupy(token, 0, 1200);
  EXPECT_EQ(owner().Stat().free_bytes, 0U);
  EXPECT_EQ(owner().Stat().evictions, 0U);
  Occupy(token, 1200, 1201);
  EXPECT_EQ(owner().Stat().evictions, 1U);
  EXPECT_EQ(owner().Stat().object_bytes, kLargeMemory);
}

}  // namespace
}  // namespace kvcove
