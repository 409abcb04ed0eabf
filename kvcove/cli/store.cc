// SPDX-License-Identifier: Apache-2.0
// `kvcove store`: backups of a control store.
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "kvcove/base/log.h"
#include "kvcove/base/size.h"
#include "kvcove/cli/command.h"
#include "kvcove/cli/store_options.h"
#include "kvcove/master/backup.h"

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

// Whole or not at all, and for this user alone: names of tenants are in it.
Status WriteWhole(const std::string& path, const std::string& bytes) {
  const std::string made = path + ".new";
  const UniqueFd fd(open(made.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd.valid()) return FailErrno(Code::kInvalid, fmt::format("'{}'", made));
  std::size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t count = write(fd.get(), bytes.data() + written, bytes.size() - written);
    if (count < 0) return FailErrno(Code::kUnavailable, fmt::format("writing '{}'", made));
    written += static_cast<std::size_t>(count);
  }
  if (fsync(fd.get()) != 0 || rename(made.c_str(), path.c_str()) != 0) {
    return FailErrno(Code::kUnavailable, fmt::format("writing '{}'", path));
  }
  return {};
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
  KVCOVE_TRY(WriteWhole(options.file, bytes));
  fmt::print("{} facts of revision {}, {}, in '{}'\n", backup.facts.size(), backup.revision,
             FormatSize(bytes.size()), options.file);
  return 0;
}

Result<int> RunRestore(const BackupOptions& options) {
  KVCOVE_TRY(CheckPlace(options));
  std::ifstream file(options.file, std::ios::binary);
  if (!file) return FailErrno(Code::kInvalid, fmt::format("'{}'", options.file));
  const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const auto backup = master::ParseBackup(bytes);
  if (!backup) {
    return Fail(backup.error().code,
                fmt::format("'{}' is no whole backup: {}", options.file, backup.error().detail));
  }
  KVCOVE_ASSIGN(const master::Backup restored, master::ToRestore(*backup));
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
             restored.facts.size(), backup->revision);
  return 0;
}

void AddPlace(CLI::App& command, BackupOptions& options) {
  command.add_option("file", options.file, "the backup")->required();
  CLI::Option* data =
      command.add_option("--data", options.data_directory, "the directory of a pool's only master");
  AddStoreOptions(command, options.store)->excludes(data);
}

}  // namespace

void AddStore(CLI::App& app, Action& chosen) {
  CLI::App* store =
      app.add_subcommand("store", "Back up what a pool's masters must not forget, or put it back.");
  store->require_subcommand(1);
  auto options = std::make_shared<BackupOptions>();
  CLI::App* backup = store->add_subcommand(
      "backup", "Write all facts of now into a file; masters may run meanwhile.");
  AddPlace(*backup, *options);
  backup->callback([options, &chosen] { chosen = [options] { return RunBackup(*options); }; });
  CLI::App* restore = store->add_subcommand(
      "restore",
      "Put a backup in place of a store that is lost or damaged, while no master runs. Whatever is "
      "stored in the pool is void afterwards: what happened since the backup is not known.");
  AddPlace(*restore, *options);
  restore->add_flag("--replace", options->replace, "also where facts of this pool are");
  restore->callback([options, &chosen] { chosen = [options] { return RunRestore(*options); }; });
}

}  // namespace kvcove::cli
