// SPDX-License-Identifier: Apache-2.0
// The master's server from inside: connections and the calls that come by them. Only the server's
// own files include it.
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

inline constexpr std::size_t kLeaseLoop = 1;
inline constexpr std::int64_t kMaxBudgetNs = 3600 * kSecond;
// Registrations that name no process end with their connection: this in front of its number.
inline constexpr std::uint64_t kConnectionHolder = 0x636f6e6e65637469;

inline rpc::Reply OkReply(std::string body) {
  return {.code = Code::kOk, .body = std::move(body), .fds = {}};
}

inline rpc::Reply FailedReply(const Error& error) {
  return rpc::ErrorReply(error, /*close=*/error.code == Code::kCorrupt);
}

// Answers a call with what its reply brings, coded by `encode`.
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

// Thread-safe. Loops of the server call it as its handler.
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

  Status Open();
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
  void Collect(Metrics& metrics) const;
  // What a call from within this process came to; an error where this master does not lead.
  template <typename T>
  Result<T> IfLeading(Result<T> outcome) const {
    if (Leads()) return outcome;
    return std::unexpected(rpc::NotTheLeader({}));
  }
  template <typename T>
  Result<T> Wait(const std::function<void(Reply<T>)>& call);
  void CountReset(bool proven) {
    resets_.fetch_add(1);
    if (!proven) resets_not_proven_.fetch_add(1);
  }

  // ---- rpc::Handler
  void OnOpen(rpc::ConnectionId id, const rpc::Peer& peer) override;
  void OnClose(rpc::ConnectionId id) override;
  void OnProcessGone(std::uint64_t /*watch*/) override {}
  bool Admitted(rpc::ConnectionId id) const override;
  rpc::LimitedCaller CallerOf(rpc::ConnectionId id) const override;
  rpc::Traffic TrafficOf(wire::Method method) const override;
  void OnRequest(rpc::ConnectionId id, wire::Method method, std::span<const std::byte> body,
                 std::int64_t /*deadline_ns*/, rpc::Responder respond) override;

 private:
  struct Connection {
    rpc::Gate::Guest guest;
    bool registers = false;  // holds registrations of its own
    bool owner = false;
    bool moved = false;  // to the loop of the leases
  };

  // Whether what is answered now may count.
  bool Leads() const { return options_.leadership == nullptr || options_.leadership->Leads(); }
  // Answers "not the leader" in place of what was decided, if that is so by then.
  rpc::Responder WhileLeading(rpc::Responder respond) const;
  rpc::ServerOptions ServerOptionsOf() const;
  Status Serve();
  void StopTick();
  // Null: in memory.
  Status OpenStore(std::unique_ptr<PosixFileSystem> disk, Opened& opened);
  Status StartMaster(const Opened& opened);
  std::int64_t DeadlineOf(std::int64_t budget_ns) const {
    return clock_.NowNs() + std::clamp<std::int64_t>(budget_ns, 0, kMaxBudgetNs);
  }
  static Status MayCall(const rpc::Caller& caller, wire::Method method);
  // False also for a slot that is free: nobody learns which are.
  bool MayTouch(const rpc::Caller& caller, SlotId slot) const {
    return caller.MayTouch(master_->standings().TenantOfSlot(slot));
  }
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
  Result<std::string> Versions(rpc::ConnectionId id, const rpc::Caller& caller, wire::Method method,
                               std::span<const std::byte> body);
  rpc::Reply Greet(rpc::ConnectionId id, wire::Method method, std::span<const std::byte> body)
      KVCOVE_EXCLUDES(connections_mutex_);
  Result<std::string> Lookup(const rpc::Caller& caller, std::span<const std::byte> body);
  Result<std::string> OwnersFor(const rpc::Caller& caller, std::span<const std::byte> body);
  std::string OwnerListFor(const rpc::Caller& caller, std::shared_ptr<const wire::ShardMap> map);
  void Remove(const rpc::Caller& caller, std::span<const std::byte> body,
              const rpc::Responder& respond);
  void Tick();
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
  const std::shared_ptr<rpc::CallLimits> admission_;

  mutable Mutex connections_mutex_;
  std::map<rpc::ConnectionId, Connection> connections_ KVCOVE_GUARDED_BY(connections_mutex_);

  OwnerLists owner_lists_;

  std::atomic<std::uint64_t> resets_{0};
  std::atomic<std::uint64_t> resets_not_proven_{0};
  std::atomic<std::uint64_t> fallbacks_{0};
  std::array<std::atomic<std::uint64_t>, kMissReasons> misses_{};
  std::array<Histogram, wire::kMaxMethod + 1> times_;

  bool serves_ = false;  // false also after an Open that failed before

  Mutex tick_mutex_;
  CondVar tick_changed_;
  bool stopping_ KVCOVE_GUARDED_BY(tick_mutex_) = false;

  std::unique_ptr<Master> master_;
  std::unique_ptr<ShardCalls> shard_calls_;
  std::unique_ptr<ControlStore> store_;
  FileStore* file_ = nullptr;  // store_, if it is one
  EtcdStore* etcd_ = nullptr;  // the same
  std::unique_ptr<rpc::Workers> workers_;
  std::unique_ptr<rpc::Server> server_;
  std::thread tick_;
};

template <typename T>
Result<T> MasterServer::Impl::Wait(const std::function<void(Reply<T>)>& call) {
  return WaitFor<T>(clock_, clock_.NowNs() + kMaxBudgetNs, call);
}

}  // namespace kvcove::master
