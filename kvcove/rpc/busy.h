// SPDX-License-Identifier: Apache-2.0
// The answer "busy, ask again after N ms" of a server, and the waits of its clients.
//
// The answer's code is kLimit, after which every version may try again later; newer clients read N
// from the detail. An older client treats it as any other error: its look-up is a miss, its put is
// not stored.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "kvcove/base/clock.h"
#include "kvcove/base/random.h"
#include "kvcove/rpc/call_limits.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::rpc {

// Returns the answer to a refused call.
Error BusyError(const CallLimits::Verdict& verdict);
// Returns after how many milliseconds to ask again, CallLimits::kMostRetryMs at most. Nothing: the
// error is another one.
std::optional<std::uint32_t> BusyIn(const Error& error);

// Returns a random time after which to ask again: the server's time or up to half as much more, so
// that callers that were refused together do not ask together again.
std::int64_t RetryNs(std::uint32_t retry_after_ms, std::uint64_t random);

// Growing waits between attempts: each is between half and all of a length that doubles from
// `first_ns` to `most_ns`. Belongs to one thread.
class Backoff {
 public:
  Backoff(std::int64_t first_ns, std::int64_t most_ns, std::uint64_t seed = RandomU64())
      : first_ns_(first_ns), most_ns_(most_ns), next_ns_(first_ns), random_(seed) {}
  // Returns the next wait.
  std::int64_t NextNs();
  // Starts from `first_ns` again, after a success.
  void Reset() { next_ns_ = first_ns_; }
  std::int64_t most_ns() const { return most_ns_; }

 private:
  const std::int64_t first_ns_;
  const std::int64_t most_ns_;
  std::int64_t next_ns_;
  Random random_;
};

// The time until which a server is busy, shared by all callers of a process. A caller that asked a
// busy server earlier would find it silent, and take it for dead (rpc/breaker.h). Thread-safe,
// without a lock.
class BusyUntil {
 public:
  // Notes that the server has answered "busy" now. A later end than this remains.
  void Note(std::uint32_t retry_after_ms, std::int64_t now_ns);
  // Returns the error that the server would give, with the rest of the wait. Nothing: ask it.
  std::optional<Error> Now(std::int64_t now_ns) const;

 private:
  std::atomic<std::int64_t> until_ns_{0};
};

// Sleeps until the server may be asked again. False: that is not before the deadline, and this did
// not wait; or the thread was interrupted.
bool WaitWhileBusy(std::uint32_t retry_after_ms, std::int64_t deadline_ns, const Clock& clock);

}  // namespace kvcove::rpc
