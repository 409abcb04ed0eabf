// SPDX-License-Identifier: Apache-2.0
// A session of a cluster. What lies on this host is read from its owner's memory without asking
// anybody; the rest is looked up at the master in one batch and moved straight between the owners
// and the caller's buffers. docs/cluster.md has the prose.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "kvcove/requester/calls.h"
#include "kvcove/requester/cluster/cluster_host.h"
#include "kvcove/requester/cluster/locator.h"
#include "kvcove/requester/cluster/placement.h"
#include "kvcove/requester/local/host_session.h"
#include "kvcove/requester/reset_keeper.h"
#include "kvcove/requester/session.h"

namespace kvcove::requester {

class ClusterSession final : public Session {
 public:
  ClusterSession(std::shared_ptr<ClusterHost> host, SessionOptions options, const Clock& clock);
  ~ClusterSession() override;

  using Session::Put;  // without a token
  Result<Token> Capture(const CallOptions& options) override;
  Status Put(const Token& token, std::span<const PutItem> items, std::span<ItemResult> results,
             const CallOptions& options) override;
  Status Get(std::span<const GetItem> items, std::span<ItemResult> results,
             const CallOptions& options) override;
  Result<Borrowed> Borrow(std::span<const std::string_view> keys,
                          const CallOptions& options) override;
  Result<Reserved> Reserve(const Token& token, std::span<const ReserveItem> items,
                           const CallOptions& options) override;
  Result<std::vector<SegmentRange>> Segments(const CallOptions& options) override;
  Status Exists(std::span<const std::string_view> keys, std::span<ItemResult> results,
                const CallOptions& options) override;
  Result<std::size_t> LongestPrefix(std::span<const std::string_view> keys,
                                    const CallOptions& options) override;
  Status Pin(std::span<const std::string_view> keys, PinKind kind,
             std::chrono::milliseconds duration, std::span<ItemResult> results,
             const CallOptions& options) override;
  Status Unpin(std::span<const std::string_view> keys, std::span<ItemResult> results,
               const CallOptions& options) override;
  Status Remove(std::span<const std::string_view> keys, std::span<ItemResult> results,
                const CallOptions& options) override;
  Result<std::uint64_t> RemoveMatching(std::string_view pattern,
                                       const CallOptions& options) override;
  Result<std::vector<std::optional<ObjectStat>>> Stat(std::span<const std::string_view> keys,
                                                      const CallOptions& options) override;
  Result<std::vector<StoredObject>> List(std::string_view prefix,
                                         const CallOptions& options) override;
  Result<ObjectCount> Count(const CallOptions& options) override;
  Result<std::vector<std::vector<ObjectPlace>>> Places(std::span<const std::string_view> keys,
                                                       const CallOptions& options) override;
  Status Reset(const ResetOptions& options) override;
  Status NameVersions(std::span<const std::string> versions, const CallOptions& options) override;
  bool closed() const override { return resets_.closed(); }

 private:
  // What this host's owner does not have (a miss in `results`), or all without one.
  void FindElsewhere(const HostSession* local, std::span<const std::string_view> keys,
                     std::span<ItemResult> results, const CallOptions& options,
                     std::int64_t deadline_ns);
  void ReadAhead(const Locator::Found& found, std::span<const std::string_view> keys,
                 std::chrono::milliseconds hold);
  // Which keys are to be looked for elsewhere; those that are none get their result.
  static std::vector<std::size_t> MissedHere(const HostSession* local,
                                             std::span<const std::string_view> keys,
                                             std::span<ItemResult> results);
  void CountMisses(std::span<const std::string_view> keys, std::span<const ItemResult> results,
                   std::string_view version);
  void GetRemote(const Locator::Found& found, std::span<const GetItem> items,
                 std::span<ItemResult> results, std::int64_t deadline_ns);
  void GetTheRest(const Locator::Found& found, std::span<const GetItem> items,
                  std::span<ItemResult> results, std::uint32_t busy_ms, std::int64_t deadline_ns);
  // One try: from each item's owner, in parallel. Returns after how many milliseconds those may be
  // asked that are busy; 0: none is.
  std::uint32_t GetFrom(const Token& token, std::span<const std::size_t> which,
                        std::span<const wire::OwnerNumber> owners, std::span<const GetItem> items,
                        std::span<ItemResult> results, std::int64_t deadline_ns);
  void FindMoreReplicas(const Locator::Found& found, std::span<const std::string_view> keys,
                        std::int64_t deadline_ns, std::vector<std::vector<ObjectPlace>>& places);
  Status PutRemote(const Token& token, std::span<const PutItem> items,
                   std::span<const std::size_t> which, std::span<const wire::OwnerNumber> asked,
                   std::span<ItemResult> results, const CallOptions& options,
                   std::int64_t deadline_ns);
  // As GetFrom. `tried` gets those that were asked.
  using TriedPeers = std::vector<std::shared_ptr<transport::Peer>>;
  std::uint32_t PutTo(const Token& token, std::span<const PutItem> items,
                      std::span<const std::vector<std::size_t>> parts,
                      std::span<const wire::OwnerNumber> owners,
                      std::span<const std::uint32_t> groups, std::span<ItemResult> results,
                      const CallOptions& options, TriedPeers& tried, std::int64_t deadline_ns);
  // Owners to put to, best first.
  std::vector<wire::OwnerNumber> Targets(std::int64_t deadline_ns);
  // A put goes elsewhere than it was meant to.
  void FallBack(std::string_view why);
  // To this host's owners first, where they are preferred; true if they were asked.
  bool PutHere(const Token& token, std::span<const PutItem> items, std::span<ItemResult> results,
               const CallOptions& options, Status& stored);
  // The same of a reservation, which goes nowhere else; false: it would have to.
  bool ReserveHere(Reservation& reservation, const Token& token, std::span<const ReserveKey> items,
                   std::span<ItemResult> results, const CallOptions& options, Status& reserved);
  // Where puts go first on this host: `owner` is empty for whichever is best. False: elsewhere.
  bool PutsHere(HostSession* local, std::optional<std::size_t>& owner);
  // The memory of this host's owners; null while none is here. One that comes later is used from
  // then on, so a call asks once.
  HostSession* Local();
  Status CodesCall(std::span<const std::string_view> keys, std::span<ItemResult> results,
                   const CallOptions& options, std::optional<PinKind> kind,
                   std::int64_t duration_ns);
  Status TryReset(const wire::ResetRequest& request, std::int64_t deadline_ns);

  const std::shared_ptr<ClusterHost> host_;  // a session may outlive its pool
  const SessionOptions options_;
  const std::vector<std::string> preferred_;  // owners' addresses, best first
  const Placement placement_;
  const Clock& clock_;
  Mutex local_mutex_;
  std::unique_ptr<HostSession> local_ KVCOVE_GUARDED_BY(local_mutex_);
  std::atomic<HostSession*> local_now_{nullptr};  // that one, once it is there
  std::atomic<bool> logged_fallback_{false};

  Locator locator_;
  Mutex random_mutex_;
  Random random_ KVCOVE_GUARDED_BY(random_mutex_){RandomU64()};
  ResetKeeper resets_;
};

}  // namespace kvcove::requester
