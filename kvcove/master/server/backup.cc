// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/server/backup.h"

#include <fmt/core.h>

#include <fstream>
#include <iterator>

#include "kvcove/base/log.h"
#include "kvcove/master/store/control_format.h"
#include "kvcove/master/store/facts.h"

namespace kvcove::master {
namespace {

// More than a pool uses up between a backup and its return.
constexpr std::uint64_t kCounterJump = 1ULL << 30;
constexpr std::uint64_t kTermJump = 4096;

Result<PoolFact> PoolIn(const Facts& facts) {
  KVCOVE_ASSIGN(const StoredState state, Decode(facts));
  if (!state.pool) return Fail(Code::kInvalid, "there is no pool in it");
  return *state.pool;
}

// Returns Ok if a restore may replace the contents of its place. `found`: these; an error: damage.
Status MayReplace(const Result<Backup>& found, const Backup& restored, std::string_view where,
                  const RestoreOptions& options) {
  if (!found && found.error().code == Code::kIncompatible) {
    return std::unexpected(found.error());
  }
  if (found) {
    if (found->facts.empty()) return {};
    KVCOVE_ASSIGN(const PoolFact now, PoolIn(found->facts));
    KVCOVE_ASSIGN(const PoolFact then, PoolIn(restored.facts));
    if (now.pool != then.pool) {
      return Fail(Code::kIncompatible,
                  fmt::format("{} is of another pool ({}) than the backup ({})", where,
                              ToHex(now.pool), ToHex(then.pool)));
    }
  }
  if (options.replace) return {};
  return Fail(Code::kExists,
              found ? fmt::format("{} holds this pool already, at revision {}; --replace puts the "
                                  "backup of revision {} in its place, and everything that is "
                                  "stored in the pool is void",
                                  where, found->revision, restored.revision)
                    : fmt::format("{} cannot be read ({}); --replace puts the backup in its place",
                                  where, found.error().detail));
}

Result<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return FailErrno(Code::kInvalid, fmt::format("'{}'", path));
  return std::string{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

std::string EncodeBackup(const Backup& backup) {
  return EncodeControl(backup.facts, backup.revision, /*file_number=*/1);
}

Result<Backup> ParseBackup(std::string_view bytes) {
  KVCOVE_ASSIGN(ControlImage image, ParseControl(bytes));
  Backup backup{.facts = std::move(image.facts), .revision = image.revision};
  KVCOVE_TRY(PoolIn(backup.facts));
  return backup;
}

Result<Backup> ReadBackup(const std::string& path) {
  KVCOVE_ASSIGN(const std::string bytes, ReadFile(path));
  auto backup = ParseBackup(bytes);
  if (backup) return backup;
  return Fail(backup.error().code,
              fmt::format("'{}' is no whole backup: {}", path, backup.error().detail));
}

Result<Backup> ToRestore(const Backup& backup) {
  KVCOVE_ASSIGN(StoredState state, Decode(backup.facts));
  if (!state.pool) return Fail(Code::kInvalid, "there is no pool in it");
  Backup restored{.facts = backup.facts, .revision = backup.revision + 1};
  std::vector<FactChange> changes;
  PoolFact pool = *state.pool;
  pool.incarnation = RandomId();
  pool.counter += kCounterJump;
  // Owners that joined after the backup may hold leases, and the restored store does not know them.
  pool.clean_end = false;
  pool.unknown_leases = true;
  changes.push_back({.key = std::string(kPoolKey), .value = Encode(pool)});
  std::vector<TermFact> terms = std::move(state.terms);
  terms.push_back({.term = (terms.empty() ? 0 : terms.back().term) + kTermJump,
                   .tag = RandomU64(),
                   .first_revision = restored.revision});
  if (terms.size() > kTermsKept) terms.erase(terms.begin());
  changes.push_back({.key = std::string(kTermsKey), .value = Encode(terms)});
  for (const StoredState::Slot& slot : state.slots) {
    const SlotFact free{.generation = slot.fact.generation, .free = true};
    changes.push_back({.key = SlotKey(slot.slot), .value = Encode(free)});
  }
  ApplyTransaction(std::move(changes), restored.revision, restored.facts);
  return restored;
}

// Reads the file as a start would. A batch that a master appends meanwhile counts as cut short. A
// rewrite renames a whole file, so the read gets the old one or the new one.
Result<Backup> BackUpFile(const std::string& data_directory) {
  KVCOVE_ASSIGN(const std::string bytes, ReadFile(data_directory + "/control"));
  auto backup = ParseBackup(bytes);
  if (backup) return backup;
  return Fail(backup.error().code,
              fmt::format("'{}/control': {}", data_directory, backup.error().detail));
}

Result<Backup> BackUpEtcd(EtcdClient& client, std::int64_t deadline_ns, const Clock& clock) {
  auto snapshot = ReadSnapshot(client, EtcdStoreOptions().page, deadline_ns, clock);
  if (!snapshot) return std::unexpected(client.Explain(snapshot.error(), deadline_ns));
  KVCOVE_ASSIGN(EtcdImage image, ReadImage(snapshot->keys, client.options().place.prefix));
  if (!image.found) {
    return Fail(Code::kInvalid,
                fmt::format("there is no pool at '{}'", client.options().place.ToString()));
  }
  return Backup{.facts = std::move(image.facts), .revision = image.head.revision};
}

Status RestoreFile(const Backup& restored, const std::string& data_directory,
                   const RestoreOptions& options) {
  KVCOVE_ASSIGN(const std::unique_ptr<PosixFileSystem> disk, PosixFileSystem::Open(data_directory));
  KVCOVE_ASSIGN(const std::optional<std::string> now, disk->Read("control"));
  if (now) {
    const std::string where = fmt::format("'{}'", disk->PathOf("control"));
    KVCOVE_TRY(MayReplace(ParseBackup(*now), restored, where, options));
    KVCOVE_TRY(disk->Write("control.before-restore", *now));
  }
  const std::string bytes = EncodeBackup(restored);
  KVCOVE_TRY(disk->Write("control.new", bytes));
  return disk->Rename("control.new", "control");
}

Status RestoreEtcd(const Backup& restored, EtcdClient& client, const RestoreOptions& options,
                   std::int64_t deadline_ns, const Clock& clock) {
  KVCOVE_TRY(client.CheckEndpoints(deadline_ns));
  std::optional<EtcdLeader> leader;
  const EtcdLeader self{.address = "kvcove store restore"};
  KVCOVE_ASSIGN(const std::shared_ptr<EtcdLeadership> leadership,
                EtcdLeadership::Campaign(client, self, {}, clock, deadline_ns, leader));
  if (leadership == nullptr) {
    return Fail(Code::kUnavailable,
                fmt::format("the master at {} leads this pool; stop all masters first, and wait "
                            "2 s if they were killed",
                            leader ? leader->address : "another address"));
  }
  KVCOVE_ASSIGN(const EtcdSnapshot snapshot,
                ReadSnapshot(client, EtcdStoreOptions().page, deadline_ns, clock));
  Result<EtcdImage> image = ReadImage(snapshot.keys, client.options().place.prefix);
  const Result<Backup> found =
      image ? Result<Backup>(Backup{.facts = image->facts, .revision = image->head.revision})
            : Result<Backup>(std::unexpected(image.error()));
  KVCOVE_TRY(
      MayReplace(found, restored, fmt::format("'{}'", client.options().place.ToString()), options));
  return EtcdStore::Replace(leadership, snapshot, restored.facts, restored.revision, clock);
}

}  // namespace kvcove::master
