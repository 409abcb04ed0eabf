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
// A request is open until its end is told, or until nothing has continued it for a while; its
// blocks are spared meanwhile, and compete once it is closed. Requests of several callers may be
// open at once: a block continues the one whose latest block is its parent. Time is counted in
// blocks stored, what pressure is made of.
//
// Callers may tell more (model/hints.h): "ephemeral" and "the session ends" are classes of their
// own, the length of the answer divides classes. What that is worth is learned like all else, so a
// hint that lies costs hits for a while, and nothing else.
//
// Above `kFollowedObjects` cached blocks only a share of all conversations is followed, chosen by a
// hash of the block at which they branch off. Memory: 20 bytes an object, 40 a segment, and at most
// 4 MB for the ghost. Every operation is O(1), or bounded by a constant number of steps: what looks
// at many segments or blocks runs in slices.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "kvcove/policy/age_list.h"
#include "kvcove/policy/ghost.h"
#include "kvcove/policy/hazards.h"
#include "kvcove/policy/id_list.h"
#include "kvcove/policy/policy.h"

namespace kvcove::policy {

// What `kvcove policy --ablations` switches off or sets otherwise; an owner uses the defaults.
struct SegmentOptions {
  bool cut = true;          // else a request is one segment and its tail
  bool turns = true;        // first and later turns are told apart
  bool lengths = true;      // and requests of different length
  bool before_tail = true;  // and whether only the tail follows
  bool deepest = true;      // the deepest segment of the request gives way, not the one chosen
  bool by_size = true;      // a block counts 1 / sqrt(size of its segment), not fully
  double tail_weight = 0.5;
  std::uint8_t most_uses = 255;  // that are told apart
  // The ghost follows so many keys for each cached block, within bounds: too few, and it forgets
  // what is about to return; too many, and uses of long ago count as if they were new.
  std::size_t ghost_share = 5;
  std::size_t least_ghost = 24'000;
  std::size_t most_ghost = 131'072;
  HazardOptions hazards;
};

class SegmentPolicy final : public EvictionPolicy {
 public:
  explicit SegmentPolicy(const SegmentOptions& options = {});

  void OnPut(const PutEvent& event) override;
  void Prefetch(std::span<const std::uint64_t> keys) const override;
  void OnHit(ObjectId id) override;
  void OnRemove(ObjectId id, bool evicted) override;
  ObjectId Victim(const std::function<bool(ObjectId)>& evictable) override;
  void OnHints(ObjectId id, const Hints& hints) override;
  void EndRequest(ObjectId last) override;
  void OnShare(double share) override {
    share_ = share;
    most_ = 0;
  }
  void Save(StateWriter& ar) override { Carry(ar); }
  void Load(StateReader& ar) override { Carry(ar); }
  std::string_view name() const override { return "default"; }

  // Objects, segments, ghost, tables.
  std::size_t bytes() const override;
  // For tests: what the bookkeeping contradicts itself in; empty when it does not. Linear.
  std::string Contradiction() const;

 private:
  using SegmentId = std::uint32_t;
  static constexpr SegmentId kNoSegment = 0xFFFFFFFF;
  using OpenNumber = std::uint32_t;
  static constexpr std::uint8_t kSharedChildren = 4;  // continuations that make a shared prefix
  static constexpr std::uint8_t kMostChildren = 7;
  static constexpr std::size_t kFollowedObjects = 65'000;
  static constexpr std::uint32_t kVictimsPerChoice = 16;
  static constexpr OpenNumber kMostOpen = 16;
  static constexpr std::uint32_t kMostSteps = 1024;  // a longer request is closed in parts

  struct Node {
    Link link;                       // of its segment's cached blocks, or of the parked ones
    std::uint32_t key = 0;           // the upper half of the key's hash
    SegmentId segment = kNoSegment;  // while it is open: its request and its place in it
    std::uint16_t parent_tag = 0;    // of its parent's key; 0 at the start of a chain
    std::uint8_t uses = 0;           // saturating; while cached, or as the ghost remembers
    std::uint8_t children : 3 = 0;   // saturating
    bool open : 1 = false;           // in a request that is being read and stored
    bool parked : 1 = false;
    bool followed : 1 = false;
  };
  static_assert(sizeof(Node) == 20);
  using Nodes = ChunkedArray<Node>;

