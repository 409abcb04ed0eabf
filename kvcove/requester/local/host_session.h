// SPDX-License-Identifier: Apache-2.0
// A session of a pool of one host: with all owners of the host, or the one in this process. With
// one owner, each call is passed to its OwnerClient. Several owners are one pool: a value is in one
// of them, a look-up asks each in turn, and the authority that they share decides resets and
// removals (docs/numa.md).
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "kvcove/requester/local/local_owners.h"
#include "kvcove/requester/local/owner_client.h"
#include "kvcove/requester/local/put_order.h"
#include "kvcove/requester/reset_keeper.h"
#include "kvcove/requester/session.h"

namespace kvcove::requester {

// Thread-safe; open or closed (ResetKeeper).
class HostSession final : public Session {
 public:
  // `keep` lives at least as long as this session, and owns `owners`.
  HostSession(std::shared_ptr<void> keep, LocalOwners& owners, SessionOptions options,
              const Clock& clock);
  ~HostSession() override;

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

  // Puts to this owner only. `owner` < LocalOwners::count().
  Status PutOn(std::size_t owner, const Token& token, std::span<const PutItem> items,
               std::span<ItemResult> results, const CallOptions& options);
  // Add this host's part to a loan, or to a reservation. `results` has an item for each key.
  Status BorrowInto(Loan& loan, std::span<const BorrowKey> keys, std::span<ItemResult> results,
                    const CallOptions& options);
  Status ReserveInto(Reservation& reservation, const Token& token,
                     std::span<const ReserveKey> items, std::span<ItemResult> results,
                     const CallOptions& options);
  // Reserves at this owner only, as PutOn.
  Status ReserveOn(std::size_t owner, Reservation& reservation, const Token& token,
                   std::span<const ReserveKey> items, std::span<ItemResult> results,
                   const CallOptions& options);
  // Forgets all known generations, at all owners, after a proven reset.
  void ForgetBindings(const wire::ResetOutcome& outcome);
  // True if the engine has registered for the version, and may use it again without a call.
  bool KnowsVersion(std::string_view version);

 private:
  using Sessions = std::vector<OwnerClient*>;

  // Returns the number of owners, after it has opened a client for each new one.
  std::size_t Owners();
  OwnerClient& At(std::size_t i) { return *sessions_[i].load(std::memory_order_acquire); }
  // Returns the clients in the order for look-ups: owners on this thread's NUMA node first.
  Sessions NearFirst(std::size_t count);
  // Asks the first client for all items, and each next one for the items that are a miss or
  // unavailable so far.
  template <typename Item, typename Call>
  Status AskInTurn(const Sessions& sessions, std::span<const Item> items,
                   std::span<ItemResult> results, const CallOptions& options, Call call);
  // Returns the answer of the first owner that is available.
  template <typename T>
  using AskClient = std::function<Result<T>(OwnerClient& session, const CallOptions& left)>;
  template <typename T>
  Result<T> AskOne(const CallOptions& options, const AskClient<T>& call);
  // Asks each owner, within the call's time: those that hold a lease first, because a frozen one
  // would use up the time of the others. Returns the error of an owner that is there (kTimeout: it
  // was too slow), or, if none answered, of one that is away.
  template <typename Call>
  Status AskEach(const CallOptions& options, const Call& call);
  CallOptions Left(const CallOptions& options, std::int64_t deadline_ns) const;
  // The facts of a PutItem or ReserveKey by which its owner is chosen.
  struct ToPut {
    std::string_view key;
    std::string_view after;  // resolved by AfterOf
    std::uint64_t bytes = 0;
  };
  // Returns the candidates for a put, and marks items that one of them has with kExists.
  std::vector<PutCandidate> FindStored(const Token& token, std::span<const ToPut> items,
                                       std::span<ItemResult> results);
  // Asks the owners, best first, to store the items that are not stored yet, until each item has
  // been accepted or refused for good. `ask(session, which, answers, left)` asks for items by
  // number.
  using AskOwner = std::function<Status(OwnerClient& session, std::span<const std::size_t> which,
                                        std::span<ItemResult> answers, const CallOptions& left)>;
  Status PutAmong(const Token& token, std::span<const ToPut> items, std::span<ItemResult> results,
                  const CallOptions& options, const AskOwner& ask);
  Result<wire::ResetOutcome> TryReset(const wire::ResetRequest& request, std::int64_t deadline_ns);

  const std::shared_ptr<void> keep_;
  LocalOwners& owners_;
  const SessionOptions options_;
  const Clock& clock_;

  Mutex open_mutex_;  // before the lock of a session's bindings
  std::vector<std::unique_ptr<OwnerClient>> opened_ KVCOVE_GUARDED_BY(open_mutex_);
  wire::ResetOutcome reset_to_ KVCOVE_GUARDED_BY(open_mutex_);  // of the last proven reset
  // The clients of `opened_`, for readers without the lock.
  std::array<std::atomic<OwnerClient*>, LocalOwners::kMost> sessions_{};
  std::atomic<std::size_t> count_{0};  // published after its element; pairs with Owners()
  ResetKeeper resets_;
};

}  // namespace kvcove::requester
