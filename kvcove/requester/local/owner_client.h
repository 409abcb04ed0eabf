// SPDX-License-Identifier: Apache-2.0
// A session's client of one owner of this host. Look-ups and gets make no call: they read the
// segment's index and copy out of its memory (docs/requester.md).
#pragma once

#include <memory>

#include "kvcove/base/size.h"
#include "kvcove/requester/calls.h"
#include "kvcove/requester/local/attachment.h"
#include "kvcove/requester/local/loan.h"
#include "kvcove/requester/local/recent_versions.h"
#include "kvcove/requester/local/reservation.h"
#include "kvcove/requester/types.h"

namespace kvcove::requester {

// Its calls are those of Session (session.h), for this owner alone. HostSession has checked the
// batch before, and that the session is not closed by an unproven reset. Thread-safe.
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
  // Errors: those of Session::Announce; kUnavailable also from an owner of an earlier build.
  Status Announce(const Token& token, std::span<const std::string_view> keys, SaveNotice notice,
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
  // Add this owner's part to a loan, or to a reservation. `results` has an item for each key.
  Status BorrowInto(Loan& loan, std::span<const BorrowKey> keys, std::span<ItemResult> results,
                    const CallOptions& options);
  Status ReserveInto(Reservation& reservation, const Token& token,
                     std::span<const ReserveKey> items, std::span<ItemResult> results,
                     const CallOptions& options);
  // Adds the range of this owner's memory, if the owner answers.
  void AddSegment(std::vector<SegmentRange>& ranges, const CallOptions& options);
  // Makes one attempt of a reset (AttemptReset). The caller then calls ForgetBindings at all owners
  // of the host.
  Result<wire::ResetOutcome> AskReset(const wire::ResetRequest& request, bool known,
                                      std::int64_t deadline_ns);
  // Makes one attempt to prune.
  Result<wire::PruneOutcome> AskPrune(std::string_view before, std::int64_t deadline_ns);
  // Changes how misses are counted, because other owners of this host are asked, too: this client
  // counts only what it finds, and HostSession counts the keys that no owner has (CountMissed).
  void SetOneOfSeveral() { one_of_several_.store(true, std::memory_order_relaxed); }
  enum class Asked { kLookups, kGets };
  void CountMissed(Asked what, std::span<const ItemResult> results) const;
  // Forgets all known generations after a proven reset: the next call registers again.
  void ForgetBindings(const wire::ResetOutcome& outcome);
  // False for an owner that is away or frozen: its lease is not renewed.
  bool HoldsLease() const;
  // True if the engine has registered for the version, and may use it again without a call.
  bool KnowsVersion(std::string_view version);

 private:
  // The registration of one weight version.
  struct Binding {
    std::uint64_t attachment = 0;  // Attachment::number
    Id128 incarnation;
    SlotId slot = 0;
    Generation generation = 0;
    bool open = false;
    std::int64_t ask_again_ns = 0;  // if not open: another process of this engine may reset
  };
  // The attachment, slot and generation of one call.
  struct Scope {
    std::shared_ptr<Attachment> attachment;
    segment::ReadScope read;
    Id128 incarnation;
    MissReason refused = MissReason::kNone;  // not kNone: every key is a miss with this reason
  };
  class Copier;
  struct Window {
    std::chrono::milliseconds hold{0};
    std::int64_t deadline_ns = 0;
    std::uint64_t bytes = 0;  // that the whole call copies; 0: not known
  };
  static constexpr std::size_t kFindChunk = segment::HeaderView::kFindMany;
  static constexpr std::uint64_t kCopyPiece = kMiB;  // between two looks at the deadline

  static MissReason AbsentReason(const segment::HeaderView& view, SlotId slot,
                                 std::string_view key);
  // Asks the owner which of the missing keys are being saved, if any can be.
  void FindUnderWay(const Scope& scope, std::span<const std::string_view> keys,
                    std::span<ItemResult> results, std::int64_t deadline_ns) const;
  static segment::Event EventOf(segment::EventKind kind, const segment::Found& found,
                                std::int64_t hold_until_ms);
  // Returns the binding of a version; registers, with a call, if none is known or it is old.
  Result<Binding> Bind(Attachment& attachment, std::string_view version, std::int64_t deadline_ns);
  // Returns the scope in which a look-up may read. Errors: kInvalid and kLimit of a registration;
  // others are in Scope::refused.
  Result<Scope> Enter(const CallOptions& options, std::int64_t deadline_ns);
  // Returns the connected attachment. Errors: kUnavailable.
  Result<std::shared_ptr<Attachment>> Attached() const;
  // Returns the token of the generation to which this session is bound, for calls on objects.
  Result<Token> TokenOf(const CallOptions& options, std::int64_t deadline_ns,
                        std::shared_ptr<Attachment>& attachment);
  // True if the scope is refused, or an error; fills the results with the reason.
  static bool Refused(const Result<Scope>& scope, std::span<ItemResult> results);
  // Get or lend at most kLaneSlots items, under the readers' protocol.
  void GetWindow(const Scope& scope, std::span<const GetItem> items, std::span<ItemResult> results,
                 const Window& window);
  void BorrowWindow(const Scope& scope, Loan& loan, std::span<const BorrowKey> keys,
                    std::span<ItemResult> results, const Window& window);
  void BorrowFromDisk(const Scope& scope, Loan& loan, std::span<const BorrowKey> keys,
                      std::span<ItemResult> results, const Window& window);
  // Makes the first checks of Put and Reserve, and returns the attachment. An error is also in all
  // results.
  Result<std::shared_ptr<Attachment>> BeginPut(const Token& token, std::span<ItemResult> results);
  // Marks items that are stored already (kExists) or not valid, and returns the numbers of the
  // others.
  std::vector<std::size_t> FindNew(Attachment& attachment, const Token& token,
                                   std::span<const wire::PutItem> requests,
                                   std::span<ItemResult> results);
  Status PutInline(Attachment& attachment, const Token& token, std::span<const PutItem> items,
                   std::span<const wire::PutItem> requests, std::span<const std::size_t> which,
                   std::span<ItemResult> results, std::int64_t deadline_ns);
  // Asks the owner for memory. Sets results[which[k]], and returns grant k for each.
  static Result<std::vector<wire::PutResult>> AskForMemory(
      Attachment& attachment, const Token& token, std::span<const wire::PutItem> requests,
      std::span<const std::size_t> which, std::span<ItemResult> results, std::int64_t deadline_ns);
  Status PutReserved(Attachment& attachment, const Token& token, std::span<const PutItem> items,
                     std::span<const wire::PutItem> requests, std::span<const std::size_t> which,
                     std::span<ItemResult> results, std::int64_t deadline_ns);
  // Copies a value into granted extents. False: the deadline has passed, or the grant is not valid.
  bool CopyIn(Attachment& attachment, const PutItem& item, std::span<const Extent> extents,
              std::int64_t deadline_ns) const;
  // Lets the owner promote missing items that its disk has, and reads them in memory.
  void GetFromDisk(const Scope& scope, std::span<const GetItem> items,
                   std::span<ItemResult> results, const CallOptions& options,
                   std::int64_t deadline_ns);
  // Lets the owner promote these keys, in one call, then calls `read` with the numbers of those in
  // memory, and with room for their results. `again` gets the numbers of those to ask for again.
  // False: no key made progress, and each result has the reason.
  using ReadLoaded =
      std::function<void(std::span<const std::size_t> there, std::span<ItemResult> results)>;
  bool LoadSome(const Scope& scope, std::span<const std::string_view> keys,
                std::span<ItemResult> results, const Window& window, const ReadLoaded& read,
                std::vector<std::size_t>& again);
  // Asks the owner to promote keys for a later load, without waiting for the answer.
  void Prefetch(const Scope& scope, std::span<const std::string_view> keys,
                std::chrono::milliseconds hold, std::int64_t deadline_ns) const;
  // True if the owner's table has the key on a disk that is in use.
  static bool OnDisk(const Scope& scope, std::string_view key);
  Token TokenOf(const Scope& scope) const;
  void CountMisses(Attachment& attachment, std::span<const ItemResult> results) const;
  void CountAsked(Attachment& attachment, Asked what, std::span<const ItemResult> results) const;
  Status CodesCall(std::span<const std::string_view> keys, std::span<ItemResult> results,
                   const CallOptions& options,
                   const std::function<Result<std::vector<Code>>(Attachment&, const Token&,
                                                                 std::int64_t)>& call);

  const std::shared_ptr<OwnerTie> host_;  // shared, as a session may outlive its pool
  const SessionOptions options_;
  const Clock& clock_;
  std::atomic<bool> one_of_several_{false};
  const std::shared_ptr<BorrowBudget> borrow_budget_;  // shared, as loans may outlive this client

  Mutex bindings_mutex_;
  RecentVersions<Binding> bindings_ KVCOVE_GUARDED_BY(bindings_mutex_){kSessionVersions};
  wire::ResetOutcome reset_to_ KVCOVE_GUARDED_BY(bindings_mutex_);  // of the last proven reset
};

}  // namespace kvcove::requester
