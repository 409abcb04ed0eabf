// SPDX-License-Identifier: Apache-2.0
// One process's tie to a cluster: the master, the owners, and the memory of the owners on this
// host.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "kvcove/requester/cluster/held_engines.h"
#include "kvcove/requester/cluster/locator.h"
#include "kvcove/requester/cluster/peers.h"
#include "kvcove/requester/cluster/shard_lookup.h"
#include "kvcove/requester/local/local_owners.h"
#include "kvcove/requester/types.h"
#include "kvcove/rpc/link.h"
#include "kvcove/rpc/workers.h"
#include "kvcove/transport/pick/transports.h"
#include "kvcove/wire/master_stub.h"

namespace kvcove::requester {

struct ClusterHostOptions {
  rpc::Addresses master;  // of which one leads
  // Which owners are on this host; empty: HostIdentity().
  std::string host;
  // Use the memory of the owners on this host directly.
  bool local = true;
  std::string owner;     // only this one of them, host:port; empty: all
  bool checksum = true;  // of what crosses the network
  rpc::Access access;
  Placement placement = Placement::kLocalFirst;  // of sessions that name none
  WarmOptions warm;                              // of the owner on this host
  // Moves values between this process and owners on other hosts.
  kvcove::transport::Transport* transport = &kvcove::transport::Preferred();
};

// Thread-safe.
class ClusterHost final : public LookupService {
 public:
  ~ClusterHost() override;
  // Errors: kUnavailable, kTimeout when the master does not answer.
  static Result<std::unique_ptr<ClusterHost>> Connect(const ClusterHostOptions& options,
                                                      std::int64_t deadline_ns, const Clock& clock);

  const ClusterHostOptions& options() const { return options_; }
  wire::MasterStub& master() { return stub_; }
  Peers& peers() { return *peers_; }
  // Those of this host that this process maps; one that comes later is added then.
  LocalOwners& locals() { return locals_; }
  // Their numbers now; of the one with this address only, where it is not empty.
  std::vector<wire::OwnerNumber> LocalNumbers(const std::string& address) const;
  // Which of them has this address now.
  std::optional<std::size_t> LocalAt(const std::string& address) const;

  // What the master has told last.
  wire::MasterSettings Settings() KVCOVE_EXCLUDES(settings_mutex_);

  // Of several masters the one that is asked now.
  rpc::Address master_address() const { return link_.address(); }
  // What the master's metrics show of this process, and its `why` of keys whose slot is known.
  void CountMiss(std::optional<SlotId> slot, std::string_view key, MissReason reason);
  // A session of the engine begins or ends; the master hears of the last one's end a little later.
  void OpenEngine(const std::string& name, const std::string& engine);
  void CloseEngine(const std::string& name, const std::string& engine);
  HeldEngines& engines() { return engines_; }
  // Tells an owner that keys on its disk will be asked for, so that it reads them now. Waits for
  // nothing: what it is not told, it reads when it is asked.
  void ReadAhead(const Token& token, wire::OwnerNumber owner, std::vector<std::string> keys,
                 std::chrono::milliseconds hold) KVCOVE_EXCLUDES(ahead_mutex_);
  void CountFallback() { fallbacks_.fetch_add(1, std::memory_order_relaxed); }

  // While the master does not answer, these cost a few milliseconds or fail at once (rpc::Breaker).
  // One that is busy is asked again, if it says a moment before the deadline.
  // Resets always ask.
  Result<std::vector<wire::Place>> Lookup(const Token& token, std::span<const Id128> hashes,
                                          std::int64_t deadline_ns) override;
  Result<wire::Registration> Register(const wire::RegisterRequest& request,
                                      std::int64_t deadline_ns) override;

 private:
  // Null: no thread could be started; nothing is read ahead then.
  rpc::Workers* Ahead() KVCOVE_EXCLUDES(ahead_mutex_);
  ClusterHost(const ClusterHostOptions& options, const Clock& clock);
  wire::RequesterReport TakeReport(std::vector<wire::OwnerNumber> passed_over);
  void FindLocal(std::span<const wire::OwnerStat> owners, std::int64_t deadline_ns);
  void ConnectLocal(std::span<const wire::OwnerStat> owners, std::int64_t deadline_ns);
  void NoteRefusal(const wire::OwnerStat& owner, const Error& why);
  void NoteNeighbour(const wire::OwnerStat& owner, std::int64_t deadline_ns);
  Result<std::vector<wire::OwnerStat>> AskOwners(Asker asker,
                                                 std::vector<wire::OwnerNumber> passed_over,
                                                 std::int64_t deadline_ns);
  void NoteMaster(rpc::Breaker::Change change);
  void NoteSettings(wire::MasterSettings settings) KVCOVE_EXCLUDES(settings_mutex_);

  const ClusterHostOptions options_;
  const Clock& clock_;
  const Id128 process_ = RandomId();  // keeps this process's registrations alive
  rpc::Link link_;                    // to the master
  wire::MasterStub stub_;
  wire::MasterStub guarded_stub_;  // fails at once while the master does not answer
  ShardLookup shards_;
  std::array<std::atomic<std::uint64_t>, kMissReasons> misses_{};
  std::atomic<std::uint64_t> fallbacks_{0};
  using Engine = std::pair<std::string, std::string>;  // namespace, engine
  // Tells the master which engines have ended here, and a new one what this process holds.
  void TellEngines(std::uint64_t term);
  HeldEngines engines_;
  Mutex engines_mutex_;
  std::map<Engine, std::size_t> sessions_ KVCOVE_GUARDED_BY(engines_mutex_);
  std::set<Engine> ended_ KVCOVE_GUARDED_BY(engines_mutex_);
  Mutex recent_mutex_;
  std::vector<wire::RequesterReport::Miss> recent_ KVCOVE_GUARDED_BY(recent_mutex_);
  Mutex settings_mutex_;
  wire::MasterSettings settings_ KVCOVE_GUARDED_BY(settings_mutex_);
  std::atomic<bool> finding_{false};
  LocalOwners locals_;  // added to by who is `finding_`
  // Owners of this host whose memory this process cannot use, by their sockets.
  struct Refusal {
    std::string address;
    Code code = Code::kOk;
    int looks = 0;  // that ended so
    bool said = false;
  };
  std::map<std::string, Refusal> refusals_;  // belongs to who is `finding_`
  bool logged_neighbour_ = false;            // so does this
  std::unique_ptr<Peers> peers_;             // its thread probes the master, too
  std::atomic<bool> closing_{false};
  Mutex ahead_mutex_;
  std::unique_ptr<rpc::Workers> ahead_ KVCOVE_GUARDED_BY(ahead_mutex_);  // from the first use on
  // Null until `peers_` is there. Calls may come from its thread before that.
  std::atomic<Peers*> peers_now_{nullptr};
};

// Equal in all processes that can share memory and sockets: the kernel's boot and network
// namespace. $KVCOVE_HOST_ID overrides it.
std::string HostIdentity();
// Two identities of one machine that are of different network namespaces, as of two pods. Where
// $KVCOVE_HOST_ID is set for one of them nobody can know.
bool AreNeighbours(std::string_view host, std::string_view other);

}  // namespace kvcove::requester
