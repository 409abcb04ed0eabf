// SPDX-License-Identifier: Apache-2.0
// Least recently used: the yardstick.
#pragma once

#include "kvcove/policy/id_list.h"
#include "kvcove/policy/policy.h"

namespace kvcove::policy {

class Lru final : public EvictionPolicy {
 public:
  void OnPut(const PutEvent& event) override {
    nodes_.Reach(event.id);
    list_.PushBack(nodes_, event.id);
    ++count_;
  }
  void OnHit(ObjectId id) override { list_.MoveToBack(nodes_, id); }
  void OnRemove(ObjectId id, bool /*evicted*/) override {
    list_.Erase(nodes_, id);
    --count_;
  }
  ObjectId Victim(const std::function<bool(ObjectId)>& evictable) override {
    for (std::size_t tries = count_; tries > 0; --tries) {
      const ObjectId id = list_.front();
      if (evictable(id)) return id;
      list_.MoveToBack(nodes_, id);
    }
    return kNoObject;
  }
  std::size_t bytes() const override { return nodes_.bytes(); }
  void Save(StateWriter& ar) override { Carry(ar); }
  void Load(StateReader& ar) override { Carry(ar); }
  std::string_view name() const override { return "lru"; }

 private:
  struct Node {
    Link link;
  };
  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, nodes_, list_, count_);
  }
  ChunkedArray<Node> nodes_;
  IdList<ChunkedArray<Node>> list_;
  std::size_t count_ = 0;
};

}  // namespace kvcove::policy
