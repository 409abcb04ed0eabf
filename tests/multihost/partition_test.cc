// SPDX-License-Identifier: Apache-2.0
// Hosts that are cut off: an owner's, an engine's, the master's. Each host is a network namespace.
// Hosts 0 and 1 have owners, host 2 has engines only, host 3 the master.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <thread>

#include "kvcove/base/clock.h"
#include "kvcove/base/log.h"
#include "kvcove/pool/pool.h"
#include "tests/becomes.h"
#include "tests/call_time.h"
#include "tests/multihost/hosts.h"
#include "tests/must.h"
#include "tests/random_bytes.h"
#include "tests/retry.h"
#include "tests/slowness.h"

extern char** environ;

namespace kvcove::multihost {
namespace {

using std::chrono::milliseconds;

constexpr int kEngines = 2;
constexpr int kMaster = 3;
constexpr std::size_t kBytes = 3000;

class PartitionTest : public testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    auto hosts = Hosts::Make(4);
    if (!hosts) GTEST_SKIP() << hosts.error().detail;
    hosts_.emplace(std::move(*hosts));
    std::string name = "/tmp/kvcove-partition-XXXXXX";
    directory_ = mkdtemp(name.data());
    address_ = Hosts::AddressOf(kMaster) + ":7400";
    Spawn(kMaster, {"master", "--listen", address_, "--data", directory_ + "/master"});
    for (int i = 0; i < 2; ++i) {
      Spawn(i, {"owner", "--listen", fmt::format("{}:7401", Hosts::AddressOf(i)), "--master",
                address_, "--memory", "128MiB", "--no-populate", "--socket", SocketOf(i)});
    }
  }
  void TearDown() override {
    for (const pid_t pid : processes_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    hosts_.reset();
    if (!directory_.empty()) std::filesystem::remove_all(directory_);
  }
  std::string SocketOf(int i) const { return fmt::format("{}/owner{}/kvcove.sock", directory_, i); }
  void Spawn(int host, const std::vector<std::string>& arguments) {
    std::vector<std::string> texts = hosts_->Prefix(host);
    texts.insert(texts.end(), {KVCOVE_COMMAND, "--log", "off"});
    texts.insert(texts.end(), arguments.begin(), arguments.end());
    texts.insert(texts.end(), {"--insecure", "--admin", "off"});
    std::vector<char*> argv;
    for (std::string& text : texts) argv.push_back(text.data());
    argv.push_back(nullptr);
    pid_t pid = 0;
    ASSERT_EQ(posix_spawn(&pid, argv[0], nullptr, nullptr, argv.data(), environ), 0);
    processes_.push_back(pid);
  }

  // One engine on a host; all that it does it does there. It begins when it sees so many owners.
  void OnHost(int host, const std::function<void(Session&)>& body, std::uint64_t owners = 2) {
    std::thread([&] { InThread([&] { Work(host, body, owners); }); }).join();
  }
  void Work(int host, const std::function<void(Session&)>& body, std::uint64_t owners) {
    ASSERT_TRUE(hosts_->Enter(host));
    std::unique_ptr<Pool> pool;
    ASSERT_TRUE(Becomes([&] {
      auto opened = Pool::Open("kvcove://" + address_, milliseconds(1000));
      // With both owners, and on an owner's host with its memory.
      const auto stat = opened ? (*opened)->Stat() : Result<PoolStat>(Fail(Code::kInternal, ""));
      if (stat && stat->payload_bytes >= owners * (128ULL << 20)) pool = std::move(*opened);
      return pool != nullptr;
    }));
    auto session = Must(pool->OpenSession({.name = "acme/llama",
                                           .engine = fmt::format("e{}", host),
                                           .follow_always = true,
                                           .placement = Placement::kLocalFirst}));
    // A first start waits for leases that it cannot know of.
    ASSERT_TRUE(Becomes([&] { return session->Reset({.timeout = kCallTime}).has_value(); }));
    body(*session);
  }

  static std::string ValueOf(const std::string& key) { return RandomBytes(key, kBytes); }
  static std::vector<std::string> Keys(int count, const std::string& prefix) {
    std::vector<std::string> keys;
    for (int i = 0; i < count; ++i) keys.push_back(fmt::format("{}-{}", prefix, i));
    return keys;
  }
  static std::vector<ItemResult> Put(Session& session, const std::vector<std::string>& keys,
                                     std::optional<Token> token = std::nullopt,
                                     milliseconds timeout = kCallTime) {
    std::vector<std::string> values;
    for (const std::string& key : keys) values.push_back(ValueOf(key));
    std::vector<ConstBuffer> pieces;
    for (const std::string& value : values) pieces.push_back({value.data(), value.size()});
    std::vector<PutItem> items;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      items.push_back({.key = keys[i], .value = {&pieces[i], 1}});
    }
    std::vector<ItemResult> results(keys.size());
    if (token) {
      (void)session.Put(*token, items, results, {.timeout = timeout});
    } else {
      (void)session.Put(items, results, {.timeout = timeout});
    }
    return results;
  }
  static std::size_t CountOk(const std::vector<ItemResult>& results) {
    return static_cast<std::size_t>(std::ranges::count_if(results, &ItemResult::ok));
  }
  static std::vector<ItemResult> Get(Session& session, const std::vector<std::string>& keys,
                                     milliseconds timeout = milliseconds(1000)) {
    std::vector<std::string> values(keys.size(), std::string(kBytes, '\0'));
    std::vector<MutableBuffer> pieces;
    for (std::string& value : values) pieces.push_back({value.data(), value.size()});
    std::vector<GetItem> items;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      items.push_back({.key = keys[i], .into = {&pieces[i], 1}});
    }
    std::vector<ItemResult> results(keys.size());
    (void)session.Get(items, results, {.timeout = timeout});
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (results[i].ok()) {
        EXPECT_EQ(values[i], ValueOf(keys[i])) << "wrong bytes of " << keys[i];
      }
    }
    return results;
  }
  // Stores until both owners have some.
  static std::vector<std::string> Fill(Session& session) {
    std::vector<std::string> all;
    for (int batch = 0; batch < 20; ++batch) {
      const auto keys = Keys(20, fmt::format("b{}", batch));
      EXPECT_EQ(CountOk(Put(session, keys)), keys.size());
      all.insert(all.end(), keys.begin(), keys.end());
    }
    return all;
  }
  static std::int64_t MsUntilGot(Session& session, const std::vector<std::string>& keys) {
    const std::int64_t began = NowMs();
    while (NowMs() < began + 60'000) {
      if (CountOk(Get(session, keys)) == keys.size()) return NowMs() - began;
      std::this_thread::sleep_for(milliseconds(10));
    }
    return -1;
  }

  std::optional<Hosts> hosts_;
  std::string directory_;
  std::string address_;
  std::vector<pid_t> processes_;
};

