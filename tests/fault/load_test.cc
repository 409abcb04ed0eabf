// SPDX-License-Identifier: Apache-2.0
// One tenant floods master and owners with all that its connections can carry. Another tenant's
// gets go on, owners keep their leases, admin answers and says who is limited; a tenant that waits
// as it is told is served in the end. All of them are processes of their own, but the clients.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "kvcove/http/server.h"
#include "kvcove/rpc/credentials.h"
#include "tests/fault/cluster_fault_fixture.h"
#include "tests/slowness.h"

namespace kvcove {
namespace {

using nlohmann::json;

class LoadTest : public ClusterFaultTest {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    std::string servers;
    const auto add = [&](const std::string& name, const char* scopes, const char* more) {
      tokens_[name] = rpc::NewToken();
      servers += fmt::format("[tenants.{}]\ntokens = [\"{}\"]\nscopes = [{}]\n{}\n", name,
                             tokens_[name], scopes, more);
      WritePrivate(TokenFile(name),
                   fmt::format("tenant = \"{}\"\ntoken = \"{}\"\n", name, tokens_[name]));
    };
    add("flood", R"("read", "write", "reset")",
        "calls_per_second = 300\nbytes_in_flight = \"1MiB\"\nconnections = 64");
    add("quiet", R"("read", "write", "reset")", "");
    add("cluster", R"("owner", "admin")", "");
    WritePrivate(directory() + "/credentials.toml", servers);
    server_words_ = {"--credentials", directory() + "/credentials.toml"};
    access_ = AccessOf("quiet");  // which owners are live is for the scope `read`
    admin_ = LastingAddress();
    StartMaster(admin_.ToString());
    for (std::size_t i = 0; i < 2; ++i) StartOwner(i, i + 1);
    pool_ = OpenAs("quiet");
    session_ = OpenSession(*pool_);
    ASSERT_TRUE(session_->Reset({.timeout = kCallTime}));
  }
  static void WritePrivate(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::trunc) << text;
    chmod(path.c_str(), 0600);
  }
  std::string TokenFile(const std::string& name) const {
    return directory() + "/" + name + ".toml";
  }
  rpc::Access AccessOf(const std::string& name) {
    return rpc::AccessWith({.tenant = name, .token = tokens_[name]});
  }
  std::unique_ptr<Pool> OpenAs(const std::string& name) {
    query_ = "&token=" + TokenFile(name);
    return Open();
  }
  json Status() {
    const auto response = Await([&] {
      return http::Call(
          {.port = admin_.port,
           .target = "/v1/status",
           .authorization =
               "Bearer " + rpc::BearerOf({.tenant = "cluster", .token = tokens_["cluster"]})});
    });
    if (response.status != 200) return {};
    return json::parse(response.body, nullptr, false);
  }
  // Sends frames as fast as the socket takes them, and throws the answers away.
  void Flood(const rpc::Address& to, wire::Method method, const std::string& body) {
    while (!stop_) {
      auto client =
          rpc::Client::Connect(to, AccessOf("flood"), SystemClock::Instance().NowNs() + kSecond);
      if (!client) continue;
      const UniqueFd fd = client->TakeFd();
      std::string frames;
      while (frames.size() < 100'000) {
        const auto head =
            wire::EncodeFrameHeader({.method = static_cast<std::uint16_t>(method),
                                     .body_bytes = static_cast<std::uint32_t>(body.size()),
                                     .call = 1});
        frames.append(reinterpret_cast<const char*>(head.data()), head.size());
        frames += body;
      }
      std::string answers(65536, '\0');
      while (!stop_) {
        // Whole frames only, or what follows is garbage.
        std::size_t sent = 0;
        while (!stop_ && sent < frames.size()) {
          const ssize_t some = send(fd.get(), frames.data() + sent, frames.size() - sent,
                                    MSG_NOSIGNAL | MSG_DONTWAIT);
          if (some > 0) sent += static_cast<std::size_t>(some);
          if (some < 0 && errno != EAGAIN) break;
          if (some < 0) std::this_thread::sleep_for(milliseconds(1));
          while (recv(fd.get(), answers.data(), answers.size(), MSG_DONTWAIT) > 0) {
          }
        }
        if (!stop_ && sent < frames.size()) break;
      }
    }
  }

  std::map<std::string, std::string> tokens_;
  rpc::Address admin_;
  std::atomic<bool> stop_{false};
};

