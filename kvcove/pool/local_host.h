// SPDX-License-Identifier: Apache-2.0
// One owner and its authority: in a pool of one host HostControl, in a cluster the link to the
// master. The embedded pool uses it directly; `serve` and `owner` offer it to others (Daemon).
//
// In a cluster it also opens the data server for other hosts, keeps the owner's lineage file, and
// repeats the registrations of its engines to a new master, on one worker. It has no lock of its
// own: its parts are thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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

// Options of an owner that belongs to a cluster.
struct ClusterMember {
  rpc::Addresses master;                          // one of them leads
  rpc::Address listen = rpc::LoopbackAddress(0);  // for data of other hosts
  std::string advertise;  // host:port for others; empty: see net::ChooseAdvertised
  std::string host;       // empty: requester::HostIdentity()
  bool checksum = true;   // see owner::DataServerOptions
  std::shared_ptr<rpc::Credentials> credentials;  // null: every caller may do everything
  std::shared_ptr<rpc::Tls> tls;                  // null: in the clear
  rpc::CallLimitsOptions limits = owner::DataServerOptions().limits;  // for calls of other hosts
  // Serves other hosts (transport::OpenTransport).
  kvcove::transport::Transport* transport = &kvcove::transport::Preferred();
  // The only tenant that this owner serves, whose processes on this host may map the memory. Empty:
  // all tenants; where there are credentials, all processes then use TCP.
  std::string tenant;
};

struct LocalHostOptions {
  owner::OwnerOptions owner;
  std::string data_directory;  // empty: generations end with the process
  // The authority that several owners of this process share. Null: this owner has one of its own,
  // over `data_directory`.
  std::shared_ptr<HostControl> control;
  std::size_t number = 0;     // index among the owners of this process
  std::size_t of_owners = 1;  // their number
  std::optional<ClusterMember> cluster;
  std::string socket_path;  // for this host's requesters; announced to the master
  std::string lineage;      // in a cluster: the file of owner::Lineage; empty: none

  HostControl::Options ControlOptions() const {
    return {.data_directory = data_directory,
            .lease_ns = owner.lease_ns,
            .log_resets = owner.log_resets};
  }
};

// Thread-safe, but for the destructor and the calls of an upgrade.
class LocalHost final {
 public:
  // Opens the owner with its memory and disks, and starts it. In a cluster it then waits 0.5 s at
  // most for the first lease, which may also come later. Errors: those of Owner::Open, the store,
  // the data server and StartThread.
  static Result<std::unique_ptr<LocalHost>> Open(const LocalHostOptions& options,
                                                 const Clock& clock);
  ~LocalHost();

  owner::Owner& owner() { return *owner_; }
  // Returns the calls about generations and removals, wherever these are decided.
  wire::ControlService& control() { return *control_; }
  // Returns the authority over generations of a pool of this host alone; null in a cluster.
  HostControl* host_control() { return alone_.get(); }
  // Returns the socket for this host's requesters; empty: none.
  const std::string& socket_path() const { return options_.socket_path; }
  bool in_cluster() const { return link_ != nullptr; }
  // Returns host:port of its data server; empty without a cluster.
  std::string address() const;
  // Return how others reach it, and why so; empty without a cluster.
  std::string advertised() const { return in_cluster() ? advertised_.address.ToString() : ""; }
  const net::Advertised& advertised_choice() const { return advertised_; }
  // Returns a name that is equal for owners with the same authority (wire::Welcome).
  const std::string& authority() const { return authority_; }
  // Returns the NUMA node of its memory; kNoNode: it is bound to none.
  int node() const { return options_.owner.place.node; }
  // Returns the lineage file, which processes that map the segment keep open; -1: none.
  int lineage_fd() const { return lineage_ == nullptr ? -1 : lineage_->fd(); }
  // Returns where the durations of a call of this host's processes are counted; null: nowhere.
  Histogram* CallTime(wire::Method method);
  // Adds the metrics of resets, of calls at the socket and, in a cluster, of other hosts' calls.
  // `labels`: of the first.
  void Collect(Metrics& metrics, const Labels& labels = {}) const;
  // Adds metrics to what Collect adds. Call before anything can call Collect; what `collect` uses
  // must outlive that.
  void AddMetrics(std::function<void(Metrics&, const Labels&)> collect) {
    more_metrics_.push_back(std::move(collect));
  }
  // Returns the durations of the resets that this host's processes have asked for.
  Histogram::Counts ResetTimes() const { return reset_time_.Count(); }
  // Returns the limits of other hosts' calls and their use.
  rpc::CallLimits::Stat Load() const;

