// SPDX-License-Identifier: Apache-2.0
// Remembers the registrations that a process keeps alive at the master, and repeats them to a
// master that has just started and knows none, or that has forgotten them. No thread: the owner of
// this object calls Forgotten with each answer of the master, and Repeat if that is true. The lock
// is not held during the calls.
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

// Thread-safe.
class HeldEngines {
 public:
  // Note the master's answers to an engine's calls, and the engine's end. A registration that is
  // not open is not kept.
  void Registered(const wire::RegisterRequest& request, const wire::Registration& registration);
  void Named(std::string_view name, std::string_view engine,
             const std::vector<std::string>& versions);
  void Ended(std::string_view name, std::string_view engine);
  // Notes that the master of this term has answered now. True when Repeat must follow: the term has
  // changed since the last call, the last Repeat failed, or the last answer is so old that the
  // master may have ended this process's registrations. Waits for nothing.
  bool Forgotten(std::uint64_t term, std::int64_t now_ns);
  // Registers all engines again, each one's versions in the order in which it registered for them
  // last, and names their versions. A refused registration (kInvalid, kDenied) is skipped, other
  // errors that the master answers do not stop the rest, and a master that does not answer ends the
  // call. Returns the last error that is worth another Repeat.
  Status Repeat(wire::GenerationService& master, std::int64_t deadline_ns);

  template <typename Ar>
  void Carry(Ar& ar) {
    const MutexLock lock(mutex_);
    CarryOne(ar, engines_);
  }

 private:
  // Bounds the versions of an engine that never names any.
  static constexpr std::size_t kMaxVersions = 64;
  // Half of the time after which a master ends the registrations of a silent process.
  static constexpr std::int64_t kSilenceNs = 15 * kSecond;
  struct Engine {
    RecentVersions<wire::RegisterRequest> versions{kMaxVersions};
    std::vector<std::string> named;
    bool names = false;  // NameVersions was called, so `named` is valid
    template <typename Ar>
    void Carry(Ar& ar) {
      CarryAll(ar, versions, named, names);
    }
  };
  using Key = std::pair<std::string, std::string>;  // namespace, engine

  mutable Mutex mutex_;
  std::map<Key, Engine> engines_ KVCOVE_GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> term_{0};     // of the last answer; 0: Repeat must follow
  std::atomic<std::int64_t> heard_ns_{0};  // time of the last answer; 0: none yet
};

}  // namespace kvcove::requester
