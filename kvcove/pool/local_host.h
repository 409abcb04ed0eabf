// SPDX-License-Identifier: Apache-2.0
// The owner of one host with its master, in this process or elsewhere: what the embedded pool uses
// directly and what `serve` and `owner` offer to others.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "kvcove/net/advertise.h"
#include "kvcove/owner/data/data_server.h"
#include "kvcove/owner/link/lineage.h"
#include "kvcove/owner/link/link.h"
#include "kvcove/owner/owner.h"
#include "kvcove/pool/host_control.h"
#include "kvcove/pool/host_engines.h"
#include "kvcove/requester/local/attachment.h"
#include "kvcove/rpc/link.h"
#include "kvcove/rpc/workers.h"

namespace kvcove::pool {

// The owner belongs to a cluster.
struct ClusterMember {
  rpc::Addresses master;                          // of which one leads
  rpc::Address listen = rpc::LoopbackAddress(0);  // for other hosts' data
  std::string advertise;  // host:port as others reach it; empty: see net::ChooseAdvertised
  std::string host;       // empty: requester::HostIdentity()
  bool checksum = true;
  std::shared_ptr<rpc::Credentials> credentials;  // null: every caller may do everything
  std::shared_ptr<rpc::Tls> tls;                  // null: in the clear
  rpc::CallLimitsOptions limits = owner::DataServerOptions().limits;  // of other hosts
  // The only tenant that this owner serves: its processes on this host may use the memory
  // directly. Empty: all tenants, and everybody comes over TCP where there are credentials.
  std::string tenant;
};

struct LocalHostOptions {
  owner::OwnerOptions owner;
  std::string data_directory;  // empty: generations are forgotten with the process
  // Of several owners in this process; null: one of its own, over `data_directory`.
  std::shared_ptr<HostControl> control;
  // Which of how many owners of this process it is.
  std::size_t number = 0;
  std::size_t of_owners = 1;
  std::optional<ClusterMember> cluster;
  std::string socket_path;  // where this host's requesters find it, told to the cluster
  // In a cluster: see owner::Lineage; empty: none.
  std::string lineage;

  HostControl::Options ControlOptions() const {
    return {.data_directory = data_directory,
            .lease_ns = owner.lease_ns,
            .log_resets = owner.log_resets};
  }
};

// Thread-safe.
class LocalHost final {
 public:
  static Result<std::unique_ptr<LocalHost>> Open(const LocalHostOptions& options,
                                                 const Clock& clock);
  ~LocalHost();

  owner::Owner& owner() { return *owner_; }
  // Generations and removals, wherever they are decided.
  wire::ControlService& control() { return *control_; }
  bool in_cluster() const { return link_ != nullptr; }
  // host:port of its data server, in a cluster.
  std::string address() const;
  // How others reach it, and why so; empty without a cluster.
  std::string advertised() const { return in_cluster() ? advertised_.address.ToString() : ""; }
  const net::Advertised& advertised_choice() const { return advertised_; }
  // Equal for owners whose generations one authority decides (wire::Welcome).
  const std::string& authority() const { return authority_; }
  // NUMA, of its memory; kNoNode: it is bound to none.
  int node() const { return options_.owner.place.node; }
  // Goes with the segment's descriptors and is kept while it is mapped; -1: none.
  int lineage_fd() const { return lineage_ == nullptr ? -1 : lineage_->fd(); }
  // What other hosts ask of it, in a cluster.
  void Collect(Metrics& metrics) const;
  // What other hosts' calls are limited to, and meet.
  rpc::CallLimits::Stat Load() const;

