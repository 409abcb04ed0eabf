// SPDX-License-Identifier: Apache-2.0
// A master that does not lead: answers calls with the leader's address, operators with what it sees
// of etcd, and, as a shard, look-ups and listings of its slices (ShardReplica). Threads: one event
// loop, those of its HTTP endpoints, and with a shard those of ShardFollower. One lock guards the
// connections and the view; neither the gate nor the shard is called under it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "kvcove/http/server.h"
#include "kvcove/master/etcd/etcd_format.h"
#include "kvcove/master/server/shard_follower.h"
#include "kvcove/rpc/gate.h"
#include "kvcove/rpc/server.h"

namespace kvcove::master {

// The pool and etcd, as a standby sees them.
struct StandbyView {
  std::optional<EtcdLeader> leader;   // not set: nobody leads
  std::uint64_t term = 0;             // the last one stored, at most a second ago; 0: not known
  std::string store_error;            // empty: etcd answers
  std::int64_t store_latency_ns = 0;  // of etcd's last answer
};

struct StandbyOptions {
  rpc::Address listen;
  std::optional<rpc::Address> admin;              // not set: no admin endpoint
  std::optional<rpc::Address> metrics;            // as AdminOptions::metrics
  std::shared_ptr<rpc::Credentials> credentials;  // null: every client may do everything
  std::shared_ptr<rpc::Tls> tls;                  // null: in the clear
  // Set: this master serves a part of the directory for the leader.
  std::optional<ShardReplicaOptions> shard;
};

// Thread-safe.
class Standby final : public rpc::Handler {
 public:
  // Serves when it returns. Errors: those of rpc::Server::Open and rpc::ListenTcp, and those
  // of StartThread.
  static Result<std::unique_ptr<Standby>> Open(const StandbyOptions& options);
  // Closes all connections and joins the threads: waits for calls to other masters, 5 s at most
  // each.
  ~Standby() override;

  // Replaces the view; the shard follows its leader from then on.
  void Show(StandbyView view);
  // Return the addresses with the chosen ports; admin() is a default without an admin endpoint.
  const rpc::Address& address() const { return server_->address(); }
  const rpc::Address& admin() const { return admin_; }

  // ---- rpc::Handler, called by the server's loop
  void OnOpen(rpc::ConnectionId id, const rpc::Peer& peer) override;
  void OnClose(rpc::ConnectionId id) override;
  void OnProcessGone(std::uint64_t /*watch*/) override {}
  bool Admitted(rpc::ConnectionId id) const override;
  void OnRequest(rpc::ConnectionId id, wire::Method method, std::span<const std::byte> body,
                 std::int64_t deadline_ns, rpc::Responder respond) override;

 private:
  explicit Standby(const StandbyOptions& options) : options_(options), gate_(options.credentials) {}
  // Open the HTTP endpoints, and start the shard, as far as the options want them.
  Status OpenAdmin();
  Status OpenShard();
  // Answers a call that shards serve. False: the call is the leader's, and has no answer yet.
  bool OnShardRequest(rpc::ConnectionId id, const rpc::Caller& caller, wire::Method method,
                      std::span<const std::byte> body, rpc::Responder respond);
  // Answer the calls of owners, of requesters, of a taker and of the leader. OnList and
  // OnLookup check the caller's tenant. Only while the shard serves. Errors: those of ShardReplica,
  // kDenied, kCorrupt.
  void OnList(const rpc::Caller& caller, std::span<const std::byte> body,
              const rpc::Responder& respond);
  Result<std::string> OnLookup(rpc::ConnectionId id, const rpc::Caller& caller,
                               std::span<const std::byte> body);
  Result<std::string> OnPull(std::span<const std::byte> body);
  Result<std::string> OnFind(std::span<const std::byte> body);
  StandbyView view() const;
  // Return the admin endpoint's answers.
  http::Response StatusPage() const;
  http::Response ReadyPage() const;
  http::Response MetricsPage() const;

  const StandbyOptions options_;
  rpc::Gate gate_;
  mutable Mutex mutex_;
  std::map<rpc::ConnectionId, rpc::Gate::Guest> guests_ KVCOVE_GUARDED_BY(mutex_);
  StandbyView view_ KVCOVE_GUARDED_BY(mutex_);
  rpc::Address admin_;
  std::unique_ptr<ShardFollower> shard_;
  std::unique_ptr<http::Server> admin_server_;
  std::unique_ptr<http::Server> metrics_server_;
  std::unique_ptr<rpc::Server> server_;
};

}  // namespace kvcove::master
