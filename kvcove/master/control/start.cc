// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/control/start.h"

#include <algorithm>
#include <map>
#include <set>

namespace kvcove::master {
namespace {

// Returns how long a lease of `lease_ns` may run by this clock: 1 % more, because clocks drift.
std::int64_t Stretched(std::int64_t lease_ns) { return lease_ns / 100 * 101; }

// Replays the records of the first format into the plan.
void Import(const Restored& old, StartPlan& plan) {
  std::map<SlotId, SlotFact> slots;
  for (const OldRecord& record : old.records) {
    switch (record.kind) {
      case OldRecord::Kind::kSlot:
        slots[record.slot] = {.generation = record.generation,
                              .free = false,
                              .name = record.name,
                              .version = record.version};
        break;
      case OldRecord::Kind::kRaise:
        if (const auto at = slots.find(record.slot); at != slots.end()) {
          at->second.generation = record.generation;
        }
        break;
      case OldRecord::Kind::kDropSlot:
        slots.erase(record.slot);
        break;
      case OldRecord::Kind::kEngineReset:
        plan.state.engine_resets.push_back(EngineResetKey(record.name));
        plan.changes.push_back({.key = plan.state.engine_resets.back(), .value = std::string()});
        break;
      default:  // terms and missed removals: no owner of that format can return
        break;
    }
    plan.state.pool->counter =
        std::max(plan.state.pool->counter, Generations::CounterOf(record.generation) + 1);
  }
  plan.state.pool->incarnation = old.incarnation;
  plan.state.pool->longest_lease_ns = old.running_lease_ns;
  plan.state.pool->clean_end = old.running_lease_ns == 0;
  for (auto& [slot, fact] : slots) {
    plan.changes.push_back({.key = SlotKey(slot), .value = Encode(fact)});
    plan.state.slots.push_back(
        {.slot = slot, .fact = std::move(fact), .revision = plan.leadership.position.revision});
  }
}

// Deletes openings of members that have ended: a master of an earlier version does not know these
// facts, and leaves them when it ends a member.
void DeleteLeftOpenings(StartPlan& plan) {
  for (const StoredState::Opening& opening : plan.state.openings) {
    const bool left = std::ranges::find(plan.state.members, opening.member,
                                        &StoredState::Member::id) == plan.state.members.end();
    if (left) plan.changes.push_back({.key = OpeningKey(opening.member), .value = std::nullopt});
  }
}

// Numbers the versions that earlier builds have named: in which order is not known, so all get the
// number of now. Those of all slots fit the transaction, but not beside an import of as many, which
// leaves some to the next start.
void NumberVersions(StartPlan& plan) {
  constexpr std::size_t kOtherFactsBytes = 64 << 10;  // the pool's and the terms
  std::set<std::pair<std::string_view, std::string_view>> numbered;
  for (const VersionFact& version : plan.state.versions) {
    numbered.emplace(version.name, version.version);
  }
  std::uint64_t counter = plan.state.pool->counter;
  for (const StoredState::Slot& slot : plan.state.slots) {
    counter = std::max(counter, Generations::CounterOf(slot.fact.generation));
  }
  std::vector<VersionFact> added;
  std::size_t bytes = TransactionBytes(plan.changes);
  for (const StoredState::Slot& slot : plan.state.slots) {
    if (slot.fact.free || slot.fact.version.empty()) continue;
    if (numbered.contains({slot.fact.name, slot.fact.version})) continue;
    VersionFact fact{.number = counter, .name = slot.fact.name, .version = slot.fact.version};
    FactChange change{.key = VersionKey(fact.name, fact.version), .value = Encode(fact)};
    bytes += TransactionBytes({change});
    if (bytes > kMaxTransactionBytes - kOtherFactsBytes) break;
    added.push_back(std::move(fact));
    plan.changes.push_back(std::move(change));
  }
  plan.state.versions.insert(plan.state.versions.end(), added.begin(), added.end());
}

}  // namespace

Result<StartPlan> PlanStart(const Facts& facts, std::uint64_t revision, std::int64_t lease_ns,
                            std::int64_t now_ns, const Restored* old) {
  StartPlan plan;
  KVCOVE_ASSIGN(plan.state, Decode(facts));
  plan.leadership.position.revision = revision + 1;  // that of `changes`
  const bool found = plan.state.pool.has_value();
  if (!found) {
    // The counter begins at a random value, so that two pools share no generation number.
    plan.state.pool = PoolFact{
        .pool = RandomId(), .incarnation = RandomId(), .counter = RandomU64() & 0x7FFFFFFF};
    if (old != nullptr) Import(*old, plan);
  }
  PoolFact& pool = *plan.state.pool;
  const bool known = found || old != nullptr;
  const std::int64_t longest = std::max(pool.longest_lease_ns, lease_ns);
  if (known && !pool.clean_end) plan.leases_until_ns = now_ns + Stretched(longest);
  // The first format did not store owners, so none of its owners is a member either. The fact
  // stays set until a master has waited for these leases; a master that ends earlier leaves the
  // wait to the next one (GenerationKeeper::Tick, EndCleanly).
  if (!known || (!found && !pool.clean_end)) pool.unknown_leases = true;
  if (pool.unknown_leases) plan.unknown_leases_until_ns = now_ns + Stretched(longest);
  pool.longest_lease_ns = longest;
  pool.clean_end = false;
  std::vector<TermFact>& terms = plan.state.terms;
  terms.push_back({.term = terms.empty() ? 1 : terms.back().term + 1,
                   .tag = RandomU64(),
                   .first_revision = plan.leadership.position.revision});
  if (terms.size() > kTermsKept) terms.erase(terms.begin());
  plan.leadership.pool = pool.pool;
  plan.leadership.new_pool = !found || (plan.state.members.empty() && plan.state.slots.empty());
  plan.leadership.terms = terms;
  plan.leadership.position.term = terms.back().term;
  plan.leadership.position.tag = terms.back().tag;
  DeleteLeftOpenings(plan);
  NumberVersions(plan);
  plan.changes.push_back({.key = std::string(kPoolKey), .value = Encode(pool)});
  plan.changes.push_back({.key = std::string(kTermsKey), .value = Encode(terms)});
  return plan;
}

}  // namespace kvcove::master