  // ---- a successor's process (docs/upgrade.md)
  // The running one: calls that wait for the master, a lease or the store end now.
  void EndWaits();
  // No call is under way. Closes what only one process may have open; the lease
  // goes on. Errors: what Resume reopens cannot be handed over.
  Status Pause();
  // Before Pause, in a cluster: renews the lease now. Errors: kUnavailable.
  Status AwaitFreshLease();
  void Resume();
  // Of sessions and engines, without the owner's.
  template <typename Ar>
  void Carry(Ar& ar) {
    std::uint16_t port = in_cluster() ? options_.cluster->listen.port : 0;
    CarryAll(ar, process_, *engines_, port);
    // The port that was chosen, where any would do.
    if (options_.cluster) options_.cluster->listen.port = port;
  }
  // In a cluster: what the link knows.
  void SaveLink(StateWriter& ar);
  // The new one. `owner` holds what was handed over; starts nothing that writes to its memory.
  // `lineage`: see owner::Lineage; -1: none.
  static Result<std::unique_ptr<LocalHost>> Adopt(const LocalHostOptions& options,
                                                  std::unique_ptr<owner::Owner> owner,
                                                  StateReader& state, UniqueFd lineage,
                                                  const Clock& clock);
  // From here on this process owns the memory: renews the lease, and does nothing else.
  void ClaimLease();
  Status StartAdopted();
  // Once calls are served: what the engines of this host have registered is registered again.
  void RepeatEngines();
  // When nobody renews the lease any more, unless Resume comes or a successor does.
  std::int64_t LeaseUntilNs() const { return owner_->memory().LeaseUntilNs(); }
  // With what `options` say of tenants.
  static owner::OwnerOptions OwnerOptionsOf(const LocalHostOptions& options);

  Result<owner::Memory::Grant> AddSession(std::int32_t pid);
  // The session's process is proven gone, or it said goodbye. Waits for nobody.
  void EndSession(wire::SessionNumber number);
  // Calls bound to one session. Valid until the host ends.
  std::unique_ptr<wire::HostService> ServiceFor(wire::SessionNumber number);

 private:
  class Service;
  LocalHost() = default;
  HostEngines::SessionKey KeyOf(wire::SessionNumber number) const {
    return {.owner = index_, .number = number};
  }
  HostEngines& engines() { return *engines_; }
  std::size_t TellEnds(std::span<const HostEngines::Engine> engines);

  Status JoinCluster(const LocalHostOptions& options, const Clock& clock);
  Status ConnectToMaster(owner::LinkOptions& link);
  Status OpenData();
  Status OpenEngines();
  Status OpenDisks();
  owner::TierPlace DiskPlace() const;

  LocalHostOptions options_;
  const Clock* clock_ = nullptr;
  Histogram reset_time_;                 // of those that this host's processes asked for
  bool started_ = false;                 // else the memory is another process's
  std::shared_ptr<owner::Owner> owner_;  // calls of other owners' sessions may outlast this
  std::string authority_;
  std::uint32_t index_ = 0;  // among the owners of `alone_`
  // Of a pool of this host alone:
  std::shared_ptr<HostControl> alone_;
  // Of a cluster:
  rpc::Access access_;
  std::unique_ptr<rpc::Link> master_link_;  // of this host's own processes
  std::unique_ptr<owner::DataServer> data_server_;
  net::Advertised advertised_;
  std::unique_ptr<owner::Lineage> lineage_;
  std::unique_ptr<owner::Link> link_;
  UniqueFd adopted_lineage_;         // until StartAdopted
  std::vector<UniqueFd> listeners_;  // between Pause and Resume
  std::unique_ptr<wire::ControlService> master_;
  std::unique_ptr<HostEngines> own_engines_;
  // One of the two above each:
  wire::ControlService* control_ = nullptr;
  HostEngines* engines_ = nullptr;
  Id128 process_ = RandomId();  // holds the registrations of this host's sessions
  std::unique_ptr<rpc::Workers> repeats_;
  std::atomic<bool> repeating_{false};
};

// The embedded form: this process is the only session.
class EmbeddedHost final : public requester::OwnerTie {
 public:
  static Result<std::unique_ptr<EmbeddedHost>> Open(const LocalHostOptions& options,
                                                    const Clock& clock);
  ~EmbeddedHost() override;
  std::shared_ptr<requester::Attachment> Current() override { return attachment_; }
  LocalHost& local() { return *local_; }

 private:
  class DirectAttachment;
  EmbeddedHost() = default;
  std::unique_ptr<LocalHost> local_;
  std::shared_ptr<requester::Attachment> attachment_;
  wire::SessionNumber number_ = 0;
};

}  // namespace kvcove::pool
