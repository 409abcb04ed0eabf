// SPDX-License-Identifier: Apache-2.0
// `kvcove serve` as a process: killed, stopped, restarted, and talked to by hostile clients.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <thread>

#include "kvcove/base/clock.h"
#include "kvcove/base/log.h"
#include "kvcove/base/random.h"
#include "kvcove/pool/pool.h"
#include "kvcove/rpc/client.h"
#include "kvcove/segment/view.h"
#include "kvcove/wire/host_wire.h"
#include "tests/becomes.h"
#include "tests/call_time.h"
#include "tests/must.h"
#include "tests/slowness.h"

extern char** environ;

namespace kvcove {
namespace {

using std::chrono::milliseconds;

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

// Returns when the process has stopped, in all its threads.
void Freeze(pid_t pid) {
  kill(pid, SIGSTOP);
  int status = 0;
  while (waitpid(pid, &status, WUNTRACED) == pid && !WIFSTOPPED(status)) {
  }
}

// Forks a process that calls `child`, which writes into the pipe what it has to say, and then
// waits to be killed. A child that fails ends, and with it the pipe.
template <typename Child>
pid_t Fork(const Child& child, int (&ready)[2]) {
  EXPECT_EQ(pipe(ready), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    [&]() noexcept { child(ready[1]); }();
    while (true) pause();
  }
  close(ready[1]);
  return pid;
}

class DaemonTest : public testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    std::string name = "/tmp/kvcove-daemon-XXXXXX";
    directory_ = mkdtemp(name.data());
    socket_ = directory_ + "/kvcove.sock";
    Start();
  }
  void TearDown() override {
    Stop(SIGKILL);
    std::filesystem::remove_all(directory_);
  }
  void Start() {
    const char* argv[] = {KVCOVE_COMMAND,  "--log",    "off",  "serve", "--socket",
                          socket_.c_str(), "--memory", "8MiB", nullptr};
    ASSERT_EQ(
        posix_spawn(&daemon_, KVCOVE_COMMAND, nullptr, nullptr, const_cast<char**>(argv), environ),
        0);
    ASSERT_TRUE(Becomes([&] { return Pool::Open(Address()).has_value(); }))
        << "the daemon did not start";
  }
  int Stop(int signal) {
    if (daemon_ == 0) return -1;
    kill(daemon_, signal);
    int status = 0;
    waitpid(daemon_, &status, 0);
    daemon_ = 0;
    return status;
  }
  std::string Address() const { return "unix:" + socket_; }
  std::unique_ptr<Pool> Open() const { return Must(Pool::Open(Address(), kCallTime)); }

  static Code Put(Session& session, const Token& token, const std::string& key,
                  const std::string& value = "value", milliseconds timeout = kCallTime) {
    const ConstBuffer piece{.data = value.data(), .size = value.size()};
    const PutItem item{.key = key, .value = {&piece, 1}, .after = {}};
    ItemResult result;
    (void)session.Put(token, {&item, 1}, {&result, 1}, {.timeout = timeout});
    return result.code;
  }
  static ItemResult Exists(Session& session, const std::string& key) {
    const std::string_view view = key;
    ItemResult result;
    (void)session.Exists({&view, 1}, {&result, 1}, {.timeout = kCallTime});
    return result;
  }
  // Waits for a put that another writer, or a daemon that is away, holds up.
  static bool GetsStored(Session& session, const std::string& key) {
    return Becomes([&] {
      const auto token = session.Capture({});
      return token && Put(session, *token, key) == Code::kOk;
    });
  }

  std::string directory_;
  std::string socket_;
  pid_t daemon_ = 0;
};

