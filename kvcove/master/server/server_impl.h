// SPDX-License-Identifier: Apache-2.0
// MasterServer::Impl: connections, the calls that arrive on them, and the parts that answer. Only
// the server's own sources include this: server.cc (life cycle), server_connections.cc
// (credentials, dispatch), server_calls.cc (calls) and server_stat.cc (state, metrics).
//
// Locks: `connections_mutex_`, `settings_mutex_` and `tick_mutex_`. None is taken under another
// one, and no part of the master is called under one.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <thread>

#include "kvcove/master/control/wait_for.h"
#include "kvcove/master/server/owner_lists.h"
#include "kvcove/master/server/server.h"
#include "kvcove/master/server/shard_calls.h"
#include "kvcove/master/store/file_store.h"
#include "kvcove/rpc/gate.h"
#include "kvcove/rpc/leader.h"
#include "kvcove/rpc/server.h"
#include "kvcove/rpc/workers.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::master {

inline constexpr std::size_t kLeaseLoop = 1;                  // of the server's loops
inline constexpr std::int64_t kMaxBudgetNs = 3600 * kSecond;  // of one call
// The high half of the holder of registrations that name no process; the low half is the number of
// their connection, with which they end.
inline constexpr std::uint64_t kConnectionHolder = 0x636f6e6e65637469;

inline rpc::Reply OkReply(std::string body) {
  return {.code = Code::kOk, .body = std::move(body), .fds = {}};
}

inline rpc::Reply FailedReply(const Error& error) {
  return rpc::ErrorReply(error, /*close=*/error.code == Code::kCorrupt);
}

// Returns a reply that answers the call with the encoded value, or with the error; kCorrupt closes
// the connection.
template <typename T, typename Encode>
Reply<T> Through(rpc::Responder respond, Encode encode) {
  return [respond = std::move(respond), encode](Result<T> answer) {
    if (!answer) return respond(FailedReply(answer.error()));
    if constexpr (std::is_void_v<T>) {
      respond(OkReply(encode()));
    } else {
      respond(OkReply(encode(*answer)));
    }
  };
}
template <typename T>
Reply<T> Through(rpc::Responder respond) {
  return Through<T>(std::move(respond), [](const T& value) { return wire::Encode(value); });
}

// Thread-safe once Open has returned. The server's loops call it as their handler.
class MasterServer::Impl final : public rpc::Handler {
 public:
  Impl(const MasterServerOptions& options, const Clock& clock)
      : options_(options),
        settings_(options.settings),
        clock_(clock),
        gate_(options.credentials),
        admission_(std::make_shared<rpc::CallLimits>(options.limits)),
        owner_lists_(clock) {}
  ~Impl() override { Stop(); }

  // Opens the store, stores the new term, and serves. Errors: those of MasterServer::Open; then
  // only the destructor may be called.
  Status Open();
  // Ends everything, in the order that server.cc explains. Also after a failed Open.
  void Stop();

  void SetAdmin(std::string address) KVCOVE_EXCLUDES(settings_mutex_) {
    const MutexLock lock(settings_mutex_);
    settings_.admin = std::move(address);
  }

  Master& master() { return *master_; }
  ShardCalls& shard_calls() { return *shard_calls_; }
  rpc::Access AccessTo(const std::string& address) const;
  const rpc::Address& address() const { return server_->address(); }
  MasterStat Stat() const;
  MasterCounts Counts() const;
  // True while no other master can lead, so an answer that is given now counts.
  bool Leads() const { return options_.leadership == nullptr || options_.leadership->Leads(); }
  void Collect(Metrics& metrics) const;
  // Returns the outcome of a call from within this process, or an error if this master does not
  // lead any more: as WhileLeading does for calls of others.
  template <typename T>
  Result<T> IfLeading(Result<T> outcome) const {
    if (Leads()) return outcome;
    return std::unexpected(rpc::NotTheLeader({}));
  }
  // Makes a call and waits for its reply, an hour at most: the call has its own deadline.
  template <typename T>
  Result<T> Wait(const std::function<void(Reply<T>)>& call);
  void CountReset(bool proven) {
    resets_.fetch_add(1);
    if (!proven) resets_not_proven_.fetch_add(1);
  }
  void CountPrune(bool proven) {
    prunes_.fetch_add(1);
    if (!proven) prunes_not_proven_.fetch_add(1);
  }

  // ---- rpc::Handler
  void OnOpen(rpc::ConnectionId id, const rpc::Peer& peer) override;
  void OnClose(rpc::ConnectionId id) override;
  void OnProcessGone(std::uint64_t /*watch*/) override {}
  bool Admitted(rpc::ConnectionId id) const override;
  rpc::LimitedCaller CallerOf(rpc::ConnectionId id) const override;
  rpc::Traffic TrafficOf(wire::Method method) const override;
  void OnRequest(rpc::ConnectionId id, wire::Method method, std::span<const std::byte> body,
                 std::int64_t deadline_ns, rpc::Responder respond) override;

 private:
  struct Connection {
    rpc::Gate::Guest guest;
    bool registers = false;  // may hold registrations that end with it
    bool owner = false;      // an owner has said hello on it
    bool moved = false;      // to the loop of the leases
  };

