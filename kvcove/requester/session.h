// SPDX-License-Identifier: Apache-2.0
// The contract of a session: the calls that an engine may make to its pool. Users include
// kvcove/pool/pool.h, which opens sessions. Two classes implement it: HostSession (a pool of one
// host, embedded or with owners of its own) and ClusterSession.
//
// Rules for every call:
// - Thread-safe. Any number of threads may call the same session at the same time.
// - The call ends by its timeout (CallOptions, ResetOptions), whatever the owner, the master or the
//   network does. Zero or less: the call does only work that needs no wait.
// - Errors are values (kvcove/base/result.h); no call throws. The returned Status is about the call
//   as a whole; `results[i]` about item i. kInvalid for a batch of more than kMaxBatch items, or
//   with less room for results than items: no item was looked at, and `results` is untouched. In
//   each other case but a fork (below) `results` is filled, whatever the Status is.
// - After fork(2) every call of the child is kUnavailable: it must open a pool of its own. Dropping
//   an inherited session (SessionPtr) frees nothing, and disturbs nothing of the parent's.
// - The caller keeps keys, buffers and results valid until the call ends; those of an asynchronous
//   call until its final completion.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/base/export.h"
#include "kvcove/base/result.h"
#include "kvcove/requester/borrow.h"
#include "kvcove/requester/types.h"

namespace kvcove {

class CompletionQueue;

// One namespace, as one engine uses it. Open, or closed while a reset of it is not proven: a closed
// session neither finds nor stores.
class KVCOVE_API Session {
 public:
  virtual ~Session() = default;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Returns the token that a put needs: the namespace with weight version `options.version`, and
  // its present generation. Call it when the request is first scheduled, or is computed again from
  // its first token: the token must be as old as the oldest KV that the value depends on. Errors:
  // kClosed (this engine must reset first), kInvalid, kLimit (no slot is free), kUnavailable,
  // kTimeout. Cost: no call if the pool is on this host and the session knows the version; else
  // one. `options.leased`: kUnavailable also if nothing proves that the generation is current.
  virtual Result<Token> Capture(const CallOptions& options) = 0;

  // Stores values. A stored value is kept: all values of one key are the same by contract.
  // Items: kOk, kExists, kInProgress (another writer has the key), kStale (a reset came after
  // `token`), kClosed, kNoSpace, kLimit, kInvalid, kTimeout, kUnavailable. ItemResult::replicas has
  // the number of owners, ::listed whether other hosts find the value.
  // Cost: small values are sent with one call per MiB, larger ones are copied once, straight into
  // the owner's memory, with two calls per 64 MiB. A key that this host has costs no call.
  virtual Status Put(const Token& token, std::span<const PutItem> items,
                     std::span<ItemResult> results, const CallOptions& options) = 0;
  // Stores values without a token: captures first, before it reads any byte.
  Status Put(std::span<const PutItem> items, std::span<ItemResult> results,
             const CallOptions& options = {});

  // Announces that this process is about to put these keys under `token` (kBegin), or does not put
  // them after all (kEnd). Until the value is there, this process ends, a reset, or for 2 s,
  // look-ups with CallOptions::under_way report such a key. A hint, which a busy or older pool may
  // leave out. Errors: kInvalid, kStale, kClosed, kUnavailable, kTimeout. Cost: one call.
  virtual Status Announce(const Token& token, std::span<const std::string_view> keys,
                          SaveNotice notice, const CallOptions& options) = 0;

  // Copies whole values into the caller's buffers. The buffers of an item that is not kOk may have
  // any content. Items: kOk, kMiss with its reason, kBufferTooSmall (bytes = size of the value),
  // kCorrupt (a checksum differs), kInvalid, kTimeout.
  // Cost: no call for values of this host; else one look-up at the master a batch, then the bytes.
  virtual Status Get(std::span<const GetItem> items, std::span<ItemResult> results,
                     const CallOptions& options) = 0;

  // Protects whole values in the memory of this host's owners until they are released (borrow.h),
  // for a copy by a device, or by the caller. Values on an owner's disk are promoted to memory
  // first, within the timeout. Items: kOk; kMiss with its reason; kLimit (`bytes` = size of the
  // value): beyond a bound of loans, never waited for; kInvalid, kTimeout. The bounds, for each
  // owner: SessionOptions::borrow_bytes of this session; for all sessions of this process 512
  // values and 1/32 of the segment; but always one value. ItemResult::elsewhere: this host's owners
  // do not have the value, and another host's may: Get copies it into a buffer. Cost: no call, but
  // for values on a disk. Errors: as Get; kInvalid for a batch of more than kMaxBatch keys.
  virtual Result<Borrowed> Borrow(std::span<const std::string_view> keys,
                                  const CallOptions& options) = 0;
  // Reserves memory of an owner on this host for values, which Reserved::Commit stores: a put whose
  // copy is made by the caller or a device. The token is a put's: that of the oldest KV.
  // Items: kOk (fill and commit it), kExists, kInProgress (another writer has the key), kStale,
  // kClosed, kNoSpace, kInvalid, kTimeout, kUnavailable; kLimit beyond a quarter of the segment for
  // each process, which also counts the reservations of its puts. ItemResult::elsewhere: this
  // session puts the value to another host, or this host has no room: use Put.
  // A reservation keeps its key from other writers for a second from its start. It is not renewed:
  // a later commit is refused with kTimeout. The memory stays reserved until Commit or Abort, or
  // until the process ends.
  // Cost: one call per 1,024 values or 64 MiB. A key that this host has costs none.
  virtual Result<Reserved> Reserve(const Token& token, std::span<const ReserveItem> items,
                                   const CallOptions& options) = 0;
  // Returns the memory to which pieces of Borrow and Reserve belong: an entry for each owner of
  // this host that answers. For a device, in the background: one call for each owner. Errors:
  // kUnavailable (in a forked child).
  virtual Result<std::vector<SegmentRange>> Segments(const CallOptions& options) = 0;

