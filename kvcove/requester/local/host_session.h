// SPDX-License-Identifier: Apache-2.0
// A session of a pool of one host: of all its owners, or of the one in this process. With one owner
// each call goes straight to its OwnerClient. With several they are one pool: a value lies in one
// of them, a look-up asks each in turn, and what a reset or a removal means is decided by the
// authority that they share (docs/numa.md).
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

class HostSession final : public Session {
 public:
  // `keep`: lives as long as this session; `owners` is in it.
  HostSession(std::shared_ptr<void> keep, LocalOwners& owners, SessionOptions options,
              const Clock& clock);
  ~HostSession() override;

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

  // To this owner, one of the first LocalOwners::count(), and to no other.
  Status PutOn(std::size_t owner, const Token& token, std::span<const PutItem> items,
               std::span<ItemResult> results, const CallOptions& options);
  // This host's part of a loan, or of a reservation; `results` has an item for each of `keys`.
  Status BorrowInto(Loan& loan, std::span<const BorrowKey> keys, std::span<ItemResult> results,
                    const CallOptions& options);
  Status ReserveInto(Reservation& reservation, const Token& token,
                     std::span<const ReserveKey> items, std::span<ItemResult> results,
                     const CallOptions& options);
  // As PutOn.
  Status ReserveOn(std::size_t owner, Reservation& reservation, const Token& token,
                   std::span<const ReserveKey> items, std::span<ItemResult> results,
                   const CallOptions& options);
  // A reset is proven: what was known of generations is old.
  void ForgetBindings(const wire::ResetOutcome& outcome);
  // The engine has registered for it, and may use it again without a call.
  bool KnowsVersion(std::string_view version);

 private:
  using Sessions = std::vector<OwnerClient*>;

  // How many owners there are now; each has a session then.
  std::size_t Owners();
  OwnerClient& At(std::size_t i) { return *sessions_[i].load(std::memory_order_acquire); }
  // For look-ups: the one on this thread's node first.
  Sessions NearFirst(std::size_t count);
  // Asks the first for all, and each next one for what is neither found nor refused so far.
  template <typename Item, typename Call>
  Status AskInTurn(const Sessions& sessions, std::span<const Item> items,
                   std::span<ItemResult> results, const CallOptions& options, Call call);
  // The same, of one answer for the whole call: the first owner that answers.
  template <typename T>
  Result<T> AskOne(const std::function<Result<T>(OwnerClient&)>& call);
  CallOptions Left(const CallOptions& options, std::int64_t deadline_ns) const;
  // What a put says of its items: PutItem's and ReserveKey's are alike.
  struct ToPut {
    std::string_view key;
    std::string_view after;  // of the first one: with the call's
    std::uint64_t bytes = 0;
  };
  // The candidates for a put. Marks what one of them has already.
  std::vector<PutCandidate> FindStored(const Token& token, std::span<const ToPut> items,
                                       std::span<ItemResult> results);
  // Asks the owners for what is not stored yet, best first, until each item has been taken.
  // `ask(session, which, answers, left)`: the items of these numbers.
  using AskOwner = std::function<Status(OwnerClient& session, std::span<const std::size_t> which,
                                        std::span<ItemResult> answers, const CallOptions& left)>;
  Status PutAmong(const Token& token, std::span<const ToPut> items, std::span<ItemResult> results,
                  const CallOptions& options, const AskOwner& ask);
  Status TryReset(const wire::ResetRequest& request, std::int64_t deadline_ns);

  const std::shared_ptr<void> keep_;
  LocalOwners& owners_;
  const SessionOptions options_;
  const Clock& clock_;

  Mutex open_mutex_;  // before the lock of a session's bindings
  std::vector<std::unique_ptr<OwnerClient>> opened_ KVCOVE_GUARDED_BY(open_mutex_);
  wire::ResetOutcome reset_to_ KVCOVE_GUARDED_BY(open_mutex_);  // the last one that was proven
  // Those, for readers without the lock.
  std::array<std::atomic<OwnerClient*>, LocalOwners::kMost> sessions_{};
  std::atomic<std::size_t> count_{0};  // published after its element; pairs with Owners()
  ResetKeeper resets_;
};

}  // namespace kvcove::requester
