// SPDX-License-Identifier: Apache-2.0
// Keeps the facts that must survive the master: pool and incarnation, terms, generations, members,
// barriers, reset ids. A small ordered map from keys to values with transactions and revisions;
// `FileStore` (master/store/file_store.h) keeps it in a file for one master and for the embedded
// pool, `EtcdStore` (master/etcd/etcd_store.h) in etcd for several masters. See
// docs/control-store.md.
//
// A fact is durable before any process learns of it: the master acts on a change only when `done`
// was called with a revision. A failed commit leaves no trace in this process; a restart may find
// the commit or not, and no process has acted on either.
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

// The value of a key, and the revision of the transaction that stored it.
struct Fact {
  std::string value;
  std::uint64_t revision = 0;
  bool operator==(const Fact&) const = default;
};

using Facts = std::map<std::string, Fact, std::less<>>;

// The change of one key in a transaction.
struct FactChange {
  std::string key;
  std::optional<std::string> value;  // nothing: deletes the key
  bool operator==(const FactChange&) const = default;
};

// Bounds of every store. Beyond them a commit fails with kLimit.
inline constexpr std::size_t kMaxFactKeyBytes = 256;
inline constexpr std::size_t kMaxFactValueBytes = 64 << 10;
// As TransactionBytes counts. All slots with the longest names fit: a reset, a prune or a start may
// write each of them, and half of a reset would be none.
inline constexpr std::size_t kMaxTransactionBytes = 8 << 20;

// Returns the bytes of keys and values, and of a file's fields beside them.
std::size_t TransactionBytes(const std::vector<FactChange>& changes);
// Checks the bounds. Errors: kLimit, with the key.
Status CheckTransaction(const std::vector<FactChange>& changes);
// Applies the changes, with this revision. If a key is changed twice, the later change counts.
void ApplyTransaction(std::vector<FactChange> changes, std::uint64_t revision, Facts& facts);

// Thread-safe.
class ControlStore {
 public:
  // Gets the transaction's revision, or the reason why it is not durable: kUnavailable (the disk or
  // etcd refuses, or hangs while too many commits wait; this master does not lead), kLimit (keys or
  // values too large); kNoSpace and kDenied from etcd.
  using Done = std::function<void(Result<std::uint64_t> revision)>;

  virtual ~ControlStore() = default;

  // Commits all of `changes`, or none. Transactions become durable in the order of the calls;
  // revisions grow by one with each. Calls `done` exactly once, in that order, from the store's
  // thread or within this call, and never under a lock of the store; `done` may call Commit. A disk
  // that hangs delays `done`, so each caller watches its own deadline. A commit that is refused
  // within the call gets its `done` before older ones that still wait.
  virtual void Commit(std::vector<FactChange> changes, Done done) = 0;
};

}  // namespace kvcove::master
