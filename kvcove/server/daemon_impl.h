// SPDX-License-Identifier: Apache-2.0
// A daemon's inside: its requests (daemon.cc) and its hand-over to a successor (daemon_upgrade.cc).
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/rpc/server.h"
#include "kvcove/rpc/workers.h"
#include "kvcove/server/daemon.h"
#include "kvcove/server/upgrade.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::server {

// What it keeps of connections and sessions belongs to the event loop's thread.
class Daemon::Impl final : public rpc::Handler, public UpgradeGiver {
 public:
  Impl(std::unique_ptr<pool::LocalHost> host, const DaemonOptions& options,
       const pool::LocalHostOptions& host_options, const Clock& clock);
  ~Impl() override;

  // Not of an owner that several tenants share.
  Status Listen();
  // What a predecessor listened on and talked to; serves nothing yet.
  Status Adopt(StateReader& state, rpc::HandedServer handed);
  Status Serve();
  pool::LocalHost& host() { return *host_; }
  bool Unattended() const;
  // All daemons of this process, which is handed over whole by the first one. They outlast it.
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
    bool greeted = false;  // the session began with it
    bool attends = false;
    template <typename Ar>
    void Carry(Ar& ar) {
      CarryAll(ar, peer, session, greeted, attends);
    }
  };
  struct Session {
    std::int32_t pid = 0;
    bool used = false;  // somebody has joined it, or called
    Id128 secret;
    std::shared_ptr<wire::HostService> service;
    template <typename Ar>
    void Carry(Ar& ar) {
      CarryAll(ar, pid, used, secret);
    }
  };

  static void Load(const std::shared_ptr<wire::HostService>& service,
                   std::span<const std::byte> body, std::int64_t deadline_ns,
                   const rpc::Responder& respond);
  static rpc::Reply ReplyOf(Result<std::string> answer);
  static rpc::Reply Answer(wire::HostService& service, wire::Method method,
                           std::span<const std::byte> body, std::int64_t deadline_ns);
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
  // The files that Save writes, with their pages.
  Status OpenStates();

  const DaemonOptions options_;
  const UpgradeHello hello_;
  std::unique_ptr<pool::LocalHost> host_;
  const Clock& clock_;
  mutable Mutex group_mutex_;
  // All of the process, once each serves; before, none can be taken over.
  std::vector<Impl*> group_ KVCOVE_GUARDED_BY(group_mutex_);
  // From Prepare to Save; of the thread that hands over.
  std::vector<StateWriter> states_;
  Status states_opened_;
  UpgradeThread upgrade_;
  // Read by another thread, too: see Unattended.
  std::atomic<std::uint32_t> attendants_ = 0;
  std::atomic<std::int64_t> attended_until_ns_;  // while there are none
  std::map<rpc::ConnectionId, Connection> connections_;
  std::map<wire::SessionNumber, Session> sessions_;
  std::unique_ptr<rpc::Workers> workers_;          // puts, statistics
  std::unique_ptr<rpc::Workers> control_workers_;  // registrations, resets, removals
  std::unique_ptr<rpc::Server> server_;
};

}  // namespace kvcove::server
