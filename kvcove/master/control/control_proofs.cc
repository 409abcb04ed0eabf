// SPDX-License-Identifier: Apache-2.0
// Removals, and the proofs of removals and resets: acknowledgements, leases that ran out, barriers.
#include <fmt/core.h>

#include <algorithm>

#include "kvcove/master/control/control.h"

namespace kvcove::master {

// ---- removals

Result<std::vector<wire::Removal>> Control::Prepare(wire::Removal removal) {
  const MutexLock lock(mutex_);
  const std::string_view tenant = table_.TenantOfSlot(removal.slot);
  const std::int64_t now = clock_.NowNs();
  const auto refuse = [&](std::string why) KVCOVE_REQUIRES(mutex_) {
    ++removals_refused_;
    return Fail(Code::kLimit, std::move(why));
  };
  if (!removal.pattern.empty() && WalksForMany(tenant, now)) {
    return refuse(
        "owners still walk over their disks for earlier removals by pattern; repeat the call a "
        "little later");
  }
  const std::uint64_t applied = members_.AppliedByLeased(now);
  if (applied != ~0ULL && removals_.BytesAfter(applied) > options_.removal_bytes_behind) {
    return refuse("owners are still applying earlier removals; repeat the call a little later");
  }
  if (!tenant.empty()) {
    const auto rate = static_cast<double>(options_.tenant_removals_per_second);
    Bucket& bucket =
        buckets_.try_emplace(std::string(tenant), Bucket{.keys = 0, .at_ns = now}).first->second;
    bucket.keys =
        std::max(0.0, bucket.keys - rate * 1e-9 * static_cast<double>(now - bucket.at_ns));
    bucket.at_ns = now;
    // One call may exceed the share of a second; the tenant's next calls are refused until that is
    // over.
    if (bucket.keys > rate) {
      return refuse(
          fmt::format("tenant '{}' has removed its share of {} keys a second; repeat the "
                      "call a little later",
                      tenant, options_.tenant_removals_per_second));
    }
    bucket.keys += static_cast<double>(removal.keys.size() + 1);
  }
  std::vector<wire::Removal> parts;
  for (std::vector<std::string>& keys : removals_.PartsOf(std::move(removal.keys))) {
    parts.push_back({.slot = removal.slot,
                     .generation = removal.generation,
                     .keys = std::move(keys),
                     .pattern = {}});
  }
  // Last: the call awaits the proof of its last part, and owners may prove parts with keys while
  // one with a pattern is still open.
  if (!removal.pattern.empty()) {
    parts.push_back({.slot = removal.slot,
                     .generation = removal.generation,
                     .keys = {},
                     .pattern = std::move(removal.pattern)});
  }
  return parts;
}

bool Control::WalksForMany(std::string_view tenant, std::int64_t now_ns) {
  std::erase_if(patterns_, [&](const auto& one) KVCOVE_REQUIRES(mutex_) {
    return members_.AppliedToDisks(one.first, now_ns);
  });
  const auto of_tenant = static_cast<std::size_t>(
      std::ranges::count_if(patterns_, [&](const auto& one) { return one.second == tenant; }));
  const std::size_t most = of_tenant == 0 ? options_.patterns_with_first : options_.patterns;
  return patterns_.size() >= most || of_tenant >= options_.tenant_patterns;
}

std::uint64_t Control::Append(wire::Removal part) {
  const MutexLock lock(mutex_);
  const bool pattern = !part.pattern.empty();
  std::string tenant(table_.TenantOfSlot(part.slot));
  // Held back until the directory has dropped the keys: see Master::RemoveNext.
  const std::uint64_t number = removals_.Append(std::move(part), /*held_back=*/true);
  if (pattern) patterns_.emplace(number, std::move(tenant));
  return number;
}

void Control::Show(std::uint64_t removal) {
  Deferred deferred(commits_);
  const MutexLock lock(mutex_);
  removals_.Show(removal);
  AnswerRemovals(deferred);
}

void Control::CountMatches(std::uint64_t removal) {
  const MutexLock lock(mutex_);
  matches_[removal] = 0;
}

std::uint64_t Control::TakeMatches(std::uint64_t removal) {
  const MutexLock lock(mutex_);
  const auto taken = matches_.extract(removal);
  return taken.empty() ? 0 : taken.mapped();
}

void Control::AwaitRemoval(std::uint64_t removal, SlotId slot, Generation generation,
                           std::int64_t deadline_ns, Reply<void> proven) {
  Deferred deferred(commits_);
  const MutexLock lock(mutex_);
  AddProof({.removal = true,
            .target = removal,
            .slot = slot,
            .generation = generation,
            .deadline_ns = deadline_ns,
            .waiting = members_.All(),
            .done = std::move(proven)},
           deferred);
}

wire::RemovalsPage Control::PageFor(const wire::RemovalsRequest& request) {
  wire::RemovalsPage page = removals_.After(request.seen());
  if (const std::string& only = members_.TenantOfOwner(request.number); !only.empty()) {
    std::erase_if(page.removals, [&](const wire::Removal& removal) KVCOVE_REQUIRES(mutex_) {
      return table_.TenantOfSlot(removal.slot) != only;
    });
  }
  members_.TellFloors(request.number, page.drop,
                      [&](SlotId slot) KVCOVE_REQUIRES(mutex_) { return removals_.FloorOf(slot); });
  page.drop_number = members_.TellToDrop(request.number, page.drop);
  page.takes_dropping = true;
  return page;
}

void Control::Removals(const wire::RemovalsRequest& request, Reply<wire::RemovalsPage> reply) {
  Deferred deferred(commits_);
  const MutexLock lock(mutex_);
  if (stopping_ || !members_.Current(request.number, request.epoch)) {
    return deferred.Answer<wire::RemovalsPage>(reply, Fail(Code::kStale, "say hello again"));
  }
  for (const wire::RemovalsRequest::Count& count : request.matched) {
    const auto at = matches_.find(count.number);
    if (at != matches_.end()) at->second += count.objects;
  }
  std::vector<std::string> ended;
  for (const SlotId slot :
       members_.Dropped(request.number, request.epoch, request.dropped, ended)) {
    // A barrier for replaced values that has become one of a lost shard ends here. A slot that
    // stayed barred would let values be replaced later without a barrier in the store.
    standings_.SetBarred(request.number, slot, false);
  }
  Delete(std::move(ended));
  members_.ApplyAhead(request);
  Delete(members_.AcknowledgeRemovals(request.number, request.epoch, request.after));
  removals_.Trim(members_.AppliedByAll());
  CheckProofs(deferred);
  if (const auto at = removal_watches_.find(request.number); at != removal_watches_.end()) {
    deferred.Answer<wire::RemovalsPage>(at->second.reply,
                                        Fail(Code::kStale, "another call took this one's place"));
    removal_watches_.erase(at);
  }
  wire::RemovalsPage page = PageFor(request);
  // Also without removals: the owner may list nothing in the slots of `drop` before it has dropped
  // them.
  if (page.upto != request.seen() || !page.drop.empty()) {
    return deferred.Answer<wire::RemovalsPage>(reply, std::move(page));
  }
  removal_watches_[request.number] = {
      .since_ns = clock_.NowNs(), .request = request, .reply = std::move(reply)};
}

void Control::AnswerRemovals(Deferred& deferred) {
  for (auto& [number, watch] : removal_watches_) {
    deferred.Answer<wire::RemovalsPage>(watch.reply, PageFor(watch.request));
  }
  removal_watches_.clear();
}

std::vector<SlotId> Control::DropsOf(OwnerNumber number) const {
  const MutexLock lock(mutex_);
  return members_.DropsOf(number);
}

// ---- proofs

void Control::AddProof(Proof proof, Deferred& deferred) {
  if (stopping_) {
    return deferred.Answer<void>(proof.done, Fail(Code::kUnavailable, "the master is stopping"));
  }
  auto kept = std::make_shared<Proof>(std::move(proof));
  if (!CheckProof(*kept, clock_.NowNs(), deferred)) proofs_.push_back(std::move(kept));
}

void Control::StoreBarrier(const MemberRef& ref, SlotId slot,
                           const Members::RaisedBarrier& barrier) {
  commits_.Add({{.key = barrier.key, .value = Encode(barrier.fact)}},
               [this, ref, slot, number = barrier.number](const Result<std::uint64_t>& revision) {
                 Deferred after(commits_);
                 const MutexLock lock(mutex_);
                 members_.BarrierStored(ref, slot, number, revision.has_value());
                 // If the store refuses, the next tick raises the barrier again: at once, a store
                 // that refuses within the call would be asked in a loop.
                 if (revision) CheckProofs(after);
                 CheckBarring(after);
               });
}

void Control::RaiseBarrier(const MemberRef& ref, const Proof& proof) {
  const auto fact = members_.RaiseBarrier(ref, proof.slot, proof.target);
  if (fact) StoreBarrier(ref, proof.slot, *fact);
}

void Control::BarOvertaken(const std::vector<OwnerSlot>& overtaken, Reply<void> done) {
  Deferred deferred(commits_);
  const MutexLock lock(mutex_);
  Barring barring{.waiting = {}, .since_ns = clock_.NowNs(), .done = std::move(done)};
  for (const auto& [number, slot] : overtaken) {
    const MemberRef ref = members_.RefOf(number);
    if (!members_.Exists(ref)) continue;
    // A member that ends gets no barrier, whose fact would be stored after the member's facts were
    // deleted. Its end also keeps the values from returning, so the call waits for that.
    if (members_.Ending(number)) {
      barring.waiting.emplace_back(ref, slot);
      continue;
    }
    if (const auto fact = members_.RaiseOvertaken(ref, slot)) StoreBarrier(ref, slot, *fact);
    barring.waiting.emplace_back(ref, slot);
  }
  barring_.push_back(std::move(barring));
  CheckBarring(deferred);
}

void Control::CheckBarring(Deferred& deferred) {
  std::erase_if(barring_, [&](Barring& barring) KVCOVE_REQUIRES(mutex_) {
    std::erase_if(barring.waiting,
                  [&](const std::pair<MemberRef, SlotId>& one) KVCOVE_REQUIRES(mutex_) {
                    if (!members_.Barred(one.first, one.second)) return false;
                    if (members_.Exists(one.first))
                      standings_.SetBarred(one.first.number, one.second, true);
                    return true;
                  });
    // A refused barrier has been erased (Members::BarrierStored), so it is not going to be stored.
    const bool failed =
        std::ranges::any_of(barring.waiting, [&](const auto& one) KVCOVE_REQUIRES(mutex_) {
          return !members_.WillBeBarred(one.first, one.second);
        });
    if (!barring.waiting.empty() && !failed) return false;
    deferred.Answer<void>(
        barring.done,
        failed ? Result<void>(Fail(Code::kUnavailable, "the control store does not take a barrier"))
               : Result<void>());
    return true;
  });
}

bool Control::CheckProof(Proof& proof, std::int64_t now_ns, Deferred& deferred) {
  // If a raise has voided the removal, pages do not show it any more, so an acknowledgement of
  // later ones proves nothing. An owner with the new generation shows none of the removed objects.
  const std::optional<std::uint64_t> raised =
      proof.removal ? table_.RaisedSince(proof.slot, proof.generation) : std::nullopt;
  std::erase_if(proof.waiting, [&](const MemberRef& ref) KVCOVE_REQUIRES(mutex_) {
    if (!options_.wait) return true;
    if (!proof.removal) return members_.TableProven(ref, proof.target, now_ns);
    if (raised) return members_.TableProven(ref, *raised, now_ns);
    switch (members_.ProofOf(ref, proof.target, proof.slot, now_ns)) {
      case Members::RemovalProof::kProven:
        return true;
      case Members::RemovalProof::kWaits:
        return false;
      case Members::RemovalProof::kNeedsBarrier:
        break;
    }
    if (!options_.barriers) return true;
    RaiseBarrier(ref, proof);
    return false;
  });
  // Owners that the store does not know may still show their objects. Resets wait for them in the
  // keeper (GenerationKeeper::AwaitReset).
  const bool unknown = options_.wait && proof.removal && now_ns < unknown_leases_until_ns_;
  if (proof.waiting.empty() && !unknown) {
    deferred.Answer<void>(proof.done, Result<void>());
    return true;
  }
  if (now_ns < proof.deadline_ns) return false;
  deferred.Answer<void>(
      proof.done,
      Fail(Code::kTimeout,
           proof.waiting.empty()
               ? std::string("leases that an earlier master gave to owners which the store does "
                             "not know may still run")
               : fmt::format("{} owners have not acknowledged in time", proof.waiting.size())));
  return true;
}

void Control::CheckProofs(Deferred& deferred) {
  if (proofs_.empty()) return;
  const std::int64_t now = clock_.NowNs();
  std::erase_if(proofs_, [&](const std::shared_ptr<Proof>& proof)
                             KVCOVE_REQUIRES(mutex_) { return CheckProof(*proof, now, deferred); });
}

}  // namespace kvcove::master