  // Looks up which keys have a value. A hint: the get checks again. Items: kOk, kMiss with its
  // reason, kInvalid. Cost: no call for values of this host; 64 keys share one look at the
  // generation.
  virtual Status Exists(std::span<const std::string_view> keys, std::span<ItemResult> results,
                        const CallOptions& options) = 0;
  // Returns the number of leading keys that have a value. Stops at the first miss.
  virtual Result<std::size_t> LongestPrefix(std::span<const std::string_view> keys,
                                            const CallOptions& options) = 0;
  // Calls Exists, and protects the objects that it finds from eviction for up to `duration` (at
  // most 24 h; at most 10 % of the segment for each process, then the oldest hold ends). A held
  // object may still become a miss: after a reset or a removal, or if nothing else can be evicted.
  // Owners of other hosts hold the objects that they read from disk for this call.
  Status Hold(std::span<const std::string_view> keys, std::chrono::milliseconds duration,
              std::span<ItemResult> results, const CallOptions& options = {});

  // Pins values that are in memory. Soft: for `duration`, evicted only if no other object can be.
  // Hard: never evicted, nor demoted to a disk; for `duration`, at most kLongestHardPin, or with 0
  // without an end; at most half of the segment (kLimit). A repetition of the call renews a hard
  // pin: the later end holds. A hard pin outlives its session and process, until its end, an Unpin,
  // a reset or a prune (docs/generations.md). Items: kOk, kMiss, kLimit, kInvalid, kStale,
  // kIncompatible (a hard pin with an end, and an owner of an earlier version, which has pinned
  // softly). Errors: kInvalid for the duration of a hard pin.
  virtual Status Pin(std::span<const std::string_view> keys, PinKind kind,
                     std::chrono::milliseconds duration, std::span<ItemResult> results,
                     const CallOptions& options) = 0;
  // Removes both kinds of pin. Items: kOk, kMiss, kInvalid, kStale.
  virtual Status Unpin(std::span<const std::string_view> keys, std::span<ItemResult> results,
                       const CallOptions& options) = 0;

  // Removes values. kOk: no owner has the value any more, in memory or on a disk, and none finds it
  // again. Puts of the key that are under way fail with kStale. Items: kOk, kMiss, kInvalid; or the
  // call's own error.
  virtual Status Remove(std::span<const std::string_view> keys, std::span<ItemResult> results,
                        const CallOptions& options) = 0;
  // Removes the values whose keys match, and returns their number. `pattern`: `*` any bytes, `?`
  // one; a prefix is "prefix*". Linear in the number of objects.
  virtual Result<std::uint64_t> RemoveMatching(std::string_view pattern,
                                               const CallOptions& options) = 0;

  // Returns the state of each value; nullopt for a miss. One call for each owner that has one of
  // them. Each owner of a value with several replicas is asked: the value is held, or pinned, if
  // one of its replicas is.
  virtual Result<std::vector<std::optional<ObjectStat>>> Stat(
      std::span<const std::string_view> keys, const CallOptions& options) = 0;
  // Lists the objects whose keys start with `prefix`, each once, in no order. Walks over all
  // objects of all owners that answer, also on their disks: for people and for rare calls. May miss
  // objects in zones that a disk frees meanwhile. Errors: kLimit beyond 2^20 keys.
  virtual Result<std::vector<StoredObject>> List(std::string_view prefix,
                                                 const CallOptions& options) = 0;
  // Counts the objects. O(1) at each owner. Each owner counts for itself: an object on two owners
  // counts twice.
  virtual Result<ObjectCount> Count(const CallOptions& options) = 0;
  // Returns the owners of each key, none for a miss. A value that an owner has in memory and on its
  // disk counts as in memory. An owner whose tier is not known gets the tier of the first one.
  virtual Result<std::vector<std::vector<ObjectPlace>>> Places(
      std::span<const std::string_view> keys, const CallOptions& options) = 0;
  // Returns how much of a prefix each owner has, for a router that chooses the host of a request:
  // the leading keys that have an owner, and the part of each owner. A hint, as Exists; nothing is
  // held, and no hit or miss is counted in a cluster. Cost: in a cluster one call to the master,
  // which answers from its directory; else as LongestPrefix. Errors: kInvalid (also for a key that
  // is not valid), kIncompatible (the master is of an earlier version), kUnavailable, kTimeout.
  virtual Result<LocatedPrefix> Locate(std::span<const std::string_view> keys,
                                       const CallOptions& options) = 0;
  // Returns the names of Places alone.
  Result<std::vector<std::vector<std::string>>> Where(std::span<const std::string_view> keys,
                                                      const CallOptions& options);

