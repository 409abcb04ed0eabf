// SPDX-License-Identifier: Apache-2.0
#include "kvcove/top/source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <thread>

#include "kvcove/http/server.h"
#include "kvcove/rpc/access.h"
#include "kvcove/top/sampler.h"
#include "tests/becomes.h"
#include "tests/certificates.h"

namespace kvcove::top {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class SourceTest : public testing::Test {
 protected:
  http::Route Route(const std::string& path, const std::string& body, int status = 200) {
    return {.method = "GET", .path = path, .answer = [this, body, status](const http::Request&) {
              ++asked_;
              return http::Response{.status = status, .body = body};
            }};
  }
  // Serves at a port that the kernel chooses, or at the same again.
  void Serve(std::vector<http::Route> routes, std::shared_ptr<rpc::Tls> tls = nullptr) {
    auto listener = rpc::ListenTcp(address_);
    ASSERT_TRUE(listener) << listener.error().ToString();
    auto server = http::Server::Open(
        {.listener = std::move(*listener), .tunnel = rpc::TunnelOf(std::move(tls))},
        std::move(routes));
    ASSERT_TRUE(server) << server.error().ToString();
    server_ = std::move(*server);
  }
  std::unique_ptr<HttpSource> Open(std::vector<std::string> endpoints, bool all_expected = true) {
    auto source = HttpSource::Open({.endpoints = std::move(endpoints),
                                    .all_expected = all_expected,
                                    .timeout_ns = 60 * kSecond});
    EXPECT_TRUE(source) << source.error().ToString();
    return std::move(*source);
  }

  std::atomic<int> asked_{0};
  rpc::Address address_ = rpc::LoopbackAddress(0);
  std::unique_ptr<http::Server> server_;
};

TEST_F(SourceTest, TakesWhatAnEndpointHas) {
  Serve({Route("/v1/status", R"({"role":"leader","term":5})"),
         Route("/v1/tasks", R"({"tasks":[]})")});
  const auto source = Open({address_.ToString()});
  const auto taken = source->Take();
  ASSERT_TRUE(taken) << taken.error().ToString();
  EXPECT_EQ(taken->sample.term, 5U);
  EXPECT_TRUE(taken->sample.tasks);
  EXPECT_FALSE(taken->sample.owners);
  EXPECT_THAT(taken->silent, IsEmpty());
  EXPECT_EQ(asked_, 2);
  ASSERT_TRUE(source->Take());
  EXPECT_EQ(asked_, 4) << "over the same connection";
}

TEST_F(SourceTest, AServerThatIsStartedAgainIsFoundAgain) {
  Serve({Route("/v1/status", R"({"role":"leader","term":5})")});
  const auto source = Open({address_.ToString()});
  ASSERT_TRUE(source->Take());
  server_.reset();
  const auto away = source->Take();
  ASSERT_FALSE(away);
  EXPECT_EQ(away.error().code, Code::kUnavailable);
  EXPECT_THAT(away.error().detail, HasSubstr(address_.ToString()));
  // A path that it did not have before is asked for again.
  Serve({Route("/v1/status", R"({"role":"leader","term":6})"),
         Route("/v1/tasks", R"({"tasks":[]})")});
  const auto back = source->Take();
  ASSERT_TRUE(back) << back.error().ToString();
  EXPECT_EQ(back->sample.term, 6U);
  EXPECT_TRUE(back->sample.tasks);
}

TEST_F(SourceTest, AnEndpointThatIsSilentIsNamedWhereItIsExpected) {
  Serve({Route("/v1/status", R"({"role":"leader","term":5})")});
  rpc::Address nobody = rpc::LoopbackAddress(0);
  const auto reserved = rpc::ListenTcp(nobody);
  ASSERT_TRUE(reserved);
  shutdown(reserved->get(), SHUT_RDWR);  // its port is refused, and nobody else gets it
  const auto some = Open({nobody.ToString(), address_.ToString()})->Take();
  ASSERT_TRUE(some) << some.error().ToString();
  ASSERT_EQ(some->silent.size(), 1U);
  EXPECT_THAT(some->silent[0], HasSubstr(nobody.ToString()));
  const auto tried = Open({nobody.ToString(), address_.ToString()}, false)->Take();
  ASSERT_TRUE(tried) << tried.error().ToString();
  EXPECT_THAT(tried->silent, IsEmpty());
  EXPECT_FALSE(Open({nobody.ToString()}, false)->Take());
}

TEST_F(SourceTest, ARefusalSaysWhatTheEndpointSays) {
  Serve({Route("/v1/status", R"({"error":"denied","detail":"show a token"})", 401)});
  const auto denied = Open({address_.ToString()})->Take();
  ASSERT_FALSE(denied);
  EXPECT_EQ(denied.error().code, Code::kDenied);
  EXPECT_THAT(denied.error().detail, HasSubstr("show a token"));
}

TEST_F(SourceTest, AnEndpointWithTlsIsAskedOverTls) {
  std::string directory = testing::TempDir() + "kvcove-top-tls-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  ASSERT_TRUE(MakeCertificates(directory));
  const rpc::TlsFiles files{.authority = directory + "/good-ca.pem",
                            .certificate = directory + "/good.pem",
                            .key = directory + "/good.key"};
  auto tls = rpc::Tls::Open(files);
  ASSERT_TRUE(tls) << tls.error().ToString();
  Serve({Route("/v1/status", R"({"role":"host"})")}, *tls);
  const auto open = [&](const rpc::TlsFiles& with) {
    return HttpSource::Open(
        {.endpoints = {address_.ToString()}, .tls = with, .timeout_ns = kSecond * 60});
  };
  auto source = open(files);
  ASSERT_TRUE(source) << source.error().ToString();
  const auto taken = (*source)->Take();
  ASSERT_TRUE(taken) << taken.error().ToString();
  EXPECT_EQ(taken->sample.role, "host");
  auto in_the_clear = open({});
  ASSERT_TRUE(in_the_clear);
  EXPECT_FALSE((*in_the_clear)->Take());
  auto missing = open({.authority = directory + "/none.pem"});
  EXPECT_FALSE(missing) << "before anything is asked";
  std::filesystem::remove_all(directory);
}

TEST_F(SourceTest, AServerOfAnotherKindIsNotTakenForAnEndpoint) {
  Serve({Route("/", "hello")});
  const auto other = Open({address_.ToString()})->Take();
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().detail, HasSubstr("none of the admin endpoint's paths"));
}

