// SPDX-License-Identifier: Apache-2.0
// KV events: an engine's reports, for routers, of the blocks that it can load from the pool.
//
// The engine sends one event for each medium when it learns that the medium has a block:
//
//   unreported --saved, or found in memory--> memory --found on a disk alone--> disk
//              --found on a disk alone------> disk   --loaded--------------> memory and disk
//   any --a look-up or a load finds nothing--> unreported (removed from each reported medium)
//   any --a reset, other weights-------------> unreported (the same)
//
// Routers do not agree on AllBlocksCleared: one applies it to the engine's own cache alone, one to
// every medium, one ignores it. So a reset names each reported block, and an engine that clears its
// own cache reports the blocks that it finds in the pool again.
//
// The pool does not notify engines of evictions: an event is as old as the last look-up, load or
// save of its block. A block with values on both media counts for the slower one.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcove/base/log.h"
#include "kvcove/connector/plan.h"

namespace kvcove::connector {

enum class Medium : std::uint8_t { kMemory = 0, kDisk = 1 };

struct PoolEvent {
  enum class Kind : std::uint8_t { kStored, kRemoved, kAllCleared };
  Kind kind = Kind::kStored;
  std::string request;
  std::uint32_t group = 0;
  std::uint64_t first_chunk = 0;
  std::vector<std::string> hashes;  // of consecutive chunks
  std::string parent;               // the hash before them, if any
  Medium medium = Medium::kMemory;
};

// Needs its owner's lock. Bounded: beyond `most_events` the oldest events are dropped, and beyond
// `most_blocks` only saves of further blocks are reported.
class Events {
 public:
  struct Options {
    bool enabled = false;  // false: every call does nothing
    std::string engine;    // names the engine in logs
    std::size_t most_events = 1 << 16;
    std::size_t most_blocks = 1 << 18;
  };
  explicit Events(Options options) : options_(std::move(options)) {}

  bool enabled() const { return options_.enabled; }

  // A chunk of a request, and the hash before it in its group; valid during the call.
  struct Block {
    std::string_view request;
    std::uint32_t group = 0;
    std::uint64_t chunk = 0;
    std::string_view hash;
    std::string_view parent;
  };
  // Reports a block that was put into memory, each time: routers may have dropped it meanwhile.
  void Saved(const Block& block, LinesAfterLock& lines);
  // Reports where a block was found, if that is news. kDisk: it is not in memory.
  void Found(const Block& block, Medium where, LinesAfterLock& lines);
  // Reports a reported block as in memory, as its load promotes it.
  void Loaded(const Block& block, LinesAfterLock& lines);
  // Reports a block as removed from each medium on which it was reported.
  void Gone(const Block& block, LinesAfterLock& lines);
  // Reports all blocks as removed, and drops their pending events: a reset, or other weights.
  void Clear(LinesAfterLock& lines);
  // Notes that the engine has sent AllBlocksCleared for its own cache. A router that applies it to
  // every medium has lost the pool's blocks, so blocks that are found from now on are reported
  // again.
  void TellAgain() { ++cleared_; }

  std::vector<PoolEvent> Take();
  std::uint64_t dropped() const { return dropped_; }

 private:
  using Id = std::pair<std::uint32_t, std::string>;  // group, hash
  static constexpr std::uint8_t Bit(Medium medium) {
    return static_cast<std::uint8_t>(1U << static_cast<unsigned>(medium));
  }
  struct Told {
    std::uint8_t media = 0;     // as bits; not 0 between calls
    std::uint64_t cleared = 0;  // `cleared_` at the last report
  };
  // Notes a report. False: too many blocks are noted.
  bool Remember(const Block& block, Medium medium);
  // Returns whether this medium was reported, and no router may have dropped it since.
  bool Knows(const Told& told, Medium medium) const {
    return told.cleared == cleared_ && (told.media & Bit(medium)) != 0;
  }
  void Add(PoolEvent::Kind kind, const Block& block, Medium medium, LinesAfterLock& lines);
  void Push(PoolEvent event, LinesAfterLock& lines);

  const Options options_;
  std::deque<PoolEvent> events_;
  std::map<Id, Told> told_;
  std::uint64_t cleared_ = 0;  // calls of TellAgain
  bool forgot_ = false;        // blocks were reported for which `told_` had no room
  std::uint64_t dropped_ = 0;
};

}  // namespace kvcove::connector
