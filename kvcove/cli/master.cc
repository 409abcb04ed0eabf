// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include "kvcove/base/descriptors.h"
#include "kvcove/base/log.h"
#include "kvcove/cli/command.h"
#include "kvcove/master/admin.h"

namespace kvcove::cli {
namespace {

struct MasterOptions {
  std::string listen = "127.0.0.1:7400";
  std::string data_directory = "kvcove-master";
  std::string admin = "127.0.0.1:7480";
  SizeOption task_rate{"256MiB"};
  double member_ttl_s = 3600;
  std::uint64_t max_entries = master::MasterOptions().max_entries;
  std::uint64_t tenant_entries = 0;
  bool strict = false;
  SecurityOptions security;
  bool exit_with_parent = false;
};

Result<int> Run(const MasterOptions& options) {
  master::MasterServerOptions cluster;
  KVCOVE_ASSIGN(cluster.listen, ListenOption(options.listen, 7400, options.security));
  KVCOVE_ASSIGN(const SecurityOptions::Loaded security, options.security.Load());
  cluster.credentials = security.credentials;
  cluster.tls = security.tls;
  cluster.data_directory = options.data_directory;
  cluster.master.strict = options.strict;
  cluster.master.max_entries = options.max_entries;
  cluster.master.tenant_entries = options.tenant_entries;
  cluster.master.member_ttl_ns = static_cast<std::int64_t>(options.member_ttl_s * 1e9);
  KVCOVE_ASSIGN(const std::optional<rpc::Address> admin_address,
                AdminOption(options.admin, options.security));
  master::TaskOptions task_options;
  KVCOVE_ASSIGN(task_options.bytes_per_second, options.task_rate.Bytes("--task-rate"));
  RaiseDescriptorLimit();
  StopSignal stop;
  if (options.exit_with_parent && !stop.FollowParent()) return 0;
  KVCOVE_ASSIGN(auto master, master::MasterServer::Open(cluster, SystemClock::Instance()));
  auto tasks = std::make_unique<master::Tasks>(*master, task_options, SystemClock::Instance());
  std::unique_ptr<master::Admin> admin;
  if (admin_address) {
    KVCOVE_ASSIGN(
        admin, master::Admin::Open(*master, *tasks,
                                   {.listen = *admin_address, .credentials = security.credentials},
                                   SystemClock::Instance()));
  }
  LogInfo("master at {} (data in '{}', admin {})", master->address().ToString(),
          options.data_directory, admin ? "http://" + admin->address().ToString() : "off");
  stop.Wait();
  admin.reset();
  tasks.reset();
  master.reset();
  LogInfo("stopped");
  return 0;
}

}  // namespace

void AddMaster(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<MasterOptions>();
  CLI::App* master = app.add_subcommand(
      "master", "Run the master of a cluster: who the owners are, where keys are, resets.");
  master->add_option("--listen", options->listen, "where owners and requesters reach it, host:port")
      ->capture_default_str();
  master
      ->add_option("--data", options->data_directory,
                   "where generations, members and barriers are kept")
      ->capture_default_str();
  master
      ->add_option("--member-ttl", options->member_ttl_s,
                   "seconds after which an owner that is away is no member any more")
      ->check(CLI::Range(10.0, 30.0 * 24 * 3600))
      ->capture_default_str();
  master
      ->add_option("--max-entries", options->max_entries,
                   "how many objects and replicas the directory holds, at 67 to 94 bytes each")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  master
      ->add_option("--tenant-entries", options->tenant_entries,
                   "how many of them one tenant may have; 0: a quarter")
      ->capture_default_str();
  master->add_flag("--strict", options->strict,
                   "only owners' acknowledgements prove a reset or a removal, never a lease that "
                   "ran out: for virtual machines that may be paused or migrated");
  master->add_option("--admin", options->admin, "the admin endpoint's host:port, or off")
      ->capture_default_str();
  master
      ->add_option("--task-rate", options->task_rate.text,
                   "how many bytes a second drains, copies and repairs may move")
      ->capture_default_str();
  AddSecurityOptions(*master, options->security);
  master->add_flag("--exit-with-parent", options->exit_with_parent)->group("")->configurable(false);
  master->callback([options, &chosen] { chosen = [options] { return Run(*options); }; });
}

}  // namespace kvcove::cli
