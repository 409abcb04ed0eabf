// SPDX-License-Identifier: Apache-2.0
// Chooses the object to evict when room is needed. Pure code: it takes events and answers with a
// victim; it knows no memory, no clock and no thread. The owner and the simulator of `kvcove
// policy` drive the same objects.
//
// Objects are dense small numbers that the owner gives and reuses. All calls come from one thread
// at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/base/carry.h"
#include "kvcove/base/result.h"
#include "kvcove/model/hints.h"

namespace kvcove::policy {

using ObjectId = std::uint32_t;
inline constexpr ObjectId kNoObject = 0xFFFFFFFF;

struct PutEvent {
  ObjectId id = kNoObject;
  std::uint64_t key = 0;         // a hash of the whole key, the same each time it is put
  std::uint64_t size_bytes = 0;  // what it occupies
  // The chunk before it in its chain, kNoObject at a chain's start or when it is gone.
  ObjectId parent = kNoObject;
  std::uint64_t parent_key = 0;  // its hash, also when it is gone; 0 at a chain's start
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  virtual void OnPut(const PutEvent& event) = 0;
  // Keys that are about to be put, as PutEvent has them: what is known of them is far away in
  // memory, and arrives while the caller does other things.
  virtual void Prefetch(std::span<const std::uint64_t> /*keys*/) const {}
  // Somebody read it, or put it again. Chunks of one request come in the order of their chain.
  virtual void OnHit(ObjectId id) = 0;
  // What the caller says of a chunk that has just been put or hit, and of its request.
  virtual void OnHints(ObjectId /*id*/, const Hints& /*hints*/) {}
  // The request whose latest chunk this is has ended. Nobody must say so: a request that nothing
  // continues for a while counts as ended.
  virtual void EndRequest(ObjectId /*last*/) {}
  // It is gone. `evicted`: by this policy's own choice, so that it may remember the key.
  virtual void OnRemove(ObjectId id, bool evicted) = 0;

  // An object to give up, kNoObject when `evictable` refuses all. It stays known until OnRemove. An
  // object that is refused may be moved to a better place.
  virtual ObjectId Victim(const std::function<bool(ObjectId)>& evictable) = 0;

  // The events are those of this share of a cache's objects, 1 at first: the bounds of what the
  // policy remembers follow it.
  virtual void OnShare(double /*share*/) {}
  // Of memory, all together.
  virtual std::size_t bytes() const = 0;

  // Its knowledge, for a successor of this name (base/carry.h): `Load` into a new one. A change of
  // what is carried raises kCarriedVersion: another version's knowledge is not read.
  static constexpr std::uint32_t kCarriedVersion = 2;
  virtual void Save(StateWriter& ar) = 0;
  virtual void Load(StateReader& ar) = 0;

  virtual std::string_view name() const = 0;
};

// `name`: one of PolicyNames(). Errors: kInvalid, naming the right ones.
Result<std::unique_ptr<EvictionPolicy>> MakePolicy(std::string_view name);
std::vector<std::string_view> PolicyNames();
// "a, b or c".
std::string ListPolicies(const std::vector<std::string_view>& names);

}  // namespace kvcove::policy
