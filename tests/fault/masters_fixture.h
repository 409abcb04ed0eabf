// SPDX-License-Identifier: Apache-2.0
// Three masters on one etcd, two owners and sessions, all real processes.
#pragma once

#include <fmt/core.h>
#include <gmock/gmock.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kvcove/base/log.h"
#include "kvcove/rpc/leader.h"
#include "tests/etcd.h"
#include "tests/fault/cluster_fault_fixture.h"
#include "tests/retry.h"
#include "tests/slowness.h"

namespace kvcove {

// Within 5 s (docs/ha.md has figures), and twice that where other tests share the cores; beside
// what a busier machine takes (Slowness).
inline constexpr std::int64_t kWorksAgainMs = 10'000;
inline constexpr std::size_t kMasters = 3;

class MastersTest : public ClusterFaultTest {
 protected:
  MastersTest() { owner_memory_ = "64MiB"; }
  // Of --shards.
  virtual std::string Shards() const { return "off"; }

  void SetUp() override {
    if (!EtcdProcesses::Available()) GTEST_SKIP() << "no etcd; scripts/etcd.sh fetches it";
    SetLogLevel(LogLevel::kOff);
    etcd_.emplace();
    etcd_->StartAll();
    std::vector<rpc::Address> list;
    for (std::size_t i = 0; i < kMasters; ++i) {
      list.push_back(LastingAddress());
      admins_[i] = LastingAddress();
    }
    all_ = rpc::Addresses(list);
    for (std::size_t i = 0; i < kMasters; ++i) StartMasterAt(i);
    ASSERT_TRUE(AwaitLeader());
    for (std::size_t i = 0; i < 2; ++i) StartOwnerHere(i);
    pool_ = OpenAll("elsewhere");
    near_pool_ = OpenAll("host0");
    session_ = OpenSession(*pool_);
    near_ = OpenSession(*near_pool_);
    ExpectReset(*session_);
    ExpectReset(*near_);
  }
  void TearDown() override {
    near_.reset();
    near_pool_.reset();
    session_.reset();
    pool_.reset();
    for (pid_t& pid : masters_) {
      if (pid == 0) continue;
      kill(pid, SIGCONT);
      End(std::exchange(pid, 0), SIGKILL);
    }
  }

