// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include "kvcove/base/descriptors.h"
#include "kvcove/base/host/virtual_machine.h"
#include "kvcove/base/log.h"
#include "kvcove/cli/command.h"
#include "kvcove/cli/container.h"
#include "kvcove/cli/service_manager.h"
#include "kvcove/cli/store_options.h"
#include "kvcove/master/server/admin.h"
#include "kvcove/master/server/server.h"
#include "kvcove/master/server/tasks.h"
#include "kvcove/server/elected_master.h"

namespace kvcove::cli {
namespace {

struct MasterOptions {
  std::string listen = "127.0.0.1:7400";
  std::string data_directory = "kvcove-master";
  std::string admin = "127.0.0.1:7480";
  std::string announced_admin;
  std::string metrics = "off";
  double read_hold_s = 0;
  SizeOption task_rate{"256MiB"};
  double member_ttl_s = 3600;
  std::uint64_t max_entries = master::MasterOptions().max_entries;
  std::uint64_t tenant_entries = 0;
  bool strict = false;
  std::string shards = "auto";
  SecurityOptions security;
  LimitOptions limits{master::MasterServerOptions().limits};
  StoreOptions store;
  std::string advertise;
  bool take_over = false;
  bool exit_with_parent = false;
};

Result<master::MasterServerOptions> ServerOptionsOf(const MasterOptions& options,
                                                    const SecurityOptions::Loaded& security) {
  master::MasterServerOptions cluster;
  KVCOVE_ASSIGN(cluster.listen, ListenOption(options.listen, 7400, options.security));
  cluster.credentials = security.credentials;
  cluster.tls = security.tls;
  cluster.data_directory = options.data_directory;
  KVCOVE_ASSIGN(cluster.limits, options.limits.Load());
  cluster.settings = {.read_hold_ms = static_cast<std::uint64_t>(options.read_hold_s * 1000),
                      .admin = options.announced_admin};
  if (options.strict && options.shards == "on") {
    return Fail(Code::kInvalid,
                "--shards on does not go with --strict: another master serves a lost shard's part "
                "when its lease is over by the clock, which --strict does not believe");
  }
  cluster.master.strict = options.strict;
  const bool shards = options.shards == "on" || (options.shards == "auto" && !options.strict);
  cluster.master.shards = shards && !options.store.place.empty();
  cluster.master.max_entries = options.max_entries;
  cluster.master.tenant_entries = options.tenant_entries;
  cluster.master.member_ttl_ns = static_cast<std::int64_t>(options.member_ttl_s * 1e9);
  return cluster;
}

Result<master::TaskOptions> TaskOptionsOf(const MasterOptions& options) {
  master::TaskOptions tasks;
  KVCOVE_ASSIGN(tasks.bytes_per_second, options.task_rate.Bytes("--task-rate"));
  return tasks;
}

// Where the other masters send clients; empty: to `listen`.
Result<std::string> Advertised(const MasterOptions& options, const rpc::Address& listen) {
  if (!options.advertise.empty()) {
    KVCOVE_ASSIGN(const rpc::Address advertised, rpc::ParseAddress(options.advertise, 7400));
    return advertised.ToString();
  }
  if (listen.host != "0.0.0.0" && listen.host != "::") return std::string();
  return Fail(Code::kInvalid,
              fmt::format("--listen {}: say with --advertise HOST:PORT how clients reach this "
                          "master; the other masters send them there",
                          options.listen));
}

// The option is the master's, and matters where readers run: on machines like this one, as a rule.
void SayMachine(const MasterOptions& options) {
  const std::optional<std::string> known = VirtualMachine();
  if (!known || options.strict) return;
  LogInfo(
      "this machine is a virtual one ({}): while a machine with readers is paused or migrated, "
      "its leases stand still, and they may read what a reset voids meanwhile for up to a second "
      "after it. --strict excludes that: only acknowledgements prove a reset then",
      *known);
}

// One of several masters.
Result<int> RunElected(const MasterOptions& options, const SecurityOptions::Loaded& security) {
  server::ElectedMasterOptions elected;
  elected.announced_admin = options.announced_admin;
  KVCOVE_ASSIGN(elected.server, ServerOptionsOf(options, security));
  elected.server.data_directory.clear();
  KVCOVE_ASSIGN(elected.tasks, TaskOptionsOf(options));
  KVCOVE_ASSIGN(elected.advertise, Advertised(options, elected.server.listen));
  KVCOVE_ASSIGN(elected.admin, AdminOption(options.admin, options.security));
  KVCOVE_ASSIGN(elected.metrics, MetricsOption(options.metrics, options.security));
  KVCOVE_ASSIGN(elected.etcd, options.store.Etcd());
  RaiseDescriptorLimit();
  StopSignal stop(security);
  if (options.exit_with_parent && !StopSignal::FollowParent()) return 0;
  KVCOVE_ASSIGN(auto master, server::ElectedMaster::Open(elected, SystemClock::Instance()));
  LogInfo("one of several masters at {} (store {}, admin {})", master->address().ToString(),
          elected.etcd.place.ToString(),
          master->admin() ? "http://" + master->admin()->ToString() : "off");
  if (elected.metrics) LogMetrics(*elected.metrics, security);
  SayMachine(options);
  ServiceManager manager;
  manager.Ready();
  stop.Wait();
  manager.Stopping();
  master.reset();
  LogInfo("stopped");
  return 0;
}

Result<int> Run(const MasterOptions& options) {
  if (options.take_over) {
    return Fail(Code::kInvalid,
                "--take-over: a master is not taken over any more. Run several, so that a standby "
                "leads while one is replaced (docs/ha.md), or stop this one and start it again "
                "with its --data (docs/control-store.md)");
  }
  KVCOVE_ASSIGN(const SecurityOptions::Loaded security, options.security.Load());
  if (!options.store.place.empty()) return RunElected(options, security);
  KVCOVE_ASSIGN(const master::MasterServerOptions server_options,
                ServerOptionsOf(options, security));
  KVCOVE_ASSIGN(const master::TaskOptions task_options, TaskOptionsOf(options));
  KVCOVE_ASSIGN(const std::optional<rpc::Address> admin_address,
                AdminOption(options.admin, options.security));
  KVCOVE_ASSIGN(const std::optional<rpc::Address> metrics_address,
                MetricsOption(options.metrics, options.security));
  RaiseDescriptorLimit();
  StopSignal stop(security);
  if (options.exit_with_parent && !StopSignal::FollowParent()) return 0;
  KVCOVE_ASSIGN(auto master, master::MasterServer::Open(server_options, SystemClock::Instance()));
  auto tasks = std::make_unique<master::Tasks>(*master, task_options, SystemClock::Instance());
  KVCOVE_TRY(tasks->Begin());
  std::unique_ptr<master::Admin> admin;
  if (admin_address || metrics_address) {
    KVCOVE_ASSIGN(admin, master::Admin::Open(*master, *tasks,
                                             {.listen = admin_address,
                                              .metrics = metrics_address,
                                              .credentials = security.credentials,
                                              .tls = security.tls},
                                             SystemClock::Instance()));
    if (metrics_address) LogMetrics(admin->metrics_address(), security);
    if (admin_address && options.announced_admin.empty()) {
      master->SetAdmin(admin->address().ToString());
    }
  }
  WarnOfContainer({.role = Role::kMaster, .data = options.data_directory});
  LogInfo("master at {} (data in '{}', admin {})", master->address().ToString(),
          options.data_directory, admin_address ? "http://" + admin->address().ToString() : "off");
  SayMachine(options);
  ServiceManager manager;
  manager.Ready();
  stop.Wait();
  manager.Stopping();
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
      "master",
      "Run the master of a cluster, which knows the owners, finds keys and makes resets.");
  master
      ->add_option("--listen", options->listen,
                   "host:port at which owners and requesters reach the master")
      ->capture_default_str();
  CLI::Option* data = master
                          ->add_option("--data", options->data_directory,
                                       "directory of the generations, members and barriers")
                          ->capture_default_str();
  AddStoreOptions(*master, options->store)->excludes(data);
  master->add_option(
      "--advertise", options->advertise,
      "with --store: host:port at which clients reach this master (default: --listen)");
  master
      ->add_option("--member-ttl", options->member_ttl_s,
                   "seconds after which an absent owner is no member any more")
      ->check(CLI::Range(10.0, 30.0 * 24 * 3600))
      ->capture_default_str();
  master
      ->add_option(
          "--max-entries", options->max_entries,
          "most objects and replicas in the directory of all masters together, at 67 to 94 "
          "bytes each")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  master
      ->add_option("--tenant-entries", options->tenant_entries,
                   "most objects and replicas of one tenant in the directory; 0: a quarter")
      ->capture_default_str();
  master->add_flag(
      "--strict", options->strict,
      "prove a reset or a removal only by owners' acknowledgements, never by a lease that "
      "ran out: for virtual machines that may be paused or migrated");
  master
      ->add_option(
          "--shards", options->shards,
          "with --store: let the masters that do not lead serve parts of the directory; must "
          "be equal at all masters: on, off or auto (on, but not with --strict; docs/ha.md)")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
  master->add_option("--metrics", options->metrics, kMetricsHelp)->capture_default_str();
  master->add_option("--admin", options->admin, "host:port of the admin endpoint, or off")
      ->capture_default_str();
  master->add_option(
      "--announce-admin", options->announced_admin,
      "host:port of the admin endpoint that is announced to clients (default: --admin)");
  master
      ->add_option("--read-hold", options->read_hold_s,
                   "seconds for which stores of mooncake.store hold values that they have read; 0: "
                   "as they like")
      ->check(CLI::Range(0.0, 24.0 * 3600))
      ->capture_default_str();
  master
      ->add_option("--task-rate", options->task_rate.text,
                   "bytes a second that drains, copies and repairs may move")
      ->capture_default_str();
  AddSecurityOptions(*master, options->security);
  AddLimitOptions(*master, options->limits);
  master->add_flag("--take-over", options->take_over)->group("")->configurable(false);
  master->add_flag("--exit-with-parent", options->exit_with_parent)->group("")->configurable(false);
  master->callback([options, &chosen] { chosen = [options] { return Run(*options); }; });
}

}  // namespace kvcove::cli
