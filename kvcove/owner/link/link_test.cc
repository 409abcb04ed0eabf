// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/link/link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <thread>

#include "kvcove/base/carry.h"
#include "kvcove/base/log.h"
#include "kvcove/owner/link/link_core_fixture.h"
#include "kvcove/rpc/address.h"
#include "kvcove/wire/frame.h"
#include "tests/becomes.h"

namespace kvcove::owner {
namespace {

// The write of the last opening may take long, and resets by others wait for the lease.
TEST(LinkTest, AStopDrawsTheLastOpeningWhileTheLeaseIsStillRenewed) {
  FakeTarget target;
  Outbox outbox(SystemClock::Instance());
  Link link(target, outbox, {}, SystemClock::Instance());
  link.Stop();
  EXPECT_THAT(target.said, testing::ElementsAre("last opening", "no waits", "no lease"));
  link.Stop();
  EXPECT_EQ(target.said.size(), 3U) << "once";
}

// The process that gave its state continues with the lease, and the master knows it alone.
TEST(LinkTest, OneThatHasTakenOverAndNeverStartsEndsNoLease) {
  SetLogLevel(LogLevel::kOff);
  FakeTarget target;
  Outbox outbox(SystemClock::Instance());
  LinkOptions options;
  options.master = rpc::LoopbackAddress(1);  // nobody listens there
  StateWriter writer = *StateWriter::Open();
  {
    Link giver(target, outbox, options, SystemClock::Instance());
    giver.Pause();
    giver.Save(writer);
  }
  const UniqueFd state = *writer.Finish();
  for (const bool starts : {false, true}) {
    target.said.clear();
    {
      Link taker(target, outbox, options, SystemClock::Instance());
      StateReader reader = *StateReader::Open(state);
      taker.Load(reader);
      EXPECT_TRUE(reader.ok());
      if (starts) {
        EXPECT_TRUE(taker.Start());
      }
    }
    if (starts) {
      EXPECT_THAT(target.said, testing::ElementsAre("last opening", "no waits", "no lease"));
    } else {
      EXPECT_THAT(target.said, testing::IsEmpty());
    }
  }
}

// A master whose host is so busy that each hello is answered later than a first attempt waits.
class LateMaster {
 public:
  LateMaster() : listener_(*rpc::ListenTcp(address_)), thread_([this] { Run(); }) {}
  ~LateMaster() {
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  const rpc::Address& address() const { return address_; }
  int greeted() const { return greeted_; }
  bool called() const { return called_; }

 private:
  static constexpr std::int64_t kLateNs = 700 * kMillisecond;
  // False: the connection has ended.
  static bool Take(int fd, wire::FrameHeader& header) {
    std::array<std::byte, wire::kFrameHeaderBytes> bytes{};
    if (recv(fd, bytes.data(), bytes.size(), MSG_WAITALL) != std::ssize(bytes)) return false;
    auto decoded = wire::DecodeFrameHeader(bytes, wire::kMaxFrameBytes);
    if (!decoded) return false;
    header = *decoded;
    std::string body(header.body_bytes, '\0');
    return body.empty() || recv(fd, body.data(), body.size(), MSG_WAITALL) == std::ssize(body);
  }
  // One connection after another: a lane that has given up has closed its own.
  void Run() {
    pollfd poller{.fd = listener_.get(), .events = POLLIN, .revents = 0};
    while (poll(&poller, 1, -1) > 0) {
      const UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!fd.valid()) return;
      wire::FrameHeader hello;
      if (!Take(fd.get(), hello)) continue;
      ++greeted_;
      SleepNs(kLateNs);
      const auto reply = wire::EncodeFrameHeader(
          {.method = static_cast<std::uint16_t>(hello.method | wire::kReplyBit),
           .call = hello.call});
      if (send(fd.get(), reply.data(), reply.size(), MSG_NOSIGNAL) < 0) continue;
      wire::FrameHeader call;
      if (Take(fd.get(), call)) called_ = true;
    }
  }

  rpc::Address address_ = rpc::LoopbackAddress(0);
  const UniqueFd listener_;
  std::atomic<int> greeted_ = 0;
  std::atomic<bool> called_ = false;
  std::thread thread_;
};

TEST(LinkTest, AMasterThatAnswersEachHelloLateIsReachedByALongerAttempt) {
  SetLogLevel(LogLevel::kOff);
  LateMaster master;
  FakeTarget target;
  Outbox outbox(SystemClock::Instance());
  LinkOptions options;
  options.master = master.address();
  Link link(target, outbox, options, SystemClock::Instance());
  ASSERT_TRUE(link.Start());
  EXPECT_TRUE(Becomes([&] { return master.called(); }))
      << master.greeted() << " hellos came to nothing";
  link.Stop();
}

}  // namespace
}  // namespace kvcove::owner
