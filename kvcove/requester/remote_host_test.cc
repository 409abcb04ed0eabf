// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/remote_host.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "kvcove/base/random.h"
#include "kvcove/rpc/server.h"
#include "kvcove/segment/view.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::requester {
namespace {

// A daemon that gives out one empty segment and answers nothing else but goodbyes.
class FakeDaemon final : private rpc::Handler {
 public:
  explicit FakeDaemon(const std::string& path) {
    const segment::HeaderSizes sizes{.max_objects = 1024, .payload_bytes = 1 << 20};
    header_ = File("header", segment::HeaderFileBytes(sizes), [&](std::byte* data) {
      segment::FormatHeader(data, sizes, RandomId(), RandomU64());
    });
    payload_ = File("payload", sizes.payload_bytes, [](std::byte*) {});
    page_ = File("page", sizeof(segment::SessionPage),
                 [](std::byte* data) { segment::FormatSessionPage(data); });
    rpc::ServerOptions options;
    options.socket_path = path;
    auto server = rpc::Server::Open(options, *this);
    EXPECT_TRUE(server) << server.error().ToString();
    server_ = std::move(*server);
  }
  ~FakeDaemon() override { server_->Stop(); }
  void Start() { server_->Start(); }

  std::int64_t clock_skew_ns = 0;  // of another time namespace
  std::size_t files = 3;           // that its hello gives
  std::atomic<int> goodbyes{0};

 private:
  template <typename Format>
  static UniqueFd File(const char* name, std::size_t size, Format&& format) {
    UniqueFd fd = *CreateMemoryFile(name, size);
    const Mapping mapping = *Mapping::Map(fd.get(), size, Mapping::Access::kReadWrite);
    format(mapping.data());
    return fd;
  }
  void OnOpen(rpc::ConnectionId, const rpc::Peer&) override {}
  void OnClose(rpc::ConnectionId) override {}
  void OnProcessGone(std::uint64_t) override {}
  bool Admitted(rpc::ConnectionId) const override { return true; }
  void OnRequest(rpc::ConnectionId, wire::Method method, std::span<const std::byte>,
                 std::int64_t /*deadline_ns*/, rpc::Responder respond) override {
    rpc::Reply reply;
    if (method == wire::Method::kGoodbye) ++goodbyes;
    if (method == wire::Method::kHello) {
      for (const UniqueFd* fd : {&header_, &payload_, &page_}) {
        if (reply.fds.size() < files) reply.fds.emplace_back(fcntl(fd->get(), F_DUPFD_CLOEXEC, 0));
      }
      reply.body = wire::EncodeWelcome(
          {.session = 1, .now_ns = SystemClock::Instance().NowNs() + clock_skew_ns});
    }
    respond(std::move(reply));
  }

  UniqueFd header_;
  UniqueFd payload_;
  UniqueFd page_;
  std::unique_ptr<rpc::Server> server_;
};

class RemoteHostTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::temp_directory_path() / "kvcove-remote-XXXXXX";
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    daemon_ = std::make_unique<FakeDaemon>(path());
  }
  void TearDown() override {
    daemon_.reset();
    std::filesystem::remove_all(directory_);
  }
  std::string path() const { return directory_ + "/socket"; }
  Result<std::unique_ptr<RemoteHost>> Connect() {
    const Clock& clock = SystemClock::Instance();
    return RemoteHost::Connect(path(), clock.NowNs() + 5 * kSecond, clock);
  }
  // Another thread changes it.
  template <typename Condition>
  static bool Becomes(Condition&& condition) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!condition() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    return condition();
  }

  std::string directory_;
  std::unique_ptr<FakeDaemon> daemon_;
};

TEST_F(RemoteHostTest, MapsTheSegmentAndSaysGoodbye) {
  daemon_->Start();
  {
    auto host = Connect();
    ASSERT_TRUE(host) << host.error().ToString();
    const auto attachment = (*host)->Current();
    ASSERT_NE(attachment, nullptr);
    EXPECT_TRUE(attachment->connected());
    EXPECT_EQ(attachment->payload_bytes(), 1U << 20);
    attachment->payload()[0] = std::byte{1};  // it may write there
  }
  EXPECT_EQ(daemon_->goodbyes, 1);
}

// A lease would be compared with another clock, and would not end.
TEST_F(RemoteHostTest, AnOwnerInAnotherTimeNamespaceIsRefused) {
  daemon_->clock_skew_ns = -3600 * kSecond;
  daemon_->Start();
  EXPECT_EQ(Connect().error().code, Code::kIncompatible);
}

TEST_F(RemoteHostTest, ADaemonThatSendsNoSegmentIsCorrupt) {
  daemon_->files = 1;
  daemon_->Start();
  EXPECT_EQ(Connect().error().code, Code::kCorrupt);
}

TEST_F(RemoteHostTest, WithoutADaemonItIsUnavailable) {
  daemon_.reset();
  EXPECT_EQ(Connect().error().code, Code::kUnavailable);
}

TEST_F(RemoteHostTest, ADaemonThatEndsIsNoticedAndItsNextLifeIsAnotherAttachment) {
  daemon_->Start();
  auto host = *Connect();
  const auto first = host->Current();
  daemon_.reset();
  EXPECT_TRUE(Becomes([&] { return host->Current() == nullptr; }));
  EXPECT_FALSE(first->connected()) << "nothing may be read from this memory any more";
  EXPECT_EQ(first->payload_bytes(), 1U << 20) << "though it is still mapped";
  daemon_ = std::make_unique<FakeDaemon>(path());
  daemon_->Start();
  EXPECT_TRUE(Becomes([&] { return host->Current() != nullptr; }));
  EXPECT_NE(host->Current()->number(), first->number());
}

}  // namespace
}  // namespace kvcove::requester
