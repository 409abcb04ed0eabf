// SPDX-License-Identifier: Apache-2.0
// What an owner has to tell each shard of the directory: one queue a shard, in the order in which
// it happened, so that a key's entries never overtake each other. No I/O. Needs a lock.
//
// A put of several keys is split over the shards of its keys and has its answer when all of them
// have answered. When the map changes, everything without an answer goes to where it belongs now,
// under a new session of each lane: a shard that did some of it already does it once more, to the
// same effect. So do the answered keys of a put that waits for others: the shard that listed them
// may be gone, and the owner shows them in its inventory only once the whole put has its answer.
// Unless something came later of the same key: then the put has lost its claim to it meanwhile.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvcove/owner/link/link_target.h"
#include "kvcove/wire/shard_map.h"

namespace kvcove::owner {

class ShardLanes {
 public:
  enum class Kind : std::uint8_t { kGone, kPut, kInventory };
  struct Split {
    Listing listing;
    std::uint64_t applied = 0;  // as Entry::applied
    std::vector<Code> codes;
    std::size_t missing = 0;
  };
  struct Entry {
    Kind kind = Kind::kGone;
    InventoryItem told;
    std::shared_ptr<Split> split = nullptr;  // of a put, and which of its items this is
    std::size_t index = 0;
    std::uint64_t applied = 0;  // the last removal that was applied when this was taken
  };
  struct Lane {
    std::uint64_t session = 0;
    std::uint64_t sequence = 0;  // the last one that was answered
    std::deque<Entry> queue;
    std::optional<std::vector<Entry>> batch;  // asked, without an answer yet
    std::string body;                         // of the request
    std::uint32_t credit = 0;
    std::uint64_t enqueued = 0;
    std::uint64_t delivered = 0;
    bool pause = false;
    std::int64_t wait_ns = 0;
  };

  using MapPtr = std::shared_ptr<const wire::ShardMap>;
  const MapPtr& map() const { return map_; }
  bool active() const { return map_ != nullptr; }
  std::size_t size() const { return lanes_.size(); }
  Lane& lane(std::size_t number) { return lanes_[number]; }

  // Everything without an answer goes to the lanes of the new map.
  void SetMap(MapPtr map);
  void Add(Entry entry);
  void AddListing(Listing listing, std::uint64_t applied);
  // Up to `at_most` entries of the queue; they are the lane's batch now.
  std::vector<Entry>& Take(Lane& lane, std::size_t at_most);
  // The batch's answers; puts that are complete now, with their codes.
  struct Answered {
    std::vector<Entry> batch;
    std::vector<std::shared_ptr<Split>> complete;
  };
  Answered Answer(Lane& lane, const std::vector<Code>& codes);
  bool Empty() const;  // nothing is queued
  std::size_t queued() const;
  // What the lanes have been given so far, and whether all that was delivered.
  std::vector<std::uint64_t> Marks() const;
  bool Reached(const std::vector<std::uint64_t>& marks) const;
  // Grows when marks count from anew.
  std::uint64_t restarts() const { return restarts_; }
  // Puts that have no answer, oldest first; nothing is left.
  std::vector<Listing> Clear();

 private:
  void Ask(const std::shared_ptr<Split>& split, std::size_t index);

  struct Part {
    std::shared_ptr<Split> split;
    std::size_t index = 0;
  };
  MapPtr map_;
  std::vector<Lane> lanes_;
  std::deque<std::weak_ptr<Split>> splits_;  // oldest first; some are complete
  // By hash, of puts that are not complete: what was answered, and is the last of its key.
  std::map<Id128, Part> answered_;
  std::uint64_t next_session_ = 1;
  std::uint64_t restarts_ = 0;
};

}  // namespace kvcove::owner
