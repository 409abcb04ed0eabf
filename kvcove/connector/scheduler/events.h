// SPDX-License-Identifier: Apache-2.0
// KV events: what an engine tells others of the blocks that it can load from the pool.
//
// The engine sends one event for each medium when it learns that a block lies there:
//
//   nothing told --saved, or found in memory--> memory --found on a disk alone--> disk
//                --found on a disk alone------> disk   --loaded--------------> memory and disk
//   any --a look-up or a load finds nothing--> nothing (removed from each medium that was told)
//   any --a reset, other weights-------------> nothing (the same)
//
// Routers do not agree on AllBlocksCleared: one takes it for the engine's own cache alone, one for
// every medium, one for nothing. So a reset names each block that was told, and an engine that
// clears its own cache tells again what it finds in the pool.
//
// The pool does not tell engines what it evicts: an event is as young as the last look-up, load or
// save of its block. A block whose values lie on both media is on the slower one.
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

// Needs a lock. Bounded: the oldest events go when nobody takes them, and of blocks beyond `most
// blocks` only what is saved is told.
class Events {
 public:
  struct Options {
    bool enabled = false;  // else every call does nothing
    std::string engine;    // for logs
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
  // It was put into memory. Told each time: others may have lost it from their lists meanwhile.
  void Saved(const Block& block, LinesAfterLock& lines);
  // It was found there; on the disk means: not in memory.
  void Found(const Block& block, Medium where, LinesAfterLock& lines);
  // Its load has brought it into memory.
  void Loaded(const Block& block, LinesAfterLock& lines);
  // It is nowhere.
  void Gone(const Block& block, LinesAfterLock& lines);
  // A reset, or other weights: what was told is not found any more, and what was to be told is not.
  void Clear(LinesAfterLock& lines);
  // The engine has told AllBlocksCleared of its own cache: who takes that for every medium has lost
  // what was told, so what is found from now on is told once more.
  void TellAgain() { ++cleared_; }

  std::vector<PoolEvent> Take();
  std::uint64_t dropped() const { return dropped_; }

 private:
  using Id = std::pair<std::uint32_t, std::string>;  // group, hash
  static constexpr std::uint8_t Bit(Medium medium) {
    return static_cast<std::uint8_t>(1U << static_cast<unsigned>(medium));
  }
  struct Told {
    std::uint8_t media = 0;     // as bits; never 0
    std::uint64_t cleared = 0;  // `cleared_` when it was told
  };
  // False: there are too many to remember.
  bool Remember(const Block& block, Medium medium);
  // Whether this medium was told, and not forgotten by anybody since.
  bool Knows(const Told& told, Medium medium) const {
    return told.cleared == cleared_ && (told.media & Bit(medium)) != 0;
  }
  void Add(PoolEvent::Kind kind, const Block& block, Medium medium, LinesAfterLock& lines);
  void Push(PoolEvent event, LinesAfterLock& lines);

  const Options options_;
  std::deque<PoolEvent> events_;
  std::map<Id, Told> told_;
  std::uint64_t cleared_ = 0;  // calls of TellAgain
  bool forgot_ = false;        // blocks were told that told_ has no room for
  std::uint64_t dropped_ = 0;
};

}  // namespace kvcove::connector
