// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/cluster/locator.h"

namespace kvcove::requester {
namespace {

constexpr std::int64_t kLocateAgainNs = 50 * kMillisecond;  // while the binding is closed
// Distance of the prefetches in a batch. The table has 2 MiB and is read at random, so without them
// most hints would wait for memory.
constexpr std::size_t kFetchedAhead = 8;

template <typename Bucket>
void Prefetch(const Bucket& bucket) {
  const auto* at = reinterpret_cast<const std::byte*>(&bucket);
  for (std::size_t line = 0; line < sizeof(bucket); line += 64) __builtin_prefetch(at + line, 1);
}

// Returns the tier as this host sees it: memory of an owner there is remote memory here.
Tier RemoteTier(Tier tier) { return tier == Tier::kMemory ? Tier::kRemoteMemory : tier; }

// True if an owner has answered what became of its value, or why it could not read it.
bool OwnerSaidWhy(const ItemResult& result) {
  if (result.code != Code::kMiss) return false;
  switch (result.reason) {
    case MissReason::kEvicted:
    case MissReason::kRemoved:
    case MissReason::kReset:
    case MissReason::kDiskDamaged:
    case MissReason::kDiskFailed:
    case MissReason::kDiskTimeout:
    case MissReason::kNoRoom:
      return true;
    default:
      return false;
  }
}

}  // namespace

Result<Locator::Binding> Locator::Bind(std::string_view version, bool fresh,
                                       std::int64_t deadline_ns) {
  wire::RegisterRequest request;
  {
    const MutexLock lock(bindings_mutex_);
    request = RegistrationOf(options_, version, reset_to_);
    if (const Binding* known = bindings_.Find(version); known != nullptr) {
      const Binding& binding = *known;
      if (!fresh && (binding.open || clock_.NowNs() < binding.ask_again_ns)) return binding;
      request.assume_weights = false;  // it starts once; a new master must not open it again
      if (binding.open) {
        request.last_incarnation = binding.token.incarnation;
        request.last_generation = binding.token.generation;
      }
    }
  }
  // Called without the lock. If a reset is proven meanwhile (CloseAll), or two registrations
  // overtake each other, an old generation may be stored as open: the owners and the master refuse
  // it as kStale, and that leads back here with `fresh`.
  KVCOVE_ASSIGN(const wire::Registration registration, service_.Register(request, deadline_ns));
  const Binding binding{.token = {.incarnation = registration.incarnation,
                                  .generation = registration.generation,
                                  .slot = registration.slot},
                        .open = registration.open,
                        .ask_again_ns = clock_.NowNs() + kLocateAgainNs};
  const MutexLock lock(bindings_mutex_);
  bindings_.Set(version, binding);
  return binding;
}

bool Locator::KnowsVersion(std::string_view version) {
  if (version.empty()) return false;
  const MutexLock lock(bindings_mutex_);
  const Binding* const known = bindings_.Find(version);
  return known != nullptr && known->open;
}

Locator::Found Locator::Locate(std::span<const std::string_view> keys,
                               std::vector<std::size_t> which, std::span<ItemResult> results,
                               std::string_view version, std::int64_t deadline_ns) {
  Found found;
  const auto all = [&](MissReason reason) {
    for (const std::size_t i : which) results[i] = Miss(reason);
    return found;
  };
  const auto unanswered = [&](const Error& error) {
    for (const std::size_t i : which) {
      if (!OwnerSaidWhy(results[i])) results[i] = Miss(UnansweredReason(error));
    }
    return found;
  };
  Token refused;  // of the first attempt, if that was stale
  for (int attempt = 0; attempt < 2; ++attempt) {
    const Result<Binding> binding = Bind(version, /*fresh=*/attempt > 0, deadline_ns);
    if (!binding) return unanswered(binding.error());
    if (!binding->open) return all(MissReason::kClosed);
    found.token = binding->token;
    std::vector<Id128> hashes;
    hashes.reserve(which.size());
    for (const std::size_t i : which) hashes.push_back(DirectoryHash(found.token.slot, keys[i]));
    auto places = service_.Lookup(found.token, hashes, deadline_ns);
    if (!places) {
      // The slot has another generation: register again, and try once more.
      if (places.error().code == Code::kStale) {
        if (attempt == 0) refused = found.token;
        continue;
      }
      return unanswered(places.error());
    }
    Remember(hashes, *places);
    for (std::size_t k = 0; k < which.size(); ++k) {
      const wire::Place& place = (*places)[k];
      if (place.owner == wire::kNoOwner) {
        results[which[k]] = Miss(place.reason);
        results[which[k]].under_way = place.under_way;
        continue;
      }
      results[which[k]] = {
          .code = Code::kOk, .bytes = place.size_bytes, .tier = RemoteTier(place.tier)};
      found.which.push_back(which[k]);
      found.places.push_back(place);
    }
    return found;
  }
  // The fresh token is the refused one: no reset came, but the shard that was asked does not know
  // the generation yet.
  return all(found.token == refused ? MissReason::kShardAway : MissReason::kReset);
}

void Locator::Remember(std::span<const Id128> hashes, std::span<const wire::Place> places) {
  const MutexLock lock(hints_mutex_);
  if (hints_.empty()) hints_.resize(buckets_);
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    FetchAhead(hashes, i);
    // A miss only overwrites a hint that says otherwise; it takes no place of its own.
    Hint* hint = Find(hashes[i]);
    if (hint == nullptr && places[i].owner == wire::kNoOwner) continue;
    if (hint == nullptr) hint = &RoomFor(hashes[i]);
    *hint = {.hash = hashes[i], .place = places[i]};
  }
}

