// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/breaker.h"

#include <algorithm>

namespace kvcove::rpc {
namespace {

// The patience of a call is eight times the usual latency, a probe gets four times the usual
// latency; both within these bounds:
constexpr std::int64_t kMinPatienceNs = 250 * kMillisecond;
constexpr std::int64_t kMaxPatienceNs = kSecond;
constexpr std::int64_t kMinProbeNs = 10 * kMillisecond;
constexpr std::int64_t kMaxProbeNs = 50 * kMillisecond;
// Pause between probes of a broken peer, which doubles with each probe that fails.
constexpr std::int64_t kFirstPauseNs = 5 * kMillisecond;
constexpr std::int64_t kMaxPauseNs = 250 * kMillisecond;

}  // namespace

std::int64_t Breaker::PatienceNs() const {
  return std::clamp(8 * usual_ns_, kMinPatienceNs, kMaxPatienceNs);
}

std::int64_t Breaker::ProbeNs() const {
  return std::clamp(4 * usual_ns_, kMinProbeNs, kMaxProbeNs);
}

void Breaker::Listen(std::int64_t now) {
  if (waiting_ > 0) silence_ns_ += now - listened_ns_;
  listened_ns_ = now;
  // Calls that still wait may be answered yet, so they get more time (kMaxPatienceNs) than calls
  // that have ended without an answer (PatienceNs, in Fail).
  if (state_ == State::kTrusted && silence_ns_ >= kMaxPatienceNs) Suspect(now);
}

void Breaker::Suspect(std::int64_t now) {
  state_ = State::kSuspected;
  pause_ns_ = kFirstPauseNs;
  next_probe_ns_ = now + pause_ns_;
}

Breaker::Pass Breaker::Start(std::int64_t now, std::int64_t until_ns, bool probe) {
  ++waiting_;
  return {.began_ns = now, .until_ns = until_ns, .probe = probe};
}

std::optional<Breaker::Pass> Breaker::Begin(std::int64_t deadline_ns) {
  const MutexLock lock(mutex_);
  const std::int64_t now = clock_.NowNs();
  Listen(now);
  if (state_ == State::kTrusted) return Start(now, deadline_ns, /*probe=*/false);
  if (state_ == State::kBroken) {
    if (now < next_call_ns_) return std::nullopt;
    next_call_ns_ = now + std::max(pause_ns_, ProbeNs());
  }
  return Start(now, std::min(deadline_ns, now + ProbeNs()), /*probe=*/true);
}

Breaker::Pass Breaker::BeginProbe(std::int64_t deadline_ns) {
  const MutexLock lock(mutex_);
  const std::int64_t now = clock_.NowNs();
  Listen(now);
  next_probe_ns_ = now + std::max(pause_ns_, kFirstPauseNs);
  return Start(now, deadline_ns, /*probe=*/true);
}

void Breaker::Heard() {
  const MutexLock lock(mutex_);
  listened_ns_ = clock_.NowNs();
  silence_ns_ = 0;
  if (state_ == State::kSuspected) state_ = State::kTrusted;
}

Breaker::Change Breaker::End(const Pass& pass, Outcome outcome, bool teaches) {
  const MutexLock lock(mutex_);
  const std::int64_t now = clock_.NowNs();
  const State before = state_;
  Listen(now);
  --waiting_;
  if (outcome != Outcome::kAnswered) {
    const Change change = Fail(pass, outcome, now);
    // Listen() may have suspected the peer just above: the caller must learn that, too.
    return change == Change::kNone && before == State::kTrusted && state_ == State::kSuspected
               ? Change::kSuspected
               : change;
  }
  if (teaches) {
    const std::int64_t latency = now - pass.began_ns;
    // A single late answer, such as the first one of a peer that was frozen, must not become the
    // usual latency. So it counts as at most twice the average (and 1 ms), and raises the average
    // by an eighth of the difference.
    const std::int64_t most = 2 * usual_ns_ + kMillisecond;
    usual_ns_ = usual_ns_ == 0 ? latency : usual_ns_ + (std::min(latency, most) - usual_ns_) / 8;
  }
  return Trust(now);
}

Breaker::Change Breaker::Trust(std::int64_t now) {
  const bool mended = state_ == State::kBroken;
  state_ = State::kTrusted;
  silence_ns_ = 0;
  listened_ns_ = now;
  return mended ? Change::kMended : Change::kNone;
}

Breaker::Change Breaker::Fail(const Pass& pass, Outcome outcome, std::int64_t now) {
  if (state_ == State::kTrusted) {
    if (outcome != Outcome::kLost && silence_ns_ < PatienceNs()) return Change::kNone;
    Suspect(now);
    return Change::kSuspected;
  }
  // A call that had less than a probe's time says nothing about the peer. Its wait counts as
  // silence all the same.
  const bool shown = outcome == Outcome::kLost || now - pass.began_ns >= ProbeNs();
  if (!pass.probe || !shown) return Change::kNone;
  const bool broke = state_ == State::kSuspected;
  state_ = State::kBroken;
  pause_ns_ = broke ? kFirstPauseNs : std::min(2 * pause_ns_, kMaxPauseNs);
  next_call_ns_ = now + pause_ns_;
  next_probe_ns_ = now + pause_ns_;
  return broke ? Change::kBroken : Change::kNone;
}

bool Breaker::broken() const {
  const MutexLock lock(mutex_);
  return state_ == State::kBroken;
}

std::int64_t Breaker::ProbeDueNs() const {
  const MutexLock lock(mutex_);
  return state_ == State::kTrusted ? kNever : next_probe_ns_;
}

}  // namespace kvcove::rpc
