// SPDX-License-Identifier: Apache-2.0
// One process's tie to a cluster, shared by its sessions: the connection to the master, the list of
// owners with a peer for each, and the memory of the owners on this host.
//
// Threads: that of Peers, which asks the master for the owners, reports misses to it, repeats
// registrations and finds new owners of this host; with the first ReadAhead one worker; with the
// first map of shards those of ShardLookup. Its locks guard one thing each and are taken alone; no
// call is made under one.
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
  rpc::Addresses master;  // one of them leads
  // Owners with this identity are on this host; empty: HostIdentity().
  std::string host;
  // Maps the memory of the owners on this host. False: they are used over the network, too.
  bool local = true;
  std::string owner;  // maps only the memory of this owner, host:port; empty: of all on this host
  bool checksum = true;  // checks values that cross the network
  rpc::Access access;
  Placement placement = Placement::kLocalFirst;  // for sessions that name none
  WarmOptions warm;                              // for each owner on this host
  // Moves values between this process and owners on other hosts.
  kvcove::transport::Transport* transport = &kvcove::transport::Preferred();
};

// Thread-safe.
class ClusterHost final : public LookupService {
 public:
  // Joins the threads; waits for their calls under way. No session may use it any more.
  ~ClusterHost() override;
  // Asks the master for the owners, maps the memory of those on this host, and starts the thread.
  // An owner that cannot be mapped is no error. Errors: kUnavailable, kTimeout when the master does
  // not answer; kDenied; those of StartThread.
  static Result<std::unique_ptr<ClusterHost>> Connect(const ClusterHostOptions& options,
                                                      std::int64_t deadline_ns, const Clock& clock);

  const ClusterHostOptions& options() const { return options_; }
  // Returns the master for calls that must be tried even if it does not answer, such as resets:
  // each waits until its deadline.
  wire::MasterStub& master() { return stub_; }
  Peers& peers() { return *peers_; }
  // Returns the owners of this host whose memory this process maps; an owner that starts later is
  // added when the thread finds it.
  LocalOwners& locals() { return locals_; }
  // Returns the numbers of the usable owners among locals(); only of the owner at `address`, unless
  // that is empty.
  std::vector<wire::OwnerNumber> LocalNumbers(const std::string& address) const;
  // Returns the index in locals() of the owner with this address; none if its memory is not usable.
  std::optional<std::size_t> LocalAt(const std::string& address) const;

  // Returns the settings in the master's last answer.
  wire::MasterSettings Settings() KVCOVE_EXCLUDES(settings_mutex_);

  // Returns the address of the master that is asked now.
  rpc::Address master_address() const { return link_.address(); }
  // Counts a miss for the master's metrics. If `slot` is known, the master's answer to `admin key`
  // shows the miss, too, unless the reason came from the master itself.
  void CountMiss(std::optional<SlotId> slot, std::string_view key, MissReason reason);
  // Note that a session of the engine begins or ends. After the end of the last one, the thread
  // ends the engine at the master.
  void OpenEngine(const std::string& name, const std::string& engine);
  void CloseEngine(const std::string& name, const std::string& engine);
  HeldEngines& engines() { return engines_; }
  // Lets an owner read these keys from its disk now, for a get that follows within `hold`. Waits
  // for nothing, and may be dropped: the owner then reads the keys for the get.
  void ReadAhead(const Token& token, wire::OwnerNumber owner, std::vector<std::string> keys,
                 std::chrono::milliseconds hold) KVCOVE_EXCLUDES(ahead_mutex_);
  // Counts a put that did not reach the preferred segment.
  void CountFallback() { fallbacks_.fetch_add(1, std::memory_order_relaxed); }

