// SPDX-License-Identifier: Apache-2.0
// A master, owners and requesters over loopback TCP, in one process, for tests.
#pragma once

#include <fcntl.h>
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>

#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"
#include "kvcove/base/size.h"
#include "kvcove/master/server/server.h"
#include "kvcove/pool/pool.h"
#include "kvcove/server/daemon.h"
#include "tests/becomes.h"
#include "tests/call_time.h"
#include "tests/must.h"
#include "tests/random_bytes.h"
#include "tests/slowness.h"

namespace kvcove {

using std::chrono::milliseconds;

class ClusterFixture : public testing::Test {
 protected:
  void SetUp() override {
    SetUpDirectory();
    Prepare();
    if (testing::Test::HasFatalFailure()) return;
    StartMaster();
    for (int i = 0; i < 2; ++i) StartOwner();
  }
  void TearDown() override {
    owners_.clear();
    master_.reset();
    std::filesystem::remove_all(directory_);
    slowness_.reset();
  }

  void SetUpDirectory() {
    slowness_.emplace();
    SetLogLevel(LogLevel::kError);
    std::string name = "/tmp/kvcove-cluster-XXXXXX";
    directory_ = mkdtemp(name.data());
  }
  // Before anything starts.
  virtual void Prepare() {}
  // Before owner `number` starts.
  virtual void Configure(std::size_t /*number*/, server::DaemonOptions& /*options*/) {}
  void StartMaster(std::uint16_t port = 0) {
    master_starts_ms_ = NowMs();
    auto master = master::MasterServer::Open({.listen = {.host = "127.0.0.1", .port = port},
                                              .data_directory = directory_ + "/master",
                                              .credentials = credentials_,
                                              .tls = tls_},
                                             SystemClock::Instance());
    ASSERT_TRUE(master) << master.error().ToString();
    master_ = std::move(*master);
  }
  // `credentials`: another file than the master's.
  void StartOwner(std::uint64_t memory = 64 << 20, const std::string& tenant = {},
                  std::shared_ptr<rpc::Credentials> credentials = nullptr) {
    const std::size_t number = next_owner_++;
    server::DaemonOptions options;
    options.socket_path = fmt::format("{}/owner{}/kvcove.sock", directory_, number);
    options.host.owner.memory_bytes = memory;
    options.host.cluster = {.master = master_->address(),
                            .host = fmt::format("host{}", number),
                            .credentials = credentials != nullptr ? credentials : credentials_,
                            .tls = tls_,
                            .tenant = tenant};
    Configure(number, options);
    auto owner = server::Daemon::Open(options, SystemClock::Instance());
    ASSERT_TRUE(owner) << owner.error().ToString();
    owners_.push_back(std::move(*owner));
    WaitLive(owners_.size());
  }
  void WaitLive(std::size_t count) {
    ASSERT_TRUE(Becomes([&] {
      const auto stat = master_->Stat();
      return static_cast<std::size_t>(std::ranges::count_if(stat.owners, &wire::OwnerStat::live)) ==
             count;
    })) << "the owners did not get their leases";
  }
  // A requester on a host without owner, or on that of owner `host`.
  std::unique_ptr<Pool> Open(const std::string& host = "elsewhere", const std::string& more = {}) {
    return Must(
        Pool::Open(fmt::format("kvcove://{}?host={}{}", master_->address().ToString(), host, more),
                   kCallTime));
  }
  static SessionPtr OpenSession(Pool& pool, const std::string& engine = "e1",
                                bool assume_weights = false) {
    return Must(pool.OpenSession(
        {.name = "acme/llama", .engine = engine, .assume_weights = assume_weights}));
  }

