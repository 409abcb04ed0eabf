// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include "kvcove/base/descriptors.h"
#include "kvcove/base/log.h"
#include "kvcove/base/virtual_machine.h"
#include "kvcove/cli/command.h"
#include "kvcove/cli/service_manager.h"
#include "kvcove/cli/store_options.h"
#include "kvcove/master/server/admin.h"
#include "kvcove/pool/elected_master.h"
#include "kvcove/pool/master_process.h"
#include "kvcove/rpc/inherited.h"

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

Result<pool::MasterProcessOptions> ProcessOptionsOf(const MasterOptions& options,
                                                    const SecurityOptions::Loaded& security) {
  pool::MasterProcessOptions process;
  master::MasterServerOptions& cluster = process.server;
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
  KVCOVE_ASSIGN(process.tasks.bytes_per_second, options.task_rate.Bytes("--task-rate"));
  process.take_over = options.take_over;
  process.on_taken_over = [](std::int32_t pid) {
    LogInfo("process {} has taken over; this one ends", pid);
    NotifySuccessor(pid);
    // No destructor runs: the data directory and the sockets are the other process's.
    std::_Exit(0);
  };
  return process;
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
  if (options.take_over) {
    return Fail(Code::kInvalid,
                "--take-over is for the only master of a pool; of several, stop one and start it "
                "again: another one leads meanwhile");
  }
  pool::ElectedMasterOptions elected;
  elected.announced_admin = options.announced_admin;
  KVCOVE_ASSIGN(elected.process, ProcessOptionsOf(options, security));
  elected.process.server.data_directory.clear();
  KVCOVE_ASSIGN(elected.advertise, Advertised(options, elected.process.server.listen));
  KVCOVE_ASSIGN(elected.admin, AdminOption(options.admin, options.security));
  KVCOVE_ASSIGN(elected.metrics, MetricsOption(options.metrics, options.security));
  KVCOVE_ASSIGN(elected.etcd, options.store.Etcd());
  RaiseDescriptorLimit();
  StopSignal stop(security);
  if (options.exit_with_parent && !StopSignal::FollowParent()) return 0;
  KVCOVE_ASSIGN(auto master, pool::ElectedMaster::Open(elected, SystemClock::Instance()));
  LogInfo("one of several masters at {} (store {}, admin {})", master->address().ToString(),
          elected.etcd.place.ToString(),
          master->admin() ? "http://" + master->admin()->ToString() : "off");
  if (elected.metrics) LogMetrics(*elected.metrics, security);
  SayMachine(options);
  NotifyReady();
  stop.Wait();
  master.reset();
  LogInfo("stopped");
  return 0;
}

Result<int> Run(const MasterOptions& options) {
  KVCOVE_ASSIGN(const SecurityOptions::Loaded security, options.security.Load());
  if (!options.store.place.empty()) return RunElected(options, security);
  KVCOVE_ASSIGN(const pool::MasterProcessOptions process_options,
                ProcessOptionsOf(options, security));
  KVCOVE_ASSIGN(const std::optional<rpc::Address> admin_address,
                AdminOption(options.admin, options.security));
  KVCOVE_ASSIGN(const std::optional<rpc::Address> metrics_address,
                MetricsOption(options.metrics, options.security));
  RaiseDescriptorLimit();
  StopSignal stop(security);
  if (options.exit_with_parent && !StopSignal::FollowParent()) return 0;
  KVCOVE_ASSIGN(auto process, pool::MasterProcess::Open(process_options, SystemClock::Instance()));
  master::MasterServer& master = process->server();
  std::unique_ptr<master::Admin> admin;
  if (admin_address || metrics_address) {
    auto opened = master::Admin::Open(master, process->tasks(),
                                      {.listen = admin_address,
                                       .metrics = metrics_address,
                                       .credentials = security.credentials,
                                       .tls = security.tls},
                                      SystemClock::Instance());
    // The process that was taken over has ended: too late to refuse anything.
    if (!opened && !options.take_over) return std::unexpected(opened.error());
    if (!opened) LogError("no admin endpoint: {}", opened.error().ToString());
    if (opened) admin = std::move(*opened);
    if (admin && metrics_address) LogMetrics(admin->metrics_address(), security);
    if (admin && admin_address && options.announced_admin.empty()) {
      master.SetAdmin(admin->address().ToString());
    }
  }
  rpc::DropInherited();
  LogInfo("master at {} (data in '{}', admin {})", master.address().ToString(),
          options.data_directory,
          admin && admin_address ? "http://" + admin->address().ToString() : "off");
  SayMachine(options);
  NotifyReady();
  stop.Wait();
  admin.reset();
  process.reset();
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
  CLI::Option* data = master
                          ->add_option("--data", options->data_directory,
                                       "where generations, members and barriers are kept")
                          ->capture_default_str();
  AddStoreOptions(*master, options->store)->excludes(data);
  master->add_option("--advertise", options->advertise,
                     "with --store: how clients reach this master, host:port; else --listen");
  master
      ->add_option("--member-ttl", options->member_ttl_s,
                   "seconds after which an owner that is away is no member any more")
      ->check(CLI::Range(10.0, 30.0 * 24 * 3600))
      ->capture_default_str();
  master
      ->add_option("--max-entries", options->max_entries,
                   "how many objects and replicas the directory holds, at 67 to 94 bytes each; "
                   "all masters together")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  master
      ->add_option("--tenant-entries", options->tenant_entries,
                   "how many of them one tenant may have; 0: a quarter")
      ->capture_default_str();
  master->add_flag("--strict", options->strict,
                   "only owners' acknowledgements prove a reset or a removal, never a lease that "
                   "ran out: for virtual machines that may be paused or migrated");
  master
      ->add_option("--shards", options->shards,
                   "with --store: whether the masters that do not lead serve parts of the "
                   "directory; the same at all of them. auto: on, but not with --strict "
                   "(docs/ha.md)")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
  master->add_option("--metrics", options->metrics, kMetricsHelp)->capture_default_str();
  master->add_option("--admin", options->admin, "the admin endpoint's host:port, or off")
      ->capture_default_str();
  master->add_option("--announce-admin", options->announced_admin,
                     "host:port of the admin endpoint that clients are told; else --admin");
  master
      ->add_option(
          "--read-hold", options->read_hold_s,
          "seconds for which stores of mooncake.store hold what they read; 0: as they like")
      ->check(CLI::Range(0.0, 24.0 * 3600))
      ->capture_default_str();
  master
      ->add_option("--task-rate", options->task_rate.text,
                   "how many bytes a second drains, copies and repairs may move")
      ->capture_default_str();
  AddSecurityOptions(*master, options->security);
  AddLimitOptions(*master, options->limits);
  master
      ->add_flag(
          "--take-over", options->take_over,
          "take leases, directory, connections and store over from the master that runs with "
          "this --data now, which then ends; no lease ends, nothing is lost "
          "(docs/upgrade.md)")
      ->configurable(false);
  master->add_flag("--exit-with-parent", options->exit_with_parent)->group("")->configurable(false);
  master->callback([options, &chosen] { chosen = [options] { return Run(*options); }; });
}

}  // namespace kvcove::cli