TEST_F(LoadTest, AFloodingTenantCostsNobodyElseTheirTurn) {
  const auto keys = Fill(50);
  ASSERT_EQ(CountOk(Get(*session_, keys)), keys.size());
  rpc::TcpChannel channel(master_address(), access_);
  const auto owners = Await([&] {
    return wire::MasterStub(channel).Owners(SystemClock::Instance().NowNs() + 5 * kSecond);
  });
  std::vector<std::thread> flood;
  for (int i = 0; i < 4; ++i) {
    flood.emplace_back([&] {
      Flood(master_address(), wire::Method::kOwners, wire::Encode(wire::RequesterReport()));
    });
  }
  for (const wire::OwnerStat& owner : owners.owners) {
    const rpc::Address address = Must(rpc::ParseAddress(owner.address, 0));
    // Of a namespace that is not its own: what it asks for does not matter.
    wire::DataGet get{.token = {.slot = 1}, .keys = {}, .room = {}};
    get.keys.push_back("key");
    get.room.push_back(1 << 20);
    flood.emplace_back([this, address, body = wire::Encode(get)] {
      Flood(address, wire::Method::kDataGet, body);
    });
  }
  const Slowness slowness;
  const std::int64_t began_ms = NowMs();
  int rounds = 0;
  std::int64_t longest_admin_ms = 0;
  std::int64_t longest_get_ms = 0;
  bool limited = false;
  while (NowMs() < began_ms + 4000 || ((!limited || rounds <= 10) && NowMs() < began_ms + 60'000)) {
    ++rounds;
    EXPECT_TRUE(slowness.Holds([&] {
      const std::int64_t began = NowMs();
      const auto results = Get(*session_, keys, milliseconds(5000));
      longest_get_ms = std::max(longest_get_ms, NowMs() - began);
      EXPECT_EQ(std::ranges::count(results, MissReason::kLimited, &ItemResult::reason), 0);
      return CountOk(results) == keys.size();
    })) << "another tenant's gets";
    json status;
    EXPECT_TRUE(slowness.Holds([&] {
      const std::int64_t began = NowMs();
      status = Status();
      longest_admin_ms = std::max(longest_admin_ms, NowMs() - began);
      return status.is_object() && status["owners_live"] == 2;
    })) << "an owner lost its lease";
    ASSERT_TRUE(status.is_object()) << "admin does not answer";
    for (const json& tenant : status["limited_tenants"]) {
      EXPECT_EQ(tenant["tenant"], "flood");
      EXPECT_EQ(tenant["calls_per_second_limit"], 300);
      limited = true;
    }
  }
  EXPECT_TRUE(limited) << "the status names the tenant that is limited";
  EXPECT_GT(Status()["refused_calls"]["tenant calls"], 0);
  EXPECT_GT(rounds, 10);
  EXPECT_LT(longest_admin_ms - 4 * slowness.longest_ms(), 2000);
  EXPECT_LT(longest_get_ms - 4 * slowness.longest_ms(), 1000);
  EXPECT_EQ(CountOk(Put(*session_, Keys(20, "after"))), 20U);
  stop_ = true;
  for (std::thread& thread : flood) thread.join();
}

TEST_F(LoadTest, ATenantThatWaitsAsItIsToldIsServed) {
  const auto pool = OpenAs("flood");
  const SessionPtr session = OpenSession(*pool);
  ASSERT_TRUE(session->Reset({.timeout = kCallTime}));
  const auto keys = Keys(20);
  ASSERT_EQ(CountOk(Put(*session, keys)), keys.size());
  const std::string_view key = keys.front();
  // From six threads: calls one after another may be slower than the limit where other tests run
  // beside this one.
  struct Seen {
    int found = 0;
    int limited = 0;
    std::int64_t longest_ms = 0;
  };
  const auto ask = [&](int times, milliseconds timeout) {
    std::array<Seen, 6> seen;
    std::vector<std::thread> callers;
    for (Seen& mine : seen) {
      callers.emplace_back([&] {
        ItemResult result;
        for (int i = 0; i < times; ++i) {
          const std::int64_t began = NowMs();
          EXPECT_TRUE(session->Exists({&key, 1}, {&result, 1}, {.timeout = timeout}));
          mine.longest_ms = std::max(mine.longest_ms, NowMs() - began);
          mine.found += result.ok() ? 1 : 0;
          mine.limited +=
              result.code == Code::kMiss && result.reason == MissReason::kLimited ? 1 : 0;
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
    Seen all;
    for (const Seen& mine : seen) {
      all.found += mine.found;
      all.limited += mine.limited;
      all.longest_ms = std::max(all.longest_ms, mine.longest_ms);
    }
    return all;
  };
  // A second's worth at once, and then as many as the rate allows.
  // A slow machine needs some rounds to meet the limit.
  const Slowness slowness;
  EXPECT_TRUE(Becomes([&] {
    EXPECT_EQ(ask(100, kCallTime).found, 600) << "a busy master is asked again";
    return Status()["refused_calls"]["tenant calls"] > 0;
  })) << "the limit was met";
  // A caller that cannot wait learns at once, and why.
  Seen hasty;
  EXPECT_TRUE(Becomes([&] {
    hasty = ask(70, milliseconds(5));
    return hasty.limited > 0;
  }));
  EXPECT_LT(hasty.longest_ms - 4 * slowness.longest_ms(), 500);
}

TEST_F(LoadTest, ValuesOfATenantAreInFlightWithinItsLimitAndAllArrive) {
  const auto pool = OpenAs("flood");
  const SessionPtr session = OpenSession(*pool);
  ASSERT_TRUE(session->Reset({.timeout = kCallTime}));
  const std::string value(700'000, 'v');
  const ConstBuffer piece{value.data(), value.size()};
  std::atomic<int> got{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      const std::string key = fmt::format("large{}", t);
      const PutItem put{.key = key, .value = {&piece, 1}};
      ItemResult result;
      const auto token = session->Capture({.timeout = kCallTime});
      ASSERT_TRUE(token);
      (void)session->Put(*token, {&put, 1}, {&result, 1}, {.timeout = kCallTime});
      EXPECT_TRUE(result.ok()) << static_cast<int>(result.code);
      for (int i = 0; i < 10; ++i) {
        std::string into(value.size(), '\0');
        const MutableBuffer room{into.data(), into.size()};
        const GetItem get{.key = key, .into = {&room, 1}};
        (void)session->Get({&get, 1}, {&result, 1}, {.timeout = kCallTime});
        got += result.ok() && into == value ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(got, 60);
}

}  // namespace
}  // namespace kvcove
