// SPDX-License-Identifier: Apache-2.0
// What a session asks of one owner of this host. A look-up or a get makes no call: it reads the
// segment's index and copies out of its memory. docs/requester.md has the prose.
#pragma once

#include <memory>
#include <thread>

#include "kvcove/base/size.h"
#include "kvcove/requester/calls.h"
#include "kvcove/requester/local/attachment.h"
#include "kvcove/requester/local/loan.h"
#include "kvcove/requester/local/recent_versions.h"
#include "kvcove/requester/local/reservation.h"
#include "kvcove/requester/types.h"

namespace kvcove::requester {

// The calls are Session's (session.h), for this owner alone; HostSession has checked the batch, and
// that no reset has closed the session. Thread-safe.
class OwnerClient {
 public:
  OwnerClient(std::shared_ptr<OwnerTie> host, SessionOptions options, const Clock& clock);
  ~OwnerClient();

  Result<Token> Capture(const CallOptions& options);
  Status Put(const Token& token, std::span<const PutItem> items, std::span<ItemResult> results,
             const CallOptions& options);
  Status Get(std::span<const GetItem> items, std::span<ItemResult> results,
             const CallOptions& options);
  Status Exists(std::span<const std::string_view> keys, std::span<ItemResult> results,
                const CallOptions& options);
  Result<std::size_t> LongestPrefix(std::span<const std::string_view> keys,
                                    const CallOptions& options);
  Status Pin(std::span<const std::string_view> keys, PinKind kind,
             std::chrono::milliseconds duration, std::span<ItemResult> results,
             const CallOptions& options);
  Status Unpin(std::span<const std::string_view> keys, std::span<ItemResult> results,
               const CallOptions& options);
  Status Remove(std::span<const std::string_view> keys, std::span<ItemResult> results,
                const CallOptions& options);
  Result<std::uint64_t> RemoveMatching(std::string_view pattern, const CallOptions& options);
  Result<std::vector<std::optional<ObjectStat>>> Stat(std::span<const std::string_view> keys,
                                                      const CallOptions& options);
  Result<std::vector<StoredObject>> List(std::string_view prefix, const CallOptions& options);
  Result<ObjectCount> Count(const CallOptions& options);
  Status NameVersions(std::span<const std::string> versions, const CallOptions& options);
  // This owner's part of a loan, or of a reservation; `results` has an item for each of `keys`.
  Status BorrowInto(Loan& loan, std::span<const BorrowKey> keys, std::span<ItemResult> results,
                    const CallOptions& options);
  Status ReserveInto(Reservation& reservation, const Token& token,
                     std::span<const ReserveKey> items, std::span<ItemResult> results,
                     const CallOptions& options);
  // Adds this owner's memory, if it answers.
  void AddSegment(std::vector<SegmentRange>& ranges, const CallOptions& options);
  // One attempt. It forgets nothing here: ForgetBindings does, at all owners of the host.
  Result<wire::ResetOutcome> AskReset(const wire::ResetRequest& request, std::int64_t deadline_ns);
  // Other owners of this host are asked, too: from now on this session counts what it finds, and
  // its user counts, once, what none of them had.
  void SetOneOfSeveral() { one_of_several_.store(true, std::memory_order_relaxed); }
  enum class Asked { kLookups, kGets };
  void CountMissed(Asked what, std::span<const ItemResult> results) const;
  // A reset is proven: what was known of generations is old, and the next call registers again.
  void ForgetBindings(const wire::ResetOutcome& outcome);
  // The engine has registered for it, and may use it again without a call.
  bool KnowsVersion(std::string_view version);

 private:
  // What this session knows of one weight version.
  struct Binding {
    std::uint64_t attachment = 0;  // its number
    Id128 incarnation;
    SlotId slot = 0;
    Generation generation = 0;
    bool open = false;
    std::int64_t ask_again_ns = 0;  // when closed: another process of this engine may have reset
  };
  struct Scope {
    std::shared_ptr<Attachment> attachment;
    segment::ReadScope read;
    Id128 incarnation;
    MissReason refused = MissReason::kNone;  // nothing may be found
  };
  class Copier;
  struct Window {
    std::chrono::milliseconds hold{0};
    std::int64_t deadline_ns = 0;
    std::uint64_t bytes = 0;  // that the call copies in all, where that is known
  };
  static constexpr std::size_t kFindChunk = segment::HeaderView::kFindMany;
  static constexpr std::uint64_t kCopyPiece = kMiB;  // between two looks at the deadline

