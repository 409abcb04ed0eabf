// SPDX-License-Identifier: Apache-2.0
// Bytes as attackers and browsers send them, over loopback.
#include "kvcove/http/server.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>
#include <tuple>

namespace kvcove::http {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::int64_t kLong = 60'000'000'000;
constexpr int kPatienceMs = 20'000;

sockaddr_in Loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

class ServerTest : public testing::Test {
 protected:
  void Start(ServerOptions options = {}) {
    sockaddr_in address = Loopback(0);
    socklen_t length = sizeof(address);
    options.listener = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int fd = options.listener.get();
    ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
    ASSERT_EQ(listen(fd, 128), 0);
    ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
    port_ = ntohs(address.sin_port);
    const auto change = [this](const Request&) {
      ++changes_;
      return Response{.body = "changed\n"};
    };
    auto server = Server::Open(
        std::move(options),
        std::vector<Route>{{.method = "GET",
                            .path = "/healthz",
                            .open = true,
                            .answer = [](const Request&) { return Response{.body = "ok\n"}; }},
                           {.method = "GET",
                            .path = "/metrics",
                            .metrics = true,
                            .answer = [](const Request&) { return Response{.body = "one 1\n"}; }},
                           {.method = "POST", .path = "/change", .answer = change},
                           {.method = "POST",
                            .path = "/long",
                            .body_bytes = 1 << 20,
                            .answer =
                                [](const Request& request) {
                                  return Response{.body = std::to_string(request.body.size())};
                                }},
                           {.method = "GET", .path = "/throws", .answer = Throw},
                           {.method = "POST", .path = "/throws", .waits = true, .answer = Throw},
                           {.method = "DELETE", .path = "/change", .answer = change}});
    ASSERT_TRUE(server) << server.error().ToString();
    server_ = *std::move(server);
  }

  static Response Throw(const Request& /*request*/) { throw std::runtime_error("a fault"); }

