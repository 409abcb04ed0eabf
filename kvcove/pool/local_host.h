// SPDX-License-Identifier: Apache-2.0
// The owner of one host with its master, in this process or elsewhere: what the embedded pool uses
// directly and what `serve` and `owner` offer to others.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "kvcove/master/blocking_generations.h"
#include "kvcove/net/advertise.h"
#include "kvcove/owner/data_server.h"
#include "kvcove/owner/lineage.h"
#include "kvcove/owner/link.h"
#include "kvcove/owner/owner.h"
#include "kvcove/pool/engine_ends.h"
#include "kvcove/requester/attachment.h"
#include "kvcove/requester/held_engines.h"
#include "kvcove/rpc/channel.h"
#include "kvcove/rpc/workers.h"

namespace kvcove::pool {

// The owner belongs to a cluster.
struct ClusterMember {
  rpc::Address master;
  rpc::Address listen = rpc::LoopbackAddress(0);  // for other hosts' data
  std::string advertise;  // host:port as others reach it; empty: see net::ChooseAdvertised
  std::string host;       // empty: requester::HostIdentity()
  bool checksum = true;
  std::shared_ptr<rpc::Credentials> credentials;  // null: whoever comes may do everything
  std::shared_ptr<rpc::Tls> tls;                  // null: in the clear
  // The only tenant that this owner serves: its processes on this host may use the memory
  // directly. Empty: all tenants, and everybody comes over TCP where there are credentials.
  std::string tenant;
};

struct LocalHostOptions {
  owner::OwnerOptions owner;
  std::string data_directory;  // empty: generations are forgotten with the process
  std::optional<ClusterMember> cluster;
  std::string socket_path;  // where this host's requesters find it, told to the cluster
  // In a cluster: see owner::Lineage; empty: none.
  std::string lineage;
};

// Thread-safe.
class LocalHost final : private master::OwnerSink {
 public:
  static Result<std::unique_ptr<LocalHost>> Open(const LocalHostOptions& options,
                                                 const Clock& clock);
  ~LocalHost() override;

  owner::Owner& owner() { return *owner_; }
  // Generations and removals, wherever they are decided.
  wire::ControlService& control() { return *control_; }
  bool in_cluster() const { return link_ != nullptr; }
  // host:port of its data server, in a cluster.
  std::string address() const;
  // How others reach it, and why so; empty without a cluster.
  std::string advertised() const { return in_cluster() ? advertised_.address.ToString() : ""; }
  const net::Advertised& advertised_choice() const { return advertised_; }
  // Goes with the segment's descriptors and is kept while it is mapped; -1: none.
  int lineage_fd() const { return lineage_ == nullptr ? -1 : lineage_->fd(); }
  // What other hosts ask of it, in a cluster.
  void Collect(http::Metrics& metrics) const;

  Result<owner::Owner::Grant> AddSession(std::int32_t pid);
  // The session's process is proven gone, or it said goodbye. Waits for nobody.
  void EndSession(wire::SessionNumber number);
  // Calls bound to one session. Valid until the host ends.
  std::unique_ptr<wire::HostService> ServiceFor(wire::SessionNumber number);

 private:
  class Service;
  class OwnControl;
  LocalHost() = default;
  void Publish(const Id128& incarnation, const std::vector<SlotUpdate>& updates) override;
  using EngineKey = EngineEnds::Engine;
  // Before a call that registers the engine, and after it. An engine lives as long as one of the
  // sessions that it was added for.
  Status AddEngine(const EngineKey& engine, wire::SessionNumber number, std::int64_t deadline_ns);
  void CheckEngine(const EngineKey& engine);
  void DropEngine(const EngineKey& engine, wire::SessionNumber number);
  std::size_t TellEnds(std::span<const EngineKey> engines);

  Status JoinCluster(const LocalHostOptions& options, const Clock& clock);

  std::unique_ptr<owner::Owner> owner_;
  // Of a pool of this host alone:
  std::unique_ptr<master::BlockingGenerations> generations_;
  // Of a cluster:
  std::unique_ptr<rpc::TcpChannel> channel_;
  std::unique_ptr<owner::DataServer> data_server_;
  net::Advertised advertised_;
  std::unique_ptr<owner::Lineage> lineage_;
  std::unique_ptr<owner::Link> link_;
  std::unique_ptr<wire::ControlService> control_;
  std::unique_ptr<EngineEnds> ends_;
  const Id128 process_ = RandomId();  // holds the registrations of this host's sessions
  requester::HeldEngines held_;
  std::unique_ptr<rpc::Workers> repeats_;
  std::atomic<bool> repeating_{false};
  Mutex mutex_;
  std::set<wire::SessionNumber> sessions_ KVCOVE_GUARDED_BY(mutex_);
  std::map<EngineKey, std::set<wire::SessionNumber>> engines_ KVCOVE_GUARDED_BY(mutex_);
};

// The embedded form: this process is the only session.
class EmbeddedHost final : public requester::Host {
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
