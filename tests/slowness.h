// SPDX-License-Identifier: Apache-2.0
// How much of a duration is the machine's: for tests that bound what the product takes.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "kvcove/base/clock.h"

namespace kvcove {

inline std::int64_t Now() { return SystemClock::Instance().NowNs(); }
inline std::int64_t NowMs() { return Now() / kMillisecond; }

// For as long as it lives, it adds up how long threads of this process and of its children were
// ready to run and had no core (/proc/*/schedstat), and how much too late a thread of its own woke,
// which also shows a machine that stood still. A bound of the product's is a bound on
// `took - slowness.ms()`: on a quiet machine that is next to nothing, and on a busy one a duration
// says little. A lease lives through a stall of up to a quarter of a second; Holds is for what a
// longer one may end.
class Slowness {
 public:
  Slowness() : before_(WaitsNs()), beat_([this] { Beat(); }), look_([this] { Look(); }) {}
  ~Slowness() {
    stop_ = true;
    beat_.join();
    look_.join();
  }
  Slowness(const Slowness&) = delete;
  Slowness& operator=(const Slowness&) = delete;

  // Until now.
  std::int64_t ms() const {
    std::int64_t waited_ns = 0;
    for (const auto& [thread, delay_ns] : WaitsNs()) {
      const auto before = before_.find(thread);
      waited_ns += delay_ns - (before == before_.end() ? 0 : before->second);
    }
    const std::int64_t late_ns = late_ns_ + std::max<std::int64_t>(0, NowNs() - due_ns_);
    return std::max(waited_ns, late_ns) / 1'000'000;
  }

  // The longest time until now for which the machine stood still.
  std::int64_t longest_ms() const {
    return std::max(longest_ns_.load(), NowNs() - due_ns_) / 1'000'000;
  }
  // Whether it stood still for 250 ms or more at once, and no more than `ms` ago.
  bool StoodStillWithin(std::int64_t ms) const {
    const std::int64_t now_ns = NowNs();
    return now_ns - due_ns_ >= kStillNs || now_ns - still_until_ns_ <= ms * 1'000'000;
  }

  // Returns what `observe` returned last. Calls it again after a false where the machine stood
  // still during the call or shortly before, or where a thread that renews a lease had no core for
  // as long: the lease may have run out then, and the product has kRecoversMs to work again. A
  // stall only postpones the observation; a false without one is final.
  template <typename Observe>
  bool Holds(Observe&& observe) const {
    const std::int64_t until_ns = NowNs() + kPatienceNs;
    while (true) {
      const std::int64_t began_ns = NowNs();
      if (observe()) return true;
      const std::int64_t ran_ms = (NowNs() - began_ns) / 1'000'000;
      if (!StoodStillWithin(ran_ms + kRecoversMs) && !LeaseStarved()) return false;
      if (NowNs() >= until_ns) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  // How long each thread of this process and of its children has waited for a core; they may end
  // meanwhile. `name`: only threads of this name.
  static std::map<std::string, std::int64_t> WaitsNs(const std::string& name = {}) {
    std::map<std::string, std::int64_t> delays;
    std::vector<std::string> processes = {std::to_string(getpid())};
    while (!processes.empty()) {
      const std::string tasks = "/proc/" + std::exchange(processes.back(), {}) + "/task";
      processes.pop_back();
      std::error_code error;
      for (std::filesystem::directory_iterator at(tasks, error), end; !error && at != end;
           at.increment(error)) {
        const std::string task = at->path().string();
        std::string comm;
        if (!name.empty()) std::ifstream(task + "/comm") >> comm;
        std::int64_t ran_ns = 0;
        std::int64_t delay_ns = 0;
        if (comm == name && std::ifstream(task + "/schedstat") >> ran_ns >> delay_ns) {
          delays[task] = delay_ns;
        }
        std::ifstream children(task + "/children");
        for (std::string child; children >> child;) processes.push_back(child);
      }
    }
    return delays;
  }

 private:
  static constexpr std::int64_t kBeatNs = 5'000'000;
  // A lease is a second, and renewed each quarter of it.
  static constexpr std::int64_t kStillNs = 250'000'000;
  static constexpr std::int64_t kRecoversMs = 3000;
  static constexpr std::int64_t kLookMs = 1000;
  static constexpr const char* kLeaseThread = "kvcove-lease";
  static constexpr std::int64_t kPatienceNs = 120'000'000'000;

  static std::int64_t NowNs() {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  }
  // Returns true if a lease thread has waited for a core for kStillNs since the oldest look.
  bool LeaseStarved() const {
    const std::map<std::string, std::int64_t> now = WaitsNs(kLeaseThread);
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(now, [&](const auto& one) {
      const auto before = looks_.front().find(one.first);
      return one.second - (before == looks_.front().end() ? 0 : before->second) >= kStillNs;
    });
  }
  // On a thread of its own: a look at many processes would count as a stall of the beat.
  void Look() {
    while (!stop_) {
      std::map<std::string, std::int64_t> now = WaitsNs(kLeaseThread);
      {
        const std::lock_guard lock(mutex_);
        looks_.push_back(std::move(now));
        if (looks_.size() > 1 + kRecoversMs / kLookMs) looks_.pop_front();
      }
      for (int i = 0; i < kLookMs / 10 && !stop_; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
  }
  void Beat() {
    while (!stop_) {
      due_ns_ = NowNs() + kBeatNs;
      std::this_thread::sleep_for(std::chrono::nanoseconds(kBeatNs));
      const std::int64_t late_ns = std::max<std::int64_t>(0, NowNs() - due_ns_);
      late_ns_ += late_ns;
      longest_ns_ = std::max(longest_ns_.load(), late_ns);
      if (late_ns >= kStillNs) still_until_ns_ = NowNs();
    }
  }

  const std::map<std::string, std::int64_t> before_;
  std::atomic<std::int64_t> due_ns_ = INT64_MAX;
  std::atomic<std::int64_t> late_ns_ = 0;
  std::atomic<std::int64_t> longest_ns_ = 0;
  std::atomic<std::int64_t> still_until_ns_ = INT64_MIN / 2;
  std::atomic<bool> stop_ = false;
  mutable std::mutex mutex_;
  std::deque<std::map<std::string, std::int64_t>> looks_ = {WaitsNs(kLeaseThread)};  // oldest first
  std::thread beat_;
  std::thread look_;
};

}  // namespace kvcove
