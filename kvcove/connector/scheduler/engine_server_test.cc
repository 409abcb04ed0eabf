// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/scheduler/engine_server.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "kvcove/base/log.h"
#include "kvcove/connector/scheduler/counts.h"
#include "kvcove/connector/test_store.h"

namespace kvcove::connector {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLong{30'000};  // of calls whose time is no object

class EngineServerTest : public testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    std::string name = "/tmp/kvcove-engine-XXXXXX";
    directory_ = mkdtemp(name.data());
    path_ = directory_ + "/engine.sock";
    EngineShape shape{.model = "m", .hash_tokens = 4};
    shape.groups = {{.chunk_tokens = 4}};
    runner_ = RunHere(store_, SystemClock::Instance(), milliseconds(1000));
    role_ = std::make_unique<SchedulerRole>(SchedulerOptions{.shape = shape}, store_, *runner_,
                                            SystemClock::Instance());
    role_->StartWith({"a"});
    auto server = EngineServer::Open(path_, *role_);
    ASSERT_TRUE(server) << server.error().ToString();
    server_ = std::move(*server);
    for (const char* hash : {"h0", "h1"}) {
      std::string key;
      AppendKey("g0.h0of1", hash, key);
      pool_.values[key] = "v";
    }
  }
  void TearDown() override {
    server_.reset();
    EXPECT_FALSE(std::filesystem::exists(path_));
    std::filesystem::remove_all(directory_);
    SetLogLevel(LogLevel::kWarn);
  }

  std::string directory_, path_;
  TestPool pool_;
  TestStore store_{pool_};
  std::unique_ptr<LookupRunner> runner_;
  std::unique_ptr<SchedulerRole> role_;
  std::unique_ptr<EngineServer> server_;
};

TEST_F(EngineServerTest, AnswersWhatItIsAsked) {
  EngineClient client(path_);
  EXPECT_EQ(*client.Lookup({"h0", "h1", "h2"}, "", kLong), 8U);
  EXPECT_TRUE(client.Reset(kLong));
  EXPECT_EQ(*client.Lookup({"h0", "h1", "h2"}, "", kLong), 0U);
  EXPECT_NE(client.Counters(kLong)->find("resets_proven 1"), std::string::npos);
  const std::string counters = *client.Counters(kLong);
  for (const Count& count : CountsOf({})) {
    EXPECT_NE(counters.find("\n" + count.name + " "), std::string::npos) << count.name;
    EXPECT_TRUE(count.help.ends_with(".")) << count.name;
  }
  EXPECT_TRUE(client.Weights(WeightsNews::kChanging, "", kLong));
  const auto closed = client.Lookup({"h0"}, "", kLong);
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.error().code, Code::kClosed);
}

TEST_F(EngineServerTest, AResetThatIsNotProvenIsNoSuccess) {
  pool_.resets = Code::kNotProven;
  const Status status = EngineClient(path_).Reset(kLong);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kNotProven);
}

// A look-up that is not answered neither holds up a reset, nor its caller beyond its deadline.
TEST_F(EngineServerTest, AResetDoesNotWaitForLookups) {
  pool_.slow = true;
  // A machine that stands still for as long as the look-ups wait cannot tell; it tries again.
  bool first = false;
  for (int attempt = 0; attempt < 5 && !first; ++attempt) {
    std::atomic<int> ended = 0;
    std::vector<std::thread> others;
    for (int i = 0; i < 4; ++i) {
      others.emplace_back([&] {
        const auto late = EngineClient(path_).Lookup({"h0"}, "", milliseconds(600));
        ++ended;
        ASSERT_FALSE(late);
        EXPECT_EQ(late.error().code, Code::kTimeout);
      });
    }
    std::this_thread::sleep_for(milliseconds(50));
    EXPECT_TRUE(EngineClient(path_).Reset(kLong));
    first = ended == 0;
    for (std::thread& other : others) other.join();
  }
  EXPECT_TRUE(first) << "the reset has waited for a look-up";
  pool_.slow = false;
  // The next answer is the next question's.
  EXPECT_TRUE(EngineClient(path_).Lookup({"h0"}, "", kLong));
}

TEST_F(EngineServerTest, GarbageEndsItsConnectionAndNothingElse) {
  const auto send_raw = [&](const std::string& bytes) {
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, sizeof(address.sun_path) - 1);
    ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    (void)!write(fd, bytes.data(), bytes.size());
    char answer[256];
    while (read(fd, answer, sizeof(answer)) > 0) {
    }
    close(fd);
  };
  send_raw(std::string(200, 'x'));
  auto client = rpc::Client::Connect(path_, SystemClock::Instance().NowNs() + 30 * kSecond);
  ASSERT_TRUE(client);
  const std::string wrong = "no question";
  const auto refused = client->Call(wire::Method::kEngineReset, std::as_bytes(std::span(wrong)),
                                    SystemClock::Instance().NowNs() + 30 * kSecond);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kCorrupt);
  client = rpc::Client::Connect(path_, SystemClock::Instance().NowNs() + 30 * kSecond);
  ASSERT_TRUE(client);
  const std::string question = Encode(EngineQuestion{});
  const auto unknown = client->Call(wire::Method::kPut, std::as_bytes(std::span(question)),
                                    SystemClock::Instance().NowNs() + 30 * kSecond);
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, Code::kInvalid);
  EXPECT_TRUE(EngineClient(path_).Counters(kLong));
}

// vllm-connector.md 11.5: a second engine cannot take the first one's address.
TEST_F(EngineServerTest, AnAddressInUseIsNotTaken) {
  const auto second = EngineServer::Open(path_, *role_);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kUnavailable);
  EXPECT_TRUE(EngineClient(path_).Counters(kLong));
}

TEST_F(EngineServerTest, NobodyThereIsAnErrorAtOnce) {
  const auto nobody = EngineClient(directory_ + "/none").Counters(kLong);
  ASSERT_FALSE(nobody);
  EXPECT_EQ(nobody.error().code, Code::kUnavailable);
}

}  // namespace
}  // namespace kvcove::connector