TEST_F(PartitionTest, AnOwnerThatIsCutOffCostsOneDeadlineAndComesBack) {
  OnHost(kEngines, [&](Session& session) {
    const auto keys = Fill(session);
    ASSERT_EQ(CountOk(Get(session, keys, kCallTime)), keys.size());
    hosts_->SetLink(0, false);
    const Slowness slowness;
    std::int64_t began = NowMs();
    const std::size_t left = CountOk(Get(session, keys));
    EXPECT_LE(NowMs() - began - slowness.ms(), 1300);
    EXPECT_GT(left, 0U);
    EXPECT_LT(left, keys.size());
    began = NowMs();
    for (int i = 0; i < 5; ++i) (void)Get(session, keys);
    EXPECT_LE(NowMs() - began - slowness.ms(), 250);
    std::this_thread::sleep_for(milliseconds(1500));
    hosts_->SetLink(0, true);
    const std::int64_t back = MsUntilGot(session, keys);
    EXPECT_GE(back, 0);
    EXPECT_LE(back - slowness.ms(), 3000);
  });
}

TEST_F(PartitionTest, AResetDoesNotWaitForAnOwnerThatIsCutOff) {
  OnHost(kEngines, [&](Session& session) {
    const auto keys = Fill(session);
    hosts_->SetLink(0, false);
    {
      const Slowness slowness;
      const std::int64_t began = NowMs();
      EXPECT_TRUE(session.Reset({.timeout = kCallTime}));
      EXPECT_LE(NowMs() - began - slowness.ms(), 1500 + 300);  // lease + 0.5 s
    }
    EXPECT_EQ(CountOk(Get(session, keys)), 0U);
    hosts_->SetLink(0, true);
    // Not when it is back, either.
    std::size_t stale = 0;
    Throughout(milliseconds(2500), [&] { stale += CountOk(Get(session, keys)); });
    EXPECT_EQ(stale, 0U);
    EXPECT_EQ(CountOk(Put(session, keys)), keys.size());
    EXPECT_GE(MsUntilGot(session, keys), 0);
  });
}

