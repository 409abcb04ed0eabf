// SPDX-License-Identifier: Apache-2.0
// The public C++ API.
//
//   auto pool = kvcove::Pool::Open("embedded:?memory=4GiB");  // "unix:/path", "kvcove://host:7400"
//   auto session = (*pool)->OpenSession({.name = "acme/llama@5f3a/fp8"});
//   auto token = (*session)->Capture();        // when the request is first scheduled
//   (*session)->Put(*token, items, results);   // refused if a reset came in between
//   (*session)->Get(wanted, results);          // whole values, or misses with a reason
//   (*session)->Reset();                       // nothing from before is ever found again
//
// Thread-safe throughout. Every call ends by its timeout. After fork(2) the child must open a pool
// of its own. Errors are values (kvcove/base/result.h); nothing throws.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "kvcove/base/result.h"
#include "kvcove/requester/types.h"

namespace kvcove {

namespace pool {
class PoolImpl;
class AsyncCall;
class SessionImpl;
class QueueImpl;
}  // namespace pool

// What an asynchronous call ended with.
struct Completion {
  std::uint64_t tag = 0;    // the caller's
  Status status;            // as the synchronous call returns it
  std::uint64_t count = 0;  // LongestPrefix: the length; RemoveMatching: the number
  // False: the deadline passed with kBufferBusy, and bytes may still land in the call's buffers.
  // Another completion with the same tag follows when nothing can land any more.
  bool final = true;
};

// Where asynchronous calls end. Bounded: a call that finds `capacity` others unfinished or not
// taken yet is refused with kLimit. Outlives its calls: destruction waits for them.
class CompletionQueue {
 public:
  explicit CompletionQueue(std::size_t capacity = 1024);
  ~CompletionQueue();
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  // Readable (poll, epoll) while completions wait.
  int event_fd() const;
  // Takes one; waits up to `timeout` for it. Empty when none came.
  std::optional<Completion> Next(std::chrono::milliseconds timeout = std::chrono::milliseconds(0));

 private:
  friend class Session;
  std::shared_ptr<pool::QueueImpl> impl_;
};

// One namespace, as one engine sees it. Items, keys, buffers and results of an asynchronous call
// must stay valid until its (final) completion. What a call answers per item is said in
// requester/session.h.
class Session {
 public:
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // What a put must carry. Capture it when the request is first scheduled, or last computed again
  // from its first token: it must be as old as the oldest KV that the value depends on.
  Result<Token> Capture(std::string_view version = {},
                        std::chrono::milliseconds timeout = std::chrono::milliseconds(1000));

  Status Put(const Token& token, std::span<const PutItem> items, std::span<ItemResult> results,
             const CallOptions& options = {});
  // Without a token: captures at its entry, before it reads a byte.
  Status Put(std::span<const PutItem> items, std::span<ItemResult> results,
             const CallOptions& options = {});
  Status Get(std::span<const GetItem> items, std::span<ItemResult> results,
             const CallOptions& options = {});
  Status Exists(std::span<const std::string_view> keys, std::span<ItemResult> results,
                const CallOptions& options = {});
  Result<std::size_t> LongestPrefix(std::span<const std::string_view> keys,
                                    const CallOptions& options = {});
  Status Hold(std::span<const std::string_view> keys, std::chrono::milliseconds duration,
              std::span<ItemResult> results, const CallOptions& options = {});
  Status Pin(std::span<const std::string_view> keys, PinKind kind,
             std::chrono::milliseconds duration, std::span<ItemResult> results,
             const CallOptions& options = {});
  Status Unpin(std::span<const std::string_view> keys, std::span<ItemResult> results,
               const CallOptions& options = {});
  Status Remove(std::span<const std::string_view> keys, std::span<ItemResult> results,
                const CallOptions& options = {});
  Result<std::uint64_t> RemoveMatching(std::string_view pattern, const CallOptions& options = {});
  Result<std::vector<std::optional<ObjectStat>>> Stat(std::span<const std::string_view> keys,
                                                      const CallOptions& options = {});
  Result<std::vector<StoredObject>> List(std::string_view prefix = {},
                                         const CallOptions& options = {});
  Result<ObjectCount> Count(const CallOptions& options = {});
  Result<std::vector<std::vector<std::string>>> Where(std::span<const std::string_view> keys,
                                                      const CallOptions& options = {});
  Status Reset(const ResetOptions& options = {});
  Status NameVersions(std::span<const std::string> versions,
                      std::chrono::milliseconds timeout = std::chrono::milliseconds(1000));
  // True while an unproven reset keeps this session from finding and storing.
  bool closed() const;

