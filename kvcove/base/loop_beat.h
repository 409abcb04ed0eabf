// SPDX-License-Identifier: Apache-2.0
// Shows whether the loops of this process turn: those that serve calls, renew leases and keep
// deadlines. A process whose loop hangs still has its sockets and its memory, so nobody else sees
// it; the service manager's watchdog does (cli/service_manager.h).
//
// A loop has a LoopBeat for as long as its thread runs, and calls Turn() at least once in
// kLongestTurn. A loop that is paused for a hand-over has ended its thread, so nobody waits for it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kvcove {

class LoopBeat {
 public:
  // A loop that sleeps longer looks as one that hangs.
  static constexpr std::chrono::seconds kLongestTurn{1};

  // `name`: the thread's, for the log.
  explicit LoopBeat(std::string_view name);
  ~LoopBeat();
  LoopBeat(const LoopBeat&) = delete;
  LoopBeat& operator=(const LoopBeat&) = delete;

  // Belongs to the loop's thread. Costs a load and a store, without a lock.
  void Turn() {
    // Only this thread writes, so no atomic addition is needed. Pairs with LoopWatch::Look, which
    // needs no other memory of this thread: relaxed.
    turns_.store(turns_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

 private:
  friend class LoopWatch;
  const std::string name_;
  const std::uint64_t number_;  // of no other LoopBeat of this process
  std::atomic<std::uint64_t> turns_{0};
};

// Looks at all loops of this process again and again. It counts its own looks instead of reading a
// clock: after a pause of the whole machine no loop is late. Belongs to one thread.
class LoopWatch {
 public:
  // `patience`: a loop hangs when it has not turned between so many looks in a row. At least 1.
  explicit LoopWatch(std::uint32_t patience) : patience_(patience) {}

  // Returns the names of the loops that hang.
  std::vector<std::string> Look();

 private:
  struct Seen {
    std::uint64_t turns = 0;
    std::uint32_t looks = 0;  // that have seen no turn
  };
  const std::uint32_t patience_;
  std::map<std::uint64_t, Seen> seen_;  // by LoopBeat::number_
};

}  // namespace kvcove
