// SPDX-License-Identifier: Apache-2.0
// A session of a cluster. Values of this host's owners are read from their memory, without a call;
// the others are looked up at the master in one batch and move straight between their owners and
// the caller's buffers. docs/cluster.md has the prose. No thread of its own but that of
// ResetKeeper; calls use the caller's thread.
#pragma once

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

// Thread-safe; open or closed (ResetKeeper).
class ClusterSession final : public Session {
 public:
  ClusterSession(std::shared_ptr<ClusterHost> host, SessionOptions options, const Clock& clock);
  ~ClusterSession() override;

  using Session::Put;  // without a token
  Result<Token> Capture(const CallOptions& options) override;
  Status Put(const Token& token, std::span<const PutItem> items, std::span<ItemResult> results,
             const CallOptions& options) override;
  Status Announce(const Token& token, std::span<const std::string_view> keys, SaveNotice notice,
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
  Result<LocatedPrefix> Locate(std::span<const std::string_view> keys,
                               const CallOptions& options) override;
  Status Reset(const ResetOptions& options) override;
  Result<std::uint64_t> Prune(std::string_view before, const CallOptions& options) override;
  Status NameVersions(std::span<const std::string> versions, const CallOptions& options) override;
  bool closed() const override { return resets_.closed(); }

 private:
  // Looks up at the master the keys that this host does not have (a miss in `results`), or all keys
  // if `local` is null.
  void FindElsewhere(const HostSession* local, std::span<const std::string_view> keys,
                     std::span<ItemResult> results, const CallOptions& options,
                     std::int64_t deadline_ns);
  // Lets owners read the found keys that are on their disks, for a load that follows within `hold`.
  void ReadAhead(const Locator::Found& found, std::span<const std::string_view> keys,
                 std::chrono::milliseconds hold);
  // Returns the indices of the keys to look up elsewhere. Sets kInvalid for keys that are not
  // valid.
  static std::vector<std::size_t> MissedHere(const HostSession* local,
                                             std::span<const std::string_view> keys,
                                             std::span<ItemResult> results);
  // Counts the misses of a call for the master's metrics.
  void CountMisses(std::span<const std::string_view> keys, std::span<const ItemResult> results,
                   std::string_view version);
  // Gets the found values from their owners, then from the second owner of each that failed.
  void GetRemote(const Locator::Found& found, std::span<const GetItem> items,
                 std::span<ItemResult> results, std::int64_t deadline_ns);
  // Repeats the values that have kLimit, as long as that helps: their owner's disk is still
  // reading, or the owner is busy (`busy_ms` not 0). Those that remain become misses.
  void GetTheRest(const Locator::Found& found, std::span<const GetItem> items,
                  std::span<ItemResult> results, std::uint32_t busy_ms, std::int64_t deadline_ns);
  // Gets each value from the given owner, once, all owners in parallel. Returns the milliseconds
  // after which a busy owner may be asked again; 0: none is busy.
  std::uint32_t GetFrom(const Token& token, std::span<const std::size_t> which,
                        std::span<const wire::OwnerNumber> owners, std::span<const GetItem> items,
                        std::span<ItemResult> results, std::int64_t deadline_ns);
  // Returns the addresses of the owners of a prefix, by number.
  Result<std::map<wire::OwnerNumber, std::string>> NamesOf(const PrefixShares& shares,
                                                           std::int64_t deadline_ns);
  // Adds the owners of replicas that the look-up did not name.
  void FindMoreReplicas(const Locator::Found& found, std::span<const std::string_view> keys,
                        std::int64_t deadline_ns, std::vector<std::vector<ObjectPlace>>& places);
  // Puts the items at `which` to other owners than those of this host that were `asked` before.
  Status PutRemote(const Token& token, std::span<const PutItem> items,
                   std::span<const std::size_t> which, std::span<const wire::OwnerNumber> asked,
                   std::span<ItemResult> results, const CallOptions& options,
                   std::int64_t deadline_ns);
  // Puts each part to the given owner, once, all owners in parallel, and adds their peers to
  // `tried`. Returns as GetFrom.
  using TriedPeers = std::vector<std::shared_ptr<transport::Peer>>;
  std::uint32_t PutTo(const Token& token, std::span<const PutItem> items,
                      std::span<const std::vector<std::size_t>> parts,
                      std::span<const wire::OwnerNumber> owners,
                      std::span<const std::uint32_t> groups, std::span<ItemResult> results,
                      const CallOptions& options, TriedPeers& tried, std::int64_t deadline_ns);
  // Returns the reachable owners for a put, best first.
  std::vector<wire::OwnerNumber> Targets(std::int64_t deadline_ns);
  // Counts a put that does not reach the preferred segment, and logs the first one.
  void FallBack(std::string_view why);
  // Puts to this host's owners if they are the first choice. Returns whether they were asked; then
  // `stored` has the call's status.
  bool PutHere(const Token& token, std::span<const PutItem> items, std::span<ItemResult> results,
               const CallOptions& options, Status& stored);
  // Reserves at this host's owners, as PutHere. False: another host is the first choice, and memory
  // there cannot be reserved.
  bool ReserveHere(Reservation& reservation, const Token& token, std::span<const ReserveKey> items,
                   std::span<ItemResult> results, const CallOptions& options, Status& reserved);
  // Returns whether this host is the first choice for puts. `owner`: the preferred one in locals(),
  // or not set: any.
  bool PutsHere(HostSession* local, std::optional<std::size_t>& owner);
  // Returns the session over this host's owners; null while none is mapped. The answer may change
  // during a call when the first owner is found, so each call asks once.
  HostSession* Local();
  // Pins (`kind` set) or unpins values at all owners that the look-up names.
  Status CodesCall(std::span<const std::string_view> keys, std::span<ItemResult> results,
                   const CallOptions& options, std::optional<PinKind> kind,
                   std::int64_t duration_ns);
  // Makes one attempt of a reset, for ResetKeeper.
  Result<wire::ResetOutcome> TryReset(const wire::ResetRequest& request, std::int64_t deadline_ns);
  // Forgets all bindings, after a proven reset.
  void ForgetBindings(const wire::ResetOutcome& outcome);

  const std::shared_ptr<ClusterHost> host_;  // shared, as a session may outlive its pool
  const SessionOptions options_;
  const std::vector<std::string> preferred_;  // owners' addresses, best first
  const Placement placement_;
  const Clock& clock_;
  Mutex local_mutex_;
  std::unique_ptr<HostSession> local_ KVCOVE_GUARDED_BY(local_mutex_);
  std::atomic<HostSession*> local_now_{nullptr};  // `local_`, for readers without the lock
  std::atomic<bool> logged_fallback_{false};

  Locator locator_;
  Mutex random_mutex_;
  Random random_ KVCOVE_GUARDED_BY(random_mutex_){RandomU64()};
  ResetKeeper resets_;
};

}  // namespace kvcove::requester
