// SPDX-License-Identifier: Apache-2.0
// A master, two owners and a session on a host without one, for tests of faults.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kvcove/base/log.h"
#include "tests/fault/cluster_processes.h"
#include "tests/random_bytes.h"

namespace kvcove {

class ClusterFaultTest : public testing::Test, protected ClusterProcesses {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    StartMaster();
    for (std::size_t i = 0; i < 2; ++i) StartOwner(i, i + 1);
    pool_ = Open();
    session_ = OpenSession(*pool_);
    // The first start of a master waits for leases of a predecessor that it cannot know of.
    ASSERT_TRUE(session_->Reset({.timeout = kCallTime}));
  }
  void TearDown() override {
    session_.reset();
    pool_.reset();
  }

  static SessionPtr OpenSession(Pool& pool) {
    return Must(pool.OpenSession({.name = "acme/llama", .engine = "e"}));
  }

  static std::string ValueOf(const std::string& key) { return RandomBytes(key, 3000); }
  static std::vector<std::string> Keys(int count, const std::string& prefix = "key") {
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
    if (!token) {
      const auto captured = session.Capture({.timeout = timeout});
      if (!captured) {
        for (ItemResult& result : results) result.code = captured.error().code;
        return results;
      }
      token = *captured;
    }
    (void)session.Put(*token, items, results, {.timeout = timeout});
    return results;
  }
  // A requester does not wait for a master that did not answer a moment ago: it sees within 250 ms
  // that another has taken its place.
  static void WaitServed(Session& session) {
    (void)Await([&] { return session.Capture({.timeout = kCallTime}); });
  }
  // Values that tell one put of a key from another.
  static std::vector<ItemResult> PutFilled(Session& session, const std::vector<std::string>& keys,
                                           char filling, milliseconds timeout = kCallTime) {
    const std::string value(3000, filling);
    const ConstBuffer piece{value.data(), value.size()};
    std::vector<PutItem> items;
    for (const std::string& key : keys) items.push_back({.key = key, .value = {&piece, 1}});
    std::vector<ItemResult> results(keys.size());
    const auto token = session.Capture({.timeout = timeout});
    if (token) (void)session.Put(*token, items, results, {.timeout = timeout});
    return results;
  }
  // What each key's value is filled with, seen from a host without owner; '-': a miss.
  std::vector<char> Filling(const std::vector<std::string>& keys,
                            milliseconds timeout = kCallTime) {
    std::vector<char> fillings;
    for (const std::string& key : keys) {
      std::string value(3000, '?');
      const MutableBuffer piece{value.data(), value.size()};
      const GetItem item{.key = key, .into = {&piece, 1}};
      ItemResult result;
      (void)session_->Get({&item, 1}, {&result, 1}, {.timeout = timeout});
      fillings.push_back(result.ok() ? value[0] : '-');
      if (result.ok()) {
        EXPECT_EQ(value, std::string(3000, value[0]));
      }
    }
    return fillings;
  }
  static std::size_t CountOk(const std::vector<ItemResult>& results) {
    return static_cast<std::size_t>(std::ranges::count_if(results, &ItemResult::ok));
  }
  // Every byte of every hit is compared.
  static std::vector<ItemResult> Get(Session& session, const std::vector<std::string>& keys,
                                     milliseconds timeout = kCallTime) {
    std::vector<std::string> values(keys.size(), std::string(3000, '\0'));
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
  // Puts `count` keys, in batches so small that each owner gets a fair part of them.
  std::vector<std::string> Fill(int count) {
    std::vector<std::string> all;
    for (int from = 0; from < count; from += 10) {
      const auto keys = Keys(10, fmt::format("k{}", from));
      EXPECT_EQ(CountOk(Put(*session_, keys)), keys.size());
      all.insert(all.end(), keys.begin(), keys.end());
    }
    return all;
  }
  // How long until `count` of `keys` are got; -1: not within a minute.
  std::int64_t MsUntilGot(const std::vector<std::string>& keys, std::size_t count) {
    const std::int64_t started = NowMs();
    while (NowMs() < started + 60'000) {
      if (CountOk(Get(*session_, keys)) >= count) return NowMs() - started;
      std::this_thread::sleep_for(milliseconds(10));
    }
    return -1;
  }

  std::unique_ptr<Pool> pool_;
  SessionPtr session_;
};

}  // namespace kvcove
