// SPDX-License-Identifier: Apache-2.0
// Decides whether calls to a peer are worth their wait. A peer that is dead or frozen costs each
// caller a few milliseconds, and one impatient caller does not make the others lose a peer that
// works.
//
//   trusted    a call has its own deadline
//   suspected  a call has `probe_ns` to show that the peer lives
//   broken     one such call each pause, and probes in the background; others fail at once
//
// The measure is silence: the time in which at least one call waited and no byte came. Calls side
// by side count once, and any answer sets it to zero. A peer that usually answers late may be
// silent for longer. A connection that was refused or ended counts as all the silence that is
// needed.
//
//   trusted -> suspected   a call was missed and the silence is longer than the peer's patience, or
//                          calls still wait and it is longer than the largest
//   suspected -> broken    a call that had the whole `probe_ns` heard nothing, or had no connection
//   any -> trusted         an answer
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"

namespace kvcove::rpc {

// Thread-safe, under one mutex that is taken last. Does no I/O: its users ask before a call, and
// report how it ended.
class Breaker {
 public:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  // One call. Each pass of Begin() or BeginProbe() must be given to End() once: a lost one would
  // count as a call that still waits, and silence would grow while nobody asks.
  struct Pass {
    std::int64_t began_ns = 0;
    std::int64_t until_ns = 0;  // when to give up; at most the deadline of the caller
    // The call stands for a probe. Its caller may let it run on, under another pass, once the peer
    // has answered anything.
    bool probe = false;
  };
  enum class Outcome : std::uint8_t {
    kAnswered,  // also with an error
    kMissed,    // nothing came until `until_ns`
    kLost,      // no connection, or it ended
  };
  // The change that End() made. The caller that gets kBroken or kMended writes the log line.
  enum class Change : std::uint8_t { kNone, kSuspected, kBroken, kMended };

  explicit Breaker(const Clock& clock) : clock_(clock) {}

  // Begins a call. Empty: the call must fail at once.
  std::optional<Pass> Begin(std::int64_t deadline_ns);
  // Begins a probe of the background thread, in any state, with the deadline given.
  Pass BeginProbe(std::int64_t deadline_ns);
  // Notes that bytes of a call have arrived that has not ended yet.
  void Heard();
  // Ends a call. `teaches`: the peer answered as soon as it could, so the latency counts for the
  // usual one.
  Change End(const Pass& pass, Outcome outcome, bool teaches = true);

  bool broken() const;
  // Returns when the background thread should probe next; kNever while the peer is trusted.
  std::int64_t ProbeDueNs() const;

 private:
  enum class State : std::uint8_t { kTrusted, kSuspected, kBroken };

  std::int64_t PatienceNs() const KVCOVE_REQUIRES(mutex_);
  std::int64_t ProbeNs() const KVCOVE_REQUIRES(mutex_);
  // Adds the silence up to `now`; may suspect the peer.
  void Listen(std::int64_t now) KVCOVE_REQUIRES(mutex_);
  void Suspect(std::int64_t now) KVCOVE_REQUIRES(mutex_);
  Pass Start(std::int64_t now, std::int64_t until_ns, bool probe) KVCOVE_REQUIRES(mutex_);
  Change Trust(std::int64_t now) KVCOVE_REQUIRES(mutex_);
  Change Fail(const Pass& pass, Outcome outcome, std::int64_t now) KVCOVE_REQUIRES(mutex_);

  const Clock& clock_;
  mutable Mutex mutex_;
  State state_ KVCOVE_GUARDED_BY(mutex_) = State::kTrusted;
  std::int64_t usual_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;      // a moving average of latencies
  std::uint32_t waiting_ KVCOVE_GUARDED_BY(mutex_) = 0;      // calls without an answer yet
  std::int64_t silence_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;    // from the last answer to listened_ns_
  std::int64_t listened_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;   // time of the last Listen()
  std::int64_t pause_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;      // between probes
  std::int64_t next_call_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;  // kBroken: the next call that may try
  std::int64_t next_probe_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvcove::rpc
