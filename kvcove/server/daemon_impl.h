// SPDX-License-Identifier: Apache-2.0
// The inside of a daemon: its requests (daemon.cc) and its hand-over to a successor
// (daemon_upgrade.cc). Only these two files include it.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/rpc/server.h"
#include "kvcove/rpc/workers.h"
#include "kvcove/server/daemon.h"
#include "kvcove/server/upgrade.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::server {

// Connections and sessions belong to the event loop's thread; while the loop is paused for a
// hand-over, to kvcove-upgrade.
class Daemon::Impl final : public rpc::Handler, public UpgradeGiver {
 public:
  Impl(std::unique_ptr<pool::LocalHost> host, const DaemonOptions& options,
       const pool::LocalHostOptions& host_options, const Clock& clock);
  ~Impl() override;

  // Opens the socket, unless several tenants share the owner, and starts to populate the memory.
  Status Listen();
  // Takes over the sockets and sessions of a predecessor; serves nothing until Serve. Errors:
  // kIncompatible for a state of another build.
  Status Adopt(StateReader& state, rpc::HandedServer handed);
  // Starts the workers and the server. Errors: as StartThread.
  Status Serve();
  pool::LocalHost& host() { return *host_; }
  bool PostControl(std::function<void()> call) {
    return control_workers_ != nullptr && control_workers_->Post(std::move(call));
  }
  bool PostWalk(std::function<void()> call) {
    return pattern_workers_ != nullptr && pattern_workers_->Post(std::move(call));
  }
  bool Unattended() const;
  // Names all daemons of this process. The first one hands all of them over, so the others outlive
  // it.
  void SetGroup(std::vector<Impl*> group);
  static UpgradeHello HelloOf(const pool::LocalHostOptions& options,
                              const owner::OwnerOptions& owner);

  void OnOpen(rpc::ConnectionId id, const rpc::Peer& peer) override;
  void OnClose(rpc::ConnectionId id) override;
  bool Admitted(rpc::ConnectionId id) const override;
  void OnProcessGone(std::uint64_t watch) override;
  void OnRequest(rpc::ConnectionId id, wire::Method method, std::span<const std::byte> body,
                 std::int64_t deadline_ns, rpc::Responder respond) override;

  template <typename Ar>
  void Carry(Ar& ar) {
    std::uint32_t attendants = attendants_;
    CarryAll(ar, connections_, sessions_, attendants);
    attendants_ = attendants;
  }

 private:
  struct Connection {
    rpc::Peer peer;
    wire::SessionNumber session = 0;
    bool greeted = false;  // it said the hello that began the session
    bool attends = false;  // it keeps the daemon alive (Attend)
    template <typename Ar>
    void Carry(Ar& ar) {
      CarryAll(ar, peer, session, greeted, attends);
    }
  };
  struct Session {
    std::int32_t pid = 0;
    bool used = false;  // a call or a join has come, so the process has the mappings
    Id128 secret;       // shown by further connections of the process
    std::shared_ptr<wire::HostService> service;
    template <typename Ar>
    void Carry(Ar& ar) {
      CarryAll(ar, pid, used, secret);
    }
  };

  // Answers a load when the disk has, without a worker.
  static void Load(const std::shared_ptr<wire::HostService>& service,
                   std::span<const std::byte> body, std::int64_t deadline_ns,
                   const rpc::Responder& respond);
  // Answers a removal when the disks have, without a worker that waits for them.
  void Remove(const std::shared_ptr<wire::HostService>& service, wire::Method method,
              std::span<const std::byte> body, std::int64_t deadline_ns,
              const rpc::Responder& respond);
  static rpc::Reply ReplyOf(Result<std::string> answer);
  static rpc::Reply Answer(wire::HostService& service, wire::Method method,
                           std::span<const std::byte> body, std::int64_t deadline_ns);
  // Hello adds a session and gives its connection the mappings; Join binds a further connection of
  // the same process to it. EndSession returns all that it protects and reserves.
  void Hello(rpc::ConnectionId id, Connection& connection, std::span<const std::byte> body,
             const rpc::Responder& respond);
  void Join(Connection& connection, std::span<const std::byte> body, const rpc::Responder& respond);
  void Attend(Connection& connection, const rpc::Responder& respond);
  void EndSession(wire::SessionNumber number);

  // ---- the running process of an upgrade
  void HandOver(rpc::ConnectionId id, const Connection& connection, std::span<const std::byte> body,
                const rpc::Responder& respond);
  // Ok: the process at `connection` may take over the owners that it lists in `body`.
  Status MayTakeOver(const Connection& connection, std::span<const std::byte> body,
                     const std::vector<Impl*>& group) const;
  Result<std::vector<UniqueFd>> Files() override;
  void Prepare() override;
  Status Quiet() override;
  Status Freeze() override;
  Result<UpgradeState> Save() override;
  std::int64_t LeaseUntilNs() const override;
  std::int64_t StopLease() override;
  void Thaw() override;
  // Opens the files that Save writes, and allocates their pages.
  Status OpenStates();

  const DaemonOptions options_;
  const UpgradeHello hello_;
  std::unique_ptr<pool::LocalHost> host_;
  const Clock& clock_;
  mutable Mutex group_mutex_;
  // All daemons of the process, once each serves. Empty: none can be taken over yet.
  std::vector<Impl*> group_ KVCOVE_GUARDED_BY(group_mutex_);
  // From Prepare to Save; belong to kvcove-upgrade.
  std::vector<StateWriter> states_;
  Status states_opened_;
  UpgradeThread upgrade_;
  // Connections that attend, and, while there are none, the time until which one may come. Written
  // by the loop, read by any thread: see Unattended.
  std::atomic<std::uint32_t> attendants_ = 0;
  std::atomic<std::int64_t> attended_until_ns_;
  std::map<rpc::ConnectionId, Connection> connections_;
  std::map<wire::SessionNumber, Session> sessions_;
  std::unique_ptr<rpc::Workers> workers_;          // for puts and statistics
  std::unique_ptr<rpc::Workers> control_workers_;  // for registrations and resets
  std::unique_ptr<rpc::Workers> removal_workers_;  // see Remove
  std::unique_ptr<rpc::Workers> pattern_workers_;
  std::unique_ptr<rpc::Server> server_;
};

}  // namespace kvcove::server
