// SPDX-License-Identifier: Apache-2.0
// The calls of owners, shards and sessions: decodes each, checks the tenant, asks the master, and
// encodes its reply. A loop runs these functions, so none of them waits.
#include <fmt/core.h>

#include "kvcove/master/server/owner_calls.h"
#include "kvcove/master/server/server.h"
#include "kvcove/master/server/server_impl.h"

namespace kvcove::master {
namespace {

constexpr std::int64_t kRegisterNs = 10 * kSecond;
constexpr std::int64_t kLocateNs = kSecond;  // longest time for a prefix
// Most keys of a removal, or of a prefix, that runs on the loop: it takes no longer than a look-up
// of thousands of keys, and less time than to wake a worker.
constexpr std::size_t kFewKeys = 128;

// Clears the counters of an owner that tenants share: they would show one tenant the activity of
// the others. The free bytes remain, because a put chooses its owner by them.
void HideCounts(wire::OwnerStat& owner) {
  owner.objects = 0;
  owner.hits = 0;
  owner.evictions = 0;
  owner.stale_puts = 0;
  owner.puts = 0;
}

}  // namespace

void MasterServer::Impl::FromOwner(rpc::ConnectionId id, const rpc::Caller& caller,
                                   wire::Method method, std::span<const std::byte> body,
                                   const rpc::Responder& respond) {
  // An owner of one tenant acts for itself, not for owners of others.
  const auto may_own = [&](std::uint64_t tenant) { return caller.MayOwn(tenant); };
  AnswerOwner(*master_, id, method, body, may_own,
              [this, id, method, respond](Result<std::string> answer) {
                if (!answer) return respond(FailedReply(answer.error()));
                rpc::Reply ok = OkReply(std::move(*answer));
                if (method == wire::Method::kRenew) {
                  // Leases have a loop of their own, so that no call of another kind delays them.
                  // The control answers a renewal in the call itself, so this runs on the
                  // connection's loop, as move_to_loop requires, and the connection is still known.
                  const MutexLock lock(connections_mutex_);
                  if (!std::exchange(connections_[id].moved, true)) ok.move_to_loop = kLeaseLoop;
                }
                respond(std::move(ok));
              });
}

void MasterServer::Impl::FromShard(wire::Method method, std::span<const std::byte> body,
                                   const rpc::Responder& respond) {
  if (method == wire::Method::kShardSync) {
    const auto request = wire::DecodeShardSync(body);
    if (!request) return respond(FailedReply(request.error()));
    return master_->shards().Sync(*request, Through<wire::ShardSyncReply>(respond));
  }
  if (method == wire::Method::kShardBar) {
    const auto request = wire::DecodeShardBar(body);
    if (!request) return respond(FailedReply(request.error()));
    return master_->control().AnswerBars(request->values, Through<wire::ShardBarReply>(respond));
  }
  const auto request = wire::DecodeShardPull(body);
  if (!request) return respond(FailedReply(request.error()));
  Through<wire::ShardPage>(respond)(master_->shards().Pull(*request));
}

void MasterServer::Impl::Register(rpc::ConnectionId id, const rpc::Caller& caller,
                                  std::span<const std::byte> body, const rpc::Responder& respond) {
  Result<wire::RegisterCall> call = wire::DecodeRegister(body);
  if (!call) return respond(FailedReply(call.error()));
  if (const Status name = CheckName(call->request.name, "namespace"); !name) {
    return respond(FailedReply(name.error()));
  }
  wire::RegisterRequest& request = call->request;
  request.name = QualifiedName(caller.tenant, request.name);
  request.holder = HolderOf(request.holder, id);
  // A caller that may only read must not make a namespace: it could use up all slots.
  if (!caller.Has(rpc::Scope::kWrite) &&
      !master_->generations().Knows(request.name, request.version)) {
    return respond(FailedReply(
        {Code::kDenied, fmt::format("tenant '{}' does not have the scope \"write\", and "
                                    "nobody has stored anything in this namespace and "
                                    "weight version yet",
                                    caller.tenant)}));
  }
  const std::int64_t budget_ns = call->budget_ns > 0 ? call->budget_ns : kRegisterNs;
  master_->generations().Register(request, DeadlineOf(budget_ns), Through<Registration>(respond));
}

void MasterServer::Impl::Reset(rpc::ConnectionId id, const rpc::Caller& caller,
                               std::span<const std::byte> body, const rpc::Responder& respond) {
  Result<wire::ResetCall> call = wire::DecodeReset(body);
  if (!call) return respond(FailedReply(call.error()));
  if (const Status name = CheckName(call->request.name, "namespace"); !name) {
    return respond(FailedReply(name.error()));
  }
  call->request.name = QualifiedName(caller.tenant, call->request.name);
  call->request.holder = HolderOf(call->request.holder, id);
  master_->generations().Reset(
      call->request, DeadlineOf(call->budget_ns),
      [this, reply = Through<ResetOutcome>(respond)](const Result<ResetOutcome>& outcome) {
        CountReset(outcome.has_value());
        reply(outcome);
      });
}

void MasterServer::Impl::Prune(const rpc::Caller& caller, std::span<const std::byte> body,
                               const rpc::Responder& respond) {
  Result<wire::PruneCall> call = wire::DecodePrune(body);
  if (!call) return respond(FailedReply(call.error()));
  if (const Status name = CheckName(call->request.name, "namespace"); !name) {
    return respond(FailedReply(name.error()));
  }
  call->request.name = QualifiedName(caller.tenant, call->request.name);
  master_->generations().Prune(
      call->request, DeadlineOf(call->budget_ns),
      [this, reply = Through<PruneOutcome>(respond)](const Result<PruneOutcome>& outcome) {
        CountPrune(outcome.has_value());
        reply(outcome);
      });
}

Result<std::string> MasterServer::Impl::Versions(rpc::ConnectionId id, const rpc::Caller& caller,
                                                 wire::Method method,
                                                 std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const wire::EngineVersions engine, wire::DecodeEngineVersions(body));
  KVCOVE_TRY(CheckName(engine.name, "namespace"));
  const std::string name = QualifiedName(caller.tenant, engine.name);
  if (method == wire::Method::kEndEngine) {
    master_->generations().EndEngine(name, engine.engine, HolderOf(engine.holder, id));
  } else {
    KVCOVE_TRY(master_->generations().NameVersions(name, engine.engine, engine.versions));
  }
  return std::string();
}

