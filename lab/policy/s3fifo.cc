// SPDX-License-Identifier: Apache-2.0
#include "lab/policy/s3fifo.h"

namespace kvcove::lab {

void S3Fifo::OnPut(const policy::PutEvent& event) {
  nodes_.Reach(event.id);
  Node& node = nodes_[event.id];
  node = {.key = event.key, .size_bytes = event.size_bytes};
  if (ghost_keys_.contains(event.key)) {
    PushMain(event.id);
    return;
  }
  small_.PushBack(nodes_, event.id);
  small_bytes_ += event.size_bytes;
  ++small_count_;
}

void S3Fifo::OnHit(policy::ObjectId id) {
  Node& node = nodes_[id];
  if (node.frequency < 3) ++node.frequency;
}

void S3Fifo::PushMain(policy::ObjectId id) {
  nodes_[id].in_main = true;
  main_.PushBack(nodes_, id);
  ++main_count_;
}

void S3Fifo::Unlink(policy::ObjectId id) {
  Node& node = nodes_[id];
  if (node.in_main) {
    main_.Erase(nodes_, id);
    --main_count_;
    return;
  }
  small_.Erase(nodes_, id);
  small_bytes_ -= node.size_bytes;
  --small_count_;
}

void S3Fifo::Remember(std::uint64_t key) {
  ghost_.push_back(key);
  ++ghost_keys_[key];
  while (ghost_.size() > main_count_) {
    const auto oldest = ghost_keys_.find(ghost_.front());
    if (--oldest->second == 0) ghost_keys_.erase(oldest);
    ghost_.pop_front();
  }
}

void S3Fifo::OnRemove(policy::ObjectId id, bool evicted) {
  const bool was_in_main = nodes_[id].in_main;
  Unlink(id);
  if (evicted && !was_in_main) Remember(nodes_[id].key);
}

policy::ObjectId S3Fifo::Victim(const std::function<bool(policy::ObjectId)>& evictable) {
  // Each object can be passed over at most 3 times for its frequency and once because it is
  // refused.
  for (std::size_t tries = 5 * (small_count_ + main_count_); tries > 0; --tries) {
    if (small_count_ > 0 && (small_bytes_ >= small_limit_bytes_ || main_count_ == 0)) {
      const policy::ObjectId id = small_.front();
      if (nodes_[id].frequency > 1) {
        Unlink(id);
        nodes_[id].frequency = 0;
        PushMain(id);
        continue;
      }
      if (evictable(id)) return id;
      small_.MoveToBack(nodes_, id);
    } else {
      const policy::ObjectId id = main_.front();
      if (id == policy::kNoObject) return policy::kNoObject;
      if (nodes_[id].frequency > 0) {
        --nodes_[id].frequency;
        main_.MoveToBack(nodes_, id);
        continue;
      }
      if (evictable(id)) return id;
      main_.MoveToBack(nodes_, id);
    }
  }
  return policy::kNoObject;
}

}  // namespace kvcove::lab