Locator::Bucket& Locator::FirstOf(const Id128& hash) { return hints_[hash.low & (buckets_ - 1)]; }

Locator::Bucket& Locator::SecondOf(const Id128& hash) { return hints_[hash.high & (buckets_ - 1)]; }

void Locator::FetchAhead(std::span<const Id128> hashes, std::size_t at) {
  if (at + kFetchedAhead >= hashes.size()) return;
  Prefetch(FirstOf(hashes[at + kFetchedAhead]));
  Prefetch(SecondOf(hashes[at + kFetchedAhead]));
}

Locator::Hint* Locator::Find(const Id128& hash) {
  for (Bucket* bucket : {&FirstOf(hash), &SecondOf(hash)}) {
    const auto at = std::ranges::find(*bucket, hash, &Hint::hash);
    if (at != bucket->end()) return &*at;
  }
  return nullptr;
}

Locator::Hint& Locator::RoomFor(const Id128& hash) {
  const auto free = [](const Hint& hint) { return hint.place.owner == wire::kNoOwner; };
  Bucket& first = FirstOf(hash);
  Bucket& second = SecondOf(hash);
  const bool in_first = std::ranges::count_if(first, free) >= std::ranges::count_if(second, free);
  Bucket& emptier = in_first ? first : second;
  const auto at = std::ranges::find_if(emptier, free);
  // Both are full. The low bits of `low` chose the bucket, so others choose the hint to replace.
  return at != emptier.end() ? *at : emptier[(hash.low >> 32) % emptier.size()];
}

Locator::Found Locator::Recall(std::span<const std::string_view> keys,
                               std::vector<std::size_t>& which, std::span<ItemResult> results,
                               std::string_view version) {
  Found found;
  {
    const MutexLock lock(bindings_mutex_);
    const Binding* known = bindings_.Find(version);
    if (known == nullptr || !known->open) return found;
    found.token = known->token;
  }
  std::vector<Id128> hashes;
  hashes.reserve(which.size());
  for (const std::size_t i : which) hashes.push_back(DirectoryHash(found.token.slot, keys[i]));
  std::vector<std::size_t> unknown;
  // The hashes are computed before the lock, which all threads of the session share.
  const MutexLock lock(hints_mutex_);
  if (hints_.empty()) return found;
  for (std::size_t k = 0; k < which.size(); ++k) {
    FetchAhead(hashes, k);
    const std::size_t i = which[k];
    const Hint* hint = Find(hashes[k]);
    if (hint == nullptr || hint->place.owner == wire::kNoOwner) {
      unknown.push_back(i);
      continue;
    }
    results[i] = {
        .code = Code::kOk, .bytes = hint->place.size_bytes, .tier = RemoteTier(hint->place.tier)};
    found.which.push_back(i);
    found.places.push_back(hint->place);
  }
  which = std::move(unknown);
  return found;
}

Status Locator::Announce(const Token& token, std::span<const std::string_view> keys,
                         SaveNotice notice, std::int64_t deadline_ns) {
  if (token.slot >= kMaxSlots) return Fail(Code::kInvalid, "the token does not come from Capture");
  std::vector<Id128> hashes;
  hashes.reserve(keys.size());
  for (const std::string_view key : keys) hashes.push_back(DirectoryHash(token.slot, key));
  return service_.Announce(token, hashes, notice, deadline_ns);
}

void Locator::CloseAll(const wire::ResetOutcome& outcome) {
  const MutexLock lock(bindings_mutex_);
  // Kept, not erased: SlotOf still counts misses under the slot, and `ask_again_ns` 0 makes the
  // next call register at once.
  reset_to_ = outcome;
  bindings_.ForEach([](Binding& binding) {
    binding.open = false;
    binding.ask_again_ns = 0;
  });
}

std::optional<SlotId> Locator::SlotOf(std::string_view version) const {
  const MutexLock lock(bindings_mutex_);
  const Binding* known = bindings_.Peek(version);
  if (known == nullptr) return std::nullopt;
  return known->token.slot;
}

}  // namespace kvcove::requester