Result<std::string> MasterServer::Impl::Lookup(rpc::ConnectionId id, const rpc::Caller& caller,
                                               std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const wire::LookupRequest request, wire::DecodeLookup(body));
  if (!MayTouch(caller, request.token.slot)) {
    return Fail(Code::kStale, "the generation is not the current one; register again");
  }
  // A caller that may not store has no save for which others could wait.
  const bool notes = request.notice != SaveNotice::kNone && caller.Has(rpc::Scope::kWrite);
  KVCOVE_ASSIGN(const std::vector<wire::Place> places,
                notes ? master_->NoteSaves(id, request.token, request.hashes, request.notice)
                      : master_->Lookup(request.token, request.hashes));
  return wire::Encode(std::span<const wire::Place>(places));
}

// Other masters have half of the caller's time, so that the caller gets what the others know
// instead of nothing while one is silent. The time runs from the call's arrival: calls that waited
// behind others for that long end at once, instead of each waiting for the silent master in turn.
void MasterServer::Impl::Locate(const rpc::Caller& caller, std::span<const std::byte> body,
                                std::int64_t deadline_ns, const rpc::Responder& respond) {
  Result<wire::LookupRequest> request = wire::DecodeLookup(body);
  if (!request) return respond(FailedReply(request.error()));
  const auto stale = [respond] {
    respond(FailedReply({Code::kStale, "the generation is not the current one; register again"}));
  };
  const Token& token = request->token;
  if (!MayTouch(caller, token.slot) ||
      !master_->standings().Current(token.slot, token.generation)) {
    return stale();
  }
  const std::int64_t now = clock_.NowNs();
  const std::int64_t left_ns =
      deadline_ns == 0 ? kLocateNs : std::clamp<std::int64_t>(deadline_ns - now, 0, kLocateNs);
  const bool waits = master_->shards().map() != nullptr;  // for other masters
  const bool small = request->hashes.size() <= kFewKeys;
  auto locate = [this, request = std::move(*request), until_ns = now + left_ns / 2, respond,
                 stale] {
    if (clock_.NowNs() >= until_ns) {
      return respond(FailedReply({Code::kTimeout, "too many prefixes are asked for; try again"}));
    }
    PrefixCount count;
    shard_calls_->CountPrefix(request.token.slot, request.hashes, until_ns, count);
    // After a reset or a prune meanwhile, the slot may even be another tenant's.
    if (!master_->standings().Current(request.token.slot, request.token.generation)) return stale();
    respond(OkReply(wire::Encode(count.Shares())));
  };
  if (small && !waits) return locate();
  const bool posted = locators_->Post(std::move(locate));
  if (!posted) respond(rpc::ErrorReply({Code::kLimit, "too many calls are waiting"}));
}

