// SPDX-License-Identifier: Apache-2.0
#include "kvcove/policy/what_if.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "kvcove/base/random.h"

namespace kvcove::policy {
namespace {

// Policies look at the upper half of a hash, `default` for parents at the lower 16 bits of that
// half: the bits that are 0 in each sampled key are not there. 0 stays 0.
std::uint64_t HashOf(std::uint32_t key) {
  return std::uint64_t{std::rotr(key, static_cast<int>(WhatIf::kMostShift))} << 32;
}

}  // namespace

std::vector<std::uint16_t> TakeVoided(std::span<const Access>& accesses) {
  std::vector<std::uint16_t> slots;
  while (!accesses.empty() && accesses.front().kind == Access::Kind::kVoided) {
    slots.push_back(accesses.front().slot);
    accesses = accesses.subspan(1);
  }
  std::ranges::sort(slots);
  return slots;
}

WhatIf::WhatIf(const Options& options) : options_(options) {
  std::size_t heads = 1;
  while (heads < 2 * options.most_sampled) heads *= 2;
  heads_.assign(heads, kNoObject);
}

Result<std::unique_ptr<WhatIf>> WhatIf::Make(const Options& options) {
  std::unique_ptr<WhatIf> made(new WhatIf(options));
  for (Cache& cache : made->caches_) {
    KVCOVE_ASSIGN(cache.policy, MakePolicy(options.policy));
  }
  return made;
}

// ---- entries

ObjectId& WhatIf::HeadOf(std::uint32_t key) { return heads_[Mix64(key) & (heads_.size() - 1)]; }

ObjectId WhatIf::FindFrom(ObjectId at, std::uint32_t key) const {
  while (at != kNoObject && entries_[at].key != key) at = entries_[at].next;
  return at;
}

ObjectId WhatIf::Add(const Access& access) {
  auto id = static_cast<ObjectId>(entries_.size());
  if (free_ == kNoObject) {
    entries_.emplace_back();
  } else {
    id = free_;
    free_ = entries_[id].next;
  }
  ObjectId& head = HeadOf(access.key);
  entries_[id] = {.key = access.key,
                  .parent = access.parent,
                  .bytes = access.bytes,
                  .next = std::exchange(head, id),
                  .slot = access.slot};
  ++size_;
  return id;
}

void WhatIf::Free(ObjectId id) {
  ObjectId* at = &HeadOf(entries_[id].key);
  while (*at != id) at = &entries_[*at].next;
  *at = entries_[id].next;
  entries_[id].next = std::exchange(free_, id);
  --size_;
}

// ---- miniatures

void WhatIf::Take(std::size_t cache, ObjectId id, bool evicted) {
  caches_[cache].policy->OnRemove(id, evicted);
  caches_[cache].used_bytes -= entries_[id].bytes;
  --caches_[cache].objects;
  entries_[id].caches &= static_cast<std::uint8_t>(~BitOf(cache));
}

bool WhatIf::MakeRoom(std::size_t cache, std::uint64_t bytes) {
  const double share = kWhatIfSizes[cache].times / static_cast<double>(1U << shift_);
  const auto capacity =
      static_cast<std::uint64_t>(share * static_cast<double>(options_.capacity_bytes));
  if (bytes > capacity) return false;
  while (caches_[cache].used_bytes + bytes > capacity) {
    const ObjectId victim = caches_[cache].policy->Victim([](ObjectId) { return true; });
    if (victim == kNoObject) return false;
    Take(cache, victim, /*evicted=*/true);
    if (entries_[victim].caches == 0) Free(victim);
  }
  return true;
}

void WhatIf::Put(std::size_t cache, ObjectId id) {
  const std::uint32_t bytes = entries_[id].bytes;
  if (!MakeRoom(cache, bytes)) return;
  const std::uint32_t parent_key = entries_[id].parent;
  ObjectId parent = parent_key == 0 ? kNoObject : Find(parent_key);
  if (parent != kNoObject && (entries_[parent].caches & BitOf(cache)) == 0) parent = kNoObject;
  caches_[cache].policy->OnPut({.id = id,
                                .key = HashOf(entries_[id].key),
                                .size_bytes = bytes,
                                .parent = parent,
                                .parent_key = HashOf(parent_key)});
  caches_[cache].used_bytes += bytes;
  ++caches_[cache].objects;
  entries_[id].caches |= BitOf(cache);
}

void WhatIf::Use(const Access& access, bool asked) {
  ObjectId id = Find(access.key);
  if (id == kNoObject) {
    if (!asked) return;
    id = Add(access);
  }
  const std::uint64_t stands_for = asked ? std::uint64_t{1} << shift_ : 0;
  tally_.sampled += stands_for;
  for (std::size_t cache = 0; cache < caches_.size(); ++cache) {
    if ((entries_[id].caches & BitOf(cache)) != 0) {
      tally_.hits[cache] += stands_for;
      caches_[cache].policy->OnHit(id);
    } else if (asked) {
      // The entry has no cache yet, or others: it is not the victim of its own put.
      Put(cache, id);
    }
  }
  if (entries_[id].caches == 0) Free(id);
}

// ---- keys that go

void WhatIf::Drop(ObjectId id) {
  for (std::size_t cache = 0; cache < caches_.size(); ++cache) {
    if ((entries_[id].caches & BitOf(cache)) != 0) Take(cache, id, /*evicted=*/false);
  }
  Free(id);
}

template <typename Which>
void WhatIf::DropAll(const Which& which) {
  for (ObjectId id = 0; id < entries_.size(); ++id) {
    if (entries_[id].caches != 0 && which(entries_[id])) Drop(id);
  }
}

void WhatIf::Thin() {
  if (shift_ == kMostShift) return;
  ++shift_;
  for (Cache& cache : caches_) cache.policy->OnShare(1.0 / (1U << shift_));
  DropAll([this](const Entry& entry) { return !Sampled(entry.key, shift_); });
}

void WhatIf::Apply(std::span<const Access> accesses, std::uint64_t asked) {
  tally_.asked += asked;
  while (!accesses.empty()) {
    if (const std::vector<std::uint16_t> slots = TakeVoided(accesses); !slots.empty()) {
      DropAll([&](const Entry& entry) { return std::ranges::binary_search(slots, entry.slot); });
      continue;
    }
    const Access& access = accesses.front();
    accesses = accesses.subspan(1);
    // The caller may not know the latest shift yet.
    if (!Sampled(access.key, shift_)) continue;
    if (access.asked() || access.kind == Access::Kind::kTouched) {
      Use(access, access.asked());
      if (caches_.back().objects > options_.most_sampled) Thin();
      continue;
    }
    const ObjectId id = Find(access.key);
    if (id == kNoObject) continue;
    if (access.kind == Access::Kind::kRemoved) {
      Drop(id);
      continue;
    }
    if (access.kind != Access::Kind::kRequestEnd) continue;
    for (std::size_t cache = 0; cache < caches_.size(); ++cache) {
      if ((entries_[id].caches & BitOf(cache)) != 0) caches_[cache].policy->EndRequest(id);
    }
  }
}

WhatIfCounts WhatIfTally::Read() {
  told.asked = asked;
  for (std::size_t size = 0; size < hits.size(); ++size) {
    const std::uint64_t corrected = hits[size] + asked;
    told.hits[size] =
        std::max(told.hits[size], std::min(corrected - std::min(corrected, sampled), asked));
  }
  return told;
}

std::size_t WhatIf::bytes() const {
  std::size_t sum = entries_.capacity() * sizeof(Entry) + heads_.capacity() * sizeof(ObjectId);
  for (const Cache& cache : caches_) sum += cache.policy->bytes();
  return sum;
}

}  // namespace kvcove::policy
