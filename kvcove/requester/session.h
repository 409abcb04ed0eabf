// SPDX-License-Identifier: Apache-2.0
// The contract of a session: what an engine may ask of its pool. Users include kvcove/pool/pool.h,
// which opens sessions. Two classes implement it: HostSession (a pool of one host, embedded or with
// owners of its own) and ClusterSession.
//
// What holds for every call:
// - Thread-safe. Any number of threads may call the same session at the same time.
// - It ends by its timeout (CallOptions, ResetOptions), whatever the owner, the master or the
//   network does. Zero or less: it takes only what is there without waiting.
// - Errors are values (kvcove/base/result.h); nothing throws. The returned Status is about the call
//   as a whole; `results[i]` about item i. kInvalid for a batch of more than kMaxBatch items, or
//   with less room for results than items: no item was looked at, and `results` is untouched. In
//   each other case but a fork (below) `results` is filled, whatever the Status says.
// - After fork(2) every call of the child is kUnavailable: it must open a pool of its own. Dropping
//   what it inherited (SessionPtr) frees nothing and disturbs nothing of the parent's.
// - Keys, buffers and results belong to the caller and stay valid until the call ends; those of an
//   asynchronous call until its (final) completion.
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

// One namespace, as one engine sees it.
class KVCOVE_API Session {
 public:
  virtual ~Session() = default;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // What a put must carry: the namespace with weight version `options.version`, and its generation
  // now. Capture when the request is first scheduled, or last computed again from its first token:
  // a token must be as old as the oldest KV that the value depends on. Errors: kClosed when this
  // engine must reset first, kInvalid, kLimit (no slot is free), kUnavailable, kTimeout.
  // Cost: no call where the pool is on this host and the session knows the version; else one.
  virtual Result<Token> Capture(const CallOptions& options) = 0;

  // Stores values. One that is there stays: values of one key are the same by contract.
  // Items: kOk, kExists, kInProgress (another writer has the key), kStale (a reset came after
  // `token`), kClosed, kNoSpace, kLimit, kInvalid, kTimeout, kUnavailable. ItemResult::replicas and
  // ::listed say where it is.
  // Cost: small values travel with one call per MiB, larger ones are copied once, straight into the
  // owner's memory, with two calls per 64 MiB. A key that is there costs no call on this host.
  virtual Status Put(const Token& token, std::span<const PutItem> items,
                     std::span<ItemResult> results, const CallOptions& options) = 0;
  // The same without a token: captures at its entry, before it reads a byte.
  Status Put(std::span<const PutItem> items, std::span<ItemResult> results,
             const CallOptions& options = {});

  // Whole values into the caller's buffers. What is not kOk left any bytes in its buffers.
  // Items: kOk, kMiss with its reason, kBufferTooSmall (bytes = what the value needs), kCorrupt (a
  // checksum says so), kInvalid, kTimeout.
  // Cost: on this host no call at all; of others one look-up at the master a batch, then the bytes.
  virtual Status Get(std::span<const GetItem> items, std::span<ItemResult> results,
                     const CallOptions& options) = 0;

  // Whole values where they lie in the memory of this host's owners, protected until they are
  // released (borrow.h): for a copy that a device makes, or the caller. What is on an owner's disk
  // is brought into memory first, within the timeout. Items: kOk; kMiss with its reason; kLimit
  // (`bytes` says how much it is): beyond what may be borrowed at the same time, never waited for:
  // SessionOptions::borrow_bytes of this session, and of all sessions of this process half of the
  // 1/16 of a segment that it may protect and 512 values, an owner, but always one; kInvalid,
  // kTimeout. ItemResult::elsewhere: this host's owners do not have it, and another host's may: Get
  // brings it into a buffer. Cost: no call, but for what is on a disk. Errors: as Get's; kInvalid
  // for a batch of more than kMaxBatch keys.
  virtual Result<Borrowed> Borrow(std::span<const std::string_view> keys,
                                  const CallOptions& options) = 0;
  // Memory of an owner on this host for values to come, which Reserved::Commit makes values: a put
  // whose copy the caller makes, or a device. The token is a put's: that of the oldest KV.
  // Items: kOk (to be filled and committed), kExists, kInProgress (another writer has the key),
  // kStale, kClosed, kNoSpace, kInvalid, kTimeout, kUnavailable; kLimit beyond a quarter of the
  // segment a process, which counts what its puts reserve, too. ItemResult::elsewhere: this session
  // puts it to another host, or this host has no room: Put does so.
  // A reservation keeps its key from other writers for a second, counted from its start. It is not
  // renewed: what is committed later is refused by kTimeout. Its memory stays reserved until Commit
  // or Abort, or until the process ends.
  // Cost: one call per 1,024 values or 64 MiB. A key that is there costs none.
  virtual Result<Reserved> Reserve(const Token& token, std::span<const ReserveItem> items,
                                   const CallOptions& options) = 0;
  // The memory that the two above give pieces of, an entry an owner of this host that answers. In
  // the background, for a device: one call an owner. Errors: kUnavailable (in a forked child).
  virtual Result<std::vector<SegmentRange>> Segments(const CallOptions& options) = 0;