TEST_F(PartitionTest, AnEngineThatIsCutOffWithItsOwnerFindsNothingOldOnceItsLeaseIsOver) {
  OnHost(0, [&](Session& session) {
    const auto keys = Keys(50, "mine");
    EXPECT_EQ(CountOk(Put(session, keys)), keys.size());
    const Slowness slowness;
    // A lease of a second may be a quarter old when the link ends: a get that begins and ends
    // within half of it shows what the lease is worth.
    EXPECT_TRUE(slowness.Holds([&] {
      for (int i = 0; i < 20; ++i) {
        hosts_->SetLink(0, true);
        if (MsUntilGot(session, keys) < 0) return false;
        const std::int64_t began = NowMs();
        hosts_->SetLink(0, false);
        if (CountOk(Get(session, keys)) == keys.size()) return true;
        if (NowMs() <= began + 500) return false;
      }
      return false;
    })) << "within its lease";
    // Meanwhile, elsewhere.
    OnHost(
        kEngines,
        [&](Session& other) { EXPECT_TRUE(other.Reset({.timeout = kCallTime, .all_void = true})); },
        /*owners=*/1);
    EXPECT_EQ(CountOk(Get(session, keys)), 0U) << "the reset is proven";
    // Cut off, an owner takes puts of its own host; nobody else can know of them.
    for (const ItemResult& result :
         Put(session, Keys(3, "alone"), std::nullopt, milliseconds(1000))) {
      EXPECT_FALSE(result.ok() && result.listed);
    }
    hosts_->SetLink(0, true);
    std::size_t stale = 0;
    Throughout(milliseconds(2500), [&] { stale += CountOk(Get(session, keys)); });
    EXPECT_EQ(stale, 0U);
    EXPECT_EQ(CountOk(Put(session, keys)), keys.size());
  });
}

TEST_F(PartitionTest, APutWhoseEngineIsCutOffEndsInTimeAndIsStaleAfterAReset) {
  OnHost(kEngines, [&](Session& session) {
    const Token token = Must(session.Capture({.timeout = kCallTime}));
    const auto keys = Keys(200, "late");
    std::thread cutter([&] {
      std::this_thread::sleep_for(milliseconds(3));
      hosts_->SetLink(kEngines, false);
    });
    // Some of them may be stored before the link is down.
    for (int i = 0; i < 40; ++i) {
      const Slowness slowness;
      const std::int64_t began = NowMs();
      (void)Put(session, Keys(200, fmt::format("late{}", i)), token, milliseconds(1000));
      const std::int64_t took_ms = NowMs() - began - slowness.ms();
      EXPECT_LE(took_ms, 1300);
      if (took_ms > 500) break;
    }
    cutter.join();
    // From another host: all that was begun under the token is void, whatever still comes of it.
    OnHost(1, [&](Session& other) {
      EXPECT_TRUE(other.Reset({.timeout = kCallTime, .all_void = true}));
      hosts_->SetLink(kEngines, true);
      std::size_t stale = 0;
      Throughout(milliseconds(2000), [&] {
        for (int i = 0; i < 40; i += 5) {
          stale += CountOk(Get(other, Keys(200, fmt::format("late{}", i))));
        }
      });
      EXPECT_EQ(stale, 0U);
    });
    std::vector<ItemResult> results;
    EXPECT_TRUE(Becomes([&] {
      results = Put(session, keys, token, milliseconds(1000));
      EXPECT_FALSE(results[0].ok());
      return results[0].code == Code::kStale;
    }));
    for (const ItemResult& result : results) EXPECT_EQ(result.code, Code::kStale);
  });
}

TEST_F(PartitionTest, WithoutItsMasterAllIsAMissUntilItIsBack) {
  OnHost(0, [&](Session& session) {
    const auto keys = Keys(50, "mine");
    EXPECT_EQ(CountOk(Put(session, keys)), keys.size());
    hosts_->SetLink(kMaster, false);
    std::this_thread::sleep_for(milliseconds(1600));
    const Slowness slowness;
    const std::int64_t began = NowMs();
    const auto results = Get(session, keys);
    EXPECT_LE(NowMs() - began - slowness.ms(), 1300);
    EXPECT_EQ(CountOk(results), 0U);
    EXPECT_FALSE(session.Reset({.timeout = milliseconds(500)}));
    hosts_->SetLink(kMaster, true);
    // The reset is repeated by itself: what was stored is void, and the session opens.
    EXPECT_TRUE(Becomes([&] { return !session.closed(); }));
    EXPECT_EQ(CountOk(Get(session, keys)), 0U);
    EXPECT_TRUE(PutWithRetries(keys, [&](const std::vector<std::string>& left) {
      return Put(session, left, std::nullopt, milliseconds(1000));
    }));
    EXPECT_GE(MsUntilGot(session, keys), 0);
  });
}

}  // namespace
}  // namespace kvcove::multihost
