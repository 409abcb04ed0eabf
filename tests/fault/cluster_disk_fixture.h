// SPDX-License-Identifier: Apache-2.0
// A master and two owners with disks, as processes. Owner 0 stores what `here_` puts; `far_` is on
// a host without an owner.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "kvcove/base/log.h"
#include "tests/becomes.h"
#include "tests/fault/cluster_processes.h"
#include "tests/random_bytes.h"

namespace kvcove {

inline constexpr std::size_t kValue = 100'000;
inline constexpr int kMany = 200;  // of which 80 fit in an owner's memory

class ClusterDiskTest : public testing::Test, protected ClusterProcesses {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    StartMaster();
    StartDiskOwner(0, 1);
    if (HasFatalFailure() || IsSkipped()) return;
    StartDiskOwner(1, 2);
    here_pool_ = Open("host0");
    far_pool_ = Open();
    here_ = OpenSession(*here_pool_);
    far_ = OpenSession(*far_pool_);
    // The first start of a master waits for leases of a predecessor that it cannot know of.
    ASSERT_TRUE(here_->Reset({.timeout = kCallTime}));
    ASSERT_TRUE(Becomes([&] { return here_->Capture({.timeout = kCallTime}).has_value(); }));
  }
  void TearDown() override {
    here_.reset();
    far_.reset();
    here_pool_.reset();
    far_pool_.reset();
  }

  std::string LogOf(std::size_t i) const { return fmt::format("{}/log{}", directory(), i); }
  std::string Said(std::size_t i) const {
    std::stringstream log;
    log << std::ifstream(LogOf(i)).rdbuf();
    return log.str();
  }
  std::string DiskOf(std::size_t i) const { return fmt::format("{}/disk{}", directory(), i); }
  std::string DataOf(std::size_t i) const { return fmt::format("{}/data{}", directory(), i); }
  std::vector<std::string> DiskOwnerWords(std::size_t i, const std::string& size = "64MiB") const {
    std::vector<std::string> words = {"owner",
                                      "--master",
                                      master_address().ToString(),
                                      "--listen",
                                      "127.0.0.1:0",
                                      "--admin",
                                      "off",
                                      "--memory",
                                      "8MiB",
                                      "--socket",
                                      SocketOf(i),
                                      "--disk",
                                      DiskOf(i) + ":" + size};
    if (data_apart_) words.insert(words.end(), {"--data", DataOf(i) + "/data"});
    return words;
  }
  void StartDiskOwner(std::size_t i, std::size_t live, const std::string& size = "64MiB") {
    std::filesystem::create_directories(DiskOf(i));
    if (owners().size() <= i) owners_.resize(i + 1);
    owner(i) = Spawn(DiskOwnerWords(i, size), fmt::format("host{}", i),
                     {.launcher = {}, .log_file = LogOf(i), .more = {}});
    const bool is_live = Becomes([&] { return Live() == live; });
    if (!is_live && Said(i).find("O_DIRECT") != std::string::npos) GTEST_SKIP() << Said(i);
    ASSERT_TRUE(is_live) << Said(i);
  }
  // Writes beyond so many bytes of a file fail.
  void LimitFiles(std::size_t i, rlim_t bytes) {
    rlimit limit{};
    ASSERT_EQ(prlimit(owner(i), RLIMIT_FSIZE, nullptr, &limit), 0);
    limit.rlim_cur = std::min(bytes, limit.rlim_max);
    ASSERT_EQ(prlimit(owner(i), RLIMIT_FSIZE, &limit, nullptr), 0);
  }
  void KillOwner(std::size_t i, int signal = SIGKILL) { End(std::exchange(owner(i), 0), signal); }
  void RestartMaster() {
    End(std::exchange(master(), 0), SIGKILL);
    StartMaster();
  }
  static SessionPtr OpenSession(Pool& pool) {
    return Must(pool.OpenSession({.name = "acme/llama", .engine = "e", .assume_weights = true}));
  }

