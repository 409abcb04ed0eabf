// SPDX-License-Identifier: Apache-2.0
// The owners of a cluster as a requester sees them: their addresses, connections for bulk data, and
// a breaker each. A peer that missed a deadline or refused is not asked again until a probe in the
// background has reached it: calls to it end at once.
#pragma once

#include <sys/uio.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/base/posix.h"
#include "kvcove/rpc/channel.h"
#include "kvcove/wire/cluster.h"
#include "kvcove/wire/frame.h"

namespace kvcove::requester {

// One owner's data server. Thread-safe.
class Peer {
 public:
  Peer(rpc::Address address, const Clock& clock)
      : address_(address), channel_(std::move(address), {}), clock_(clock) {}

  const rpc::Address& address() const { return address_; }
  // For small calls (pins, statistics).
  wire::Channel& channel() { return channel_; }

  // A connection that has said hello. Errors: kUnavailable while the breaker is open.
  Result<UniqueFd> Take(std::int64_t deadline_ns);
  void Keep(UniqueFd fd);
  bool broken() const { return broken_.load(std::memory_order_relaxed); }
  void Break();
  // Tries to reach it; closes the breaker if it answers.
  void Probe();

 private:
  static constexpr std::size_t kMaxIdle = 16;
  Result<UniqueFd> Connect(std::int64_t deadline_ns);

  const rpc::Address address_;
  rpc::TcpChannel channel_;
  const Clock& clock_;
  std::atomic<bool> broken_{false};
  Mutex mutex_;
  std::vector<UniqueFd> idle_ KVCOVE_GUARDED_BY(mutex_);
};

// One exchange with one peer: a frame and values out, a frame and values in. The values go from and
// into the caller's memory.
struct DataCall {
  Peer* peer = nullptr;
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

// The owners, kept up to date by a thread. Thread-safe.
class Peers {
 public:
  // `owners`: asks the master.
  Peers(std::function<Result<std::vector<wire::OwnerStat>>()> owners, const Clock& clock);
  ~Peers();

  void Refresh();
  std::vector<wire::OwnerStat> Owners() const;
  // Null for a number that is not known (yet).
  std::shared_ptr<Peer> Get(wire::OwnerNumber number);

 private:
  void Run();

  const std::function<Result<std::vector<wire::OwnerStat>>()> ask_;
  const Clock& clock_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::vector<wire::OwnerStat> owners_ KVCOVE_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<Peer>> peers_ KVCOVE_GUARDED_BY(mutex_);  // by address
  std::thread thread_;
};

}  // namespace kvcove::requester