  struct Segment {
    Link link;                      // of those of one class that have cached blocks, oldest first
    IdList<Nodes> blocks;           // cached, in the order of the chain
    SegmentId deeper = kNoSegment;  // of the same request
    SegmentId shallower = kNoSegment;
    std::uint32_t time = 0;  // in units of kTimeUnit blocks stored; differences count
    // None exceeds kMostSteps.
    std::uint16_t cached = 0;  // blocks in `blocks`
    std::uint16_t parked = 0;
    std::uint16_t followed = 0;  // keys in the ghost whose last segment this is
    std::uint16_t size = 0;      // blocks that it was made of
    std::uint8_t cls = 0;
    bool used = false;  // false: this number is free
  };
  static_assert(sizeof(Segment) == 40);
  using Segments = ChunkedArray<Segment>;

  // A block of an open request.
  struct Step {
    ObjectId id = kNoObject;  // kNoObject: gone since
    std::uint32_t key = 0;
    std::uint8_t uses = 0;  // before this request
    std::uint8_t children = 0;
    bool known = false;  // before this request
    bool followed = false;
    bool ephemeral = false;
  };
  struct Request {
    std::vector<Step> steps;
    std::uint64_t touched = 0;  // when its latest block came, in blocks asked; 0: not in use
    std::uint32_t time = 0;     // then, as of a segment
    std::uint32_t output_tokens = 0;
    bool ephemeral = false;  // from its latest block on
    bool session_ends = false;

    template <typename Ar>
    void Carry(Ar& ar) {
      CarryAll(ar, steps, touched, time, output_tokens, ephemeral, session_ends);
    }
  };

  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, nodes_, segments_, free_segments_, next_segment_, lists_, parked_, parked_count_,
             victims_since_readmit_, requests_, open_steps_, ghost_, tables_, now_, asked_,
             next_update_, counted_, count_, most_, chosen_class_, chosen_age_, chosen_left_);
  }
  Request* OpenOf(ObjectId id) {
    return nodes_[id].open ? &requests_[nodes_[id].segment / kMostSteps] : nullptr;
  }
  Request& RequestFor(const Node& node);
  // `known`: the policy remembers that it was used.
  void AddStep(Request& request, ObjectId id, bool known);
  // `parent`: of the block, kNoObject at the start of a chain.
  bool Followed(const Node& node, ObjectId parent) const;
  // `ended` false: the request goes on, and has no tail yet.
  void CloseRequest(Request& request, bool ended = true);
  bool CloseOldest();
  std::uint8_t ClassOf(const Request& request, const Step& step, std::uint8_t otherwise) const;
  void MakeSegment(const Request& request, std::size_t begin, std::size_t end, std::uint8_t cls,
                   SegmentId& previous);
  void LeaveOldSegment(const Step& step);
  void DropFromSegment(ObjectId id);
  void FreeIfUnused(SegmentId id);
  void Forget(const Ghost::Entry& entry);
  AgeList<Segments>& ListOf(std::uint8_t cls);
  void ListSegment(SegmentId id);
  void UnlistSegment(SegmentId id);
  void UpdateTables();
  void Choose();
  void PrefetchOldest() const;
  void PrefetchBehind(SegmentId id) const;
  SegmentId NewSegment();
  SegmentId Deepest(SegmentId id) const;
  std::size_t Readmit();
  float WeightOf(const Segment& segment) const;
  std::uint32_t TimeNow() const;
  std::uint64_t AgeNow(const Segment& segment) const;

  const SegmentOptions options_;
  double share_ = 1;  // not carried: a policy of a sample is not handed over
  Nodes nodes_;
  Segments segments_;
  std::deque<SegmentId> free_segments_;  // a million at once after a reset: none is copied to grow
  SegmentId next_segment_ = 0;
  std::vector<AgeList<Segments>> lists_;  // by class
  IdList<Nodes> parked_;
  std::uint64_t parked_count_ = 0;
  std::uint64_t victims_since_readmit_ = 0;

  std::array<Request, kMostOpen> requests_;
  std::uint64_t open_steps_ = 0;

  Ghost ghost_;
  HazardTables tables_;
  std::uint64_t now_ = 0;    // blocks stored
  std::uint64_t asked_ = 0;  // blocks stored or read
  std::uint64_t next_update_ = 0;
  SegmentId counted_ = kNoSegment;  // how far the update that is under way has come
  std::size_t count_ = 0;
  std::size_t most_ = 0;  // cached at once

  std::uint8_t chosen_class_ = 0;
  std::uint8_t chosen_age_ = 0;
  std::uint32_t chosen_left_ = 0;
};

}  // namespace kvcove::policy