  void StartMasterAt(std::size_t i) {
    masters_[i] = Spawn({"master", "--listen", all_.list()[i].ToString(), "--store", etcd_->Place(),
                         "--admin", admins_[i].ToString(), "--shards", Shards()},
                        "master");
  }
  void StartOwnerHere(std::size_t i) {
    if (owners_.size() <= i) owners_.resize(i + 1);
    owners_[i] = Spawn({"owner", "--master", all_.ToString(), "--listen", "127.0.0.1:0", "--admin",
                        "off", "--memory", owner_memory_, "--no-populate", "--socket", SocketOf(i)},
                       fmt::format("host{}", i));
    AwaitLive(i + 1);
  }
  void AwaitLive(std::size_t count) {
    rpc::TcpChannel channel(all_, {});
    std::size_t live = 0;
    ASSERT_TRUE(Becomes([&] {
      const auto owners =
          wire::MasterStub(channel).Owners(SystemClock::Instance().NowNs() + kSecond);
      live = owners ? static_cast<std::size_t>(
                          std::ranges::count_if(owners->owners, &wire::OwnerStat::live))
                    : 0;
      return live == count;
    })) << live
        << " owners are live, not " << count;
  }
  std::unique_ptr<Pool> OpenAll(const std::string& host) const {
    return Must(Pool::Open(fmt::format("kvcove://{}?host={}", all_.ToString(), host), kCallTime));
  }
  // What this master alone says to a call.
  Result<wire::OwnersReply> Ask(std::size_t i) const {
    rpc::TcpChannel channel(all_.list()[i], {});
    return wire::MasterStub(channel).Owners(SystemClock::Instance().NowNs() + 300 * kMillisecond);
  }
  std::optional<std::size_t> Leader() const {
    std::optional<std::size_t> leader;
    for (std::size_t i = 0; i < kMasters; ++i) {
      if (masters_[i] == 0 || !Ask(i)) continue;
      // The one that was asked before may have lost its place in between.
      EXPECT_FALSE(leader && Ask(*leader)) << "two masters lead";
      leader = i;
    }
    return leader;
  }
  std::optional<std::size_t> AwaitLeader() const {
    std::optional<std::size_t> leader;
    (void)Becomes([&] { return (leader = Leader()).has_value(); });
    return leader;
  }
  std::vector<Session*> Sessions() { return {session_.get(), near_.get()}; }
  // From both sessions: none of them is ever found.
  void ExpectGone(const std::vector<std::string>& keys) {
    for (Session* session : Sessions()) {
      EXPECT_EQ(CountOk(Get(*session, keys, milliseconds(200))), 0U) << "a stale hit";
    }
  }
  // Until a put, a look-up of everything acknowledged, and a reset have worked. `gone` are never
  // found meanwhile. In milliseconds, less what the machine was slow; what it waits for is in the
  // failure.
  std::int64_t MsUntilAllWorks(const std::vector<std::string>& kept,
                               const std::vector<std::string>& gone, const std::string& round) {
    const Slowness slowness;
    const std::int64_t began = NowMs();
    const std::int64_t until = began + 60'000;
    const auto fresh = Keys(4, "fresh" + round);
    // A put in vain may have stored its value, so the next one finds that the key exists.
    const auto stored = [&] {
      return std::ranges::all_of(
          Put(*session_, fresh, std::nullopt, milliseconds(500)),
          [](const ItemResult& result) { return result.ok() || result.code == Code::kExists; });
    };
    while (NowMs() < until && !stored()) {
      ExpectGone(gone);
      std::this_thread::sleep_for(milliseconds(20));
    }
    const std::int64_t put_ms = NowMs() - began;
    while (NowMs() < until && CountOk(Get(*session_, kept, milliseconds(500))) < kept.size()) {
      ExpectGone(gone);
      std::this_thread::sleep_for(milliseconds(20));
    }
    const std::int64_t found_ms = NowMs() - began;
    EXPECT_EQ(CountOk(Get(*session_, kept)), kept.size()) << "acknowledged values are lost";
    bool proven = false;
    while (NowMs() < until && !proven) {
      proven = !!session_->Reset({.timeout = milliseconds(2500)});
      ExpectGone(gone);
    }
    EXPECT_TRUE(proven);
    ExpectGone(kept);
    ExpectGone(fresh);
    const std::int64_t all_ms = NowMs() - began;
    if (std::getenv("KVCOVE_TEST_TIMES") != nullptr) {
      fmt::print("{}: put {} ms, all found {} ms, reset {} ms\n", round, put_ms, found_ms, all_ms);
    }
    return all_ms - slowness.ms();
  }
  // A leader that had no time on a busy machine is replaced: some may need another attempt.
  static testing::AssertionResult PutAll(Session& session, const std::vector<std::string>& keys) {
    Code failed = Code::kOk;
    const auto put = [&](const std::vector<std::string>& left) { return Put(session, left); };
    if (PutWithRetries(keys, put, &failed)) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "a put failed: " << CodeName(failed);
  }
  static void ExpectReset(Session& session) {
    Status reset;
    ASSERT_TRUE(Becomes([&] {
      reset = session.Reset({.timeout = milliseconds(2500)});
      return reset.has_value();
    })) << reset.error().ToString();
  }
  // One failure of a leader, with everything that must hold around it.
  void Round(int round, int signal) {
    const std::string name = fmt::format("{}", round);
    const auto old = Keys(30, "old" + name);
    const auto kept = Keys(60, "kept" + name);
    ExpectReset(*near_);
    ASSERT_TRUE(PutAll(*session_, old));
    ExpectReset(*session_);
    ExpectReset(*near_);
    ASSERT_TRUE(PutAll(*session_, kept));
    const auto leader = AwaitLeader();
    ASSERT_TRUE(leader);
    if (signal == SIGSTOP) {
      Freeze(masters_[*leader]);
    } else {
      End(std::exchange(masters_[*leader], 0), signal);
    }
    EXPECT_LE(MsUntilAllWorks(kept, old, name), kWorksAgainMs) << "round " << round;
    if (signal == SIGSTOP) {
      kill(masters_[*leader], SIGCONT);
      for (int i = 0; i < 20; ++i) {
        EXPECT_FALSE(Ask(*leader)) << "a thawed leader answers";
        ExpectGone(old);
        ExpectGone(kept);
      }
    } else {
      StartMasterAt(*leader);
    }
  }
  std::string AdminSays(std::size_t i, const std::string& words) const {
    return Output(
        fmt::format("{} admin --admin {} {} 2>&1", KVCOVE_COMMAND, admins_[i].ToString(), words));
  }
  static std::string Output(const std::string& command) {
    FILE* pipe = popen(command.c_str(), "r");
    std::string text(65536, '\0');
    text.resize(fread(text.data(), 1, text.size(), pipe));
    pclose(pipe);
    return text;
  }

  std::optional<EtcdProcesses> etcd_;
  rpc::Addresses all_;
  std::array<rpc::Address, kMasters> admins_;
  std::array<pid_t, kMasters> masters_{};
  std::unique_ptr<Pool> near_pool_;
  SessionPtr near_;
};

}  // namespace kvcove
