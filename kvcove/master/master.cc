// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/master.h"

#include <algorithm>

namespace kvcove::master {

Master::Master(const MasterOptions& options, const StartPlan& plan, ControlStore& store,
               std::uint64_t revision, const Clock& clock)
    : options_(options),
      term_(plan.leadership.position.term),
      start_changes_(plan.changes),
      commits_(store, revision),
      standings_(clock),
      directory_({.first_removal = RemovalLog::FirstOf(term_),
                  .inventory_batch = options.inventory_batch,
                  .max_entries = options.max_entries,
                  .tenant_entries = options.tenant_entries,
                  .copies = options.copies},
                 standings_, clock) {
  const ControlOptions control{.members = {.lease_ns = options.lease_ns,
                                           .strict = options.strict,
                                           .member_ttl_ns = options.member_ttl_ns,
                                           .disk_member_ttl_ns = options.disk_member_ttl_ns},
                               .removals = options.removals,
                               .table_page_bytes = options.table_page_bytes,
                               .barriers = options.barriers,
                               .wait = options.wait};
  Control::Hooks hooks{
      .facts_lost =
          [this] {
            // Several owners may say so; one new incarnation is enough.
            if (losing_.exchange(true)) return;
            keeper_->BeginIncarnation(0, [this](const Result<void>&) { losing_ = false; });
          },
      .adopt_pool = [this](const Id128& pool,
                           Reply<void> stored) { keeper_->AdoptPool(pool, std::move(stored)); },
      .heard = [this](const Id128& process) { keeper_->Heard(process); },
      .ended = [this](const Id128& process) { keeper_->EndHolder(process); }};
  control_ = std::make_unique<Control>(control, plan.leadership, plan.state.pool->incarnation,
                                       commits_, standings_, std::move(hooks), clock);
  control_->Load(plan.state, plan.leases_until_ns, plan.unknown_leases_until_ns);
  keeper_ = std::make_unique<GenerationKeeper>(
      GenerationKeeper::Options{.generations = options.generations,
                                .proven_from_ns = plan.unknown_leases_until_ns},
      plan.state, commits_, *control_, clock);
}

Master::~Master() = default;

void Master::Start(Reply<void> ready) {
  commits_.Add(std::move(start_changes_),
               [this, ready = std::move(ready)](const Result<std::uint64_t>& revision) {
                 if (!revision) return ready(std::unexpected(revision.error()));
                 keeper_->Start();
                 ready({});
               });
  commits_.Flush();
}

void Master::List(const wire::ListRequest& request, Reply<wire::ListReply> reply) {
  if (request.number >= wire::kMaxOwners) {
    return reply(Fail(Code::kCorrupt, "an unknown owner"));
  }
  DirectoryService::OwnerSlots to_bar;
  Result<wire::ListReply> listed =
      directory_.List(request, control_->DropsOf(request.number), to_bar);
  if (listed || listed.error().code != Code::kInProgress) return reply(std::move(listed));
  // Once for each absence and slot: what is listed now may not be undone by a later master.
  control_->BarOvertaken(to_bar,
                         [this, request, reply = std::move(reply)](const Result<void>& done) {
                           if (done) return List(request, reply);
                           // The rest of the batch does not wait for the store.
                           DirectoryService::OwnerSlots kept;
                           reply(directory_.List(request, control_->DropsOf(request.number), kept,
                                                 /*may_bar=*/false));
                         });
}

Result<std::vector<wire::Place>> Master::Lookup(const Token& token, std::span<const Id128> hashes) {
  if (!standings_.Current(token.slot, token.generation)) {
    return Fail(Code::kStale, "the generation is not the current one; register again");
  }
  std::vector<wire::Place> places = directory_.Lookup(token.slot, hashes);
  if (std::ranges::find(places, wire::kNoOwner, &wire::Place::owner) == places.end()) {
    return places;
  }
  if (control_->Warming()) {
    for (wire::Place& place : places) {
      if (place.reason == MissReason::kNeverPut) place.reason = MissReason::kWarmingUp;
    }
  }
  directory_.RememberMisses(token.slot, hashes, places);
  return places;
}

void Master::Remove(const Token& token, std::vector<std::string> keys, std::string_view pattern,
                    std::int64_t deadline_ns, Reply<Removed> reply) {
  if (!standings_.Current(token.slot, token.generation)) {
    return reply(Fail(Code::kStale, "the generation is not the current one; register again"));
  }
  auto parts = control_->Prepare({.slot = token.slot,
                                  .generation = token.generation,
                                  .keys = std::move(keys),
                                  .pattern = std::string(pattern)});
  if (!parts) return reply(std::unexpected(parts.error()));
  Removed removed;
  std::uint64_t number = 0;
  std::uint64_t counted = 0;
  for (const wire::Removal& part : *parts) {
    // What is listed is unlisted before owners may apply the removal: what they list after that was
    // put after it, and stays.
    number = control_->Append(part);
    if (part.pattern.empty()) {
      const std::vector<Code> codes =
          directory_.Remove(token.slot, token.generation, part.keys, number);
      removed.codes.insert(removed.codes.end(), codes.begin(), codes.end());
    } else {
      counted = number;
      control_->CountMatches(number);
      directory_.RemovePattern(token.slot, number);
    }
    control_->Show(number);
  }
  if (number == 0) return reply(removed);
  control_->AwaitRemoval(number, token.slot, token.generation, deadline_ns,
                         [this, removed = std::move(removed), counted,
                          reply = std::move(reply)](const Result<void>& proven) mutable {
                           if (counted != 0) removed.matches = control_->TakeMatches(counted);
                           if (!proven) return reply(std::unexpected(proven.error()));
                           reply(std::move(removed));
                         });
}

void Master::Tick() {
  control_->Tick();
  keeper_->Tick();
  directory_.Tick();
}

namespace {

template <typename Ar>
void CarryPlan(Ar& ar, StartPlan& plan, std::uint64_t& revision) {
  CarryAll(ar, plan.leadership, *plan.state.pool, plan.unknown_leases_until_ns, revision);
}

}  // namespace

void Master::Save(StateWriter& ar) {
  StartPlan plan;
  plan.leadership = control_->leadership();
  plan.state.pool = keeper_->pool();
  plan.unknown_leases_until_ns = keeper_->proven_from_ns();
  std::uint64_t revision = commits_.revision();
  CarryPlan(ar, plan, revision);
  CarryOne(ar, standings_);
  directory_.Save(ar);
  control_->Save(ar);
  keeper_->Save(ar);
}

Master::Carried Master::PlanOf(StateReader& ar) {
  Carried carried;
  carried.plan.state.pool.emplace();
  CarryPlan(ar, carried.plan, carried.revision);
  return carried;
}

void Master::Load(StateReader& ar, Directory::Shards ahead) {
  CarryOne(ar, standings_);
  directory_.Load(ar, std::move(ahead));
  control_->Load(ar);
  keeper_->Load(ar);
}

void Master::Stop(Reply<void> done) {
  control_->Stop();
  if (control_->LeaseRunning()) {
    return done(Fail(Code::kUnavailable, "leases are still running"));
  }
  keeper_->EndCleanly(std::move(done));
}

}  // namespace kvcove::master
