// SPDX-License-Identifier: Apache-2.0
// The `default` policy: keep what is expected to come back soonest for the room that it takes.
//
// A request reads or stores a chain of blocks. Some of them were used before, some are new, and the
// last one is mostly a partial block that the next turn replaces. These come back with very
// different chances, so a closed request is cut into *segments*: maximal runs of blocks that were
// used about equally often, and the tail. All blocks of a segment share a class and a time:
//
//   tail                         the request's last block
//   new  x turn x length         never used before; in a first or a later turn, by request length
//   used x how often x at end    used before; is it the last segment before the tail?
//
// The policy learns on line, class by class, when blocks come back, as hazards by age. It follows
// keys for longer than they are cached (the ghost), so it also learns about what it gave up. A
// segment of class c and age a is worth the Gittins index of its class at that age,
//
//     G_c(a) = max over T > a of  P(returns in (a, T]) / E[time it is kept until it returns or T],
//
// the best rate of hits per block and time that keeping it can earn. The segment that is worth
// least gives up a block: of its request, the deepest segment that is still cached, from its end,
// because a block without its prefix is useless. Nothing is tuned to a capacity.
//
// A request is open until its end is told or a block comes that does not continue it; its blocks
// are spared meanwhile, and compete once it is closed. Time is counted in blocks stored, what
// pressure is made of.
//
// Above `kFollowedObjects` cached blocks only a share of all conversations is followed, chosen by a
// hash of the block at which they branch off, so that memory and work stay bounded.
#pragma once

#include <array>
#include <bitset>
#include <string>
#include <vector>

#include "kvcove/policy/ghost.h"
#include "kvcove/policy/hazards.h"
#include "kvcove/policy/id_list.h"
#include "kvcove/policy/policy.h"

namespace kvcove::policy {

class SegmentPolicy final : public EvictionPolicy {
 public:
  SegmentPolicy();

  void OnPut(const PutEvent& event) override;
  void OnHit(ObjectId id) override;
  void OnRemove(ObjectId id, bool evicted) override;
  ObjectId Victim(const std::function<bool(ObjectId)>& evictable) override;
  void EndRequest() override { CloseRequest(); }
  std::string_view name() const override { return "default"; }

  // For tests: what the bookkeeping contradicts itself in; empty when it does not. Linear.
  std::string Contradiction() const;

 private:
  using SegmentId = std::uint32_t;
  static constexpr SegmentId kNoSegment = 0xFFFFFFFF;
  static constexpr std::uint8_t kSharedChildren = 4;  // continuations that make a shared prefix
  static constexpr std::size_t kFollowedObjects = 65'000;
  static constexpr std::uint32_t kVictimsPerChoice = 16;

  struct Node {
    Link link;  // of its segment's cached blocks, or of the parked ones
    std::uint64_t key = 0;
    std::uint32_t parent_tag = 0;  // of its parent's key
    SegmentId segment = kNoSegment;
    std::uint8_t uses = 0;      // saturating; while it was cached, or as the ghost remembers
    std::uint8_t children = 0;  // saturating
    bool open = false;          // in the request that is being read and stored
    bool parked = false;
    bool followed = false;
  };
  using Nodes = ChunkedArray<Node>;

  struct Segment {
    Link link;             // of those of one class and age that have cached blocks, oldest first
    IdList<Nodes> blocks;  // cached, in the order of the chain
    SegmentId deeper = kNoSegment;  // of the same request
    SegmentId shallower = kNoSegment;
    std::uint64_t time = 0;
    std::uint32_t cached = 0;  // blocks in `blocks`
    std::uint32_t parked = 0;
    std::uint32_t followed = 0;  // keys in the ghost whose last segment this is
    float weight = 0;            // of each block in the statistics
    std::uint8_t cls = 0;
    std::uint8_t age = 0;  // bucket of the list that it is in
    bool listed = false;
    bool used = false;  // false: this number is free
  };
  using Segments = ChunkedArray<Segment>;

  // A block of the open request.
  struct Step {
    ObjectId id = kNoObject;  // kNoObject: gone since
    std::uint64_t key = 0;
    std::uint8_t uses = 0;  // before this request
    std::uint8_t children = 0;
    bool known = false;  // before this request
    bool followed = false;
  };

  bool Continues(const Node& node) const;
  // `parent`: of the block, kNoObject at the start of a chain.
  void AddStep(ObjectId id, bool known);
  bool Followed(const Node& node, ObjectId parent) const;
  void CloseRequest();
  void MakeSegment(std::size_t begin, std::size_t end, std::uint8_t cls, SegmentId& previous);
  void LeaveOldSegment(const Step& step);
  void DropFromSegment(ObjectId id);
  void FreeIfUnused(SegmentId id);
  void Forget(const Ghost::Entry& entry);
  void ListSegment(SegmentId id);
  void UnlistSegment(SegmentId id);
  void AdvanceAges();
  void UpdateTables();
  void Choose();
  SegmentId NewSegment();
  SegmentId Deepest(SegmentId id) const;
  std::size_t Readmit();

  Nodes nodes_;
  Segments segments_;
  std::vector<SegmentId> free_segments_;
  SegmentId next_segment_ = 0;
  std::array<std::array<IdList<Segments>, kAges>, kClasses> lists_;
  // A bit for each list that is not empty.
  std::array<std::bitset<kAges>, kClasses> occupied_;
  IdList<Nodes> parked_;
  std::uint64_t parked_count_ = 0;
  std::uint64_t victims_since_readmit_ = 0;

  std::vector<Step> request_;

  Ghost ghost_;
  HazardTables tables_;
  std::uint64_t now_ = 0;    // blocks stored
  std::uint64_t asked_ = 0;  // blocks stored or read
  std::uint64_t next_update_ = 0;
  std::size_t count_ = 0;
  std::size_t most_ = 0;  // cached at once

  std::uint8_t chosen_class_ = 0;
  std::uint8_t chosen_age_ = 0;
  std::uint32_t chosen_left_ = 0;
};

}  // namespace kvcove::policy
