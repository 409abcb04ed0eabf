// SPDX-License-Identifier: Apache-2.0
// An owner's reports to each shard of the directory: one queue a shard, in the order of the events,
// so that a key's entries never overtake each other. No I/O. Not thread-safe: needs LinkCore's
// lock.
//
// A put of several keys is split over the shards of its keys and has its answer when all of them
// have answered. When the map changes, all entries without an answer move to the lanes of their
// present shards, under a new session of each lane: a shard that has acted on some already acts on
// them once more, to the same effect. The answered keys of a put that still waits for others are
// asked again, too: the shard that listed them may have lost its slices, and the owner shows them
// in its inventory only once the whole put has its answer. Except for a key of which an entry was
// added later: then the put has lost its claim to the key.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
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
    InventoryItem reported;
    std::shared_ptr<Split> split = nullptr;  // of a kPut, which is item `index` of it
    std::size_t index = 0;
    std::uint64_t applied = 0;  // the last removal that was applied when the entry was taken
  };
  struct Lane {
    std::uint64_t session = 0;
    std::uint64_t sequence = 0;  // the last request that was answered
    std::deque<Entry> queue;
    std::optional<std::vector<Entry>> batch;  // asked, without an answer yet
    std::string body;                         // request of `batch`, repeated unchanged
    std::uint32_t credit = 0;                 // inventory items that the shard accepts
    std::uint64_t enqueued = 0;               // entries added so far
    std::uint64_t delivered = 0;              // entries answered so far
    bool pause = false;                       // after an error
    std::int64_t wait_ns = 0;                 // before credit is asked for again
  };

  using MapPtr = std::shared_ptr<const wire::ShardMap>;
  const MapPtr& map() const { return map_; }
  bool active() const { return map_ != nullptr; }
  std::size_t size() const { return lanes_.size(); }
  Lane& lane(std::size_t number) { return lanes_[number]; }

  // Sets a map: all entries without an answer move to its lanes, and marks count from 0.
  void SetMap(MapPtr map);
  void Add(Entry entry);
  void AddListing(Listing listing, std::uint64_t applied);
  // Moves up to `at_most` entries of the queue into the lane's batch.
  std::vector<Entry>& Take(Lane& lane, std::size_t at_most);
  // Takes the batch and its answers. `complete`: puts whose last answer this was.
  struct Answered {
    std::vector<Entry> batch;
    std::vector<std::shared_ptr<Split>> complete;
  };
  Answered Answer(Lane& lane, const std::vector<Code>& codes);
  bool Empty() const;  // true if no entry is queued; batches do not count
  std::size_t queued() const;
  // Marks returns each lane's `enqueued`; Reached, whether all up to these marks is answered.
  std::vector<std::uint64_t> Marks() const;
  bool Reached(const std::vector<std::uint64_t>& marks) const;
  // Returns the number of times that marks began to count from 0 again.
  std::uint64_t restarts() const { return restarts_; }
  // Removes all entries and the map. Returns the puts that have no answer, oldest first.
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
  // By hash: the answered items of puts that are not complete, unless a later entry was added
  // since.
  std::map<Id128, Part> answered_;
  std::uint64_t next_session_ = 1;
  std::uint64_t restarts_ = 0;
};

}  // namespace kvcove::owner
