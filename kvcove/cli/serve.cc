// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include "kvcove/base/descriptors.h"
#include "kvcove/base/log.h"
#include "kvcove/base/size.h"
#include "kvcove/cli/owner_options.h"
#include "kvcove/net/rdma.h"
#include "kvcove/pool/admin.h"
#include "kvcove/pool/daemon.h"

namespace kvcove::cli {
namespace {

// NAMESPACE=MAXIMUM or NAMESPACE=MAXIMUM:GUARANTEED
Status ParseQuota(const std::string& text, pool::LocalHostOptions& options) {
  const std::size_t equals = text.rfind('=');
  if (equals == std::string::npos) {
    return Fail(
        Code::kInvalid,
        fmt::format("--quota: '{}' is not NAMESPACE=MAXIMUM or NAMESPACE=MAXIMUM:GUARANTEED, "
                    "such as acme=2GiB:1GiB",
                    text));
  }
  const std::string sizes = text.substr(equals + 1);
  const std::size_t colon = sizes.find(':');
  owner::Quota quota;
  KVCOVE_ASSIGN(quota.maximum_bytes, SizeOption(sizes.substr(0, colon)).Bytes("--quota"));
  if (colon != std::string::npos) {
    KVCOVE_ASSIGN(quota.guaranteed_bytes, SizeOption(sizes.substr(colon + 1)).Bytes("--quota"));
  }
  if (quota.guaranteed_bytes > quota.maximum_bytes) {
    return Fail(Code::kInvalid,
                fmt::format("--quota: '{}' guarantees more than its maximum", text));
  }
  options.owner.quotas[text.substr(0, equals)] = quota;
  return {};
}

// What both `serve` and `owner` need.
Result<pool::DaemonOptions> DaemonOptionsOf(const ServeOptions& options) {
  pool::DaemonOptions daemon;
  daemon.socket_path = options.socket;
  KVCOVE_ASSIGN(daemon.unix_access,
                rpc::ParseUnixAccess(options.engine_user, options.engine_group));
  KVCOVE_ASSIGN(daemon.host.owner.memory_bytes, options.memory.Bytes("--memory"));
  daemon.host.owner.max_objects = options.max_objects;
  daemon.host.owner.policy = options.policy;
  daemon.host.owner.populate = !options.no_populate;
  for (const std::string& quota : options.quotas) {
    KVCOVE_TRY(ParseQuota(quota, daemon.host));
  }
  std::uint64_t guaranteed = 0;
  for (const auto& [name, quota] : daemon.host.owner.quotas) guaranteed += quota.guaranteed_bytes;
  if (guaranteed > daemon.host.owner.memory_bytes) {
    return Fail(Code::kInvalid, fmt::format("the quotas guarantee {} together, but --memory is {}",
                                            FormatSize(guaranteed), options.memory.text));
  }
  return daemon;
}

void WaitForEnd(const ServeOptions& options, StopSignal& stop, const pool::Daemon& daemon) {
  if (!options.while_attended) return stop.Wait();
  while (!stop.WaitFor(std::chrono::milliseconds(50))) {
    if (!daemon.Unattended()) continue;
    LogInfo("stopping: no 'kvcove run' uses this owner any more");
    return;
  }
}

Result<int> RunServe(const ServeOptions& options) {
  KVCOVE_ASSIGN(pool::DaemonOptions daemon_options, DaemonOptionsOf(options));
  daemon_options.host.data_directory = options.data_directory;
  if (options.data_directory.empty()) {
    const std::size_t slash = options.socket.rfind('/');
    daemon_options.host.data_directory =
        (slash == std::string::npos ? std::string(".") : options.socket.substr(0, slash)) + "/data";
  }
  RaiseDescriptorLimit();
  StopSignal stop;
  if (options.exit_with_parent && !stop.FollowParent()) return 0;
  KVCOVE_ASSIGN(auto daemon, pool::Daemon::Open(daemon_options, SystemClock::Instance()));
  LogInfo("serving {} at unix:{} (policy {}, data in '{}')",
          FormatSize(daemon_options.host.owner.memory_bytes), options.socket, options.policy,
          daemon_options.host.data_directory);
  WaitForEnd(options, stop, *daemon);
  daemon.reset();
  LogInfo("stopped");
  return 0;
}

bool NamesRdma(const OwnerOptions& options) {
  return !options.rdma_devices.empty() || !options.gid_index.empty();
}

Result<net::RdmaChoice> ChooseRdma(const OwnerOptions& options, const std::string& advertised) {
  const net::Sysfs sysfs;
  net::RdmaRequest request{
      .devices = options.rdma_devices, .near = net::NodeOfThisProcess(sysfs), .routed = advertised};
  KVCOVE_ASSIGN(request.gid_index, GidIndexOption(options.gid_index));
  return net::ChooseRdma(sysfs, request);
}

// What RDMA would use; where there is none and nobody names one, nothing is said.
void LogRdma(const OwnerOptions& options, const std::string& advertised) {
  if (!NamesRdma(options) && net::ReadRdmaPorts(net::Sysfs()).empty()) return;
  const auto choice = ChooseRdma(options, advertised);
  if (!choice) {
    LogWarn("RDMA, which is not used yet: {}", choice.error().detail);
    return;
  }
  std::string paths;
  for (const net::RdmaPath& path : choice->paths) {
    paths +=
        fmt::format("{}{} GID {}", paths.empty() ? "" : ", ", path.port.Name(), path.gid.gid.index);
  }
  LogInfo("data goes over TCP; RDMA is not used yet, and would use {} ('kvcove doctor' says why)",
          paths.empty() ? "no device" : paths);
}

Result<int> RunOwner(const OwnerOptions& options) {
  KVCOVE_ASSIGN(pool::DaemonOptions daemon_options, DaemonOptionsOf(options));
  pool::ClusterMember member;
  KVCOVE_ASSIGN(member.master, rpc::ParseAddress(options.master, 7400));
  KVCOVE_ASSIGN(member.listen, ListenOption(options.listen, 7401, options.security));
  KVCOVE_ASSIGN(const SecurityOptions::Loaded security, options.security.Load());
  if (!options.tenant.empty() && security.credentials == nullptr) {
    return Fail(Code::kInvalid, "--tenant: without --credentials there are no tenants");
  }
  member.credentials = security.credentials;
  member.tls = security.tls;
  member.tenant = options.tenant;
  KVCOVE_ASSIGN(std::optional<rpc::Address> admin_address,
                AdminOption(options.admin, options.security));
  member.advertise = options.advertise;
  member.host = options.host;
  member.checksum = !options.no_checksum;
  daemon_options.host.cluster = member;
  // Whatever can be wrong here is told before the master, or a waiting 'kvcove run', takes this
  // owner for ready.
  if (NamesRdma(options)) {
    KVCOVE_TRY(ChooseRdma(options, {}));
  }
  UniqueFd admin_listener;
  if (admin_address) {
    KVCOVE_ASSIGN(admin_listener, rpc::ListenTcp(*admin_address));
  }
  RaiseDescriptorLimit();
  StopSignal stop;
  if (options.exit_with_parent && !stop.FollowParent()) return 0;
  KVCOVE_ASSIGN(auto daemon, pool::Daemon::Open(daemon_options, SystemClock::Instance()));
  std::unique_ptr<http::Server> admin;
  if (admin_address) {
    admin = pool::ServeAdmin(daemon->host(), std::move(admin_listener), *admin_address,
                             security.credentials, SystemClock::Instance());
  }
  LogInfo("advertising {}: {}", daemon->host().advertised(),
          daemon->host().advertised_choice().why);
  LogRdma(options, daemon->host().advertised_choice().address.host);
  const bool shared = security.credentials != nullptr && options.tenant.empty();
  LogInfo("owner of {} at {}{}, master {}, admin {}",
          FormatSize(daemon_options.host.owner.memory_bytes), daemon->host().address(),
          shared ? " for several tenants, all over TCP" : " and unix:" + options.socket,
          options.master, admin ? "http://" + admin_address->ToString() : "off");
  WaitForEnd(options, stop, *daemon);
  admin.reset();
  daemon.reset();
  LogInfo("stopped");
  return 0;
}

}  // namespace

void AddServeOptions(CLI::App& app, ServeOptions& options) {
  app.add_option("--socket", options.socket, "where to listen; its directory must be private")
      ->capture_default_str();
  app.add_option("--engine-user", options.engine_user,
                 "another user whose processes may use the socket and map the memory; they set "
                 "$KVCOVE_OWNER_USER to this one");
  app.add_option("--engine-group", options.engine_group,
                 "the same for all members of a group; this user must be one of them, or root");
  app.add_option("--memory", options.memory.text, "payload memory, such as 64GiB")
      ->capture_default_str();
  app.add_option("--max-objects", options.max_objects,
                 "most objects at a time (0: one per 512 bytes of memory)")
      ->capture_default_str();
  app.add_option("--policy", options.policy, "eviction: default, lru or s3fifo")
      ->capture_default_str();
  app.add_option("--quota", options.quotas,
                 "NAMESPACE=MAXIMUM[:GUARANTEED], such as acme=2GiB:1GiB; may be repeated");
  app.add_flag("--no-populate", options.no_populate,
               "do not touch memory before it is used (the first puts are slower)");
  app.add_flag("--exit-with-parent", options.exit_with_parent)->group("")->configurable(false);
  app.add_flag("--while-attended", options.while_attended)->group("")->configurable(false);
}

void AddClusterOptions(CLI::App& app, OwnerOptions& options) {
  app.add_option("--listen", options.listen, "where other hosts get and put data, host:port")
      ->capture_default_str();
  app.add_option(
      "--advertise", options.advertise,
      "how others reach --listen, host:port (default: the same, or where that is 0.0.0.0 "
      "or [::], the address from which the route to the master leaves)");
  app.add_option("--rdma-device", options.rdma_devices,
                 "for RDMA, which is not used yet: a device, such as mlx5_0 or mlx5_0:2 for its "
                 "second port; repeated or with commas (default: found out)")
      ->delimiter(',');
  app.add_option("--gid-index", options.gid_index,
                 "the GID that RDMA is to use (default: $MC_GID_INDEX, else found out)");
  app.add_option("--host-id", options.host,
                 "equal for all processes that share this host's memory (default: found out)");
  app.add_flag("--no-checksum", options.no_checksum, "do not check what crosses the network");
  app.add_option("--tenant", options.tenant,
                 "serve this tenant alone: its processes on this host use the memory directly");
  app.add_option("--admin", options.admin, "the admin endpoint's host:port, or off")
      ->capture_default_str();
  AddSecurityOptions(app, options.security);
}

void AddServe(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* serve = app.add_subcommand("serve",
                                       "Serve this host's memory to engine processes over a "
                                       "Unix socket, until SIGTERM.");
  AddServeOptions(*serve, *options);
  serve->add_option("--data", options->data_directory,
                    "where generations are kept (default: 'data' beside the socket)");
  serve->callback([options, &chosen] { chosen = [options] { return RunServe(*options); }; });
}

void AddOwner(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<OwnerOptions>();
  CLI::App* owner = app.add_subcommand("owner",
                                       "Give this host's memory to a cluster, to its own engine "
                                       "processes over a Unix socket and to others over TCP, "
                                       "until SIGTERM.");
  AddServeOptions(*owner, *options);
  owner->add_option("--master", options->master, "the cluster's master, host:port")
      ->capture_default_str();
  AddClusterOptions(*owner, *options);
  owner->callback([options, &chosen] { chosen = [options] { return RunOwner(*options); }; });
}

}  // namespace kvcove::cli