  // Returns a responder that checks, when it is called, whether this master leads; if not, it
  // answers "not the leader" instead.
  rpc::Responder WhileLeading(rpc::Responder respond) const;
  rpc::ServerOptions ServerOptionsOf() const;
  // Starts the threads, the server's last.
  Status Serve();
  void StopTick();
  // Opens the store and reads its facts. A null `disk`: facts are kept in memory, or in etcd.
  Status OpenStore(std::unique_ptr<PosixFileSystem> disk, Opened& opened);
  // Makes the master from the facts, and waits until the new term is stored.
  Status StartMaster(const Opened& opened);
  std::int64_t DeadlineOf(std::int64_t budget_ns) const {
    return clock_.NowNs() + std::clamp<std::int64_t>(budget_ns, 0, kMaxBudgetNs);
  }
  // Checks the scope that the method needs. Errors: kDenied.
  static Status MayCall(const rpc::Caller& caller, wire::Method method);
  // Returns whether the slot belongs to the caller's tenant. False also for a free slot, so a
  // caller cannot learn which slots are free.
  bool MayTouch(const rpc::Caller& caller, SlotId slot) const {
    return caller.MayTouch(master_->standings().TenantOfSlot(slot));
  }
  // Passes an allowed call to its function below. Those with a `respond` may answer later, from
  // another thread; those that return a Result answer at once. Each decodes the body; those
  // of sessions and owners also keep to the caller's tenant.
  void Dispatch(rpc::ConnectionId id, const rpc::Caller& caller, wire::Method method,
                std::span<const std::byte> body, const rpc::Responder& respond);
  void FromOwner(rpc::ConnectionId id, const rpc::Caller& caller, wire::Method method,
                 std::span<const std::byte> body, const rpc::Responder& respond);
  void FromShard(wire::Method method, std::span<const std::byte> body,
                 const rpc::Responder& respond);
  void Register(rpc::ConnectionId id, const rpc::Caller& caller, std::span<const std::byte> body,
                const rpc::Responder& respond);
  void Reset(rpc::ConnectionId id, const rpc::Caller& caller, std::span<const std::byte> body,
             const rpc::Responder& respond);
  void Prune(const rpc::Caller& caller, std::span<const std::byte> body,
             const rpc::Responder& respond);
  Result<std::string> Versions(rpc::ConnectionId id, const rpc::Caller& caller, wire::Method method,
                               std::span<const std::byte> body);
  // Answers hello and prove, the credential exchange of a new connection.
  rpc::Reply Greet(rpc::ConnectionId id, wire::Method method, std::span<const std::byte> body)
      KVCOVE_EXCLUDES(connections_mutex_);
  Result<std::string> Lookup(rpc::ConnectionId id, const rpc::Caller& caller,
                             std::span<const std::byte> body);
  void Locate(const rpc::Caller& caller, std::span<const std::byte> body, std::int64_t deadline_ns,
              const rpc::Responder& respond);
  Result<std::string> OwnersFor(const rpc::Caller& caller, std::span<const std::byte> body);
  // Encodes the list of the owners that serve this caller's tenant.
  std::string OwnerListFor(const rpc::Caller& caller, std::shared_ptr<const wire::ShardMap> map);
  void Remove(const rpc::Caller& caller, std::span<const std::byte> body,
              const rpc::Responder& respond);
  // Runs the tick thread.
  void Tick();
  // Returns the holder that a registration names, or else that of its connection.
  static Id128 HolderOf(const Id128& asked, rpc::ConnectionId id) {
    return asked != Id128{} ? asked : Id128{.high = kConnectionHolder, .low = id};
  }

  wire::MasterSettings Settings() const KVCOVE_EXCLUDES(settings_mutex_) {
    const MutexLock lock(settings_mutex_);
    return settings_;
  }

  const MasterServerOptions options_;
  mutable Mutex settings_mutex_;
  wire::MasterSettings settings_ KVCOVE_GUARDED_BY(settings_mutex_);
  const Clock& clock_;
  rpc::Access access_;
  rpc::Gate gate_;
  const std::shared_ptr<rpc::CallLimits> admission_;  // the server asks it before each call

  mutable Mutex connections_mutex_;
  std::map<rpc::ConnectionId, Connection> connections_ KVCOVE_GUARDED_BY(connections_mutex_);

  OwnerLists owner_lists_;

  std::atomic<std::uint64_t> resets_{0};
  std::atomic<std::uint64_t> resets_not_proven_{0};
  std::atomic<std::uint64_t> prunes_{0};
  std::atomic<std::uint64_t> prunes_not_proven_{0};
  // Sums of requesters' reports.
  std::atomic<std::uint64_t> fallbacks_{0};
  std::array<std::atomic<std::uint64_t>, kMissReasons> misses_{};
  std::array<Histogram, wire::kMaxMethod + 1> times_;  // by method; only kTimedCalls are used

  bool serves_ = false;  // set by Serve; if false, Stop has no clean end to store

  Mutex tick_mutex_;
  CondVar tick_changed_;
  bool stopping_ KVCOVE_GUARDED_BY(tick_mutex_) = false;

  // Set by Open before the loops run; Stop resets them after the loops have ended.
  std::unique_ptr<Master> master_;
  std::unique_ptr<ShardCalls> shard_calls_;
  std::unique_ptr<ControlStore> store_;
  FileStore* file_ = nullptr;               // store_, if it is a FileStore
  EtcdStore* etcd_ = nullptr;               // store_, if it is an EtcdStore
  std::unique_ptr<rpc::Workers> workers_;   // for removals
  std::unique_ptr<rpc::Workers> locators_;  // for prefixes, which no removal waits behind
  std::unique_ptr<rpc::Server> server_;
  std::thread tick_;
};

template <typename T>
Result<T> MasterServer::Impl::Wait(const std::function<void(Reply<T>)>& call) {
  return WaitFor<T>(clock_, clock_.NowNs() + kMaxBudgetNs, call);
}

}  // namespace kvcove::master
