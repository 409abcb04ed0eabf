// SPDX-License-Identifier: Apache-2.0
// Gets and puts of other hosts over a transport that cannot stop a transfer at once: a call's
// buffers are its own until nothing can land in them, or be read from them, any more.
#include <gtest/gtest.h>
#include <poll.h>

#include "kvcove/requester/cluster/cluster_session.h"
#include "kvcove/requester/cluster/fake_master.h"
#include "kvcove/requester/completion.h"
#include "kvcove/transport/fake_late_transport.h"
#include "kvcove/transport/fake_values.h"
#include "kvcove/transport/landing.h"
#include "tests/becomes.h"

namespace kvcove::requester {
namespace {

constexpr std::chrono::seconds kPatience{60};
constexpr wire::OwnerNumber kOwner = 4;

class LateTransferTest : public testing::Test {
 protected:
  void SetUp() override {
    const Clock& clock = SystemClock::Instance();
    server_ = std::move(*late_.Serve({}, gate_, values_, clock));
    master_.With([&](FakeMaster::State& state) {
      state.owners = {{.number = kOwner,
                       .address = server_->address().ToString(),
                       .host = "there",
                       .capacity_bytes = 1 << 20,
                       .free_bytes = 1 << 20,
                       .live = true}};
    });
    auto host =
        ClusterHost::Connect({.master = master_.address(), .host = "here", .transport = &late_},
                             clock.NowNs() + 60 * kSecond, clock);
    ASSERT_TRUE(host) << host.error().ToString();
    session_ = std::make_unique<ClusterSession>(std::move(*host),
                                                SessionOptions{.name = "n", .engine = "e"}, clock);
    late_.HoldAfter(4);
  }
  bool Readable() const {
    pollfd poller{.fd = queue_.event_fd(), .events = POLLIN, .revents = 0};
    return poll(&poller, 1, 0) == 1;
  }
  // Makes the call again until its deadline finds the device in the middle of the payload; a busy
  // machine may not have come so far. Its first completion is taken then.
  template <typename Begin>
  bool UntilHeld(const Begin& begin) {
    for (int tries = 0; tries < 100; ++tries) {
      if (!begin()) return false;
      auto ended = queue_.Next(kPatience);
      if (!ended) return false;
      if (ended->final) continue;
      EXPECT_EQ(ended->status.error().code, Code::kBufferBusy);
      if (!Becomes([&] { return late_.landing() == 1 || Readable(); })) return false;
      if (late_.landing() == 1) return true;
      ended = queue_.Next(kPatience);
    }
    return false;
  }

  transport::LateTransport late_;
  transport::FakeValues values_{"0123456789"};
  rpc::Gate gate_{nullptr};
  std::unique_ptr<transport::Server> server_;
  FakeMaster master_;
  std::unique_ptr<ClusterSession> session_;
  CompletionQueue queue_;
  const CallOptions soon_{.timeout = std::chrono::milliseconds(200)};
};

TEST_F(LateTransferTest, AGetIsOverWhenItsBytesHaveLanded) {
  master_.List("k", kOwner);
  std::string buffer(10, '.');
  const MutableBuffer into{.data = buffer.data(), .size = buffer.size()};
  const GetItem item{.key = "k", .into = {&into, 1}};
  ItemResult result;
  ASSERT_TRUE(UntilHeld(
      [&] { return session_->GetAsync(queue_, 7, {&item, 1}, {&result, 1}, soon_).has_value(); }));
  EXPECT_EQ(buffer, "0123......");
  EXPECT_FALSE(Readable()) << "the caller may not have its buffer back";
  late_.Land();
  EXPECT_EQ(buffer, "0123456789") << "what had reused the buffer would have these bytes";
  const auto over = queue_.Next(kPatience);
  ASSERT_TRUE(over);
  EXPECT_EQ(over->tag, 7U);
  EXPECT_TRUE(over->final);
  EXPECT_EQ(result.code, Code::kBufferBusy);
}

TEST_F(LateTransferTest, ASynchronousGetSaysThatItsBufferIsBusy) {
  master_.List("k", kOwner);
  std::string buffer(10, '.');
  const MutableBuffer into{.data = buffer.data(), .size = buffer.size()};
  const GetItem item{.key = "k", .into = {&into, 1}};
  ItemResult result;
  EXPECT_TRUE(Becomes([&] {
    EXPECT_TRUE(session_->Get({&item, 1}, {&result, 1}, soon_));
    return late_.landing() == 1;
  }));
  EXPECT_EQ(result.code, Code::kBufferBusy);
  late_.Land();
}

TEST_F(LateTransferTest, APutIsOverWhenItsValueIsNotReadAnyMore) {
  const Token token = *session_->Capture({});
  std::string value = "abcdefghij";
  const ConstBuffer piece{.data = value.data(), .size = value.size()};
  const PutItem item{.key = "new", .value = {&piece, 1}};
  ItemResult result;
  ASSERT_TRUE(UntilHeld([&] {
    return session_->PutAsync(queue_, 8, token, {&item, 1}, {&result, 1}, soon_).has_value();
  }));
  EXPECT_EQ(values_.taken, "abcd......");
  EXPECT_FALSE(Readable()) << "the caller may not change the value";
  late_.Land();
  EXPECT_EQ(values_.taken, value);
  const auto over = queue_.Next(kPatience);
  ASSERT_TRUE(over);
  EXPECT_EQ(over->tag, 8U);
  EXPECT_TRUE(over->final);
  EXPECT_EQ(result.code, Code::kBufferBusy);
}

// A pool that closes, and the buffers' owner behind it. The test's thread makes the
// call: a queue's thread may still be in the session when the first completion comes.
TEST_F(LateTransferTest, TheSessionMayEndBeforeItsBytesLand) {
  master_.List("k", kOwner);
  std::string buffer(10, '.');
  const MutableBuffer into{.data = buffer.data(), .size = buffer.size()};
  const GetItem item{.key = "k", .into = {&into, 1}};
  ItemResult result;
  const auto landing = std::make_shared<transport::Landing>();
  EXPECT_TRUE(Becomes([&] {
    const transport::Landing::Scope scope(landing);
    EXPECT_TRUE(session_->Get({&item, 1}, {&result, 1}, soon_));
    return landing->busy();
  }));
  session_.reset();
  EXPECT_TRUE(landing->busy());
  late_.Land();
  EXPECT_FALSE(landing->busy());
  EXPECT_EQ(buffer, "0123456789");
}

}  // namespace
}  // namespace kvcove::requester
