// SPDX-License-Identifier: Apache-2.0
// S3-FIFO as published (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023):
// a small queue of 10 % for what is new, a main queue, and a ghost queue of keys as long as the
// main queue. It is simulated for comparison (lab/policy/simulate.h); no owner runs it.
#pragma once

#include <deque>
#include <unordered_map>

#include "kvcove/policy/id_list.h"
#include "kvcove/policy/policy.h"

namespace kvcove::lab {

class S3Fifo final : public policy::EvictionPolicy {
 public:
  static constexpr std::string_view kName = "s3fifo";
  explicit S3Fifo(std::uint64_t capacity_bytes) : small_limit_bytes_(capacity_bytes / 10) {}

  void OnPut(const policy::PutEvent& event) override;
  void OnHit(policy::ObjectId id) override;
  void OnRemove(policy::ObjectId id, bool evicted) override;
  policy::ObjectId Victim(const std::function<bool(policy::ObjectId)>& evictable) override;
  std::size_t bytes() const override {
    return nodes_.bytes() + ghost_.size() * (sizeof(std::uint64_t) + sizeof(*ghost_keys_.begin()));
  }
  // A simulation has no successor.
  void Save(StateWriter& /*ar*/) override {}
  void Load(StateReader& /*ar*/) override {}
  std::string_view name() const override { return kName; }

 private:
  struct Node {
    policy::Link link;
    std::uint64_t key = 0;
    std::uint64_t size_bytes = 0;
    std::uint8_t frequency = 0;
    bool in_main = false;
  };

  void Unlink(policy::ObjectId id);
  void PushMain(policy::ObjectId id);
  void Remember(std::uint64_t key);

  const std::uint64_t small_limit_bytes_;
  policy::ChunkedArray<Node> nodes_;
  policy::IdList<policy::ChunkedArray<Node>> small_;
  policy::IdList<policy::ChunkedArray<Node>> main_;
  std::uint64_t small_bytes_ = 0;
  std::size_t small_count_ = 0;
  std::size_t main_count_ = 0;
  // The ghost queue: keys in order, and how often each stands in it.
  std::deque<std::uint64_t> ghost_;
  std::unordered_map<std::uint64_t, std::uint32_t> ghost_keys_;
};

}  // namespace kvcove::lab
