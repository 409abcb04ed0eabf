// SPDX-License-Identifier: Apache-2.0
// Of tests: both ends of a lane in one process, on fake devices or on a host's own.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvcove/transport/verbs/lane.h"

namespace kvcove::transport::verbs {

// Bytes that a test looks at, registered with one device.
struct TestMemory {
  TestMemory(std::shared_ptr<Context> with, std::size_t bytes, Access access, int fill)
      : context(std::move(with)), data(bytes, static_cast<std::byte>(fill)) {
    auto registered = context->Register(data, access);
    EXPECT_TRUE(registered) << registered.error().ToString();
    if (registered) region = std::move(*registered);
  }
  // Number of bytes with this value.
  std::size_t Count(int value) const {
    return static_cast<std::size_t>(
        std::count(data.begin(), data.end(), static_cast<std::byte>(value)));
  }
  LocalSegment Segment(std::size_t offset, std::uint32_t bytes) {
    return {.data = data.data() + offset, .bytes = bytes, .key = region->local_key()};
  }

  const std::shared_ptr<Context> context;
  std::vector<std::byte> data;
  std::unique_ptr<MemoryRegion> region;  // ends before the memory and the context
};

// Takes completions, and sleeps on the lane's descriptor where there are none, until `over` is
// true or the lane fails. Fails the test after 20 s without any.
inline Status AdvanceUntil(Lane& lane, std::vector<Received>& received,
                           const std::function<bool()>& over) {
  while (!over()) {
    KVCOVE_ASSIGN(bool taken, lane.Advance(received));
    if (taken) continue;
    KVCOVE_TRY(lane.Arm());
    KVCOVE_ASSIGN(taken, lane.Advance(received));
    if (taken) continue;
    pollfd waits{.fd = lane.descriptor(), .events = POLLIN, .revents = 0};
    if (poll(&waits, 1, 20'000) != 1) return Fail(Code::kTimeout, "no completion for 20 s");
    lane.TakeEvents();
  }
  return {};
}
inline Status AdvanceUntilIdle(Lane& lane) {
  std::vector<Received> received;
  return AdvanceUntil(lane, received, [&] { return lane.idle(); });
}

// Retires a lane whose device confirms its end, if not at once.
inline bool RetireAll(Lane& lane) {
  for (int i = 0; i < 10'000; ++i) {
    if (const auto gone = lane.Retire(); gone && *gone) return true;
    (void)poll(nullptr, 0, i < 100 ? 0 : 1);
  }
  return false;
}

// An owner, which moves everything, and a requester, whose memory it moves.
struct LaneEnds {
  LaneEnds(Verbs& verbs, const std::string& owner_device, const std::string& requester_device,
           LaneOptions options = {}) {
    auto one = verbs.Open(owner_device);
    auto other = verbs.Open(requester_device);
    EXPECT_TRUE(one && other);
    if (!one || !other) return;
    owner_context = *one;
    requester_context = *other;
    Reopen(options);
  }
  // A new lane; the contexts remain.
  void Reopen(LaneOptions options) {
    options.peer_may = Access::kLocal;
    owner = Opened(owner_context, options, 11);
    options.peer_may = Access::kRemote;
    requester = Opened(requester_context, options, 0xfffffe);
    if (owner == nullptr || requester == nullptr) return;
    const Status a = owner->Connect(requester->own());
    const Status b = requester->Connect(owner->own());
    EXPECT_TRUE(a) << a.error().ToString();
    EXPECT_TRUE(b) << b.error().ToString();
  }
  ~LaneEnds() {
    EXPECT_TRUE(owner == nullptr || RetireAll(*owner));
    EXPECT_TRUE(requester == nullptr || RetireAll(*requester));
  }
  LaneEnds(const LaneEnds&) = delete;
  LaneEnds& operator=(const LaneEnds&) = delete;

  static std::unique_ptr<Lane> Opened(const std::shared_ptr<Context>& context,
                                      const LaneOptions& options, std::uint32_t first_packet) {
    auto lane = Lane::Open(context, options, first_packet);
    EXPECT_TRUE(lane) << lane.error().ToString();
    return lane ? std::move(*lane) : nullptr;
  }

  std::shared_ptr<Context> owner_context, requester_context;
  std::unique_ptr<Lane> owner, requester;
};

// The move of `bytes` at the beginning of both memories.
inline Move MoveOf(Operation operation, TestMemory& local, TestMemory& remote,
                   std::uint64_t bytes) {
  return {.operation = operation,
          .local = local.data.data(),
          .bytes = bytes,
          .local_key = local.region->local_key(),
          .remote = reinterpret_cast<std::uintptr_t>(remote.data.data()),
          .remote_key = remote.region->remote_key()};
}

}  // namespace kvcove::transport::verbs
