// SPDX-License-Identifier: Apache-2.0
// The public C++ API.
//
//   auto pool = kvcove::Pool::Open("embedded:?memory=4GiB");  // "unix:/path", "kvcove://host:7400"
//   auto session = (*pool)->OpenSession({.name = "acme/llama@5f3a/fp8"});
//   auto token = (*session)->Capture({});          // when the request is first scheduled
//   (*session)->Put(*token, items, results, {});   // refused if a reset came in between
//   (*session)->Get(wanted, results, {});          // whole values, or misses with a reason
//   (*session)->Reset({});                         // nothing from before is ever found again
//
// kvcove/requester/session.h says what each call of a session does, costs and fails with;
// kvcove/requester/completion.h how asynchronous calls end. Thread-safe throughout. Every call ends
// by its timeout. After fork(2) the child must open a pool of its own. Errors are values
// (kvcove/base/result.h); nothing throws. Sizes are in bytes. docs/cpp.md says how to build with it
// and what stays stable.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kvcove/base/export.h"
#include "kvcove/base/result.h"
#include "kvcove/requester/completion.h"
#include "kvcove/requester/session.h"
#include "kvcove/requester/types.h"

namespace kvcove {

namespace pool {
class Connection;
}  // namespace pool

// One way to one pool. An engine opens one; sessions share it. Thread-safe.
class KVCOVE_API Pool {
 public:
  // Addresses:
  //   embedded:?memory=4GiB   in this process; also granule=, policy=, max_objects=, populate=0|1,
  //                           huge_pages=auto|require|off (else $KVCOVE_HUGE_PAGES, else auto)
  //   unix:/path/of/socket    the daemon of this host (`kvcove serve`); also warm=off|all|SIZE (how
  //                           much of its memory this process maps beforehand, in the background;
  //                           else $KVCOVE_WARM, else 32GiB)
  //   kvcove://host:7400      a cluster, by its master, by all of several
  //   (kvcove://h1:7400,h2:7400)
  //                           or by their store (kvcove://etcd://e1:2379,e2:2379/PREFIX, for
  //                           which server/etcd_masters.h is needed), which says who leads
  //                           (docs/ha.md); also local=0|1 (use this host's owner
  //                           directly), owner=HOST:PORT (that one, where a host has several),
  //                           checksum=0|1 (of what crosses the network),
  //                           placement=local-first|free-ratio-first|random, token=FILE (else
  //                           $KVCOVE_TOKEN), tls_authority=, tls_certificate=, tls_key=FILE (else
  //                           $KVCOVE_TLS_AUTHORITY, ..._CERTIFICATE, ..._KEY),
  //                           warm= as above, of this host's owner; transport=tcp|auto|verbs (how
  //                           payload of registered memory moves: auto and verbs by RDMA, with
  //                           devices=mlx5_0,mlx5_1 those, else any; rdma_plaintext=1 also where
  //                           TLS protects the rest; both only beside transport=), else tcp
  //                           (docs/rdma.md)
  //   auto                    the pool that $KVCOVE_POOL names; else the daemon at the default
  //                           socket, if a process listens there; else embedded (auto?memory=... as
  //                           above)
  // Opens the pool that the address names, within `timeout`. A pool that loses its connection later
  // connects again by itself; until then calls are misses or kUnavailable. Starts threads: do not
  // fork after it. Errors: kInvalid for an address or size that is malformed or that the host
  // cannot give; kUnavailable (no answer), kDenied, kIncompatible, kTimeout.
  static Result<std::unique_ptr<Pool>> Open(
      std::string_view address,
      std::chrono::milliseconds timeout = std::chrono::milliseconds(1000));
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Opens a session, which may outlive the pool object. This is no hot path: keep the session for
  // as long as the engine runs. Errors: kInvalid for names that are too long (kMaxNameBytes) or
  // hold control characters, and for options that the pool cannot follow; kUnavailable in a forked
  // child.
  Result<SessionPtr> OpenSession(const SessionOptions& options);
  // Returns statistics: the sum over this host's owners; in a cluster the sum over all live owners,
  // of memory and objects only, as the master knows them. Errors: kUnavailable, kTimeout, kDenied.
  Result<PoolStat> Stat(std::chrono::milliseconds timeout = std::chrono::milliseconds(1000));
  // Returns the settings that the master has sent last; makes no call.
  PoolSettings Settings() const;
  // Returns "embedded", "process" or "cluster".
  std::string_view form() const;
  // Registers memory from and to which calls will move bytes with every transport of this pool, so
  // that one whose device reads and writes by itself (RDMA) registers it once, and not with each
  // call. Never needed; TCP and shared memory cost the same without. The memory must remain mapped,
  // at its address, until the last copy of the result is gone, and no call may use it when that
  // ends. The result may outlive the pool. Takes as long as the device does: not for a hot path.
  // Errors: kInvalid for no memory, or memory that a device cannot reach; kLimit for too many
  // registrations. No transport has the memory then, and calls work as they do without.
  Result<std::shared_ptr<void>> Register(std::span<std::byte> memory);
  // Waits until the memory is populated, so that puts meet no page faults any more. False: it was
  // not by the timeout, or the pool did not answer. For start-up and for benchmarks.
  bool WaitPopulated(std::chrono::milliseconds timeout);

 private:
  KVCOVE_INTERNAL explicit Pool(std::unique_ptr<pool::Connection> connection);
  // Returns kUnavailable in a forked child.
  KVCOVE_INTERNAL Status CheckProcess() const;

  const unsigned forks_;
  std::unique_ptr<pool::Connection> connection_;
};

// Returns $KVCOVE_SOCKET, or kvcove/kvcove.sock in $XDG_RUNTIME_DIR where that is absolute, or
// /tmp/kvcove-<uid>/kvcove.sock.
KVCOVE_API std::string DefaultSocketPath();

}  // namespace kvcove