  // Which keys are there. A hint: the get checks again. Items: kOk, kMiss with its reason,
  // kInvalid. Cost: on this host 64 keys share one look at the generation, and no call is made.
  virtual Status Exists(std::span<const std::string_view> keys, std::span<ItemResult> results,
                        const CallOptions& options) = 0;
  // The length of the leading run of keys that are there. Stops at the first miss.
  virtual Result<std::size_t> LongestPrefix(std::span<const std::string_view> keys,
                                            const CallOptions& options) = 0;
  // Exists, which also keeps what it finds from being evicted for up to `duration` (at most 24 h,
  // at most 10 % of the segment a process, the oldest gives way). A held object may still be a
  // miss: reset, removed, or no other room. Another host's owner holds what it reads from disk.
  Status Hold(std::span<const std::string_view> keys, std::chrono::milliseconds duration,
              std::span<ItemResult> results, const CallOptions& options = {});

  // Soft: evicted only when nothing else can be, for `duration`. Hard: never evicted; at most half
  // of the segment (kLimit). A reset voids both. Items: kOk, kMiss, kLimit, kInvalid, kStale.
  virtual Status Pin(std::span<const std::string_view> keys, PinKind kind,
                     std::chrono::milliseconds duration, std::span<ItemResult> results,
                     const CallOptions& options) = 0;
  // Takes both kinds of pin away. Items: kOk, kMiss, kInvalid, kStale.
  virtual Status Unpin(std::span<const std::string_view> keys, std::span<ItemResult> results,
                       const CallOptions& options) = 0;

  // Ok: no owner has the value any more, nor ever brings it back. Puts of the key that are under
  // way fail with kStale. Items: kOk, kMiss, kInvalid; or the call's own error.
  virtual Status Remove(std::span<const std::string_view> keys, std::span<ItemResult> results,
                        const CallOptions& options) = 0;
  // The number removed. `pattern`: `*` any bytes, `?` one; a prefix is "prefix*". Linear in the
  // number of objects.
  virtual Result<std::uint64_t> RemoveMatching(std::string_view pattern,
                                               const CallOptions& options) = 0;

  // Of each key; empty for a miss. One call an owner that has one of them; of a key with several
  // replicas each owner is asked, and one that is held or pinned makes the value so.
  virtual Result<std::vector<std::optional<ObjectStat>>> Stat(
      std::span<const std::string_view> keys, const CallOptions& options) = 0;
  // What is stored under keys that start with `prefix`, each once, in no order. Walks over all
  // objects of all owners that answer, on their disks, too: for people and for rare calls. What a
  // disk frees zones for meanwhile may be missed. Errors: kLimit beyond 2^20 keys.
  virtual Result<std::vector<StoredObject>> List(std::string_view prefix,
                                                 const CallOptions& options) = 0;
  // O(1) an owner. Each owner counts for itself: an object on two counts twice.
  virtual Result<ObjectCount> Count(const CallOptions& options) = 0;
  // The owners that have each key, none for a miss. A value that an owner has in memory and on its
  // disk counts as in memory; of several owners, one whose tier nobody says has the first one's.
  virtual Result<std::vector<std::vector<ObjectPlace>>> Places(
      std::span<const std::string_view> keys, const CallOptions& options) = 0;
  // Their names alone.
  Result<std::vector<std::vector<std::string>>> Where(std::span<const std::string_view> keys,
                                                      const CallOptions& options);

  // Ok: proven; no look-up or get that begins anywhere from now on finds what was begun before.
  // Else this session neither finds nor stores. kNotProven: until the reset, which is repeated in
  // the background, is proven. kDenied (it may not reset), kInvalid: nothing is repeated; until a
  // later reset that voids as much is proven. Cost: one call, which waits for the acknowledgement
  // of each owner or for the end of its lease; the number of objects does not matter.
  virtual Status Reset(const ResetOptions& options) = 0;
  // The versions that this engine still uses; others are reclaimed first. Replaces what it named
  // before. Errors: kInvalid for a name that is too long, kUnavailable, kTimeout.
  virtual Status NameVersions(std::span<const std::string> versions,
                              const CallOptions& options) = 0;
  // True while a reset that failed keeps this session from finding and storing.
  virtual bool closed() const = 0;

  // The same, asynchronously: a thread of `queue` makes the call, and its completion comes there
  // with the caller's `tag`. The session outlives the call. Errors: kLimit when the queue is full.
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
  Status StatAsync(CompletionQueue& queue, std::uint64_t tag,
                   std::span<const std::string_view> keys,
                   std::span<std::optional<ObjectStat>> stats, const CallOptions& options = {});
  Status ResetAsync(CompletionQueue& queue, std::uint64_t tag, const ResetOptions& options = {});

 protected:
  Session();
  // What an implementation asks first. kUnavailable in a forked child, kInvalid when there is no
  // room for the results, or too many items.
  Status CheckBatch(std::size_t items, std::size_t results) const;

 private:
  friend struct SessionDeleter;
  const unsigned forks_;
};

// How a pool gives out sessions. In a forked child neither the threads of the session came along
// nor the holders of its locks, so ending it there could wait for ever: the child lets it go as it
// is.
struct KVCOVE_API SessionDeleter {
  void operator()(Session* session) const;
};
using SessionPtr = std::unique_ptr<Session, SessionDeleter>;

}  // namespace kvcove
