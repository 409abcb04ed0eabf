// SPDX-License-Identifier: Apache-2.0
// Engines that have ended, until the master knows. Event loops hand them over and go on; a thread
// tells the master, for as long as it takes to get an answer.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "kvcove/base/mutex.h"
#include "kvcove/base/result.h"

namespace kvcove::pool {

// Thread-safe.
class EngineEnds {
 public:
  using Engine = std::pair<std::string, std::string>;  // namespace, name of the engine
  // Tells the master of these, in their order. Returns how many it has answered. May wait, but not
  // for ever. Only the thread calls it.
  using Tell = std::function<std::size_t(std::span<const Engine> engines)>;

  explicit EngineEnds(Tell tell);
  // Tries once more to tell what is left, then gives up.
  ~EngineEnds();
  EngineEnds(const EngineEnds&) = delete;
  EngineEnds& operator=(const EngineEnds&) = delete;
  // Errors: as StartThread.
  Status Start();

  // Never waits. An engine that is there already is told once.
  void Add(const Engine& engine);
  // The engine is about to register again. Waits until the master knows of its end: else it would
  // take what is new, and may have other weights, for what it knew. False: not by the deadline.
  bool AwaitTold(const Engine& engine, std::int64_t deadline_ns);
  std::size_t waiting() const;

 private:
  void Run();
  // One batch. True if the master has answered for all of it.
  bool TellSome();
  // Before the next try. False: stop.
  bool Pause(std::int64_t pause_ns);

  const Tell tell_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  bool hurry_ KVCOVE_GUARDED_BY(mutex_) = false;  // somebody waits for the next try
  std::set<Engine> waiting_ KVCOVE_GUARDED_BY(mutex_);
  std::set<Engine> telling_ KVCOVE_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace kvcove::pool
