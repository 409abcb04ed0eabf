// SPDX-License-Identifier: Apache-2.0
// Engines that have ended and whose end the master does not know yet. Event loops add engines and
// never wait; a thread (kvcove-ends) reports them to the master until it answers. One mutex, taken
// alone; the call to the master is made without it.
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
  // Reports the ends of these engines to the master, in their order. Returns how many of them, from
  // the first on, the master has answered. May wait, but not for ever. Called by kvcove-ends only.
  using Tell = std::function<std::size_t(std::span<const Engine> engines)>;

  explicit EngineEnds(Tell tell);
  // Reports what is left, until the master once does not answer; then gives up.
  ~EngineEnds();
  EngineEnds(const EngineEnds&) = delete;
  EngineEnds& operator=(const EngineEnds&) = delete;
  // Starts the thread. Errors: as StartThread.
  Status Start();

  // Queues an engine's end; never waits. An engine that is queued already is reported once. Beyond
  // 65,536 engines the end is dropped.
  void Add(const Engine& engine);
  // Waits until the master knows of the end of this engine, which is about to register again. Else
  // the master would take the new engine, which may have other weights, for the one that it knew,
  // and the end, reported later, would end the new one. False: the deadline has passed.
  bool AwaitTold(const Engine& engine, std::int64_t deadline_ns);
  // Returns how many ends the master does not know yet.
  std::size_t waiting() const;

 private:
  void Run();
  // Reports one batch. Returns whether the master has answered for all of it.
  bool TellSome();
  // Waits before the next try; less if a caller of AwaitTold waits for it. False: stop.
  bool Pause(std::int64_t pause_ns);

  const Tell tell_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  bool hurry_ KVCOVE_GUARDED_BY(mutex_) = false;  // a caller waits for the next try
  std::set<Engine> waiting_ KVCOVE_GUARDED_BY(mutex_);
  std::set<Engine> telling_ KVCOVE_GUARDED_BY(mutex_);  // in the call that is under way
  std::thread thread_;
};

}  // namespace kvcove::pool