  static MissReason AbsentReason(const segment::HeaderView& view, SlotId slot,
                                 std::string_view key);
  static segment::Event EventOf(segment::EventKind kind, const segment::Found& found,
                                std::int64_t hold_until_ms);
  Result<Binding> Bind(Attachment& attachment, std::string_view version, std::int64_t deadline_ns);
  // What a look-up may read now; errors only for invalid names.
  Result<Scope> Enter(const CallOptions& options, std::int64_t deadline_ns);
  // The owner, if it is there. Errors: kUnavailable.
  Result<std::shared_ptr<Attachment>> Attached() const;
  // What calls that change objects mean: the generation that this session is bound to.
  Result<Token> TokenOf(const CallOptions& options, std::int64_t deadline_ns,
                        std::shared_ptr<Attachment>& attachment);
  // Nothing may be found: fills the results with why.
  static bool Refused(const Result<Scope>& scope, std::span<ItemResult> results);
  void GetWindow(const Scope& scope, std::span<const GetItem> items, std::span<ItemResult> results,
                 const Window& window);
  void BorrowWindow(const Scope& scope, Loan& loan, std::span<const BorrowKey> keys,
                    std::span<ItemResult> results, const Window& window);
  void BorrowFromDisk(const Scope& scope, Loan& loan, std::span<const BorrowKey> keys,
                      std::span<ItemResult> results, const Window& window);
  // The first checks of Put and of Reserve. The owner; or in all results why there is none.
  Result<std::shared_ptr<Attachment>> BeginPut(const Token& token, std::span<ItemResult> results);
  // Marks what is there already, and what cannot be stored. The numbers of the others.
  std::vector<std::size_t> FindNew(Attachment& attachment, const Token& token,
                                   std::span<const wire::PutItem> requests,
                                   std::span<ItemResult> results);
  Status PutInline(Attachment& attachment, const Token& token, std::span<const PutItem> items,
                   std::span<const wire::PutItem> requests, std::span<const std::size_t> which,
                   std::span<ItemResult> results, std::int64_t deadline_ns);
  // Asks for memory: results and grants of requests[which[k]].
  static Result<std::vector<wire::PutResult>> AskForMemory(
      Attachment& attachment, const Token& token, std::span<const wire::PutItem> requests,
      std::span<const std::size_t> which, std::span<ItemResult> results, std::int64_t deadline_ns);
  Status PutReserved(Attachment& attachment, const Token& token, std::span<const PutItem> items,
                     std::span<const wire::PutItem> requests, std::span<const std::size_t> which,
                     std::span<ItemResult> results, std::int64_t deadline_ns);
  bool CopyIn(Attachment& attachment, const PutItem& item, std::span<const Extent> extents,
              std::int64_t deadline_ns) const;
  // Brings what is missing and on the owner's disk into its memory, and reads it there.
  void GetFromDisk(const Scope& scope, std::span<const GetItem> items,
                   std::span<ItemResult> results, const CallOptions& options,
                   std::int64_t deadline_ns);
  // Brings these keys up, once, and calls `read` with the numbers of those that are up, and room
  // for their results. `again` gets the numbers of those that should be asked for again. False:
  // nothing goes on, and each result says why.
  using ReadLoaded =
      std::function<void(std::span<const std::size_t> there, std::span<ItemResult> results)>;
  bool LoadSome(const Scope& scope, std::span<const std::string_view> keys,
                std::span<ItemResult> results, const Window& window, const ReadLoaded& read,
                std::vector<std::size_t>& again);
  // For a load that follows: nobody waits for it.
  void Prefetch(const Scope& scope, std::span<const std::string_view> keys,
                std::chrono::milliseconds hold, std::int64_t deadline_ns) const;
  static bool OnDisk(const Scope& scope, std::string_view key);
  Token TokenOf(const Scope& scope) const;
  void CountMisses(Attachment& attachment, std::span<const ItemResult> results) const;
  void CountAsked(Attachment& attachment, Asked what, std::span<const ItemResult> results) const;
  Status CodesCall(std::span<const std::string_view> keys, std::span<ItemResult> results,
                   const CallOptions& options,
                   const std::function<Result<std::vector<Code>>(Attachment&, const Token&,
                                                                 std::int64_t)>& call);

  const std::shared_ptr<OwnerTie> host_;  // a session may outlive its pool
  const SessionOptions options_;
  const Clock& clock_;
  std::atomic<bool> one_of_several_{false};
  const std::shared_ptr<BorrowBudget> borrow_budget_;  // loans may outlive this

  Mutex bindings_mutex_;
  RecentVersions<Binding> bindings_ KVCOVE_GUARDED_BY(bindings_mutex_){kSessionVersions};
  wire::ResetOutcome reset_to_ KVCOVE_GUARDED_BY(bindings_mutex_);  // the last one that was proven
};

}  // namespace kvcove::requester