  // ---- an upgrade, at the process that gives (docs/upgrade.md)
  // Ends the calls that wait for the master, a disk, a lease or the store now.
  void EndWaits();
  // Closes the store, or the link and the data server: only one process may have them open. No call
  // may be under way. The lease continues to run; in a cluster nobody renews it any more. Errors:
  // kInProgress after 200 ms; an RDMA device does not end a transfer. Call Resume then.
  Status Pause();
  // Returns whether a device is known that keeps Pause from its end. Errors: as DataServer::MayEnd,
  // and those of an earlier Pause whose transfer has not ended yet.
  Status MayPause();
  // Waits, in a cluster, until the lease was renewed just now; call it before Pause. Errors:
  // kUnavailable after 1 s.
  Status AwaitFreshLease();
  // Undoes Pause, and EndWaits without a Pause. Failures are logged, and end with a restart.
  void Resume();
  // Reads or writes the state of sessions and engines, without the owner's.
  template <typename Ar>
  void Carry(Ar& ar) {
    std::uint16_t port = in_cluster() ? options_.cluster->listen.port : 0;
    CarryAll(ar, process_, *engines_, port);
    // The port that the kernel chose for port 0: other hosts know it.
    if (options_.cluster) options_.cluster->listen.port = port;
  }
  // Writes the state of the link to the master, in a cluster.
  void SaveLink(StateWriter& ar);

  // ---- an upgrade, at the process that takes
  // Returns a host around an owner that was handed over. Starts nothing that writes to its memory,
  // until StartAdopted. `lineage`: the file of owner::Lineage; -1: none. Errors: kIncompatible for
  // a state of another build, the store's.
  static Result<std::unique_ptr<LocalHost>> Adopt(const LocalHostOptions& options,
                                                  std::unique_ptr<owner::Owner> owner,
                                                  StateReader& state, UniqueFd lineage,
                                                  const Clock& clock);
  // Renews the lease once, outside a cluster: from here on this process owns the memory.
  void ClaimLease();
  // Starts threads, disks, data server and link. Errors: those of StartThread and of the disks.
  Status StartAdopted();
  // Registers the engines of this host again, outside a cluster, once calls are served.
  void RepeatEngines();

  // Returns the lease's deadline, on the system clock.
  std::int64_t LeaseUntilNs() const { return owner_->memory().LeaseUntilNs(); }
  // Returns the owner's options, with the quotas of the tenants in the credentials.
  static owner::OwnerOptions OwnerOptionsOf(const LocalHostOptions& options);

  // Adds a session of process `pid`. Errors: those of Memory::AddSession.
  Result<owner::Memory::Grant> AddSession(std::int32_t pid);
  // Ends a session, through whose mappings nothing may read or write any more: its process has said
  // goodbye or is proven to have ended, or has never used it. Waits for nobody. Does nothing before
  // StartAdopted: the sessions are another process's.
  void EndSession(wire::SessionNumber number);
  // Ends the removals that wait for disks of this process's owners, and returns once each is
  // answered: their answers use the caller's server.
  void EndRemovals();
  // Returns the calls of one session. Valid until the host ends.
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
  std::unique_ptr<owner::DataServer> TakeData();
  // Errors: as DataServer::EndWithin.
  Status CloseData();
  bool data_open() const {
    const MutexLock lock(data_mutex_);
    return data_server_ != nullptr;
  }
  Status OpenEngines();
  Status OpenDisks();
  owner::TierPlace DiskPlace() const;

  LocalHostOptions options_;
  const Clock* clock_ = nullptr;
  Histogram reset_time_;                 // of resets that this host's processes asked for
  std::array<Histogram, 6> call_times_;  // in the order of kTimedLocalCalls
  std::vector<std::function<void(Metrics&, const Labels&)>> more_metrics_;
  bool started_ = false;                 // false: the memory is another process's
  std::shared_ptr<owner::Owner> owner_;  // shared with HostControl, whose calls may outlive this
  std::string authority_;
  std::uint32_t index_ = 0;  // among the owners of `alone_`
  // ---- in a pool of this host alone
  std::shared_ptr<HostControl> alone_;
  // ---- in a cluster
  rpc::Access access_;
  std::unique_ptr<rpc::Link> master_link_;  // for the calls of this host's own processes
  // Scrapes of the metrics read it while a hand-over closes and opens it. Taken alone, but for the
  // data server's own locks.
  mutable Mutex data_mutex_;
  std::unique_ptr<owner::DataServer> data_server_ KVCOVE_GUARDED_BY(data_mutex_);
  // One that a hand-over has closed, and whose device has not ended its transfers. Belongs to
  // kvcove-upgrade; the destructor waits for it.
  std::unique_ptr<owner::DataServer> ending_;
  net::Advertised advertised_;
  std::unique_ptr<owner::Lineage> lineage_;
  std::unique_ptr<owner::Link> link_;
  UniqueFd adopted_lineage_;         // until StartAdopted
  std::vector<UniqueFd> listeners_;  // between Pause and Resume
  std::unique_ptr<wire::ControlService> master_;
  std::unique_ptr<HostEngines> own_engines_;
  // ---- alone_ and its engines, or master_ and own_engines_
  wire::ControlService* control_ = nullptr;
  HostEngines* engines_ = nullptr;
  Id128 process_ = RandomId();  // holds the registrations of this host's sessions
  // Repeats registrations; joined before the members above end. `repeating_`: one repeat is queued
  // or runs; set by the link's lease thread, cleared by the worker.
  std::unique_ptr<rpc::Workers> repeats_;
  std::atomic<bool> repeating_{false};
};

// The embedded form: an owner whose only session is this process.
class EmbeddedHost final : public requester::OwnerTie {
 public:
  // Opens the owner and its session. Errors: as LocalHost::Open.
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