  UniqueFd Connect(const std::string& sends = {}) const {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address = Loopback(port_);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    Send(fd, sends);
    return fd;
  }
  static bool Send(const UniqueFd& fd, const std::string& bytes) {
    return send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  // What comes until the server closes the connection.
  static std::string ReadAll(const UniqueFd& fd) {
    std::string bytes;
    char buffer[4096];
    pollfd poller{.fd = fd.get(), .events = POLLIN, .revents = 0};
    while (poll(&poller, 1, kPatienceMs) == 1) {
      const ssize_t got = recv(fd.get(), buffer, sizeof(buffer), 0);
      if (got <= 0) return bytes;
      bytes.append(buffer, static_cast<std::size_t>(got));
    }
    ADD_FAILURE() << "the server keeps the connection";
    return bytes;
  }
  // The answer to one request whose header lines are given; `{}` in them stands for the port.
  std::string Ask(const std::string& method, const std::string& headers,
                  const std::string& path = "/change", const std::string& body = {}) const {
    std::string text = headers;
    for (std::size_t at; (at = text.find("{}")) != std::string::npos;) {
      text.replace(at, 2, std::to_string(port_));
    }
    const UniqueFd fd = Connect(
        fmt::format("{} {} HTTP/1.1\r\nConnection: close\r\n{}\r\n{}", method, path, text, body));
    return ReadAll(fd);
  }
  static int StatusOf(const std::string& answer) {
    return answer.size() > 12 ? std::atoi(answer.c_str() + 9) : 0;
  }

  std::atomic<int> changes_{0};
  std::uint16_t port_ = 0;
  std::unique_ptr<Server> server_;
};

// An engine's pool opens without its admin interface then.
TEST_F(ServerTest, WithoutDescriptorsItIsAnError) {
  UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = static_cast<rlim_t>(listener.get()) + 1,
                    .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto server = Server::Open({.listener = std::move(listener)}, std::vector<Route>{});
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_FALSE(server);
  EXPECT_EQ(server.error().code, Code::kLimit) << server.error().ToString();
}

TEST_F(ServerTest, AnswersForLoopbackAddressesOnly) {
  Start();
  for (const char* host :
       {"127.0.0.1", "127.0.0.1:{}", "127.9.9.9:1", "localhost", "LocalHost:{}", "[::1]:{}"}) {
    EXPECT_EQ(StatusOf(Ask("GET", fmt::format("Host: {}\r\n", host), "/healthz")), 200) << host;
  }
  for (const char* host :
       {"127.evil.com", "127.evil.com:{}", "127.0.0.1.evil.com", "localhost.evil.com", "evil.com",
        "10.0.0.1", "127.1", "[::2]:{}", "[::ffff:10.0.0.1]", "metadata"}) {
    EXPECT_EQ(StatusOf(Ask("GET", fmt::format("Host: {}\r\n", host), "/healthz")), 403) << host;
  }
  for (const char* host : {"", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:x", "127.0.0.1:70000",
                           "[::1", "[127.0.0.1]", "::1", "a@127.0.0.1", "127.0.0.1, 127.0.0.1"}) {
    EXPECT_EQ(StatusOf(Ask("GET", fmt::format("Host: {}\r\n", host), "/healthz")), 400) << host;
  }
}

TEST_F(ServerTest, WhoMayReadMetricsReadsThemOnly) {
  Start({.listener = {},
         .authorize =
             [](const std::string& authorization, bool metrics) {
               return authorization == "Bearer admin" ||
                      (metrics && authorization == "Bearer metrics");
             },
         .tunnel = {}});
  const auto ask = [&](const char* method, const char* path, const char* bearer) {
    return Ask(method,
               fmt::format("Host: localhost\r\nX-Kvcove-Request: 1\r\nAuthorization: Bearer {}\r\n",
                           bearer),
               path);
  };
  EXPECT_EQ(StatusOf(ask("GET", "/metrics", "metrics")), 200);
  EXPECT_EQ(StatusOf(ask("GET", "/metrics", "admin")), 200);
  EXPECT_EQ(StatusOf(ask("POST", "/change", "admin")), 200);
  EXPECT_EQ(StatusOf(ask("POST", "/change", "metrics")), 401);
  EXPECT_EQ(StatusOf(ask("POST", "/metrics", "metrics")), 401);
  EXPECT_EQ(StatusOf(ask("GET", "/elsewhere", "metrics")), 401);
  const std::string refused = ask("GET", "/metrics", "wrong");
  EXPECT_EQ(StatusOf(refused), 401);
  EXPECT_THAT(refused, HasSubstr("or \\\"metrics\\\""));
  EXPECT_EQ(changes_, 1);
}

TEST_F(ServerTest, MonitoringGetsMetricsAndWhatIsOpen) {
  const std::vector<Route> routes = {
      {.method = "GET", .path = "/healthz", .open = true, .answer = {}},
      {.method = "GET", .path = "/metrics", .metrics = true, .answer = {}},
      {.method = "POST", .path = "/change", .answer = {}}};
  std::vector<std::string> paths;
  for (const Route& route : MonitoringRoutes(routes)) paths.push_back(route.path);
  EXPECT_EQ(paths, (std::vector<std::string>{"/healthz", "/metrics"}));
}

// What stands for TLS: who says a word first is let in; others wait until somebody ends that.
class Words {
 public:
  std::function<void()> Accept(UniqueFd fd, std::function<void(UniqueFd)> done) {
    const std::lock_guard lock(mutex_);
    auto ended = std::make_shared<std::atomic<bool>>(false);
    threads_.emplace_back([fd = std::move(fd), done = std::move(done), ended]() mutable {
      pollfd poller{.fd = fd.get(), .events = POLLIN, .revents = 0};
      while (!*ended && poll(&poller, 1, 1) == 0) {
      }
      char word = 0;
      if (!*ended && recv(fd.get(), &word, 1, 0) == 1 && word == '!') done(std::move(fd));
      done = {};
    });
    return [ended] { *ended = true; };
  }
  void Join() {
    const std::lock_guard lock(mutex_);
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  std::mutex mutex_;
  std::vector<std::thread> threads_;
};

TEST_F(ServerTest, BehindATunnelSilentHandshakesKeepNobodyOut) {
  constexpr std::size_t kMost = 4;
  Words words;
  Start({.listener = {},
         .idle_ns = kLong,
         .max_connections = kMost,
         .authorize = {},
         .tunnel = [&](UniqueFd fd, std::int64_t, std::function<void(UniqueFd)> done) {
           return words.Accept(std::move(fd), std::move(done));
         }});
  std::vector<UniqueFd> silent;
  for (std::size_t i = 0; i < 3 * kMost; ++i) silent.push_back(Connect());
  for (int i = 0; i < 8; ++i) {
    const UniqueFd fd =
        Connect("!GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    EXPECT_EQ(StatusOf(ReadAll(fd)), 200);
  }
  EXPECT_EQ(StatusOf(ReadAll(Connect("?GET /healthz HTTP/1.1\r\n"))), 0) << "it is not let in";
  // Handshakes that go on end behind the server, or with it.
  server_.reset();
  silent.clear();
  words.Join();
}

TEST_F(ServerTest, HostStandsOnce) {
  Start();
  EXPECT_EQ(StatusOf(Ask("GET", "", "/healthz")), 400);
  EXPECT_EQ(StatusOf(Ask("GET", "Host: localhost\r\nHost: localhost\r\n", "/healthz")), 400);
  EXPECT_EQ(StatusOf(Ask("GET", "Host: evil.com\r\nHost: localhost\r\n", "/healthz")), 400);
}

TEST_F(ServerTest, PagesOfOtherOriginsAreRefusedForEveryMethod) {
  Start();
  const std::string own = "Host: 127.0.0.1:{}\r\nX-Kvcove-Request: 1\r\n";
  int changes = 0;
  for (const char* method : {"GET", "POST", "DELETE"}) {
    const char* path = std::string_view(method) == "GET" ? "/healthz" : "/change";
    for (const char* header : {"", "Origin: http://127.0.0.1:{}\r\n",
                               "Sec-Fetch-Site: same-origin\r\n", "Sec-Fetch-Site: none\r\n"}) {
      EXPECT_EQ(StatusOf(Ask(method, own + header, path)), 200) << method << header;
      changes += path[1] == 'c' ? 1 : 0;
    }
    for (const char* header :
         {"Origin: http://evil.com\r\n", "Origin: http://127.0.0.1:1\r\n", "Origin: null\r\n",
          "Origin: https://127.0.0.1:{}\r\n", "Origin: http://127.0.0.1:{}.evil.com\r\n",
          "Origin:\r\n", "Origin: http://localhost:{}\r\n",
          "Origin: http://127.0.0.1:{}\r\nOrigin: http://evil.com\r\n",
          "Sec-Fetch-Site: cross-site\r\n", "Sec-Fetch-Site: same-site\r\n"}) {
      EXPECT_EQ(StatusOf(Ask(method, own + header, path)), 403) << method << header;
    }
  }
  EXPECT_EQ(changes_, changes);
  // What a browser asks before it sends a header of its own choice.
  const std::string preflight = Ask("OPTIONS",
                                    "Host: 127.0.0.1:{}\r\nOrigin: http://evil.com\r\n"
                                    "Access-Control-Request-Method: POST\r\n"
                                    "Access-Control-Request-Headers: x-kvcove-request\r\n");
  EXPECT_EQ(StatusOf(preflight), 403);
  EXPECT_EQ(preflight.find("Access-Control-Allow"), std::string::npos);
}

TEST_F(ServerTest, AChangeNeedsAHeaderThatNoForeignPageCanSend) {
  Start();
  const std::string host = "Host: 127.0.0.1:{}\r\n";
  for (const char* method : {"POST", "DELETE"}) {
    for (const char* header :
         {"", "Content-Type: text/plain\r\n", "Content-Type: application/x-www-form-urlencoded\r\n",
          "Content-Type: text/plain; application/json\r\n", "Content-Type: application/jsonp\r\n",
          "Content-Type: text/plain\r\nContent-Type: application/json\r\n",
          "X-Kvcove-Request: 0\r\n"}) {
      const std::string answer = Ask(method, host + header);
      EXPECT_EQ(StatusOf(answer), 403) << method << header;
      EXPECT_THAT(answer, HasSubstr("'Content-Type: application/json' or 'X-Kvcove-Request: 1'"));
    }
  }
  EXPECT_EQ(changes_, 0);
  for (const char* header :
       {"Content-Type: application/json\r\n", "content-type: Application/JSON; charset=utf-8\r\n",
        "x-kvcove-request: 1\r\n"}) {
    EXPECT_EQ(StatusOf(Ask("POST", host + header)), 200) << header;
  }
  EXPECT_EQ(changes_, 3);
  // The project's own client does as it is told.
  const auto called =
      Call({.port = port_, .method = "POST", .target = "/change", .body = {}, .authorization = {}});
  ASSERT_TRUE(called) << called.error().ToString();
  EXPECT_EQ(called->status, 200);
}

TEST_F(ServerTest, OnOtherAddressesNamesAreAnsweredButForeignPagesAreNot) {
  Start({.listener = {}, .loopback = false, .authorize = {}, .tunnel = {}});
  for (const char* host : {"master-0.cluster:{}", "10.0.0.1:{}", "[fd00::1]:{}", "localhost"}) {
    EXPECT_EQ(StatusOf(Ask("GET", fmt::format("Host: {}\r\n", host), "/healthz")), 200) << host;
  }
  EXPECT_EQ(StatusOf(Ask("GET", "Host: a/b\r\n", "/healthz")), 400);
  EXPECT_EQ(StatusOf(Ask("GET", "", "/healthz")), 400);
  EXPECT_EQ(StatusOf(Ask("GET", "Host: master-0\r\nOrigin: http://evil.com\r\n", "/healthz")), 403);
  EXPECT_EQ(StatusOf(Ask("POST", "Host: master-0\r\n")), 403);
  EXPECT_EQ(changes_, 0);
}

TEST_F(ServerTest, RequestsWhoseEndIsInDoubtAreRefused) {
  Start();
  const std::string head = "Host: localhost\r\nX-Kvcove-Request: 1\r\n";
  const std::string hidden = "POST /change HTTP/1.1\r\n" + head + "\r\n";
  const auto length = [](std::size_t bytes) {
    return fmt::format("Content-Length: {}\r\n", bytes);
  };
  const std::string chunked = "Transfer-Encoding: chunked\r\n";
  const std::string end = "0\r\n\r\n";
  for (const auto& [lines, body] : {std::pair(length(end.size()) + chunked, end + hidden),
                                    std::pair(chunked + length(end.size()), end + hidden),
                                    std::pair(length(0) + length(hidden.size()), hidden),
                                    std::pair(length(hidden.size()) + length(0), hidden),
                                    std::pair(length(0) + length(0), hidden),
                                    std::pair(std::string("Content-Length: 0, 0\r\n"), hidden),
                                    std::pair(std::string("Content-Length: +0\r\n"), hidden),
                                    std::pair(std::string("Content-Length : 0\r\n"), hidden)}) {
    const UniqueFd fd = Connect("POST /change HTTP/1.1\r\n" + head + lines + "\r\n" + body);
    EXPECT_THAT(ReadAll(fd), StartsWith("HTTP/1.1 400")) << lines;
    EXPECT_EQ(changes_, 0) << lines;
  }
}

TEST_F(ServerTest, ParametersThatCouldBeReadInTwoWaysAreRefusedWithTheirName) {
  Start();
  const auto post = [this](const std::string& path, const std::string& body) {
    return Ask("POST",
               fmt::format("Host: localhost\r\nContent-Type: application/json\r\n"
                           "Content-Length: {}\r\n",
                           body.size()),
               path, body);
  };
  const auto nested = [](char open, char close) {
    const std::size_t depth = 30'000;
    return "{\"deep\":" + std::string(depth, open) + std::string(depth, close) + "}";
  };
  for (const auto& [path, body, name] :
       {std::tuple("/change", nested('[', ']'), "'deep' is a list"),
        std::tuple("/change", std::string(R"({"deep":{"a":{"a":1}}})"), "'deep' is a list or an"),
        std::tuple("/change", std::string(R"({"a":1,"b":2,"a":3})"), "'a' is given twice in the b"),
        std::tuple("/change?a=1", std::string(R"({"a":1})"), "in the query and in the body"),
        std::tuple("/change?a=1&b=2&a=1", std::string(), "'a' is given twice in the query"),
        std::tuple("/change?a=%4", std::string(), "'%4' in the URL is no escape"),
        std::tuple("/change?a=%zz1", std::string(), "'%zz' in the URL is no escape"),
        std::tuple("/change", std::string(R"({"a":null})"), "'a' is null"),
        std::tuple("/change", std::string("[1]"), "no JSON object"),
        std::tuple("/change", std::string("{\"a\":1}\0{", 9), "has a NUL byte"),
        std::tuple("/change", std::string("{\"a\":\"\xff\"}"), "no JSON object")}) {
    const std::string answer = post(path, body);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 400")) << path << name;
    EXPECT_THAT(answer, HasSubstr(name)) << path;
  }
  EXPECT_EQ(changes_, 0);
  EXPECT_EQ(StatusOf(post("/change?a=%41", R"({"b":1.5,"c":true,"d":"[["})")), 200);
}

// Prometheus' `params` may repeat a name, and a probe's URL is not written for this server.
TEST_F(ServerTest, ProbesAndScrapesMayHaveParametersOfTheirOwn) {
  Start();
  const std::string host = "Host: localhost\r\n";
  for (const char* path :
       {"/metrics?collect[]=a&collect[]=b", "/healthz?a=1&a=2", "/healthz?%zz"}) {
    EXPECT_EQ(StatusOf(Ask("GET", host, path)), 200) << path;
  }
}

TEST_F(ServerTest, AnAnswerToHeadHasNoBody) {
  Start();
  const UniqueFd fd = Connect(
      "HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
      "HEAD /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n"
      "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  const std::string answers = ReadAll(fd);
  EXPECT_THAT(answers, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answers, HasSubstr("\r\n\r\nHTTP/1.1 404"));
  EXPECT_THAT(answers, HasSubstr("\r\n\r\nHTTP/1.1 200"));
  EXPECT_THAT(answers, testing::EndsWith("\r\n\r\nok\n"));
}

TEST_F(ServerTest, APathThatIsNotThereIsAnsweredWithThoseThatAre) {
  Start();
  const std::string host = "Host: localhost\r\n";
  const std::string nothing = Ask("GET", host, "/helthz");
  EXPECT_EQ(StatusOf(nothing), 404);
  EXPECT_THAT(nothing, HasSubstr("did you mean '/healthz'?"));
  EXPECT_THAT(nothing, HasSubstr("\"POST /long\""));
  const std::string other = Ask("GET", host, "/change");
  EXPECT_EQ(StatusOf(other), 405);
  EXPECT_THAT(other, HasSubstr("Allow: POST, DELETE\r\n"));
  EXPECT_THAT(other, HasSubstr("takes POST, DELETE, not GET"));
}

TEST_F(ServerTest, AnExceptionEndsItsRequestAlone) {
  Start();
  const std::string host = "Host: localhost\r\nX-Kvcove-Request: 1\r\n";
  for (const char* method : {"GET", "POST"}) {
    const std::string answer = Ask(method, host, "/throws");
    EXPECT_EQ(StatusOf(answer), 500) << method;
    EXPECT_THAT(answer, testing::Not(HasSubstr("a fault\""))) << "it may name secrets";
  }
  EXPECT_EQ(StatusOf(Ask("GET", host, "/healthz")), 200);
}

TEST_F(ServerTest, AHeadThatIsTooLongIsNamed) {
  Start();
  const std::string answer =
      Ask("GET", "Host: localhost\r\nX-Long: " + std::string(20'000, 'x') + "\r\n", "/healthz");
  EXPECT_EQ(StatusOf(answer), 431);
  EXPECT_THAT(answer, HasSubstr("the head is longer than 16384 bytes"));
}

TEST_F(ServerTest, ALongBodyIsForTheRouteThatWantsItAndForCallersThatMayAsk) {
  Start({.listener = {},
         .authorize = [](const std::string& authorization, bool) { return authorization == "in"; },
         .tunnel = {}});
  const auto post = [&](const std::string& path, std::size_t bytes, const std::string& more) {
    const std::string head = fmt::format(
        "Host: localhost\r\nX-Kvcove-Request: 1\r\nContent-Length: {}\r\n{}", bytes, more);
    return Ask("POST", head, path, std::string(bytes, ' '));
  };
  const std::string in = "Authorization: in\r\n";
  const std::string answer = post("/long", 1 << 20, in);
  EXPECT_EQ(StatusOf(answer), 200);
  EXPECT_THAT(answer, testing::EndsWith("1048576")) << "not parsed, whatever it is";
  EXPECT_EQ(StatusOf(post("/long", 1000, "")), 401);
  const std::string denied = post("/long", 1 << 20, "Authorization: out\r\n");
  EXPECT_EQ(StatusOf(denied), 401) << denied;
  const std::string too_long = post("/long", 4 << 20, in);
  EXPECT_EQ(StatusOf(too_long), 400);
  EXPECT_THAT(too_long, HasSubstr("longer than 1048576 bytes"));
}

// Else each of the connections could keep a whole body in memory.
TEST_F(ServerTest, LongBodiesHaveOneBudget) {
  Start({.listener = {}, .long_bodies_bytes = 3 << 19, .tunnel = {}});
  const std::string head = "POST /long HTTP/1.1\r\nHost: localhost\r\nX-Kvcove-Request: 1\r\n";
  const std::string first_head = head + "Content-Length: 1048576\r\n";
  const UniqueFd first = Connect(first_head + "Expect: 100-continue\r\nConnection: close\r\n\r\n");
  std::string go_on(25, ' ');  // blocks until the server has room for the body
  ASSERT_EQ(recv(first.get(), go_on.data(), go_on.size(), MSG_WAITALL), 25);
  const std::string chunked = head + "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
  const std::string chunk = "8000\r\n" + std::string(0x8000, ' ') + "\r\n";
  for (const std::string& request :
       {head + "Content-Length: 1048576\r\n\r\n", chunked + chunk + chunk + chunk}) {
    const std::string refused = ReadAll(Connect(request));
    EXPECT_EQ(StatusOf(refused), 503) << refused;
    EXPECT_THAT(refused, HasSubstr("Retry-After: 1"));
    EXPECT_THAT(refused, HasSubstr("1048576 bytes of 1572864; try again"));
  }
  EXPECT_EQ(StatusOf(ReadAll(Connect(chunked + chunk + "0\r\n\r\n"))), 200) << "a short one passes";
  const auto post = [&](std::size_t bytes) {
    return StatusOf(Ask("POST",
                        fmt::format("Host: localhost\r\nX-Kvcove-Request: 1\r\n"
                                    "Content-Length: {}\r\n",
                                    bytes),
                        "/long", std::string(bytes, ' ')));
  };
  EXPECT_EQ(post(64 << 10), 200) << "short ones pass";
  EXPECT_EQ(post(512 << 10), 200) << "so does one that there is room for";
  ASSERT_TRUE(Send(first, std::string(1 << 20, ' ')));
  EXPECT_EQ(StatusOf(ReadAll(first)), 200);
  EXPECT_EQ(post(1 << 20), 200) << "the first one has been answered";
}

// Else clients that only say that they will send much keep all others out.
TEST_F(ServerTest, ALongBodyThatIsLateMakesRoomForAnother) {
  Start({.listener = {}, .idle_ns = 60'000'000'000, .long_bodies_bytes = 3 << 19, .tunnel = {}});
  const UniqueFd late = Connect(
      "POST /long HTTP/1.1\r\nHost: localhost\r\nX-Kvcove-Request: 1\r\n"
      "Content-Length: 1048576\r\nExpect: 100-continue\r\n\r\n");
  std::string go_on(25, ' ');
  ASSERT_EQ(recv(late.get(), go_on.data(), go_on.size(), MSG_WAITALL), 25);
  const auto post = [&] {
    return StatusOf(Ask("POST",
                        "Host: localhost\r\nX-Kvcove-Request: 1\r\nContent-Length: 1048576\r\n",
                        "/long", std::string(1 << 20, ' ')));
  };
  EXPECT_EQ(post(), 503);
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  EXPECT_EQ(post(), 200);
  EXPECT_EQ(ReadAll(late), "") << "its connection has ended";
  EXPECT_EQ(post(), 200) << "its room was given back once";
}

TEST_F(ServerTest, AGuessBeforeALongBodyIsAnsweredLateToo) {
  using std::chrono::steady_clock;
  Start({.listener = {},
         .authorize = [](const std::string& authorization, bool) { return authorization == "in"; },
         .tunnel = {}});
  const auto asked = steady_clock::now();
  const UniqueFd fd = Connect(
      "POST /long HTTP/1.1\r\nHost: localhost\r\nX-Kvcove-Request: 1\r\n"
      "Authorization: out\r\nContent-Length: 1000000\r\n\r\n");
  EXPECT_EQ(StatusOf(ReadAll(fd)), 401);
  EXPECT_GE(steady_clock::now() - asked, std::chrono::milliseconds(100));
}

TEST_F(ServerTest, AClientThatAsksWhetherToSendItsBodyIsToldTo) {
  Start();
  const UniqueFd fd = Connect(
      "POST /long HTTP/1.1\r\nHost: localhost\r\nX-Kvcove-Request: 1\r\n"
      "Connection: close\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
  std::string first(25, ' ');  // blocks until the server has asked for the body
  ASSERT_EQ(recv(fd.get(), first.data(), first.size(), MSG_WAITALL), 25);
  EXPECT_EQ(first, "HTTP/1.1 100 Continue\r\n\r\n");
  ASSERT_TRUE(Send(fd, "abc"));
  const std::string answer = ReadAll(fd);
  EXPECT_EQ(StatusOf(answer), 200);
  EXPECT_THAT(answer, testing::EndsWith("\r\n\r\n3"));
}

TEST_F(ServerTest, ABodyBeyondTheLimitIsRefusedAfterItsHead) {
  Start({.listener = {},
         .authorize = [](const std::string& authorization, bool) { return authorization == "in"; },
         .tunnel = {}});
  const std::string in = "Authorization: in\r\n";
  for (const auto& [path, bytes, more, status] :
       {std::tuple("/change", (64 << 10) + 1, in, 400), std::tuple("/long", (1 << 20) + 1, in, 400),
        std::tuple("/long", 1 << 20, std::string(), 401)}) {
    const UniqueFd fd =
        Connect(fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nX-Kvcove-Request: "
                            "1\r\nContent-Length: {}\r\n{}\r\n",
                            path, bytes, more));
    EXPECT_EQ(StatusOf(ReadAll(fd)), status) << path << ' ' << bytes;
  }
  EXPECT_EQ(changes_, 0);
}

TEST_F(ServerTest, AWrongTokenIsAnsweredLateAndKeepsNobodyWaiting) {
  using std::chrono::steady_clock;
  ServerOptions options;
  options.authorize = [](const std::string& given, bool) { return given == "Bearer right"; };
  Start(std::move(options));
  const auto asked = steady_clock::now();
  const UniqueFd wrong = Connect(
      "POST /change HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
      "Authorization: Bearer wrong\r\nX-Kvcove-Request: 1\r\nContent-Length: 0\r\n\r\n");
  EXPECT_EQ(StatusOf(Ask("GET", "Host: localhost\r\n", "/healthz")), 200);
  EXPECT_EQ(StatusOf(ReadAll(wrong)), 401);
  EXPECT_GE(steady_clock::now() - asked, std::chrono::milliseconds(100));
  EXPECT_EQ(changes_, 0);
}

TEST_F(ServerTest, AClientThatDripsIsCutOff) {
  Start({.listener = {}, .idle_ns = 200'000'000, .authorize = {}, .tunnel = {}});
  const std::string body =
      "POST /change HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n";
  for (const std::string& begin : {std::string("GET /healthz HTTP/1.1\r\nA: "), body}) {
    const UniqueFd fd = Connect(begin);
    pollfd poller{.fd = fd.get(), .events = POLLIN, .revents = 0};
    int sent = 0;
    // Each byte comes in time for itself.
    while (poll(&poller, 1, 20) == 0 && sent < 1000) sent += Send(fd, "a") ? 1 : 0;
    EXPECT_LT(sent, 1000) << begin;
    EXPECT_EQ(ReadAll(fd), "");
  }
}

TEST_F(ServerTest, SlowConnectionsKeepNobodyOut) {
  constexpr std::size_t kMost = 8;
  Start(
      {.listener = {}, .idle_ns = kLong, .max_connections = kMost, .authorize = {}, .tunnel = {}});
  const std::string starts[] = {
      "", "GET /hea", "POST /change HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"};
  std::vector<UniqueFd> slow;
  for (std::size_t i = 0; i < kMost; ++i) slow.push_back(Connect(starts[i % std::size(starts)]));
  const UniqueFd kept = Connect("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(Ask("GET", "Host: localhost\r\n", "/healthz"), StartsWith("HTTP/1.1 200")) << i;
  }
  // The oldest made room for two at a time, no more than were needed.
  EXPECT_EQ(ReadAll(slow[0]), "");
  EXPECT_EQ(ReadAll(slow[1]), "");
  pollfd newest{.fd = slow.back().get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&newest, 1, 0), 0);
  char answer[12] = {};
  EXPECT_EQ(recv(kept.get(), answer, sizeof(answer), MSG_WAITALL), 12);
  EXPECT_EQ(std::string(answer, 12), "HTTP/1.1 200");
}

// Returns what follows a header's name; empty: the answer lacks it.
std::string HeaderOf(const std::string& answer, const std::string& name) {
  const std::size_t at = answer.find("\r\n" + name + ": ");
  if (at == std::string::npos) return {};
  const std::size_t begin = at + name.size() + 4;
  return answer.substr(begin, answer.find("\r\n", begin) - begin);
}

class LoginTest : public ServerTest {
 protected:
  void Serve() {
    Start({.listener = {},
           .authorize =
               [this](const std::string& authorization, bool metrics) {
                 return authorization == bearer_ || (metrics && authorization == "Bearer metrics");
               },
           .logins = true,
           .tunnel = {}});
  }
  std::string Post(const std::string& path, const std::string& body,
                   const std::string& cookie = {}) const {
    return Ask("POST",
               fmt::format("Host: 127.0.0.1:{{}}\r\nOrigin: http://127.0.0.1:{{}}\r\n"
                           "Sec-Fetch-Site: same-origin\r\nContent-Type: application/json\r\n"
                           "Content-Length: {}\r\n{}",
                           body.size(), cookie),
               path, body);
  }
  // Returns the line with the cookie as a browser sends it.
  std::string LogIn() const {
    const std::string set = HeaderOf(Post("/v1/login", R"({"bearer": "admin"})"), "Set-Cookie");
    return "Cookie: " + set.substr(0, set.find(';')) + "\r\n";
  }

  std::string bearer_ = "Bearer admin";
};

TEST_F(LoginTest, ACookieStandsForTheBearerUntilTheLogout) {
  Serve();
  const std::string set = HeaderOf(Post("/v1/login", R"({"bearer": "admin"})"), "Set-Cookie");
  EXPECT_THAT(set, StartsWith(fmt::format("kvcove_login_{}=", port_)));
  EXPECT_THAT(set, HasSubstr("; HttpOnly; SameSite=Strict"));
  EXPECT_THAT(set, HasSubstr("Max-Age=28800"));
  const std::string cookie = "Cookie: other=1; " + set.substr(0, set.find(';')) + "\r\n";
  const std::string asks = Ask("GET", "Host: 127.0.0.1:{}\r\n" + cookie, "/v1/login");
  EXPECT_THAT(asks, HasSubstr("\"logged_in\":true"));
  EXPECT_THAT(asks, HasSubstr("\"needed\":true"));
  EXPECT_EQ(StatusOf(Ask("GET", "Host: 127.0.0.1:{}\r\n" + cookie, "/metrics")), 200);
  EXPECT_EQ(StatusOf(Post("/change", "{}", cookie)), 200);
  const std::string out = Post("/v1/logout", "{}", cookie);
  EXPECT_THAT(HeaderOf(out, "Set-Cookie"), HasSubstr("Max-Age=0"));
  EXPECT_EQ(StatusOf(Post("/change", "{}", cookie)), 401);
  EXPECT_THAT(Ask("GET", "Host: 127.0.0.1:{}\r\n" + cookie, "/v1/login"),
              HasSubstr("\"logged_in\":false"));
  EXPECT_EQ(changes_, 1);
}

TEST_F(LoginTest, AWrongBearerGetsNoCookie) {
  Serve();
  for (const char* body : {R"({"bearer": "wrong"})", R"({"bearer": "metrics"})", "{}"}) {
    const std::string answer = Post("/v1/login", body);
    EXPECT_EQ(StatusOf(answer), 401) << body;
    EXPECT_EQ(HeaderOf(answer, "Set-Cookie"), "") << body;
  }
}

TEST_F(LoginTest, GuessesAreAnsweredLateHoweverThePathIsWritten) {
  Serve();
  for (const char* path : {"/v1/login", "/v1/login?a=1", "/v1/%6Cogin"}) {
    const auto began = std::chrono::steady_clock::now();
    EXPECT_EQ(StatusOf(Post(path, R"({"bearer": "wrong"})")), 401) << path;
    EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(100)) << path;
  }
}

// A token that is struck off ends the logins that were made with it.
TEST_F(LoginTest, ALoginIsWorthWhatItsBearerIs) {
  Serve();
  const std::string cookie = LogIn();
  EXPECT_EQ(StatusOf(Post("/change", "{}", cookie)), 200);
  bearer_ = "Bearer new";
  EXPECT_EQ(StatusOf(Post("/change", "{}", cookie)), 401);
}

TEST_F(LoginTest, APageOfAnotherOriginHasNothingOfALogin) {
  Serve();
  const std::string cookie = LogIn();
  for (const char* header :
       {"Origin: http://127.0.0.1:1\r\n", "Origin: null\r\n", "Sec-Fetch-Site: same-site\r\n"}) {
    const std::string lines = "Host: 127.0.0.1:{}\r\n" + cookie + header;
    EXPECT_EQ(StatusOf(Ask("GET", lines, "/metrics")), 403) << header;
    EXPECT_EQ(StatusOf(Ask("POST", lines + "X-Kvcove-Request: 1\r\n")), 403) << header;
    EXPECT_EQ(StatusOf(Ask("GET", lines, "/v1/login")), 403) << header;
  }
  // A form of a page needs no permission of the server, and sends neither of the two headers.
  EXPECT_EQ(StatusOf(Ask("POST", "Host: 127.0.0.1:{}\r\n" + cookie)), 403);
  EXPECT_EQ(changes_, 0);
}

TEST_F(ServerTest, WithoutLoginsACookieMeansNothing) {
  Start({.listener = {},
         .authorize = [](const std::string& authorization, bool) { return !authorization.empty(); },
         .tunnel = {}});
  EXPECT_EQ(StatusOf(Ask("GET", "Host: 127.0.0.1:{}\r\nCookie: kvcove_login_{}=\r\n", "/metrics")),
            401);
  EXPECT_EQ(StatusOf(Ask("GET", "Host: 127.0.0.1:{}\r\n", "/v1/login")), 401);
}

// The page's own requests have the scheme in Origin, by which the browser has asked.
TEST_F(ServerTest, BehindATunnelTheOriginIsHttps) {
  Words words;
  Start({.listener = {},
         .authorize = {},
         .logins = true,
         .tunnel = [&](UniqueFd fd, std::int64_t, std::function<void(UniqueFd)> done) {
           return words.Accept(std::move(fd), std::move(done));
         }});
  const auto ask = [&](const std::string& path, const std::string& scheme) {
    const UniqueFd fd =
        Connect(fmt::format("!POST {} HTTP/1.1\r\nConnection: close\r\nHost: 127.0.0.1:{}\r\n"
                            "X-Kvcove-Request: 1\r\nOrigin: {}://127.0.0.1:{}\r\n\r\n",
                            path, port_, scheme, port_));
    return ReadAll(fd);
  };
  EXPECT_EQ(StatusOf(ask("/change", "https")), 200);
  EXPECT_EQ(StatusOf(ask("/change", "http")), 403);
  EXPECT_THAT(HeaderOf(ask("/v1/login", "https"), "Set-Cookie"), HasSubstr("; Secure"));
  words.Join();
}

TEST_F(ServerTest, TicksWhileItServes) {
  std::atomic<int> ticks = 0;
  Start({.listener = {}, .authorize = {}, .tick = [&] { ++ticks; }, .tunnel = {}});
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (ticks < 1 && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_GE(ticks, 1);
  server_.reset();
}

}  // namespace
}  // namespace kvcove::http
