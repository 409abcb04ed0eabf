// SPDX-License-Identifier: Apache-2.0
// An owner's data server as others see it: kept connections, a breaker, and exchanges of whole
// batches whose values go straight from and into the caller's memory. A peer that missed a deadline
// or refused is not asked again until a probe has reached it: calls to it end at once.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/base/posix.h"
#include "kvcove/rpc/channel.h"
#include "kvcove/wire/frame.h"

namespace kvcove::rpc {

// One owner's data server. Thread-safe.
class DataPeer {
 public:
  DataPeer(const Address& address, const Access& access, const Clock& clock)
      : address_(address), access_(access), channel_(address, access), clock_(clock) {}

  const Address& address() const { return address_; }
  // For small calls (pins, statistics).
  wire::Channel& channel() { return channel_; }

  // A connection that was let in. Errors: kUnavailable while the breaker is open.
  Result<UniqueFd> Take(std::int64_t deadline_ns);
  void Keep(UniqueFd fd);
  bool broken() const { return broken_.load(std::memory_order_relaxed); }
  void Break();
  // Tries to reach it; closes the breaker if it answers.
  void Probe();

 private:
  static constexpr std::size_t kMaxIdle = 16;
  Result<UniqueFd> Connect(std::int64_t deadline_ns);

  const Address address_;
  const Access access_;
  TcpChannel channel_;
  const Clock& clock_;
  std::atomic<bool> broken_{false};
  Mutex mutex_;
  std::vector<UniqueFd> idle_ KVCOVE_GUARDED_BY(mutex_);
};

// One exchange with one peer: a frame and values out, a frame and values in. The values go from and
// into the caller's memory.
struct DataCall {
  DataPeer* peer = nullptr;
  wire::Method method = wire::Method::kDataGet;
  std::string body;
  std::vector<iovec> out;
  // Takes the reply's body; answers where the values behind it go.
  std::function<Result<std::vector<iovec>>(std::span<const std::byte> body)> on_reply;
  // Called as values arrive, with how many bytes are there.
  std::function<void(std::uint64_t bytes)> on_bytes;
  Status status = Fail(Code::kTimeout, "the owner did not answer in time");
};

// Runs all at once in this thread. Each ends by the deadline; what missed it has its connection
// closed, so that nothing lands in its buffers any more, and its peer's breaker opened.
void RunCalls(std::span<DataCall> calls, std::int64_t deadline_ns, const Clock& clock);

}  // namespace kvcove::rpc
