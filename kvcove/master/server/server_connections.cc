// SPDX-License-Identifier: Apache-2.0
// Connections: their credentials, the scope that each method needs, and the part of the server that
// answers. Calls about one connection come one after the other, from its loop.
#include <fmt/core.h>

#include <algorithm>

#include "kvcove/master/server/owner_calls.h"
#include "kvcove/master/server/server.h"
#include "kvcove/master/server/server_impl.h"
#include "kvcove/master/server/server_metrics.h"

namespace kvcove::master {
namespace {

bool IsTimed(wire::Method method) {
  return std::ranges::any_of(kTimedCalls, [&](const auto& timed) { return timed.first == method; });
}

}  // namespace

void MasterServer::Impl::OnOpen(rpc::ConnectionId id, const rpc::Peer& /*peer*/) {
  const MutexLock lock(connections_mutex_);
  connections_[id];
}

void MasterServer::Impl::OnClose(rpc::ConnectionId id) {
  bool registers = false;
  bool owner = false;
  {
    const MutexLock lock(connections_mutex_);
    const auto at = connections_.find(id);
    if (at == connections_.end()) return;
    registers = at->second.registers;
    owner = at->second.owner;
    connections_.erase(at);
  }
  // After the lock: both take locks of their parts. The owner's lease continues, because its memory
  // may still be mapped; only look-ups pass it over.
  if (registers) master_->generations().EndHolder(HolderOf({}, id));
  if (owner) master_->control().Disconnected(id);
  master_->directory().EndSaves(id);
}

bool MasterServer::Impl::Admitted(rpc::ConnectionId id) const {
  const MutexLock lock(connections_mutex_);
  const auto at = connections_.find(id);
  return at != connections_.end() && at->second.guest.caller != nullptr;
}

rpc::LimitedCaller MasterServer::Impl::CallerOf(rpc::ConnectionId id) const {
  rpc::Gate::Guest guest;
  {
    const MutexLock lock(connections_mutex_);
    const auto at = connections_.find(id);
    if (at != connections_.end()) guest = at->second.guest;
  }
  return gate_.Describe(guest);
}

// Sets apart the calls that keep owners and shards leased, up to date and listed: if they waited
// behind a tenant's calls, all tenants would lose objects. Credits bound inventories.
rpc::Traffic MasterServer::Impl::TrafficOf(wire::Method method) const {
  switch (method) {
    case wire::Method::kOwnerHello:
    case wire::Method::kRenew:
    case wire::Method::kWatch:
    case wire::Method::kRemovals:
    case wire::Method::kOwnerGoodbye:
    case wire::Method::kList:
    case wire::Method::kShardSync:
    case wire::Method::kShardBar:
    case wire::Method::kShardPull:
      return rpc::Traffic::kOwner;
    default:
      return rpc::Traffic::kOther;
  }
}

// An answer that was decided while this master led may be wrong when it is sent: another master may
// lead since, and have decided more. So the check is the last step before the answer. A lease that
// passes it began before this moment, and the next leader waits for the length of a lease.
rpc::Responder MasterServer::Impl::WhileLeading(rpc::Responder respond) const {
  return [this, respond = std::move(respond)](rpc::Reply reply) {
    respond(Leads() ? std::move(reply) : FailedReply(rpc::NotTheLeader({})));
  };
}

// The gate may read the credentials' file, so it works on a copy, without the lock. No other thread
// writes this guest meanwhile: calls about one connection come one after the other.
rpc::Reply MasterServer::Impl::Greet(rpc::ConnectionId id, wire::Method method,
                                     std::span<const std::byte> body) {
  rpc::Gate::Guest guest;
  {
    const MutexLock lock(connections_mutex_);
    guest = connections_[id].guest;
  }
  rpc::Reply reply = gate_.Greet(guest, method, body);
  const MutexLock lock(connections_mutex_);
  connections_[id].guest = std::move(guest);
  return reply;
}

void MasterServer::Impl::OnRequest(rpc::ConnectionId id, wire::Method method,
                                   std::span<const std::byte> body, std::int64_t deadline_ns,
                                   rpc::Responder respond) {
  if (rpc::Gate::IsGreeting(method)) return respond(Greet(id, method, body));
  if (options_.leadership != nullptr) {
    if (!Leads()) return respond(FailedReply(rpc::NotTheLeader({})));
    respond = WhileLeading(std::move(respond));
  }
  // May read the credentials' file, so before the lock.
  gate_.Refresh();
  std::shared_ptr<const rpc::Caller> caller;
  {
    const MutexLock lock(connections_mutex_);
    Connection& connection = connections_[id];
    if (gate_.Admitted(connection.guest)) {
      caller = connection.guest.caller;
      connection.registers = connection.registers || method == wire::Method::kRegister ||
                             method == wire::Method::kReset;
      connection.owner = connection.owner || method == wire::Method::kOwnerHello;
    } else {
      // Its token was struck off, and the answer closes the connection. If the caller is an owner,
      // it is alive and says hello with another token: OnClose must not report it as disconnected.
      connection.owner = false;
    }
  }
  if (caller == nullptr) return respond(rpc::SayHelloFirst());
  if (const Status may = MayCall(*caller, method); !may) {
    return respond(rpc::ErrorReply(may.error()));
  }
  if (IsTimed(method)) {
    respond = [this, method, began = clock_.NowNs(),
               respond = std::move(respond)](rpc::Reply reply) {
      times_[static_cast<std::size_t>(method)].Add(clock_.NowNs() - began);
      respond(std::move(reply));
    };
  }
  if (method == wire::Method::kLocate) return Locate(*caller, body, deadline_ns, respond);
  Dispatch(id, *caller, method, body, respond);
}

Status MasterServer::Impl::MayCall(const rpc::Caller& caller, wire::Method method) {
  using wire::Method;
  const auto need = [&](bool has, std::string_view scope) {
    return has ? Status()
               : Status(
                     Fail(Code::kDenied, fmt::format("tenant '{}' does not have the scope \"{}\"",
                                                     caller.tenant, scope)));
  };
  switch (method) {
    case Method::kOwnerHello:
    case Method::kRenew:
    case Method::kWatch:
    case Method::kRemovals:
    case Method::kOwnerGoodbye:
    case Method::kList:
      return need(caller.IsOwner(), "owner");
    case Method::kShardSync:
    case Method::kShardBar:
    case Method::kShardPull:
      return need(caller.MayOwn(0), "owner");
    case Method::kReset:
    case Method::kPrune:
      return need(caller.Has(rpc::Scope::kReset), "reset");
    case Method::kRemoveEverywhere:
    case Method::kNameVersions:
      return need(caller.Has(rpc::Scope::kWrite), "write");
    case Method::kOwners:
      // Its answer names the admin endpoint, which wants this scope, and which shows all of it.
      if (caller.Has(rpc::Scope::kAdmin)) return {};
      [[fallthrough]];
    default:
      return need(caller.Has(rpc::Scope::kRead) || caller.Has(rpc::Scope::kWrite), "read");
  }
}

void MasterServer::Impl::Dispatch(rpc::ConnectionId id, const rpc::Caller& caller,
                                  wire::Method method, std::span<const std::byte> body,
                                  const rpc::Responder& respond) {
  using wire::Method;
  const auto answer = [&](Result<std::string> reply) {
    respond(reply ? OkReply(std::move(*reply)) : FailedReply(reply.error()));
  };
  switch (method) {
    case Method::kOwnerHello:
    case Method::kRenew:
    case Method::kWatch:
    case Method::kRemovals:
    case Method::kOwnerGoodbye:
    case Method::kList:
      return FromOwner(id, caller, method, body, respond);
    case Method::kShardSync:
    case Method::kShardBar:
    case Method::kShardPull:
      return FromShard(method, body, respond);
    case Method::kLookup:
      return answer(Lookup(id, caller, body));
    case Method::kOwners:
      return answer(OwnersFor(caller, body));
    case Method::kRegister:
      return Register(id, caller, body, respond);
    case Method::kReset:
      return Reset(id, caller, body, respond);
    case Method::kPrune:
      return Prune(caller, body, respond);
    case Method::kNameVersions:
    case Method::kEndEngine:
      return answer(Versions(id, caller, method, body));
    case Method::kRemoveEverywhere:
      return Remove(caller, body, respond);
    default:
      return respond(rpc::ErrorReply({Code::kCorrupt, "not a call for the master"}, true));
  }
}

rpc::Access MasterServer::Impl::AccessTo(const std::string& address) const {
  if (options_.credentials == nullptr) return access_;
  const std::vector<wire::OwnerStat> owners = master_->control().Owners();
  const auto owner = std::ranges::find(owners, address, &wire::OwnerStat::address);
  if (owner == owners.end()) return access_;
  return rpc::ServerAccess(options_.credentials, owner->tenant, options_.tls).value_or(access_);
}

}  // namespace kvcove::master