TEST_F(DaemonTest, StopsCleanlyOnSigterm) {
  struct stat status{};
  ASSERT_EQ(stat(socket_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
  const int ended = Stop(SIGTERM);
  EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
  EXPECT_FALSE(std::filesystem::exists(socket_));
}

TEST_F(DaemonTest, AKilledDaemonIsMissesAndComesBackByItself) {
  auto pool = Open();
  auto session = Must(pool->OpenSession({.name = "m", .engine = "e"}));
  Token token = Must(session->Capture({.timeout = kCallTime}));
  ASSERT_EQ(Put(*session, token, "k"), Code::kOk);
  const Slowness slowness;
  Stop(SIGKILL);
  const std::int64_t killed_ms = NowMs();
  ASSERT_TRUE(Becomes([&] { return Exists(*session, "k").reason == MissReason::kUnavailable; }));
  EXPECT_LT(NowMs() - killed_ms - slowness.ms(), 500) << "before its lease of a second ends";
  EXPECT_EQ(Put(*session, token, "k2"), Code::kUnavailable);
  EXPECT_EQ(session->Capture({.timeout = kCallTime}).error().code, Code::kUnavailable);
  Start();
  ASSERT_TRUE(Becomes([&] { return session->Capture({}).has_value(); }));
  EXPECT_EQ(Exists(*session, "k").code, Code::kMiss) << "the memory tier is lost";
  EXPECT_EQ(Put(*session, token, "k"), Code::kOk) << "the generation is the same as before";
  EXPECT_EQ(Must(session->Capture({.timeout = kCallTime})).generation, token.generation);
}

TEST_F(DaemonTest, AResetAfterARestartWaitsForTheDeadOnesLease) {
  auto pool = Open();
  auto session = Must(pool->OpenSession({.name = "m", .engine = "e"}));
  const Token token = Must(session->Capture({.timeout = kCallTime}));
  ASSERT_EQ(Put(*session, token, "k"), Code::kOk);
  Stop(SIGKILL);
  const std::int64_t killed = Now();
  Start();
  ASSERT_TRUE(Becomes([&] { return session->Capture({}).has_value(); }));
  ASSERT_TRUE(session->Reset({.timeout = kCallTime}));
  EXPECT_GE(Now() - killed, 900 * kMillisecond)
      << "somebody might still read the dead one's memory";
  EXPECT_EQ(Put(*session, token, "k"), Code::kStale);
}

TEST_F(DaemonTest, AResetThatCannotBeProvenClosesTheSessionUntilItIs) {
  auto pool = Open();
  auto session = Must(pool->OpenSession({.name = "m", .engine = "e"}));
  const Token token = Must(session->Capture({.timeout = kCallTime}));
  ASSERT_EQ(Put(*session, token, "k"), Code::kOk);
  Freeze(daemon_);
  const Status reset = session->Reset({.timeout = milliseconds(200)});
  ASSERT_FALSE(reset);
  EXPECT_EQ(reset.error().code, Code::kNotProven);
  EXPECT_TRUE(session->closed());
  EXPECT_EQ(Exists(*session, "k").reason, MissReason::kClosed);
  EXPECT_EQ(Put(*session, token, "k3"), Code::kClosed);
  kill(daemon_, SIGCONT);
  EXPECT_TRUE(Becomes([&] { return !session->closed(); }));
  EXPECT_EQ(Exists(*session, "k").code, Code::kMiss);
  EXPECT_EQ(Put(*session, token, "k4"), Code::kStale);
}

TEST_F(DaemonTest, AFrozenDaemonsLeaseRunsOut) {
  auto pool = Open();
  auto session = Must(pool->OpenSession({.name = "m"}));
  ASSERT_EQ(Put(*session, Must(session->Capture({.timeout = kCallTime})), "k"), Code::kOk);
  const Token token = Must(session->Capture({.timeout = kCallTime}));
  Freeze(daemon_);
  const Slowness slowness;
  std::int64_t start = Now();
  EXPECT_TRUE(Becomes([&] { return Exists(*session, "k").reason == MissReason::kLease; }));
  EXPECT_LT(Now() - start - slowness.ms() * kMillisecond, 1500 * kMillisecond);
  start = Now();
  EXPECT_EQ(Put(*session, token, "large", std::string(100'000, 'x'), milliseconds(1000)),
            Code::kTimeout);
  EXPECT_LT(Now() - start - slowness.ms() * kMillisecond, 1300 * kMillisecond);
  kill(daemon_, SIGCONT);
  EXPECT_TRUE(Becomes([&] { return Exists(*session, "k").ok(); })) << "it is back";
}

// Else a look-up with little time would be told that there is nothing, and not to ask again.
TEST_F(DaemonTest, ASessionThatHasNoTimeToBindSaysSo) {
  auto pool = Open();
  auto bound = Must(pool->OpenSession({.name = "m"}));
  SessionPtr session;
  const std::string_view key = "k";
  ItemResult result;
  int tries = 0;
  do {  // where the machine stood still, the lease had run out before the look-up
    EXPECT_TRUE(Becomes([&] { return Exists(*bound, "k").reason == MissReason::kNeverPut; }));
    session = Must(pool->OpenSession({.name = "m"}));
    Freeze(daemon_);
    (void)session->Exists({&key, 1}, {&result, 1}, {.timeout = milliseconds(4)});
    kill(daemon_, SIGCONT);
  } while (result.reason == MissReason::kLease && ++tries < 10);
  EXPECT_EQ(result.reason, MissReason::kTimeout);
  EXPECT_TRUE(Becomes([&] { return Exists(*session, "k").reason == MissReason::kNeverPut; }));
}

// A child that reserves and then neither copies nor commits.
class Reserver {
 public:
  explicit Reserver(const std::string& socket) {
    client_.emplace(Must(rpc::Client::Connect(socket, Now() + 15 * kSecond)));
    (void)client_->Call(wire::Method::kHello,
                        Bytes(wire::EncodeHello({.name = "t", .layout = segment::kLayoutVersion})),
                        Now() + 15 * kSecond, &fds_);
    stub_ = wire::MakeHostStub(channel_);
    channel_.client = &*client_;
  }
  Code Reserve(const Token& token, const std::string& key, std::uint32_t size) {
    const wire::PutItem item{.key = key, .size_bytes = size, .value = {}, .after = {}};
    return Must(stub_->Put(token, {&item, 1}, Now() + 15 * kSecond))[0].code;
  }
  Token Capture() {
    const auto registration =
        Must(stub_->Register({.name = "m", .version = {}, .engine = "r"}, Now() + 15 * kSecond));
    return {.incarnation = registration.incarnation,
            .generation = registration.generation,
            .slot = registration.slot};
  }
  std::vector<UniqueFd> fds_;
  std::optional<rpc::Client> client_;

 private:
  struct OneChannel final : wire::Channel {
    Result<std::string> Call(wire::Method method, std::span<const std::byte> body,
                             std::int64_t deadline_ns) override {
      return client->Call(method, body, deadline_ns);
    }
    rpc::Client* client = nullptr;
  };
  OneChannel channel_;
  std::unique_ptr<wire::HostService> stub_;
};

// In a process of its own, until it is killed.
pid_t StartReserver(const std::string& socket, int (&ready)[2]) {
  return Fork(
      [&](int to) {
        Reserver reserver(socket);
        const Code code = reserver.Reserve(reserver.Capture(), "k", 1 << 20);
        (void)!write(to, &code, sizeof(code));
        pause();
      },
      ready);
}

TEST_F(DaemonTest, AWriterKilledBetweenReserveAndCommitFreesKeyAndMemory) {
  const Slowness slowness;
  int ready[2];
  const pid_t child = StartReserver(socket_, ready);
  Code code = Code::kInternal;
  ASSERT_EQ(read(ready[0], &code, sizeof(code)), static_cast<ssize_t>(sizeof(code)));
  ASSERT_EQ(code, Code::kOk);
  auto pool = Open();
  auto session = Must(pool->OpenSession({.name = "m", .follow_always = true}));
  const Code meanwhile = Put(*session, Must(session->Capture({.timeout = kCallTime})), "k");
  // A reservation keeps its key for a second.
  EXPECT_TRUE(meanwhile == Code::kInProgress || slowness.ms() > 300) << CodeName(meanwhile);
  EXPECT_GE(AwaitStat(*pool).reserved_bytes, 1U << 20);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(meanwhile == Code::kOk || GetsStored(*session, "k"));
  EXPECT_TRUE(Becomes([&] { return AwaitStat(*pool).reserved_bytes == 0; }));
}

TEST_F(DaemonTest, AStoppedWriterLosesItsKeyButKeepsItsMemory) {
  int ready[2];
  const pid_t child = StartReserver(socket_, ready);
  Code code = Code::kInternal;
  ASSERT_EQ(read(ready[0], &code, sizeof(code)), static_cast<ssize_t>(sizeof(code)));
  Freeze(child);
  auto pool = Open();
  auto session = Must(pool->OpenSession({.name = "m", .follow_always = true}));
  EXPECT_TRUE(GetsStored(*session, "k"));
  EXPECT_GE(AwaitStat(*pool).reserved_bytes, 1U << 20) << "it may still write there";
  const PoolStat stat = AwaitStat(*pool);
  EXPECT_TRUE(std::any_of(stat.sessions.begin(), stat.sessions.end(), [&](const auto& s) {
    return s.pid == child && s.reserved_bytes >= 1U << 20;
  })) << "shown with its pid";
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(Becomes([&] { return AwaitStat(*pool).reserved_bytes == 0; }));
}

// What a process has borrowed and reserved.
struct Taken {
  Code borrowed = Code::kInternal;
  Code reserved = Code::kInternal;
};

TEST_F(DaemonTest, WhatAKilledProcessHadBorrowedAndReservedComesBackAtOnce) {
  auto pool = Open();
  auto session = Must(pool->OpenSession({.name = "m", .engine = "e", .follow_always = true}));
  const std::string value(300'000, 'v');
  ASSERT_EQ(Put(*session, Must(session->Capture({.timeout = kCallTime})), "k", value), Code::kOk);
  int ready[2];
  const pid_t child = Fork(
      [this](int to) {
        auto own = Open();
        auto mine = Must(own->OpenSession({.name = "m", .engine = "child", .follow_always = true}));
        const std::string_view key = "k";
        const auto loan = Must(mine->Borrow({&key, 1}, {.timeout = kCallTime}));
        const ReserveItem item{.key = "r", .size_bytes = 1 << 20};
        const auto space = Must(mine->Reserve(Must(mine->Capture({.timeout = kCallTime})),
                                              {&item, 1}, {.timeout = kCallTime}));
        const Taken taken{.borrowed = loan.result(0).code, .reserved = space.result(0).code};
        (void)!write(to, &taken, sizeof(taken));
        pause();
      },
      ready);
  Taken taken;
  ASSERT_EQ(read(ready[0], &taken, sizeof(taken)), static_cast<ssize_t>(sizeof(taken)));
  ASSERT_EQ(taken.borrowed, Code::kOk);
  ASSERT_EQ(taken.reserved, Code::kOk);
  const std::string_view key = "k";
  ItemResult removed;
  ASSERT_TRUE(session->Remove({&key, 1}, {&removed, 1}, {.timeout = kCallTime}));
  EXPECT_GE(AwaitStat(*pool).withdrawn_bytes, value.size()) << "it may still be read";
  EXPECT_GE(AwaitStat(*pool).reserved_bytes, 1U << 20);
  const PoolStat stat = AwaitStat(*pool);
  EXPECT_TRUE(std::any_of(stat.sessions.begin(), stat.sessions.end(), [&](const auto& s) {
    return s.pid == child && s.protected_objects == 1;
  })) << "shown with its pid";
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(Becomes([&] {
    const PoolStat now = AwaitStat(*pool);
    return now.withdrawn_bytes == 0 && now.reserved_bytes == 0;
  }));
}

TEST_F(DaemonTest, ALoanAndAReservationOfAKilledDaemonEndAsMisses) {
  auto pool = Open();
  auto session = Must(pool->OpenSession({.name = "m", .engine = "e", .follow_always = true}));
  const std::string value(300'000, 'v');
  ASSERT_EQ(Put(*session, Must(session->Capture({.timeout = kCallTime})), "k", value), Code::kOk);
  const std::string_view key = "k";
  auto loan = Must(session->Borrow({&key, 1}, {.timeout = kCallTime}));
  const ReserveItem item{.key = "r", .size_bytes = value.size()};
  auto space = Must(session->Reserve(Must(session->Capture({.timeout = kCallTime})), {&item, 1},
                                     {.timeout = kCallTime}));
  const std::uint64_t first_number = Must(session->Segments({.timeout = kCallTime}))[0].number;
  Stop(SIGKILL);
  Start();
  ASSERT_TRUE(Becomes([&] {
    return Put(*session, session->Capture({.timeout = kCallTime}).value_or(Token{}), "k", "new") ==
           Code::kOk;
  }));
  std::string bytes;
  for (const ConstBuffer& piece : loan.pieces(0)) {
    bytes.append(static_cast<const char*>(piece.data), piece.size);
  }
  EXPECT_EQ(bytes, value) << "the dead one's memory stays as it was";
  ItemResult result;
  ASSERT_TRUE(loan.Release({&result, 1}));
  EXPECT_EQ(result.code, Code::kMiss);
  for (const MutableBuffer& piece : space.pieces(0)) std::memset(piece.data, 1, piece.size);
  EXPECT_FALSE(space.Commit({&result, 1}));
  EXPECT_EQ(result.code, Code::kUnavailable);
  EXPECT_EQ(Exists(*session, "r").code, Code::kMiss);
  EXPECT_NE(Must(session->Segments({.timeout = kCallTime}))[0].number, first_number)
      << "another mapping";
}

TEST_F(DaemonTest, AClosedSocketIsNoProofOfDeath) {
  auto pool = Open();
  {
    Reserver reserver(socket_);
    ASSERT_EQ(reserver.Reserve(reserver.Capture(), "k", 1 << 20), Code::kOk);
  }  // the socket closes, this process lives on
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_GE(AwaitStat(*pool).reserved_bytes, 1U << 20);
}

TEST_F(DaemonTest, TheHeaderCannotBeWrittenByClients) {
  Reserver client(socket_);
  ASSERT_EQ(client.fds_.size(), 3U);
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, client.fds_[0].get(), 0),
            MAP_FAILED);
  EXPECT_LT(write(client.fds_[0].get(), "x", 1), 0);
  EXPECT_NE(ftruncate(client.fds_[1].get(), 0), 0) << "sealed against shrinking";
}

TEST_F(DaemonTest, GarbageClosesItsConnectionAndNothingElse) {
  auto pool = Open();
  auto session = Must(pool->OpenSession({.name = "m"}));
  ASSERT_EQ(Put(*session, Must(session->Capture({.timeout = kCallTime})), "k"), Code::kOk);
  Random random(5);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket_.data(), socket_.size());
  for (int round = 0; round < 300; ++round) {
    const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    std::string bytes(random.Below(5000), '\0');
    for (char& c : bytes) c = static_cast<char>(random.Next());
    if (random.OneIn(2)) {  // a right header around nonsense
      const auto header =
          wire::EncodeFrameHeader({.version = static_cast<std::uint16_t>(random.OneIn(10) ? 9 : 1),
                                   .method = static_cast<std::uint16_t>(1 + random.Below(20)),
                                   .body_bytes = static_cast<std::uint32_t>(
                                       random.OneIn(5) ? random.Next() : bytes.size())});
      bytes.insert(0, reinterpret_cast<const char*>(header.data()), header.size());
    }
    (void)!send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // The same after hello, where more is allowed.
  for (int round = 0; round < 300; ++round) {
    auto client = Must(rpc::Client::Connect(socket_, Now() + 15 * kSecond));
    std::vector<UniqueFd> fds;
    ASSERT_TRUE(
        client.Call(wire::Method::kHello,
                    Bytes(wire::EncodeHello({.name = "x", .layout = segment::kLayoutVersion})),
                    Now() + 15 * kSecond, &fds));
    std::string body(random.Below(2000), '\0');
    for (char& c : body) c = static_cast<char>(random.Next());
    const auto reply = client.Call(static_cast<wire::Method>(1 + random.Below(wire::kMaxMethod)),
                                   std::as_bytes(std::span(body)), Now() + 15 * kSecond);
    (void)reply;
  }
  EXPECT_TRUE(Exists(*session, "k").ok());
  EXPECT_EQ(Put(*session, Must(session->Capture({.timeout = kCallTime})), "k2"), Code::kOk);
}

TEST_F(DaemonTest, NonsenseInASessionPageHarmsNobody) {
  auto pool = Open();
  auto session = Must(pool->OpenSession({.name = "m"}));
  ASSERT_EQ(Put(*session, Must(session->Capture({.timeout = kCallTime})), "k"), Code::kOk);
  Random random(9);
  {
    Reserver client(socket_);
    auto page = Must(Mapping::Map(client.fds_[2].get(), sizeof(segment::SessionPage),
                                  Mapping::Access::kReadWrite));
    for (int round = 0; round < 50; ++round) {
      for (std::size_t at = 0; at + 8 <= page.size(); at += 8) {
        const std::uint64_t word = random.OneIn(3) ? random.Below(100000) : random.Next();
        std::memcpy(page.data() + at, &word, 8);
      }
      for (int i = 0; i < 20; ++i) {
        Put(*session, Must(session->Capture({.timeout = kCallTime})),
            fmt::format("k{}-{}", round, i), std::string(200'000, 'x'));
      }
    }
  }
  EXPECT_TRUE(pool->Stat().has_value());
  EXPECT_EQ(Put(*session, Must(session->Capture({.timeout = kCallTime})), "after"), Code::kOk);
}

TEST_F(DaemonTest, AnotherProtocolVersionIsToldBothNumbers) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket_.data(), socket_.size());
  const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  const auto header = wire::EncodeFrameHeader({.version = 7, .method = 1});
  ASSERT_EQ(send(fd.get(), header.data(), header.size(), 0), static_cast<ssize_t>(header.size()));
  std::string reply(4096, '\0');
  const ssize_t count = recv(fd.get(), reply.data(), reply.size(), 0);
  ASSERT_GT(count, 0);
  EXPECT_THAT(reply, testing::HasSubstr("version 7"));
}

}  // namespace
}  // namespace kvcove
