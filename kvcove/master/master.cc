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
                                           .disk_member_ttl_ns = options.disk_member_ttl_ns,
                                           .doubt = options.doubt},
                               .removals = options.removals,
                               .table_page_bytes = options.table_page_bytes,
                               .barriers = options.barriers,
                               .wait = options.wait};
  Control::Hooks hooks{
      .facts_lost =
          [this] {
            // Several owners may show the loss; one new incarnation is enough.
            if (losing_.exchange(true)) return;
            keeper_->BeginIncarnation(0, [this](const Result<void>&) { losing_ = false; });
          },
      .adopt_pool = [this](const Id128& pool,
                           Reply<void> stored) { keeper_->AdoptPool(pool, std::move(stored)); },
      .heard = [this](const Id128& process) { keeper_->Heard(process); },
      .ended = [this](const Id128& process) { keeper_->EndHolder(process); },
      .await_shards = nullptr};
  // The hook is null without shards, so a proof waits for owners alone.
  if (options_.shards) {
    hooks.await_shards = [this](std::int64_t deadline_ns, Reply<void> done) {
      shards_->AwaitAll(deadline_ns, std::move(done));
    };
  }
  // The hooks name keeper_ and shards_, which are made below. Nothing calls a hook before Start.
  control_ = std::make_unique<Control>(control, plan.leadership, plan.state.pool->incarnation,
                                       commits_, standings_, std::move(hooks), clock);
  control_->Load(plan.state, plan.leases_until_ns, plan.unknown_leases_until_ns);
  // Control itself waits for the leases of members that an earlier master gave (Members::Load).
  keeper_ = std::make_unique<GenerationKeeper>(
      GenerationKeeper::Options{.generations = options.generations,
                                .proven_from_ns = plan.unknown_leases_until_ns,
                                .log_resets = true},
      plan.state, commits_, *control_, clock);
  shards_ =
      std::make_unique<Shards>(ShardsOptions{.on = options_.shards, .lease_ns = options_.lease_ns},
                               term_, RemovalLog::FirstOf(term_), standings_, directory_, clock);
  shards_->Begin(*control_, [this] { return leads_ns_(); });
}

Master::~Master() = default;

void Master::Start(Reply<void> ready) {
  commits_.Add(std::move(start_changes_),
               [this, ready = std::move(ready)](const Result<std::uint64_t>& revision) {
                 if (!revision) return ready(std::unexpected(revision.error()));
                 // Only now are the facts that the store was opened with certainly durable.
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
  if (listed || to_bar.empty()) return reply(std::move(listed));
  // Once for each absence and slot: the barrier keeps the absent owner from bringing the replaced
  // value back under a later master. The repeated call finds the barriers, and replaces the values.
  control_->BarOvertaken(to_bar,
                         [this, request, reply = std::move(reply)](const Result<void>& done) {
                           if (done) return List(request, reply);
                           // The rest of the batch does not wait for the store.
                           DirectoryService::OwnerSlots kept;
                           reply(directory_.List(request, control_->DropsOf(request.number), kept,
                                                 /*may_bar=*/false));
                         });
}

Result<std::vector<wire::Place>> Master::NoteSaves(SavesUnderWay::Writer writer, const Token& token,
                                                   std::span<const Id128> hashes,
                                                   SaveNotice notice) {
  if (!standings_.Current(token.slot, token.generation)) {
    return Fail(Code::kStale, "the generation is not the current one; register again");
  }
  return directory_.NoteSaves(writer, token, hashes, notice);
}

Result<std::vector<wire::Place>> Master::Lookup(const Token& token, std::span<const Id128> hashes) {
  if (!standings_.Current(token.slot, token.generation)) {
    return Fail(Code::kStale, "the generation is not the current one; register again");
  }
  std::vector<wire::Place> places = directory_.Lookup(token.slot, hashes, token.generation);
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

// One call of Remove. The replies of its steps share it; they come one after the other, so it needs
// no lock.
struct Master::Removing {
  Token token;
  std::int64_t deadline_ns = 0;
  std::vector<wire::Removal> parts;
  std::size_t next = 0;  // index in `parts`
  Removed removed;
  std::uint64_t number = 0;   // of the last part; 0: no part has begun
  std::uint64_t counted = 0;  // of the part with the pattern; 0: the call has none
  Reply<Removed> reply;
};

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
  auto removing = std::make_shared<Removing>();
  removing->token = token;
  removing->deadline_ns = deadline_ns;
  removing->parts = std::move(*parts);
  removing->reply = std::move(reply);
  RemoveNext(removing);
}

// Carries out one part after the other. The directory drops the keys, here and at each shard,
// before Show lets owners apply the removal: entries that an owner lists after it has applied the
// removal were put later, and must stay.
void Master::RemoveNext(const std::shared_ptr<Removing>& removing) {
  const Token& token = removing->token;
  while (removing->next < removing->parts.size()) {
    // The number comes first: the directory remembers the removal under it, and refuses listings of
    // values whose puts began below it.
    wire::Removal& part = removing->parts[removing->next++];
    const std::uint64_t number = removing->number = part.number = control_->Append(part);
    std::vector<Code> codes;
    if (part.pattern.empty()) {
      codes = directory_.Remove(token.slot, token.generation, part.keys, number);
    } else {
      removing->counted = number;
      control_->CountMatches(number);
      directory_.RemovePattern(token.slot, number);
    }
    const auto add = [removing](std::vector<Code> own, std::span<const Code> others) {
      for (std::size_t i = 0; i < own.size() && i < others.size(); ++i) {
        if (others[i] == Code::kOk) own[i] = Code::kOk;
      }
      removing->removed.codes.insert(removing->removed.codes.end(), own.begin(), own.end());
    };
    if (!shards_->on()) {
      add(std::move(codes), {});
      control_->Show(number);
      continue;
    }
    shards_->Remove(part, [this, removing, number, add, codes](const std::vector<Code>& others) {
      add(codes, others);
      control_->Show(number);
      RemoveNext(removing);
    });
    return;
  }
  // A proof of the last part proves all: an acknowledgement leaves out open removals only, and only
  // a part with a pattern can be open, which is the last one (Control::Prepare).
  if (removing->number == 0) return removing->reply(removing->removed);
  control_->AwaitRemoval(removing->number, token.slot, token.generation, removing->deadline_ns,
                         [this, removing](const Result<void>& proven) {
                           if (removing->counted != 0) {
                             removing->removed.matches = control_->TakeMatches(removing->counted);
                           }
                           if (!proven) return removing->reply(std::unexpected(proven.error()));
                           removing->reply(std::move(removing->removed));
                         });
}

void Master::Tick() {
  control_->Tick();
  keeper_->Tick();
  directory_.Tick();
  shards_->Tick();
}

void Master::Stop(Reply<void> done) {
  shards_->Stop();
  control_->Stop();
  // Control grants no lease after Stop, so "no lease is running" stays true while it is stored.
  if (control_->LeaseRunning()) {
    return done(Fail(Code::kUnavailable, "leases are still running"));
  }
  keeper_->EndCleanly(std::move(done));
}

}  // namespace kvcove::master
