// SPDX-License-Identifier: Apache-2.0
#include "lab/policy/simulate.h"

#include <fmt/core.h>

#include <queue>
#include <unordered_map>
#include <utility>

#include "kvcove/base/random.h"
#include "kvcove/policy/lru.h"
#include "lab/policy/s3fifo.h"

namespace kvcove::lab {

std::vector<std::string_view> SimulatedPolicies() {
  std::vector<std::string_view> names = policy::PolicyNames();
  names.emplace_back(S3Fifo::kName);
  return names;
}

Result<std::unique_ptr<policy::EvictionPolicy>> MakeSimulatedPolicy(std::string_view name,
                                                                    std::uint64_t capacity_blocks) {
  if (name == S3Fifo::kName) return std::make_unique<S3Fifo>(capacity_blocks);
  if (auto made = policy::MakePolicy(name)) return made;
  return Fail(Code::kInvalid, fmt::format("'{}' is not an eviction policy; use {}", name,
                                          policy::ListPolicies(SimulatedPolicies())));
}

void PolicyBlocks::Put(std::uint32_t block, std::uint32_t parent) {
  auto id = static_cast<policy::ObjectId>(blocks_.size());
  if (free_.empty()) {
    blocks_.push_back(block);
  } else {
    id = free_.back();
    free_.pop_back();
    blocks_[id] = block;
  }
  if (block >= where_.size()) where_.resize(block + 1, policy::kNoObject);
  where_[block] = id;
  const bool first = parent == kNoBlock;
  policy_->OnPut({.id = id,
                  .key = Mix64(block),
                  .size_bytes = 1,
                  .parent = first ? policy::kNoObject : Find(parent),
                  .parent_key = first ? 0 : Mix64(parent)});
}

void PolicyBlocks::Evict(std::uint32_t block) {
  const policy::ObjectId id = std::exchange(where_[block], policy::kNoObject);
  policy_->OnRemove(id, /*evicted=*/true);
  free_.push_back(id);
}

void PolicyBlocks::EndRequest(std::uint32_t last, const Hints& hints) {
  const policy::ObjectId id = Find(last);
  if (id == policy::kNoObject) return;
  policy_->OnHints(id, hints);
  policy_->EndRequest(id);
}

std::size_t CacheSimulator::LeadingRun(std::span<const std::uint32_t> chain) const {
  std::size_t length = 0;
  while (length < chain.size() && cache_.Has(chain[length])) ++length;
  return length;
}

void CacheSimulator::Access(std::span<const std::uint32_t> chain, std::size_t first,
                            const Hints& hints) {
  if (capacity_ == 0) return;
  std::uint32_t parent = first == 0 ? PolicyBlocks::kNoBlock : chain[first - 1];
  for (const std::uint32_t block : chain.subspan(first)) {
    if (cache_.Has(block)) {
      cache_.Hit(block);
    } else {
      if (cache_.size() >= capacity_) {
        cache_.Evict(cache_.Victim([](std::uint32_t) { return true; }));
      }
      cache_.Put(block, parent);
    }
    parent = block;
  }
  if (parent != PolicyBlocks::kNoBlock) cache_.EndRequest(parent, hints);
}

HitCount Simulate(std::unique_ptr<policy::EvictionPolicy> policy, std::span<const Chain> requests,
                  std::uint64_t capacity_blocks, std::span<const Hints> hints) {
  CacheSimulator cache(std::move(policy), capacity_blocks);
  HitCount count;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    count.hit_blocks += cache.LeadingRun(requests[i]);
    count.blocks += requests[i].size();
    cache.Access(requests[i], 0, hints.empty() ? Hints{} : hints[i]);
  }
  return count;
}

Result<HitCount> Simulate(std::string_view policy, std::span<const Chain> requests,
                          std::uint64_t capacity_blocks) {
  KVCOVE_ASSIGN(auto made, MakeSimulatedPolicy(policy, capacity_blocks));
  return Simulate(std::move(made), requests, capacity_blocks);
}

HitCount SimulateOptimum(std::span<const Chain> requests, std::uint64_t capacity_blocks) {
  constexpr std::uint32_t kNever = ~0U;
  // next[i] = the request that next uses the block of access i. Blocks of one request share it; of
  // those that are equally far, the deepest goes first, as it is of no use without the others.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> accesses;  // request, block
  for (std::uint32_t r = 0; r < requests.size(); ++r) {
    for (const std::uint32_t block : requests[r]) accesses.emplace_back(r, block);
  }
  std::vector<std::uint32_t> next(accesses.size(), kNever);
  std::unordered_map<std::uint32_t, std::uint32_t> seen;
  for (std::size_t i = accesses.size(); i-- > 0;) {
    const auto [request, block] = accesses[i];
    const auto [at, fresh] = seen.try_emplace(block, request);
    if (!fresh) next[i] = std::exchange(at->second, request);
  }
  struct Use {
    std::uint32_t request;
    std::uint32_t depth;  // of the block in its chain
    std::uint32_t block;
    bool operator<(const Use& other) const {
      return request != other.request ? request < other.request : depth < other.depth;
    }
  };
  std::unordered_map<std::uint32_t, std::uint32_t> present;  // block -> next use
  std::priority_queue<Use> farthest;                         // stale entries are skipped
  HitCount count;
  std::size_t position = 0;
  for (const Chain& chain : requests) {
    count.blocks += chain.size();
    for (const std::uint32_t block : chain) {
      if (!present.contains(block)) break;
      ++count.hit_blocks;
    }
    for (std::uint32_t depth = 0; depth < chain.size(); ++depth) {
      const std::uint32_t block = chain[depth];
      const std::uint32_t use = next[position++];
      if (use == kNever) {
        present.erase(block);
        continue;
      }
      present[block] = use;
      farthest.push({use, depth, block});
      while (present.size() > capacity_blocks) {
        const Use victim = farthest.top();
        farthest.pop();
        const auto at = present.find(victim.block);
        if (at != present.end() && at->second == victim.request) present.erase(at);
      }
    }
  }
  return count;
}

Result<TwoLevelCount> SimulateTwoLevels(std::string_view shared_policy,
                                        std::span<const Chain> requests, std::uint32_t engines,
                                        std::uint64_t own_blocks, std::uint64_t shared_blocks) {
  KVCOVE_ASSIGN(auto made, MakeSimulatedPolicy(shared_policy, shared_blocks));
  CacheSimulator shared(std::move(made), shared_blocks);
  std::vector<CacheSimulator> own;
  for (std::uint32_t i = 0; i < engines; ++i)
    own.emplace_back(std::make_unique<policy::Lru>(), own_blocks);
  TwoLevelCount count;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Chain& chain = requests[i];
    CacheSimulator& mine = own[i % engines];
    const std::size_t found = mine.LeadingRun(chain);
    const std::size_t more = shared.LeadingRun(std::span(chain).subspan(found));
    count.own.blocks += chain.size();
    count.own.hit_blocks += found;
    count.together.blocks += chain.size();
    count.together.hit_blocks += found + more;
    shared.Access(chain, found);
    mine.Access(chain);
  }
  return count;
}

}  // namespace kvcove::lab
