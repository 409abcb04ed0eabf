// SPDX-License-Identifier: Apache-2.0
// "Busy, ask again after N ms": how a server says it, and what its clients do.
//
// The answer is kLimit, which every version knows as an error that may be asked again later; its
// detail begins with the words below, which newer clients read. An older one takes it for any other
// error: its look-up is a miss, its put is not stored.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/base/random.h"
#include "kvcove/rpc/call_limits.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::rpc {

Error BusyError(const CallLimits::Verdict& verdict);
// After how many milliseconds to ask again; nothing where the error says something else.
std::optional<std::uint32_t> BusyIn(const Error& error);

// When to ask again: no earlier than the server said, and up to half as much later, so that callers
// that were refused together do not come back together.
std::int64_t RetryNs(std::uint32_t retry_after_ms, std::uint64_t random);

// Growing waits between attempts: each is between half and all of a length that doubles from
// `first_ns` to `most_ns`. Belongs to one thread.
class Backoff {
 public:
  Backoff(std::int64_t first_ns, std::int64_t most_ns, std::uint64_t seed = RandomU64())
      : first_ns_(first_ns), most_ns_(most_ns), next_ns_(first_ns), random_(seed) {}
  std::int64_t NextNs();
  void Reset() { next_ns_ = first_ns_; }
  std::int64_t most_ns() const { return most_ns_; }

 private:
  const std::int64_t first_ns_;
  const std::int64_t most_ns_;
  std::int64_t next_ns_;
  Random random_;
};

// What a server has said to one of a process's callers holds for all of them: until it may be asked
// again nobody asks, or its silence would be taken for death (rpc/breaker.h). Thread-safe.
class BusyUntil {
 public:
  // It said so now.
  void Note(std::uint32_t retry_after_ms, std::int64_t now_ns);
  // The error that it would give, with what is left of the wait; nothing: ask it.
  std::optional<Error> Now(std::int64_t now_ns) const;

 private:
  std::atomic<std::int64_t> until_ns_{0};
};

// Sleeps until the server may be asked again. False: that is not before the deadline, and it did
// not wait.
bool WaitWhileBusy(std::uint32_t retry_after_ms, std::int64_t deadline_ns, const Clock& clock);

}  // namespace kvcove::rpc
