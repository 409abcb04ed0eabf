// SPDX-License-Identifier: Apache-2.0
// Replays requests against a policy, without a pool: what a cache of a given size would have
// found.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvcove/policy/policy.h"

namespace kvcove::lab {

// `name`: one of SimulatedPolicies(), which are the pool's (PolicyNames) and those that are only
// compared with them. `capacity_blocks`: how many objects there may be. Errors: as MakePolicy.
Result<std::unique_ptr<policy::EvictionPolicy>> MakeSimulatedPolicy(std::string_view name,
                                                                    std::uint64_t capacity_blocks);
std::vector<std::string_view> SimulatedPolicies();

// The blocks of one request, in the order of its chain; equal numbers are equal blocks.
using Chain = std::vector<std::uint32_t>;

struct HitCount {
  std::uint64_t hit_blocks = 0;  // of the longest leading runs that were present
  std::uint64_t blocks = 0;      // asked for

  double ratio() const {
    return blocks == 0 ? 0 : static_cast<double>(hit_blocks) / static_cast<double>(blocks);
  }
};

// A policy whose objects are blocks of a trace.
class PolicyBlocks {
 public:
  static constexpr std::uint32_t kNoBlock = 0xFFFFFFFF;

  explicit PolicyBlocks(std::unique_ptr<policy::EvictionPolicy> policy)
      : policy_(std::move(policy)) {}

  bool Has(std::uint32_t block) const { return Find(block) != policy::kNoObject; }
  std::size_t size() const { return blocks_.size() - free_.size(); }
  // `parent`: kNoBlock at the start of a chain.
  void Put(std::uint32_t block, std::uint32_t parent);
  void Hit(std::uint32_t block) { policy_->OnHit(Find(block)); }
  // It gave way.
  void Evict(std::uint32_t block);
  // kNoBlock when `evictable` refuses all.
  template <typename Evictable>
  std::uint32_t Victim(const Evictable& evictable) {
    const policy::ObjectId id =
        policy_->Victim([&](policy::ObjectId at) { return evictable(blocks_[at]); });
    return id == policy::kNoObject ? kNoBlock : blocks_[id];
  }
  // The request whose last block this is, if it is still there.
  void EndRequest(std::uint32_t last, const Hints& hints);

 private:
  policy::ObjectId Find(std::uint32_t block) const {
    return block < where_.size() ? where_[block] : policy::kNoObject;
  }

  std::unique_ptr<policy::EvictionPolicy> policy_;
  std::vector<policy::ObjectId> where_;  // block -> object
  std::vector<std::uint32_t> blocks_;    // object -> block
  std::vector<policy::ObjectId> free_;
};

// One cache of `capacity` blocks of one size. A request's leading run that is present counts as
// hit; then every block of the request is read or stored, in order.
class CacheSimulator {
 public:
  CacheSimulator(std::unique_ptr<policy::EvictionPolicy> policy, std::uint64_t capacity_blocks)
      : cache_(std::move(policy)), capacity_(capacity_blocks) {}

  // The length of the leading run of `chain` that is present. Changes nothing.
  std::size_t LeadingRun(std::span<const std::uint32_t> chain) const;
  // Reads what is present, stores the rest. `first`: the blocks before it are neither (an own cache
  // had them). `hints`: what the caller says of the request at its end.
  void Access(std::span<const std::uint32_t> chain, std::size_t first = 0, const Hints& hints = {});

 private:
  PolicyBlocks cache_;
  const std::uint64_t capacity_;
};

// `hints`: one a request, or none.
HitCount Simulate(std::unique_ptr<policy::EvictionPolicy> policy, std::span<const Chain> requests,
                  std::uint64_t capacity_blocks, std::span<const Hints> hints = {});
// Errors: kInvalid for an unknown policy.
Result<HitCount> Simulate(std::string_view policy, std::span<const Chain> requests,
                          std::uint64_t capacity_blocks);

// Belady's clairvoyant optimum (MIN with bypass): gives up the block whose next use is farthest
// away, and does not store a block that would be that one.
HitCount SimulateOptimum(std::span<const Chain> requests, std::uint64_t capacity_blocks);

// What engines find that have a cache of their own in front of a shared one. Request i is served by
// engine i % engines; blocks that its own cache has are not asked of the shared one.
struct TwoLevelCount {
  HitCount own;       // with own caches alone
  HitCount together;  // with the shared cache behind them
};
Result<TwoLevelCount> SimulateTwoLevels(std::string_view shared_policy,
                                        std::span<const Chain> requests, std::uint32_t engines,
                                        std::uint64_t own_blocks, std::uint64_t shared_blocks);

}  // namespace kvcove::lab
