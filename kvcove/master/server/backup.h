// SPDX-License-Identifier: Apache-2.0
// Backups of a control store, in the form of the file `control` (docs/control-store.md), and their
// return to a store. See docs/ha.md.
//
// A backup is older than the owners' state. Its generations, removals and barriers may be out of
// date, so a restored store begins a new incarnation: every object in the pool is void, and no
// reader ever finds an older one.
#pragma once

#include <string>
#include <string_view>

#include "kvcove/master/etcd/etcd_store.h"
#include "kvcove/master/store/control_store.h"

namespace kvcove::master {

struct Backup {
  Facts facts;
  std::uint64_t revision = 0;
};

std::string EncodeBackup(const Backup& backup);
// Parses a backup. Errors: kCorrupt, kIncompatible; kInvalid when it has no pool.
Result<Backup> ParseBackup(std::string_view bytes);
// Reads a backup from a file. Errors, with the path: also kInvalid when the file cannot be read.
Result<Backup> ReadBackup(const std::string& path);
// Returns the facts to restore from `backup`: another incarnation, every slot free, counters and a
// term above all that may have been given since, and leases that may run. Errors: those of Decode,
// and kInvalid without a pool.
Result<Backup> ToRestore(const Backup& backup);

// Return a backup of a store's present facts. A master may run meanwhile. Errors: kInvalid when
// there is no pool, kCorrupt, kIncompatible; etcd's.
Result<Backup> BackUpFile(const std::string& data_directory);
Result<Backup> BackUpEtcd(EtcdClient& client, std::int64_t deadline_ns, const Clock& clock);

struct RestoreOptions {
  bool replace = false;  // replaces this pool's facts, or damaged ones, too
};
// Put `restored` in place of a store's facts. Errors: kUnavailable while a master runs there,
// kExists if facts are there and `replace` is false, kIncompatible for another pool's; the store's.
Status RestoreFile(const Backup& restored, const std::string& data_directory,
                   const RestoreOptions& options);
Status RestoreEtcd(const Backup& restored, EtcdClient& client, const RestoreOptions& options,
                   std::int64_t deadline_ns, const Clock& clock);

}  // namespace kvcove::master
