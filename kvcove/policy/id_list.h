// SPDX-License-Identifier: Apache-2.0
// Growable arrays and doubly linked lists over dense object numbers: 8 bytes a link, no allocation
// an object.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "kvcove/policy/policy.h"

namespace kvcove::policy {

// An array that grows by chunks, so that growing never copies what is there. Only chunks that were
// reached take memory: an owner has a policy for each namespace, and each sees few of its numbers.
template <typename T>
class ChunkedArray {
 public:
  T& operator[](std::size_t i) { return chunks_[i / kChunk][i % kChunk]; }
  const T& operator[](std::size_t i) const { return chunks_[i / kChunk][i % kChunk]; }
  // Whether index `i` is valid.
  bool Has(std::size_t i) const {
    return i / kChunk < chunks_.size() && chunks_[i / kChunk] != nullptr;
  }
  // Makes index `i` valid; new elements are value-initialised.
  void Reach(std::size_t i) {
    if (Has(i)) return;
    if (i / kChunk >= chunks_.size()) chunks_.resize((i / kChunk) + 1);
    chunks_[i / kChunk] = std::make_unique<T[]>(kChunk);
    ++reached_;
  }
  template <typename Ar>
  void Carry(Ar& ar) {
    std::uint64_t chunks = chunks_.size();
    CarryOne(ar, chunks);
    if (!ar.Fits(chunks)) return;
    chunks_.resize(chunks);
    for (std::unique_ptr<T[]>& chunk : chunks_) {
      bool reached = chunk != nullptr;
      CarryOne(ar, reached);
      if (!reached) continue;
      if constexpr (Ar::kReads) {
        if (!ar.ok()) return;
        chunk = std::make_unique_for_overwrite<T[]>(kChunk);
        ++reached_;
      }
      CarryPlain(ar, chunk.get(), kChunk);
    }
  }
  // Of memory.
  std::size_t bytes() const {
    return reached_ * kChunk * sizeof(T) + chunks_.capacity() * sizeof(chunks_[0]);
  }

 private:
  static constexpr std::size_t kChunk = 512;
  std::vector<std::unique_ptr<T[]>> chunks_;
  std::size_t reached_ = 0;  // chunks
};

struct Link {
  ObjectId previous = kNoObject;  // towards the front (older)
  ObjectId next = kNoObject;      // towards the back (newer)
};

// Front = oldest, back = newest. `Nodes` maps an id to something with a member `Link link`.
template <typename Nodes>
class IdList {
 public:
  ObjectId front() const { return front_; }
  ObjectId back() const { return back_; }
  bool empty() const { return front_ == kNoObject; }

  void PushBack(Nodes& nodes, ObjectId id) {
    nodes[id].link = {.previous = back_, .next = kNoObject};
    (back_ == kNoObject ? front_ : nodes[back_].link.next) = id;
    back_ = id;
  }
  // `next`: kNoObject for the end.
  void InsertBefore(Nodes& nodes, ObjectId id, ObjectId next) {
    if (next == kNoObject) return PushBack(nodes, id);
    const ObjectId previous = nodes[next].link.previous;
    nodes[id].link = {.previous = previous, .next = next};
    (previous == kNoObject ? front_ : nodes[previous].link.next) = id;
    nodes[next].link.previous = id;
  }
  void Erase(Nodes& nodes, ObjectId id) {
    const Link link = nodes[id].link;
    (link.previous == kNoObject ? front_ : nodes[link.previous].link.next) = link.next;
    (link.next == kNoObject ? back_ : nodes[link.next].link.previous) = link.previous;
  }
  // All of `other`, behind what is here; `other` is empty then. O(1).
  void Append(Nodes& nodes, IdList& other) {
    if (other.empty()) return;
    nodes[other.front_].link.previous = back_;
    (empty() ? front_ : nodes[back_].link.next) = other.front_;
    back_ = other.back_;
    other.front_ = other.back_ = kNoObject;
  }
  void MoveToBack(Nodes& nodes, ObjectId id) {
    Erase(nodes, id);
    PushBack(nodes, id);
  }

 private:
  ObjectId front_ = kNoObject;
  ObjectId back_ = kNoObject;
};

}  // namespace kvcove::policy
