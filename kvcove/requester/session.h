// SPDX-License-Identifier: Apache-2.0
// Puts, gets and look-ups of one namespace. On one host a look-up or a get asks nobody: it reads
// the segment's index and copies out of its memory. docs/requester.md has the prose.
#pragma once

#include <map>
#include <memory>
#include <thread>

#include "kvcove/requester/attachment.h"
#include "kvcove/requester/types.h"

namespace kvcove::requester {

// Thread-safe. Every call ends by its timeout. The returned Status is about the call as a whole
// (kInvalid for a batch that no item of which was looked at, kUnavailable, kTimeout); `results` is
// filled in any case.
class Session {
 public:
  Session(Host& host, SessionOptions options, const Clock& clock);
  ~Session();

  // What a put must carry: the namespace with weight version, and its generation now. Errors:
  // kClosed when this engine must reset first, kUnavailable, kTimeout, kInvalid, kLimit.
  Result<Token> Capture(std::string_view version, std::chrono::milliseconds timeout);

  // Items: kOk, kExists (the old value stays), kInProgress, kStale, kClosed, kNoSpace, kLimit,
  // kInvalid, kTimeout, kUnavailable.
  Status Put(const Token& token, std::span<const PutItem> items, std::span<ItemResult> results,
             const CallOptions& options);
  // Items: kOk, kMiss with its reason, kBufferTooSmall (bytes = what the value needs), kInvalid,
  // kTimeout.
  Status Get(std::span<const GetItem> items, std::span<ItemResult> results,
             const CallOptions& options);
  // Items: kOk, kMiss, kInvalid. A hint: the get checks again.
  Status Exists(std::span<const std::string_view> keys, std::span<ItemResult> results,
                const CallOptions& options);
  // The length of the leading run of keys that are there. Stops at the first miss.
  Result<std::size_t> LongestPrefix(std::span<const std::string_view> keys,
                                    const CallOptions& options);
  // Keeps what is there from being evicted for up to `duration` (at most 60 s, at most 10 % of the
  // segment a process, the oldest gives way). A held object may still be a miss: reset, removed, or
  // no other room.
  Status Hold(std::span<const std::string_view> keys, std::chrono::milliseconds duration,
              std::span<ItemResult> results, const CallOptions& options);
  // Soft: evicted only when nothing else can be, for `duration`. Hard: never evicted; at most half
  // of the segment (kLimit). A reset voids both.
  Status Pin(std::span<const std::string_view> keys, PinKind kind,
             std::chrono::milliseconds duration, std::span<ItemResult> results,
             const CallOptions& options);
  Status Unpin(std::span<const std::string_view> keys, std::span<ItemResult> results,
               const CallOptions& options);
  // Puts of the key that are under way fail with kStale.
  Status Remove(std::span<const std::string_view> keys, std::span<ItemResult> results,
                const CallOptions& options);
  // `pattern`: `*` any bytes, `?` one. A prefix is "prefix*". Linear in the number of objects.
  Result<std::uint64_t> RemoveMatching(std::string_view pattern, const CallOptions& options);
  Result<std::vector<std::optional<ObjectStat>>> StatObjects(std::span<const std::string_view> keys,
                                                             const CallOptions& options);

  // Ok: proven; no look-up or get that begins anywhere from now on finds what was begun before.
  // kNotProven: this session neither finds nor stores until the reset, repeated in the background,
  // is proven.
  Status Reset(const ResetOptions& options);
  // The versions that this engine still uses; others are reclaimed first.
  Status NameVersions(std::span<const std::string> versions, std::chrono::milliseconds timeout);

  bool closed() const { return unproven_.load(std::memory_order_acquire); }

 private:
  // What this session knows of one weight version.
  struct Binding {
    const Attachment* attachment = nullptr;
    Id128 incarnation;
    SlotId slot = 0;
    Generation generation = 0;
    bool open = false;
    std::int64_t ask_again_ns = 0;  // when closed: another process of this engine may have reset
  };
  struct Scope {
    std::shared_ptr<Attachment> attachment;
    segment::ReadScope read;
    MissReason refused = MissReason::kNone;  // nothing may be found
  };
  class Copier;

  Status CheckBatch(std::size_t items, std::size_t results) const;
  Result<Binding> Bind(Attachment& attachment, std::string_view version, std::int64_t deadline_ns);
  // What a look-up may read now; errors only for invalid names.
  Result<Scope> Enter(const CallOptions& options, std::int64_t deadline_ns);
  Result<SlotId> SlotOf(const CallOptions& options, std::int64_t deadline_ns,
                        std::shared_ptr<Attachment>& attachment);
  void GetWindow(const Scope& scope, std::span<const GetItem> items, std::span<ItemResult> results,
                 std::int64_t deadline_ns);
  Status PutInline(Attachment& attachment, const Token& token, std::span<const PutItem> items,
                   std::span<const std::string_view> afters, std::span<const std::size_t> which,
                   std::span<ItemResult> results, std::int64_t deadline_ns);
  Status PutReserved(Attachment& attachment, const Token& token, std::span<const PutItem> items,
                     std::span<const std::string_view> afters, std::span<const std::size_t> which,
                     std::span<ItemResult> results, std::int64_t deadline_ns);
  bool CopyIn(Attachment& attachment, const PutItem& item, std::span<const Extent> extents,
              std::int64_t deadline_ns) const;
  void CountMisses(Attachment& attachment, std::span<const ItemResult> results) const;
  Status CodesCall(
      std::span<const std::string_view> keys, std::span<ItemResult> results,
      const CallOptions& options,
      const std::function<Result<std::vector<Code>>(Attachment&, SlotId, std::int64_t)>& call);
  Status TryReset(const wire::ResetRequest& request, std::int64_t deadline_ns);
  // Repeats the reset that could not be proven, under its id, until it is.
  void RunRetries();

  Host& host_;
  const SessionOptions options_;
  const Clock& clock_;
  const unsigned forks_;

  Mutex bindings_mutex_;
  std::map<std::string, Binding, std::less<>> bindings_ KVCOVE_GUARDED_BY(bindings_mutex_);

  std::atomic<bool> unproven_{false};
  Mutex reset_mutex_;
  CondVar reset_changed_;
  bool stopping_ KVCOVE_GUARDED_BY(reset_mutex_) = false;
  std::uint64_t reset_number_ KVCOVE_GUARDED_BY(reset_mutex_) = 0;
  std::optional<wire::ResetRequest> pending_reset_ KVCOVE_GUARDED_BY(reset_mutex_);
  std::thread retry_ KVCOVE_GUARDED_BY(reset_mutex_);
};

}  // namespace kvcove::requester
