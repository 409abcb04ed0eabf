// SPDX-License-Identifier: Apache-2.0
// Where the master keeps what must survive it: pool and incarnation, terms, generations, members,
// barriers, reset ids. A small ordered map from keys to values with transactions and revisions;
// `FileStore` (master/store/file_store.h) keeps it in a file for one master and for the embedded
// pool, `EtcdStore` (master/store/etcd_store.h) in etcd for several masters. docs/control-store.md
// has the prose.
//
// A fact is durable before anybody learns of it: the master acts on a change only when `done` was
// called with a revision. A failed commit leaves no trace in this process's later life: after a
// restart it may be found or not, and nobody has been told either way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kvcove/base/result.h"

namespace kvcove::master {

// What a key has now, and the revision of the transaction that gave it.
struct Fact {
  std::string value;
  std::uint64_t revision = 0;
  bool operator==(const Fact&) const = default;
};

using Facts = std::map<std::string, Fact, std::less<>>;

// What one transaction does to one key.
struct FactChange {
  std::string key;
  std::optional<std::string> value;  // nothing: the key goes
  bool operator==(const FactChange&) const = default;
};

// Bounds of every store. Beyond them a commit fails with kLimit.
inline constexpr std::size_t kMaxFactKeyBytes = 256;
inline constexpr std::size_t kMaxFactValueBytes = 64 << 10;
inline constexpr std::size_t kMaxTransactionBytes = 4 << 20;  // as TransactionBytes counts

// Keys, values, and what a file needs beside them.
std::size_t TransactionBytes(const std::vector<FactChange>& changes);
// Errors: kLimit, with the key.
Status CheckTransaction(const std::vector<FactChange>& changes);
// Gives the changed keys this revision. Of two changes of one key, the later one counts.
void ApplyTransaction(std::vector<FactChange> changes, std::uint64_t revision, Facts& facts);

// Thread-safe.
class ControlStore {
 public:
  // The transaction's revision, or why it is not durable: kUnavailable (the disk or etcd refuses,
  // or hangs with too many commits behind it; this master does not lead), kLimit (keys or values
  // too large); kNoSpace, kDenied of etcd.
  using Done = std::function<void(Result<std::uint64_t> revision)>;

  virtual ~ControlStore() = default;

  // All of `changes`, or none. Transactions become durable in the order of the calls; revisions
  // grow by one with each. `done` is called exactly once, in that order, from the store's thread or
  // within this call, and never under a lock of the store; it may call Commit. It may come late: a
  // disk that hangs delays it, so each caller watches its own deadline. A commit that is refused
  // within the call is told so before older ones that still wait.
  virtual void Commit(std::vector<FactChange> changes, Done done) = 0;
};

}  // namespace kvcove::master
