// SPDX-License-Identifier: Apache-2.0
// The registrations that a process keeps alive at the master, so that it can repeat them to a
// master that has just started and knows none. Thread-safe.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/wire/messages.h"

namespace kvcove::requester {

class HeldEngines {
 public:
  void Registered(const wire::RegisterRequest& request, const wire::Registration& registration);
  void Named(std::string_view name, std::string_view engine,
             const std::vector<std::string>& versions);
  void Ended(std::string_view name, std::string_view engine);
  // True when `term` is another one than at the last call, or that call failed: then what is held
  // must be said again.
  bool Forgotten(std::uint64_t term);
  // Until the first error; the next Forgotten says so again.
  Status Repeat(wire::GenerationService& master, std::int64_t deadline_ns);

 private:
  // Versions that an engine registered and never named; the oldest are forgotten.
  static constexpr std::size_t kMaxVersions = 64;
  struct Engine {
    std::map<std::string, wire::RegisterRequest> versions;
    std::vector<std::string> named;
    bool names = false;
  };
  using Key = std::pair<std::string, std::string>;  // namespace, engine

  mutable Mutex mutex_;
  std::map<Key, Engine> engines_ KVCOVE_GUARDED_BY(mutex_);
  std::uint64_t term_ KVCOVE_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvcove::requester
