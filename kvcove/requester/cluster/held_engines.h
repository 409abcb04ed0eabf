// SPDX-License-Identifier: Apache-2.0
// The registrations that a process keeps alive at the master, so that it can repeat them to a
// master that has just started and knows none, or that has forgotten them. Thread-safe.
#pragma once

#include <atomic>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kvcove/base/carry.h"
#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/requester/local/recent_versions.h"
#include "kvcove/wire/messages.h"

namespace kvcove::wire {

template <typename Ar>
void CarryFields(Ar& ar, RegisterRequest& request) {
  CarryAll(ar, request.name, request.version, request.engine, request.follow_always,
           request.assume_weights, request.last_incarnation, request.last_generation,
           request.holder);
}

}  // namespace kvcove::wire

namespace kvcove::requester {

class HeldEngines {
 public:
  void Registered(const wire::RegisterRequest& request, const wire::Registration& registration);
  void Named(std::string_view name, std::string_view engine,
             const std::vector<std::string>& versions);
  void Ended(std::string_view name, std::string_view engine);
  // The master has answered, now and in this term. True when what is held must be said again: the
  // term is another one than the last time, or the last Repeat() failed, or the master has not
  // heard of this process for so long that it may have ended its registrations. Waits for nobody.
  bool Forgotten(std::uint64_t term, std::int64_t now_ns);
  // As far as the master answers. What it refuses keeps nothing else from being said.
  Status Repeat(wire::GenerationService& master, std::int64_t deadline_ns);

  template <typename Ar>
  void Carry(Ar& ar) {
    const MutexLock lock(mutex_);
    CarryOne(ar, engines_);
  }

 private:
  // Versions that an engine registered and never named.
  static constexpr std::size_t kMaxVersions = 64;
  // A master ends what it has not heard of for 30 s.
  static constexpr std::int64_t kSilenceNs = 15 * kSecond;
  struct Engine {
    RecentVersions<wire::RegisterRequest> versions{kMaxVersions};
    std::vector<std::string> named;
    bool names = false;
    template <typename Ar>
    void Carry(Ar& ar) {
      CarryAll(ar, versions, named, names);
    }
  };
  using Key = std::pair<std::string, std::string>;  // namespace, engine

  mutable Mutex mutex_;
  std::map<Key, Engine> engines_ KVCOVE_GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> term_{0};
  std::atomic<std::int64_t> heard_ns_{0};
};

}  // namespace kvcove::requester
