// SPDX-License-Identifier: Apache-2.0
// An owner's data server as others see it: kept connections, a breaker, and exchanges of whole
// batches whose values go straight from and into the caller's memory. While the breaker doubts the
// peer, an exchange begins with a new connection, whose hello must be answered in milliseconds.
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
#include "kvcove/rpc/breaker.h"
#include "kvcove/rpc/channel.h"
#include "kvcove/rpc/guarded_channel.h"
#include "kvcove/wire/frame.h"

namespace kvcove::rpc {

// One owner's data server. Thread-safe.
class DataPeer {
 public:
  // `on_doubt` is called, without a lock, when the peer becomes worth a probe: ProbeDueNs().
  DataPeer(const Address& address, const Access& access, const Clock& clock,
           std::function<void()> on_doubt = {});
  DataPeer(const DataPeer&) = delete;
  DataPeer& operator=(const DataPeer&) = delete;

  const Address& address() const { return address_; }
  // For small calls (pins, statistics).
  wire::Channel& channel() { return guarded_; }

  // A connection that was let in, for one exchange. End() must follow.
  struct Line {
    UniqueFd fd;
    Breaker::Pass pass;
  };
  // `probe_until_ns` bounds the wait for a peer that the breaker doubts. Errors: kUnavailable for
  // one that does not answer, kTimeout.
  Result<Line> Take(std::int64_t deadline_ns, std::int64_t probe_until_ns = Breaker::kNever);
  // `teaches`: see Breaker::End().
  void End(const Breaker::Pass& pass, Breaker::Outcome outcome, bool teaches);
  void Heard() { breaker_.Heard(); }
  void Keep(UniqueFd fd);

  // True while calls to it mostly fail at once.
  bool broken() const { return breaker_.broken(); }
  std::int64_t ProbeDueNs() const { return breaker_.ProbeDueNs(); }
  // Tries to reach it; the breaker trusts it again if it answers.
  void Probe();

 private:
  static constexpr std::size_t kMaxIdle = 16;
  Result<UniqueFd> Connect(std::int64_t deadline_ns);
  UniqueFd TakeIdle();
  // The connection that a doubted peer has let in under `pass`, if any, is as good as an answer.
  void EndProbe(const Breaker::Pass& pass, const Result<UniqueFd>& fd);
  void Note(Breaker::Change change);

  const Address address_;
  const Access access_;
  const Clock& clock_;
  const std::function<void()> on_doubt_;
  TcpChannel channel_;
  Breaker breaker_;
  GuardedChannel guarded_;
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
// closed, so that nothing lands in its buffers any more.
void RunCalls(std::span<DataCall> calls, std::int64_t deadline_ns, const Clock& clock);

}  // namespace kvcove::rpc