  static std::string ValueOf(const std::string& key) { return RandomBytes(key, kValue); }
  static Code Put(Session& session, const std::string& key) {
    const std::string value = ValueOf(key);
    const ConstBuffer piece{.data = value.data(), .size = value.size()};
    const PutItem item{.key = key, .value = {&piece, 1}, .after = {}};
    ItemResult result;
    const auto token = session.Capture({.timeout = kCallTime});
    if (!token) return token.error().code;
    (void)session.Put(*token, {&item, 1}, {&result, 1}, {.timeout = kCallTime});
    return result.code;
  }
  // Of an owner that is alive: waits until it answers.
  PoolStat StatOf(std::size_t i) const {
    const auto soon = [] { return SystemClock::Instance().NowNs() + 5 * kSecond; };
    return Await([&]() -> Result<PoolStat> {
      rpc::TcpChannel channel(master_address(), {});
      KVCOVE_ASSIGN(const auto owners, wire::MasterStub(channel).Owners(soon()));
      for (const wire::OwnerStat& owner : owners.owners) {
        if (owner.host != fmt::format("host{}", i) || !owner.live) continue;
        KVCOVE_ASSIGN(const auto address, rpc::ParseAddress(owner.address, 0));
        rpc::TcpChannel data(address, {});
        return wire::MakeObjectStub(data)->Stat(soon());
      }
      return Fail(Code::kUnavailable, fmt::format("owner {} is not live; its log: {}", i, Said(i)));
    });
  }
  static std::vector<std::string> Keys(int count, const std::string& prefix = "key") {
    std::vector<std::string> keys;
    for (int i = 0; i < count; ++i) keys.push_back(fmt::format("{}-{}", prefix, i));
    return keys;
  }
  // Until less than this was queued at some moment: the figure comes 50 ms late.
  void AwaitQueue(std::uint64_t bytes) {
    bool short_enough = false;
    EXPECT_TRUE(Becomes([&] {
      short_enough = short_enough || StatOf(0).disk_queued_bytes < bytes;
      return short_enough;
    }));
  }
  // On owner 0, whose host stores at home; most of them end up on its disk.
  std::vector<std::string> Fill(int count = kMany, const std::string& prefix = "key") {
    const auto keys = Keys(count, prefix);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const Code code = Put(*here_, keys[i]);
      EXPECT_TRUE(code == Code::kOk || code == Code::kExists) << CodeName(code);
      // The queue is small: without a look at it some would be dropped.
      if (i % 8 == 7) {
        AwaitQueue(1 << 20);
      }
    }
    AwaitQueue(1);
    EXPECT_EQ(StatOf(0).disk_dropped_full, 0U);
    return keys;
  }
  struct Got {
    std::set<std::string> keys;
    std::size_t from_disk = 0;
  };
  static Got Get(Session& session, const std::vector<std::string>& keys) {
    std::vector<std::string> values(keys.size(), std::string(kValue, '\0'));
    std::vector<MutableBuffer> pieces(keys.size());
    std::vector<GetItem> items;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      pieces[i] = {.data = values[i].data(), .size = kValue};
      items.push_back({.key = keys[i], .into = {&pieces[i], 1}});
    }
    std::vector<ItemResult> results(keys.size());
    EXPECT_TRUE(session.Get(items, results, {.timeout = milliseconds(60'000)}));
    Got got;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (!results[i].ok()) continue;
      EXPECT_EQ(values[i], ValueOf(keys[i])) << "wrong bytes of " << keys[i];
      got.keys.insert(keys[i]);
      got.from_disk += results[i].tier == Tier::kDisk ? 1 : 0;
    }
    return got;
  }
  static std::map<std::string, ItemResult> Look(Session& session,
                                                const std::vector<std::string>& keys) {
    const std::vector<std::string_view> views(keys.begin(), keys.end());
    std::vector<ItemResult> results(keys.size());
    EXPECT_TRUE(session.Exists(views, results, {.timeout = kCallTime}));
    std::map<std::string, ItemResult> found;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (results[i].ok()) found[keys[i]] = results[i];
    }
    return found;
  }
  static std::size_t OnDisk(const std::map<std::string, ItemResult>& found) {
    return static_cast<std::size_t>(std::ranges::count_if(
        found, [](const auto& one) { return one.second.tier == Tier::kDisk; }));
  }
  // The most that is found for some time: a moment at which it can be seen is enough.
  std::size_t MostFound(const std::vector<std::string>& keys) {
    std::size_t most = 0;
    Throughout(milliseconds(1000), [&] {
      for (Session* session : {here_.get(), far_.get()}) {
        most = std::max({most, Get(*session, keys).keys.size(), Look(*session, keys).size()});
      }
    });
    return most;
  }
  // Owner 0 is back, and what its disk has is found by others.
  void ExpectBack(const std::vector<std::string>& keys, std::size_t least) {
    EXPECT_TRUE(Becomes([&] { return Look(*far_, keys).size() >= least; }))
        << Look(*far_, keys).size() << " of " << least;
    // Its address is another one: requesters hear of that within 250 ms.
    Got most;
    EXPECT_TRUE(Becomes([&] {
      const Got got = Get(*far_, keys);
      if (got.keys.size() >= most.keys.size()) most.keys = got.keys;
      most.from_disk = std::max(most.from_disk, got.from_disk);
      return most.keys.size() >= least && most.from_disk >= least / 2;
    })) << most.keys.size()
        << " had, " << most.from_disk << " of them from the disk, of " << least;
    EXPECT_GE(Get(*here_, keys).keys.size(), least);
  }

  bool data_apart_ = false;  // --data is not beside the disk
  std::unique_ptr<Pool> here_pool_;
  std::unique_ptr<Pool> far_pool_;
  SessionPtr here_;
  SessionPtr far_;
};

}  // namespace kvcove