  // ---- LookupService. While the master does not answer, these cost a few milliseconds or fail at
  // once (rpc::Breaker). A busy master is asked again, if it names a time before the deadline.
  Result<std::vector<wire::Place>> Lookup(const Token& token, std::span<const Id128> hashes,
                                          std::int64_t deadline_ns) override;
  Status Announce(const Token& token, std::span<const Id128> hashes, SaveNotice notice,
                  std::int64_t deadline_ns) override;
  // Asks the master, which asks those that serve shards. Errors: those of MasterStub::Locate.
  Result<PrefixShares> Locate(const Token& token, std::span<const Id128> hashes,
                              std::int64_t deadline_ns) {
    return guarded_stub_.Locate(token, hashes, deadline_ns);
  }
  Result<wire::Registration> Register(const wire::RegisterRequest& request,
                                      std::int64_t deadline_ns) override;

 private:
  // Returns the worker, and starts it with the first call. Null: it could not be started; then
  // nothing is read ahead.
  rpc::Workers* Ahead() KVCOVE_EXCLUDES(ahead_mutex_);
  ClusterHost(const ClusterHostOptions& options, const Clock& clock);
  // Returns the counts since the last report, and begins new ones.
  wire::RequesterReport TakeReport(std::vector<wire::OwnerNumber> passed_over);
  // Maps owners of this host that are not mapped yet, unless another thread does so now.
  void FindLocal(std::span<const wire::OwnerStat> owners, std::int64_t deadline_ns);
  void ConnectLocal(std::span<const wire::OwnerStat> owners, std::int64_t deadline_ns);
  // Log an owner that cannot be mapped: once for each reason, and once for a neighbour.
  void NoteRefusal(const wire::OwnerStat& owner, const Error& why);
  void NoteNeighbour(const wire::OwnerStat& owner, std::int64_t deadline_ns);
  // Asks the master for the owners, and takes all that its answer brings. Implements Peers::Ask.
  Result<std::vector<wire::OwnerStat>> AskOwners(Asker asker,
                                                 std::vector<wire::OwnerNumber> passed_over,
                                                 std::int64_t deadline_ns);
  // Logs that the master is lost or answers again, and lets the thread probe it.
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
  // Repeats registrations to a master that lacks them, and ends engines without sessions there.
  // Only the thread of Peers calls it.
  void TellEngines(std::uint64_t term);
  HeldEngines engines_;
  Mutex engines_mutex_;
  std::map<Engine, std::size_t> sessions_ KVCOVE_GUARDED_BY(engines_mutex_);
  std::set<Engine> ended_ KVCOVE_GUARDED_BY(engines_mutex_);
  Mutex recent_mutex_;
  std::vector<wire::RequesterReport::Miss> recent_ KVCOVE_GUARDED_BY(recent_mutex_);
  Mutex settings_mutex_;
  wire::MasterSettings settings_ KVCOVE_GUARDED_BY(settings_mutex_);
  std::atomic<bool> finding_{false};  // a thread is in FindLocal
  LocalOwners locals_;                // only the thread that set `finding_` adds to it
  // Owners of this host whose memory this process cannot use, by their sockets.
  struct Refusal {
    std::string address;
    Code code = Code::kOk;
    int looks = 0;      // failed attempts with this code
    bool said = false;  // a warning was logged
  };
  // Only the thread that set `finding_` uses these two.
  std::map<std::string, Refusal> refusals_;  // by socket
  bool logged_neighbour_ = false;
  std::unique_ptr<Peers> peers_;  // its thread probes the master, too
  std::atomic<bool> closing_{false};
  Mutex ahead_mutex_;
  std::unique_ptr<rpc::Workers> ahead_
      KVCOVE_GUARDED_BY(ahead_mutex_);  // null before its first use
  // `peers_`, for NoteMaster: null until Connect has set it with a release, though the thread of
  // Peers runs before that.
  std::atomic<Peers*> peers_now_{nullptr};
};

// Returns this host's identity: the kernel's boot id and the network namespace, so it is equal in
// all processes that can share memory and sockets. $KVCOVE_HOST_ID overrides it.
std::string HostIdentity();
// Returns true for two identities of one machine with different network namespaces, as of two pods.
// False if $KVCOVE_HOST_ID is set for one of them, because then their machines cannot be compared.
bool AreNeighbours(std::string_view host, std::string_view other);

}  // namespace kvcove::requester
