// SPDX-License-Identifier: Apache-2.0
// Whether calls to a peer are worth their wait. A peer that is dead or frozen costs each caller a
// few milliseconds, and one impatient caller blinds nobody.
//
//   trusted    a call has its own deadline
//   suspected  a call has `probe_ns` to show that the peer lives
//   broken     one such call each pause, and the background's probes; the others fail at once
//
// What counts is silence: the time during which somebody waited and heard nothing. Calls side by
// side count once, and any answer sets it to zero. A peer that usually answers late may be silent
// for longer. A connection that was refused or ended counts as all the silence that is needed.
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

// Thread-safe. Does no I/O: its users ask before a call, and report how it ended.
class Breaker {
 public:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  // One call. Each one that Begin() or BeginProbe() gave must reach End() once.
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
  // What End() changed. Who gets kBroken or kMended writes the log line.
  enum class Change : std::uint8_t { kNone, kSuspected, kBroken, kMended };

  explicit Breaker(const Clock& clock) : clock_(clock) {}

  // Empty: the call must fail at once.
  std::optional<Pass> Begin(std::int64_t deadline_ns);
  // For the thread that probes in the background: always goes, with the deadline given.
  Pass BeginProbe(std::int64_t deadline_ns);
  // Bytes of a call that goes on have arrived.
  void Heard();
  // `teaches`: the answer came as soon as the peer could give it, so its latency is the usual one.
  Change End(const Pass& pass, Outcome outcome, bool teaches = true);

  bool broken() const;
  // When the background should probe next; kNever while the peer is trusted.
  std::int64_t ProbeDueNs() const;

 private:
  enum class State : std::uint8_t { kTrusted, kSuspected, kBroken };

  std::int64_t PatienceNs() const KVCOVE_REQUIRES(mutex_);
  std::int64_t ProbeNs() const KVCOVE_REQUIRES(mutex_);
  // Takes the silence up to `now` into account.
  void Listen(std::int64_t now) KVCOVE_REQUIRES(mutex_);
  void Suspect(std::int64_t now) KVCOVE_REQUIRES(mutex_);
  Pass Start(std::int64_t now, std::int64_t until_ns, bool probe) KVCOVE_REQUIRES(mutex_);
  Change Trust(std::int64_t now) KVCOVE_REQUIRES(mutex_);
  Change Fail(const Pass& pass, Outcome outcome, std::int64_t now) KVCOVE_REQUIRES(mutex_);

  const Clock& clock_;
  mutable Mutex mutex_;
  State state_ KVCOVE_GUARDED_BY(mutex_) = State::kTrusted;
  std::int64_t usual_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;    // a moving average of latencies
  std::uint32_t waiting_ KVCOVE_GUARDED_BY(mutex_) = 0;    // calls without an answer yet
  std::int64_t silence_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;  // since the last answer, up to:
  std::int64_t listened_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::int64_t pause_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::int64_t next_call_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;   // while broken
  std::int64_t next_probe_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;  // of the background
};

}  // namespace kvcove::rpc