// Answers with the owners that serve this tenant. The request reports the requester's misses since
// its last one, and is a sign of life for its registrations.
Result<std::string> MasterServer::Impl::OwnersFor(const rpc::Caller& caller,
                                                  std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const wire::RequesterReport report, wire::DecodeReport(body));
  for (std::size_t i = 0; i < report.misses.size(); ++i) {
    misses_[i].fetch_add(report.misses[i], std::memory_order_relaxed);
  }
  fallbacks_.fetch_add(report.fallbacks, std::memory_order_relaxed);
  for (const OwnerNumber number : report.broken) {
    if (number < wire::kMaxOwners) {
      master_->standings().owner(number).broken_at_ns = clock_.NowNs();
    }
  }
  for (const wire::RequesterReport::Miss& miss : report.recent) {
    if (MayTouch(caller, miss.slot)) {
      master_->directory().RememberMiss(miss.slot, miss.hash, miss.reason);
    }
  }
  if (report.holder != Id128{}) master_->generations().Heard(report.holder);
  // Callers whose lists are equal share one text. The map's revision counts, too: a requester that
  // asks because its map is old must not get a text with that map again.
  const auto map = master_->shards().map();
  const std::string reader =
      fmt::format("{} {} {}", map == nullptr ? 0 : map->revision, caller.scopes,
                  caller.Has(rpc::Scope::kOwner) ? "" : caller.tenant);
  return *owner_lists_.Get(reader, [&] { return OwnerListFor(caller, map); });
}

std::string MasterServer::Impl::OwnerListFor(const rpc::Caller& caller,
                                             std::shared_ptr<const wire::ShardMap> map) {
  wire::OwnersReply reply{.owners = master_->control().Owners(),
                          .term = master_->term(),
                          .settings = Settings(),
                          .map = std::move(map)};
  reply.settings.scopes = caller.scopes;
  if (!caller.Has(rpc::Scope::kOwner)) {
    std::erase_if(reply.owners, [&](const wire::OwnerStat& owner) {
      return !owner.tenant.empty() && owner.tenant != caller.tenant;
    });
    for (wire::OwnerStat& owner : reply.owners) {
      if (owner.tenant.empty() && !caller.Has(rpc::Scope::kAdmin)) HideCounts(owner);
    }
  }
  return wire::Encode(reply);
}

void MasterServer::Impl::Remove(const rpc::Caller& caller, std::span<const std::byte> body,
                                const rpc::Responder& respond) {
  Result<wire::RemoveRequest> request = wire::DecodeRemove(body);
  if (!request) return respond(FailedReply(request.error()));
  if (!MayTouch(caller, request->token.slot)) {
    return respond(
        FailedReply({Code::kStale, "the generation is not the current one; register again"}));
  }
  // A worker takes milliseconds for a large batch; on the loop these would delay every look-up.
  const bool small = request->pattern.empty() && request->keys.size() <= kFewKeys;
  auto remove = [this, request = std::move(*request), deadline_ns = DeadlineOf(request->budget_ns),
                 respond] {
    const bool pattern = !request.pattern.empty();
    master_->Remove(request.token, request.keys, request.pattern, deadline_ns,
                    Through<Master::Removed>(respond, [pattern](const Master::Removed& removed) {
                      return pattern ? wire::EncodeCount(removed.matches)
                                     : wire::Encode(std::span<const Code>(removed.codes));
                    }));
  };
  if (small) return remove();
  const bool posted = workers_->Post(std::move(remove));
  if (!posted) respond(rpc::ErrorReply({Code::kLimit, "too many calls are waiting"}));
}

}  // namespace kvcove::master