  // The same, asynchronous. Errors: kLimit when the queue is full.
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

 private:
  friend class Pool;
  explicit Session(std::unique_ptr<pool::SessionImpl> impl);
  Status Start(CompletionQueue& queue, std::uint64_t tag, std::chrono::milliseconds timeout,
               std::function<Status(std::chrono::milliseconds left, std::uint64_t& count)> call);
  std::unique_ptr<pool::SessionImpl> impl_;
};

class Pool {
 public:
  // Addresses:
  //   embedded:?memory=4GiB   in this process; also policy=, max_objects=, populate=0|1
  //   unix:/path/of/socket    the daemon of this host (`kvcove serve`)
  //   kvcove://host:7400      a cluster, by its master; also local=0|1 (use this host's owner
  //                           directly), owner=HOST:PORT (that one, where a host has several),
  //                           checksum=0|1 (of what crosses the network),
  //                           placement=local-first|free-ratio-first|random, token=FILE (else
  //                           $KVCOVE_TOKEN), tls_authority=, tls_certificate=, tls_key=FILE (else
  //                           $KVCOVE_TLS_AUTHORITY, ..._CERTIFICATE, ..._KEY)
  //   auto                    what $KVCOVE_POOL names; else that daemon if its default socket is
  //                           there, else embedded
  //                           (auto?memory=... as above)
  // Errors: kInvalid for an address or size that is not understood, or that the host cannot give;
  // kUnavailable, kDenied, kIncompatible, kTimeout.
  static Result<std::unique_ptr<Pool>> Open(
      std::string_view address,
      std::chrono::milliseconds timeout = std::chrono::milliseconds(1000));
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Errors: kInvalid for names that are too long. A session may outlive the pool object.
  Result<std::unique_ptr<Session>> OpenSession(const SessionOptions& options);
  Result<PoolStat> Stat(std::chrono::milliseconds timeout = std::chrono::milliseconds(1000));
  // "embedded", "process" or "cluster".
  std::string_view form() const;
  // Tells every transport of this pool that calls will move bytes from and to this memory, so that
  // one whose device reads and writes by itself (RDMA) registers it once, and not with each call.
  // Never needed; TCP and shared memory cost the same without. The memory stays mapped, at its
  // place, until the last copy of what this returns is gone, which is when no transport knows it any
  // more; no call may use the memory then. It may outlive the pool. Thread-safe; takes as long as
  // the device does, so not for a hot path.
  // Errors: kInvalid for no memory, or memory that a device cannot reach; kLimit for too many
  // registrations. Then no transport has it, and calls work as they do without.
  Result<std::shared_ptr<void>> Register(std::span<std::byte> memory);
  // Memory is populated: puts meet no page faults any more.
  bool WaitPopulated(std::chrono::milliseconds timeout);

 private:
  explicit Pool(std::shared_ptr<pool::PoolImpl> impl);
  std::shared_ptr<pool::PoolImpl> impl_;
};

// $KVCOVE_SOCKET, or kvcove/kvcove.sock in $XDG_RUNTIME_DIR, or /tmp/kvcove-<uid>/kvcove.sock.
std::string DefaultSocketPath();

}  // namespace kvcove
