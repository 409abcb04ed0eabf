// SPDX-License-Identifier: Apache-2.0
// `kvcove store`: backups of a control store.
#include <fmt/core.h>

#include <filesystem>

#include "kvcove/base/durable_file.h"
#include "kvcove/base/size.h"
#include "kvcove/cli/command.h"
#include "kvcove/cli/store_options.h"
#include "kvcove/master/server/backup.h"

namespace kvcove::cli {
namespace {

constexpr std::int64_t kStoreNs = 120 * kSecond;

struct BackupOptions {
  std::string file;
  std::string data_directory;
  StoreOptions store;
  bool replace = false;
};

Status CheckPlace(const BackupOptions& options) {
  if (options.data_directory.empty() != options.store.place.empty()) return {};
  return Fail(Code::kInvalid,
              "say where the facts are: --data, a master's directory, or --store etcd://...");
}

Result<master::Backup> Take(const BackupOptions& options) {
  if (options.store.place.empty()) return master::BackUpFile(options.data_directory);
  KVCOVE_ASSIGN(const master::EtcdOptions etcd, options.store.Etcd());
  const Clock& clock = SystemClock::Instance();
  master::EtcdClient client(etcd, clock);
  return master::BackUpEtcd(client, clock.NowNs() + kStoreNs, clock);
}

Result<int> RunBackup(const BackupOptions& options) {
  KVCOVE_TRY(CheckPlace(options));
  KVCOVE_ASSIGN(const master::Backup backup, Take(options));
  const std::string bytes = master::EncodeBackup(backup);
  // For this user alone: names of tenants are in it.
  const std::filesystem::path file = std::filesystem::absolute(options.file);
  KVCOVE_TRY(ReplaceFile(file.parent_path(), file.filename(), bytes));
  fmt::print("{} facts of revision {}, {}, in '{}'\n", backup.facts.size(), backup.revision,
             FormatSize(bytes.size()), options.file);
  return 0;
}

Result<int> RunRestore(const BackupOptions& options) {
  KVCOVE_TRY(CheckPlace(options));
  KVCOVE_ASSIGN(const master::Backup backup, master::ReadBackup(options.file));
  KVCOVE_ASSIGN(const master::Backup restored, master::ToRestore(backup));
  const master::RestoreOptions how{.replace = options.replace};
  if (options.store.place.empty()) {
    KVCOVE_TRY(master::RestoreFile(restored, options.data_directory, how));
  } else {
    KVCOVE_ASSIGN(const master::EtcdOptions etcd, options.store.Etcd());
    const Clock& clock = SystemClock::Instance();
    master::EtcdClient client(etcd, clock);
    KVCOVE_TRY(master::RestoreEtcd(restored, client, how, clock.NowNs() + kStoreNs, clock));
  }
  fmt::print("{} facts of revision {} are back; everything that was stored in the pool is void\n",
             restored.facts.size(), backup.revision);
  return 0;
}

void AddPlace(CLI::App& command, BackupOptions& options) {
  command.add_option("file", options.file, "file of the backup")->required();
  CLI::Option* data =
      command.add_option("--data", options.data_directory, "directory of a pool's only master");
  AddStoreOptions(command, options.store)->excludes(data);
}

}  // namespace

void AddStore(CLI::App& app, Action& chosen) {
  CLI::App* store =
      app.add_subcommand("store", "Back up the control store of a pool's masters, or restore it.");
  store->require_subcommand(1);
  auto options = std::make_shared<BackupOptions>();
  CLI::App* backup = store->add_subcommand(
      "backup", "Write all facts of the store into a file; masters may run meanwhile.");
  AddPlace(*backup, *options);
  backup->callback([options, &chosen] { chosen = [options] { return RunBackup(*options); }; });
  CLI::App* restore = store->add_subcommand(
      "restore",
      "Restore a backup in place of a store that is lost or damaged, while no master runs. All "
      "values in the pool are void afterwards, because changes since the backup are not known.");
  AddPlace(*restore, *options);
  restore->add_flag("--replace", options->replace,
                    "restore also into a store that has facts of this pool");
  restore->callback([options, &chosen] { chosen = [options] { return RunRestore(*options); }; });
}

}  // namespace kvcove::cli
