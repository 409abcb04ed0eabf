// SPDX-License-Identifier: Apache-2.0
// A master that does not lead: answers every call with who does, and operators with what it sees.
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

// What a standby knows of the others.
struct StandbyView {
  std::optional<EtcdLeader> leader;
  std::uint64_t term = 0;   // of the pool's last leader; 0: not known
  std::string store_error;  // empty: etcd answers
  std::int64_t store_latency_ns = 0;
};

struct StandbyOptions {
  rpc::Address listen;
  std::optional<rpc::Address> admin;              // nothing: no admin endpoint
  std::optional<rpc::Address> metrics;            // as AdminOptions::metrics
  std::shared_ptr<rpc::Credentials> credentials;  // null: every client may do everything
  std::shared_ptr<rpc::Tls> tls;                  // null: in the clear
  // Serves a part of the directory for the leader; nothing: it does not.
  std::optional<ShardReplicaOptions> shard;
};

// Thread-safe.
class Standby final : public rpc::Handler {
 public:
  // Serves when it returns. Errors: those of rpc::Server::Open and rpc::ListenTcp.
  static Result<std::unique_ptr<Standby>> Open(const StandbyOptions& options);
  ~Standby() override;

  void Show(StandbyView view);
  const rpc::Address& address() const { return server_->address(); }
  const rpc::Address& admin() const { return admin_; }

  // ---- rpc::Handler
  void OnOpen(rpc::ConnectionId id, const rpc::Peer& peer) override;
  void OnClose(rpc::ConnectionId id) override;
  void OnProcessGone(std::uint64_t /*watch*/) override {}
  bool Admitted(rpc::ConnectionId id) const override;
  void OnRequest(rpc::ConnectionId id, wire::Method method, std::span<const std::byte> body,
                 std::int64_t deadline_ns, rpc::Responder respond) override;

 private:
  explicit Standby(const StandbyOptions& options) : options_(options), gate_(options.credentials) {}
  Status OpenAdmin();
  Status OpenShard();
  // A call for this shard. False: it is the leader's.
  bool OnShardRequest(const rpc::Caller& caller, wire::Method method,
                      std::span<const std::byte> body, rpc::Responder respond);
  void OnList(const rpc::Caller& caller, std::span<const std::byte> body,
              const rpc::Responder& respond);
  Result<std::string> OnLookup(const rpc::Caller& caller, std::span<const std::byte> body);
  Result<std::string> OnPull(std::span<const std::byte> body);
  Result<std::string> OnFind(std::span<const std::byte> body);
  StandbyView view() const;
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
