// SPDX-License-Identifier: Apache-2.0
// A daemon for tests, at a real socket: it sends one empty segment, and answers only hellos and
// goodbyes.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>

#include "kvcove/base/random.h"
#include "kvcove/rpc/server.h"
#include "kvcove/segment/reader.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::requester {

class FakeDaemon final : private rpc::Handler {
 public:
  // An older build has another layout of the segment.
  enum class Build { kThis, kOlder };

  explicit FakeDaemon(const std::string& path, Build build = Build::kThis) : build_(build) {
    const segment::HeaderSizes sizes{.max_objects = 1024, .payload_bytes = 1 << 20};
    header_ = File("header", segment::HeaderFileBytes(sizes), [&](std::byte* data) {
      EXPECT_TRUE(segment::FormatHeader(data, sizes, RandomId(), RandomU64()));
      reinterpret_cast<segment::Header*>(data)->layout_version = Layout();
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
  void Start() { EXPECT_TRUE(server_->Start()); }

  std::int64_t clock_skew_ns = 0;  // as if it ran in another time namespace
  std::size_t files = 3;           // number of files that it sends
  bool unsealed = false;           // the payload can shrink
  std::atomic<int> hellos{0};
  std::atomic<int> goodbyes{0};

 private:
  std::uint32_t Layout() const {
    return segment::kLayoutVersion - (build_ == Build::kOlder ? 1 : 0);
  }
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
      ++hellos;
      if (unsealed) {
        payload_ = UniqueFd(memfd_create("kvcove-unsealed", MFD_CLOEXEC));
        (void)!ftruncate(payload_.get(), 1 << 20);
      }
      for (const UniqueFd* fd : {&header_, &payload_, &page_}) {
        if (reply.fds.size() < files) reply.fds.emplace_back(fcntl(fd->get(), F_DUPFD_CLOEXEC, 0));
      }
      reply.body = wire::EncodeWelcome({.session = 1,
                                        .now_ns = SystemClock::Instance().NowNs() + clock_skew_ns,
                                        .layout = Layout()});
    }
    respond(std::move(reply));
  }

  const Build build_;
  UniqueFd header_;
  UniqueFd payload_;
  UniqueFd page_;
  std::unique_ptr<rpc::Server> server_;
};

}  // namespace kvcove::requester