TEST_F(SourceTest, EndpointsThatAreNoneAreRefused) {
  for (const char* text : {"unix:", "host:notaport", "host:99999"}) {
    const auto source = HttpSource::Open({.endpoints = {text}});
    ASSERT_FALSE(source) << text;
    EXPECT_EQ(source.error().code, Code::kInvalid) << text;
  }
  EXPECT_FALSE(HttpSource::Open({.endpoints = {"unix:" + std::string(200, 'x')}}));
  EXPECT_FALSE(HttpSource::Open({}));
}

TEST_F(SourceTest, AUnixSocketIsAnEndpoint) {
  std::string directory = testing::TempDir() + "kvcove-top-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  const std::string path = directory + "/s";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  const UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  std::thread server([&] {
    const UniqueFd peer(accept(listener.get(), nullptr, nullptr));
    std::string bytes(4096, '\0');
    for (std::size_t i = 0; i < std::size(kPaths); ++i) {
      const ssize_t got = recv(peer.get(), bytes.data(), bytes.size(), 0);
      EXPECT_THAT(bytes.substr(0, static_cast<std::size_t>(got)), HasSubstr("Host: localhost"));
      const std::string body = R"({"role":"host"})";
      const std::string answer =
          "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
      send(peer.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
    }
  });
  const auto taken = Open({"unix:" + path})->Take();
  server.join();
  std::filesystem::remove_all(directory);
  ASSERT_TRUE(taken) << taken.error().ToString();
  EXPECT_EQ(taken->sample.role, "host");
}

// Any user may bind any name of the abstract namespace, and would be shown the token.
TEST_F(SourceTest, AnotherUsersSocketIsNotAsked) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become somebody else";
  const std::string name = "kvcove-top-" + std::to_string(getpid());
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  // System calls only: a child of a process with threads may do nothing else.
  const pid_t child = fork();
  if (child == 0) {
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    const bool listens = setresuid(61001, 61001, 61001) == 0 &&
                         bind(fd, reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
                         listen(fd, 8) == 0;
    (void)!write(ready[1], listens ? "y" : "n", 1);
    while (true) pause();
  }
  ASSERT_GT(child, 0);
  char listens = 0;
  EXPECT_EQ(read(ready[0], &listens, 1), 1);
  EXPECT_EQ(listens, 'y');
  const auto taken = Open({"unix:@" + name})->Take();
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code, Code::kDenied) << taken.error().ToString();
}

class FakeSource final : public Source {
 public:
  Result<Taken> Take() override {
    if (++taken_ % 2 == 0) return Fail(Code::kUnavailable, "away");
    return Taken{.sample = {.term = static_cast<std::uint64_t>(taken_)}, .silent = {}};
  }
  int taken() const { return taken_; }

 private:
  std::atomic<int> taken_{0};
};

TEST(SamplerTest, HandsOverTheLatestSampleOrWhyThereIsNone) {
  FakeSource source;
  auto sampler = Sampler::Start(source, kMillisecond);
  ASSERT_TRUE(sampler) << sampler.error().ToString();
  bool sample = false;
  bool error = false;
  ASSERT_TRUE(Becomes([&] {
    if (const auto news = (*sampler)->Take()) {
      (news->taken ? sample : error) = true;
      EXPECT_NE(news->taken.has_value(), news->error == "away");
    }
    return sample && error;
  }));
}

TEST(SamplerTest, AShorterIntervalCountsAtOnce) {
  FakeSource source;
  auto sampler = Sampler::Start(source, 3600 * kSecond);
  ASSERT_TRUE(sampler) << sampler.error().ToString();
  ASSERT_TRUE(Becomes([&] { return source.taken() == 1; }));
  (*sampler)->SetInterval(kMillisecond);
  EXPECT_TRUE(Becomes([&] { return source.taken() > 2; }));
}

TEST(SamplerTest, TheNextSampleWaitsForTheCostOfShowingThisOne) {
  FakeSource source;
  auto sampler = Sampler::Start(source, 3600 * kSecond);
  ASSERT_TRUE(sampler) << sampler.error().ToString();
  ASSERT_TRUE(Becomes([&] { return (*sampler)->Take().has_value(); }));
  (*sampler)->AddCost(3600 * kSecond);
  (*sampler)->SetInterval(kMillisecond);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_EQ(source.taken(), 1);
}

TEST(SamplerTest, SamplesThatCostMuchAreRare) {
  EXPECT_EQ(PauseNs(kSecond, kMillisecond), kSecond);
  EXPECT_EQ(PauseNs(kSecond, 40 * kMillisecond), 4 * kSecond);
}

}  // namespace
}  // namespace kvcove::top