  static std::string Value(const std::string& key, std::size_t size) {
    return RandomBytes(key, size);
  }
  // Calls until it is no answer of a machine that stood still: the leases of the owners, which are
  // in this process, have run out for a moment. Elsewhere it calls once.
  template <typename Call>
  static auto Patiently(const Call& call) {
    auto answer = call();
    (void)Becomes(
        [&] {
          if (!answer.second || !slowness_ || slowness_->longest_ms() <= 250) return true;
          answer = call();
          return !answer.second;
        },
        milliseconds(30'000));
    return answer.first;
  }
  static Code Put(Session& session, const std::string& key, std::size_t size = 5000,
                  std::optional<Token> token = std::nullopt) {
    bool late = false;  // a put in vain may have stored the value
    return Patiently([&] {
      Code code = PutOnce(session, key, size, token);
      if (late && code == Code::kExists) code = Code::kOk;
      const bool in_vain = code == Code::kUnavailable || code == Code::kTimeout;
      late = late || in_vain;
      return std::pair(code, in_vain);
    });
  }
  static Code PutOnce(Session& session, const std::string& key, std::size_t size,
                      std::optional<Token> token) {
    const std::string value = Value(key, size);
    const ConstBuffer pieces[] = {{value.data(), size / 2},
                                  {value.data() + size / 2, size - size / 2}};
    const PutItem item{.key = key, .value = pieces};
    ItemResult result;
    if (!token) {
      auto captured = session.Capture({.timeout = kCallTime});
      EXPECT_TRUE(captured || captured.error().code != Code::kTimeout) << "capturing for " << key;
      if (!captured) return captured.error().code;
      token = *captured;
    }
    const Status status = session.Put(*token, {&item, 1}, {&result, 1}, {.timeout = kCallTime});
    if (!status) return status.error().code;
    return result.code;
  }
  static ItemResult Get(Session& session, const std::string& key, std::size_t size = 5000) {
    return Patiently([&] {
      const ItemResult result = GetOnce(session, key, size);
      return std::pair(result, result.reason == MissReason::kLease ||
                                   result.reason == MissReason::kTimeout ||
                                   result.reason == MissReason::kUnavailable);
    });
  }
  static ItemResult GetOnce(Session& session, const std::string& key, std::size_t size) {
    std::string value(size, '\0');
    const MutableBuffer pieces[] = {{value.data(), size / 3},
                                    {value.data() + size / 3, size - size / 3}};
    const GetItem item{.key = key, .into = pieces};
    ItemResult result;
    const Status status = session.Get({&item, 1}, {&result, 1}, {.timeout = kCallTime});
    EXPECT_TRUE(status);
    if (result.ok()) {
      EXPECT_EQ(value, Value(key, size)) << "wrong bytes";
    }
    return result;
  }
  // In one call; how many are there, with the right bytes.
  static std::size_t CountGot(Session& session,
                              const std::vector<std::pair<std::string, std::size_t>>& keys) {
    std::vector<std::string> values;
    std::vector<MutableBuffer> pieces;
    for (const auto& [key, size] : keys) values.emplace_back(size, '\0');
    for (std::string& value : values) pieces.push_back({value.data(), value.size()});
    std::vector<GetItem> items;
    for (const auto& [key, size] : keys) {
      items.push_back({.key = key, .into = {&pieces[items.size()], 1}});
    }
    std::vector<ItemResult> results(items.size());
    EXPECT_TRUE(session.Get(items, results, {.timeout = kCallTime}));
    std::size_t got = 0;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (!results[i].ok()) continue;
      ++got;
      EXPECT_EQ(values[i], Value(keys[i].first, keys[i].second)) << "wrong bytes";
    }
    return got;
  }
  static ItemResult Exists(Session& session, const std::string& key) {
    const std::string_view keys[] = {key};
    ItemResult result;
    EXPECT_TRUE(session.Exists(keys, {&result, 1}, {.timeout = kCallTime}));
    return result;
  }

  inline static std::optional<Slowness> slowness_;
  std::string directory_;
  std::shared_ptr<rpc::Credentials> credentials_;
  std::shared_ptr<rpc::Tls> tls_;
  std::unique_ptr<master::MasterServer> master_;
  std::int64_t master_starts_ms_ = 0;
  std::vector<std::unique_ptr<server::Daemon>> owners_;
  std::size_t next_owner_ = 0;
};

// Owner 0 has a disk. Skips where the file system has no O_DIRECT.
class DiskClusterFixture : public ClusterFixture {
 protected:
  void Prepare() override {
    const std::string path = directory_ + "/direct";
    const UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600));
    if (!fd.valid()) GTEST_SKIP() << directory_ << " is on a file system without O_DIRECT";
  }
  void Configure(std::size_t number, server::DaemonOptions& options) override {
    if (number != 0) return;
    const std::string disk = directory_ + "/disk";
    std::filesystem::create_directories(disk);
    options.host.owner.disks = {{.path = disk, .size_bytes = 64 * kMiB}};
  }
};

}  // namespace kvcove