  // Voids all objects. kOk: the reset is proven; no look-up or get that begins anywhere from now on
  // finds a value whose put began before. Otherwise this session is closed. kNotProven: until the
  // reset, which is repeated in the background, is proven. kDenied (it may not reset), kInvalid:
  // the reset is not repeated; until a later reset that voids as much is proven. Cost: one call,
  // which waits for the acknowledgement of each owner or for the end of its lease, whatever the
  // number of objects. While no master answers, it waits for one until its timeout.
  virtual Status Reset(const ResetOptions& options) = 0;
  // Declares each weight version of this namespace dead that an engine has named earlier than
  // `before` (docs/generations.md), and returns how many have died by this call. When it returns,
  // no look-up or get that begins anywhere finds a value of a dead version, and no put stores one:
  // a capture under it is kDenied, a token of before kStale. Values without a version remain. A
  // repetition is harmless, and an earlier `before` kills nothing more. Waits and costs as Reset
  // does, so give it as long (2.5 s); no session closes. Errors: kInvalid (nobody has named
  // `before`), kDenied (it may not reset), kNotProven (they may be dead; call again), kUnavailable,
  // kIncompatible (the master is of an earlier version).
  virtual Result<std::uint64_t> Prune(std::string_view before, const CallOptions& options) = 0;
  // Names the versions that this engine still uses; others are reclaimed first. Replaces the names
  // of an earlier call. Errors: kInvalid (a name is too long), kUnavailable, kTimeout.
  virtual Status NameVersions(std::span<const std::string> versions,
                              const CallOptions& options) = 0;
  // True while a reset that failed keeps this session from finding and storing.
  virtual bool closed() const = 0;

  // The calls above, asynchronously: a thread of `queue` makes the call, and `queue` then has its
  // completion, with the caller's `tag`. The session must outlive the call. Errors: those of
  // CompletionQueue::Start.
  Status PutAsync(CompletionQueue& queue, std::uint64_t tag, const Token& token,
                  std::span<const PutItem> items, std::span<ItemResult> results,
                  const CallOptions& options = {});
  Status GetAsync(CompletionQueue& queue, std::uint64_t tag, std::span<const GetItem> items,
                  std::span<ItemResult> results, const CallOptions& options = {});
  Status ExistsAsync(CompletionQueue& queue, std::uint64_t tag,
                     std::span<const std::string_view> keys, std::span<ItemResult> results,
                     const CallOptions& options = {});
  Status LongestPrefixAsync(CompletionQueue& queue, std::uint64_t tag,
                            std::span<const std::string_view> keys,
                            const CallOptions& options = {});
  Status HoldAsync(CompletionQueue& queue, std::uint64_t tag,
                   std::span<const std::string_view> keys, std::chrono::milliseconds duration,
                   std::span<ItemResult> results, const CallOptions& options = {});
  Status PinAsync(CompletionQueue& queue, std::uint64_t tag, std::span<const std::string_view> keys,
                  PinKind kind, std::chrono::milliseconds duration, std::span<ItemResult> results,
                  const CallOptions& options = {});
  Status UnpinAsync(CompletionQueue& queue, std::uint64_t tag,
                    std::span<const std::string_view> keys, std::span<ItemResult> results,
                    const CallOptions& options = {});
  Status RemoveAsync(CompletionQueue& queue, std::uint64_t tag,
                     std::span<const std::string_view> keys, std::span<ItemResult> results,
                     const CallOptions& options = {});
  // `pattern` is copied.
  Status RemoveMatchingAsync(CompletionQueue& queue, std::uint64_t tag, std::string_view pattern,
                             const CallOptions& options = {});
  Status ResetAsync(CompletionQueue& queue, std::uint64_t tag, const ResetOptions& options = {});
  // `before` is copied.
  Status PruneAsync(CompletionQueue& queue, std::uint64_t tag, std::string_view before,
                    const CallOptions& options = {.timeout = std::chrono::milliseconds(2500)});

 protected:
  Session();
  // Checks the process and the sizes of a batch; the first step of each call. Errors: kUnavailable
  // in a forked child, kInvalid (less room for results than items, or too many items).
  Status CheckBatch(std::size_t items, std::size_t results) const;

 private:
  friend struct SessionDeleter;
  const unsigned forks_;
};

// Deletes a session, but not in a forked child. The child has neither the session's threads nor the
// holders of its locks, so a destructor there could wait for ever: the child leaks the session.
struct KVCOVE_API SessionDeleter {
  void operator()(Session* session) const;
};
using SessionPtr = std::unique_ptr<Session, SessionDeleter>;

}  // namespace kvcove
