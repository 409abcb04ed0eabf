// SPDX-License-Identifier: Apache-2.0
// Backups of a control store, in the form of the file `control` (docs/control-store.md), and what
// is put in place of a store from one. docs/ha.md has the prose.
//
// A backup is older than what owners hold and know. What it says of generations, removals and
// barriers may have been overtaken, so a restored store begins a new incarnation: everything that
// is stored in the pool is void, and nothing older is ever found.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "kvcove/master/store/control_store.h"
#include "kvcove/master/store/etcd_leadership.h"
#include "kvcove/master/store/etcd_store.h"
#include "kvcove/master/store/file_system.h"

namespace kvcove::master {

struct Backup {
  Facts facts;
  std::uint64_t revision = 0;
};

std::string EncodeBackup(const Backup& backup);
// Errors: kCorrupt, kIncompatible; kInvalid when no pool is in it.
Result<Backup> ParseBackup(std::string_view bytes);
// Of a file. Errors: also kInvalid when it cannot be read; with its path.
Result<Backup> ReadBackup(const std::string& path);
// From the facts of `backup`: another incarnation, every slot free, numbers beyond those that may
// have been given since, and leases that may run. Errors: those of Decode.
Result<Backup> ToRestore(const Backup& backup);

// What a store holds now. A master may run meanwhile. Errors: kInvalid when there is no pool,
// kCorrupt.
Result<Backup> BackUpFile(const std::string& data_directory);
Result<Backup> BackUpEtcd(EtcdClient& client, std::int64_t deadline_ns, const Clock& clock);

struct RestoreOptions {
  bool replace = false;  // also where this pool's facts, or damaged ones, are
};
// Errors: kUnavailable while a master runs there, kExists without `replace`, kIncompatible where
// another pool is; the store's.
Status RestoreFile(const Backup& restored, const std::string& data_directory,
                   const RestoreOptions& options);
Status RestoreEtcd(const Backup& restored, EtcdClient& client, const RestoreOptions& options,
                   std::int64_t deadline_ns, const Clock& clock);

}  // namespace kvcove::master
