// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <optional>

#include "kvcove/base/descriptors.h"
#include "kvcove/base/interrupt.h"
#include "kvcove/base/log.h"
#include "kvcove/base/size.h"
#include "kvcove/cli/container.h"
#include "kvcove/cli/owner_options.h"
#include "kvcove/cli/service_manager.h"
#include "kvcove/net/advertise.h"
#include "kvcove/net/devices/rdma.h"
#include "kvcove/policy/policy.h"
#include "kvcove/pool/host_status.h"
#include "kvcove/pool/masters.h"
#include "kvcove/pool/owner_fields.h"
#include "kvcove/rpc/inherited.h"
#include "kvcove/segment/leftovers.h"
#include "kvcove/server/admin.h"
#include "kvcove/server/daemons.h"
#include "kvcove/server/host_admin.h"
#include "kvcove/transport/pick/transports.h"

namespace kvcove::cli {
namespace {

// So long the predecessor of a take-over may need for its end.
constexpr std::int64_t kPredecessorNs = 2 * kSecond;
// An owner waits so long for etcd to name a leader, then ends with an error.
constexpr std::int64_t kOwnerWaitNs = 60 * kSecond;

// What both `serve` and `owner` need.
Result<server::DaemonOptions> DaemonOptionsOf(const ServeOptions& options) {
  server::DaemonOptions daemon;
  daemon.socket_path = options.socket;
  KVCOVE_ASSIGN(daemon.unix_access,
                rpc::ParseUnixAccess(options.engine_user, options.engine_group));
  KVCOVE_TRY(ReadFields(options, daemon.host));
  if (options.kv_events.events != "off") {
    daemon.host.owner.key_changes_bytes = server::KvEvents::kKeyChangesBytes;
  }
  daemon.take_over = options.take_over;
  daemon.on_taken_over = [](std::int32_t pid) {
    LogInfo("process {} has taken over; this one ends", pid);
    NotifySuccessor(pid);
    FlushLog(std::chrono::milliseconds(100));  // the log's thread may still have that line
    // Threads that still run use descriptors that are closed now: one that ends registrations of
    // an RDMA device would report an error.
    SetLogLevel(LogLevel::kOff);
    // The kernel frees the pages of the memory's tables, for seconds a TiB, before it closes
    // descriptors, and the successor waits for the ports and the admin socket.
    // By its number: the function came with glibc 2.34.
    (void)syscall(SYS_close_range, 3U, ~0U, 0U);
    // No destructor runs: the memory, the files and the sockets are the other process's.
    std::_Exit(0);
  };
  return daemon;
}

// Says which pages the memory has. Engines let go of a killed predecessor's memory in milliseconds;
// those that have not within a second are named. False: it is time to stop.
bool LogMemory(std::span<const std::unique_ptr<server::Daemon>> daemons, StopSignal& stop) {
  for (const auto& daemon : daemons) {
    const std::string& pages = daemon->host().owner().memory().pages();
    if (!pages.empty()) LogInfo("memory: {}", pages);  // after a take-over they are the other's
  }
  constexpr int kLooks = 10;
  for (int look = 1; look <= kLooks; ++look) {
    const std::vector<segment::Leftover> leftovers = segment::FindLeftovers();
    if (leftovers.empty()) return true;
    for (const segment::Leftover& leftover : leftovers) {
      if (look == kLooks) LogWarn("{}: it is freed when they end or go on", leftover.Describe());
    }
    if (stop.WaitFor(std::chrono::milliseconds(100))) return false;
  }
  return true;
}

// An engine's container, in which `kvcove run` starts an owner for it, is as the engine needs it.
void WarnOfServersContainer(const ServeOptions& options, const server::DaemonOptions& daemon,
                            ContainerUse use) {
  if (options.while_attended) return;
  use.memory_bytes = daemon.host.owner.memory_bytes;
  for (const disklog::DiskSpec& disk : daemon.host.owner.disks) use.disks.push_back(disk.path);
  if (!use.disks.empty()) use.data = daemon.host.data_directory;
  WarnOfContainer(use);
}

// One for each NUMA node that --numa means.
Result<std::vector<server::DaemonOptions>> SplitByNode(const ServeOptions& options,
                                                       const server::DaemonOptions& whole) {
  std::vector<net::NumaNode> nodes;
  if (!options.numa.empty()) {
    // Another tree than this kernel's, as tests bring it, has its own limits with it, or none.
    nodes = net::ReadNumaNodes(net::Sysfs(options.sysfs),
                               options.sysfs == "/sys"
                                   ? net::ReadNodeLimits()
                                   : net::ReadNodeLimits(options.sysfs + "/status"));
  }
  KVCOVE_ASSIGN(const std::vector<net::OwnerShare> shares,
                net::SplitOverNodes(options.numa, whole.host.owner.memory_bytes, nodes));
  return server::SplitDaemon(whole, shares);
}

std::string NodeText(const server::DaemonOptions& options) {
  const NodePlace& place = options.host.owner.place;
  return place.bound() ? fmt::format(" of NUMA node {}", place.node) : "";
}

std::string DiskText(const server::DaemonOptions& options) {
  const auto& disks = options.host.owner.disks;
  return disks.empty() ? "" : ", disk " + owner::DiskPaths(disks);
}

void WaitForEnd(const ServeOptions& options, StopSignal& stop, const server::Daemon& daemon) {
  if (!options.while_attended) return stop.Wait();
  while (!stop.WaitFor(std::chrono::milliseconds(50))) {
    if (!daemon.Unattended()) continue;
    LogInfo("stopping: no 'kvcove run' uses this owner any more");
    return;
  }
}

struct AdminPlace {
  rpc::Address address;
  UniqueFd listener;
};

struct AdminAccess {
  std::shared_ptr<rpc::Credentials> credentials;
  std::shared_ptr<rpc::Tls> tls;
  bool metrics_only = false;
};

// One for each owner, on ports in a row; none without an address.
Result<std::vector<AdminPlace>> AdminPlaces(const std::optional<rpc::Address>& address,
                                            std::size_t owners, bool listen) {
  std::vector<AdminPlace> places;
  for (std::size_t i = 0; address && i < owners; ++i) {
    AdminPlace& place = places.emplace_back();
    KVCOVE_ASSIGN(place.address, server::StepPort(*address, i));
    if (!listen) continue;
    KVCOVE_ASSIGN(place.listener, rpc::ListenTcp(place.address));
  }
  return places;
}

Result<std::vector<std::unique_ptr<http::Server>>> ServeAdmins(
    std::span<const std::unique_ptr<server::Daemon>> daemons, std::vector<AdminPlace>& places,
    const AdminAccess& access) {
  std::vector<std::unique_ptr<http::Server>> admins;
  for (std::size_t i = 0; i < places.size(); ++i) {
    KVCOVE_ASSIGN(auto admin, server::ServeAdmin(daemons[i]->host(),
                                                 {.listener = std::move(places[i].listener),
                                                  .address = places[i].address,
                                                  .credentials = access.credentials,
                                                  .tls = access.tls,
                                                  .metrics_only = access.metrics_only},
                                                 SystemClock::Instance()));
    admins.push_back(std::move(admin));
  }
  return admins;
}

// The running process's listeners, or new ones, as soon as it has ended: too late to refuse
// anything.
void ListenAfterTakeOver(std::vector<AdminPlace>& places) {
  const Clock& clock = SystemClock::Instance();
  const std::int64_t until_ns = clock.NowNs() + kPredecessorNs;
  for (AdminPlace& place : places) {
    auto listener = rpc::ListenTcp(place.address);
    while (!listener && clock.NowNs() < until_ns) {
      SleepNs(10 * kMillisecond);
      listener = rpc::ListenTcp(place.address);
    }
    if (listener) {
      place.listener = std::move(*listener);
    } else {
      LogError("no admin endpoint: {}", listener.error().ToString());
    }
  }
  std::erase_if(places, [](const AdminPlace& place) { return !place.listener.valid(); });
}

// After a take-over an error ends nothing: the memory would be lost.
Result<std::vector<std::unique_ptr<server::KvEvents>>> KvEventsAfterStart(
    std::span<const std::unique_ptr<server::Daemon>> daemons,
    const std::optional<server::KvEventsOptions>& kv_events, const ServeOptions& options) {
  auto all = ServeKvEvents(daemons, kv_events, options.take_over ? kPredecessorNs : 0);
  if (all || !options.take_over) return all;
  LogError("no KV events: {}", all.error().ToString());
  return std::vector<std::unique_ptr<server::KvEvents>>();
}

// The admin interface of this host, over all its owners. One that is asked for over TCP has its
// listener already: a port in use is noticed before there is an owner.
Result<std::unique_ptr<server::HostAdmin>> ServeHostAdmin(
    std::span<const std::unique_ptr<server::Daemon>> daemons, const ServeOptions& options,
    std::vector<AdminPlace>& places, const SecurityOptions::Loaded& security) {
  std::vector<server::Daemon*> all;
  for (const auto& daemon : daemons) all.push_back(daemon.get());
  KVCOVE_ASSIGN(const rpc::UnixAccess engines,
                rpc::ParseUnixAccess(options.engine_user, options.engine_group));
  server::HostAdminOptions admin{.socket_path = pool::AdminSocketOf(options.socket),
                                 .directory_access = engines,
                                 .patience_ns = options.take_over ? kPredecessorNs : 0,
                                 .listener = {},
                                 .address = {},
                                 .credentials = security.credentials,
                                 .tls = security.tls};
  if (!places.empty()) {
    admin.address = places.front().address;
    admin.listener = std::move(places.front().listener);
    LogInfo("admin interface at {}://{}", security.tls == nullptr ? "http" : "https",
            places.front().address.ToString());
  }
  return server::HostAdmin::Open(server::PoolOf(all), std::move(admin), SystemClock::Instance());
}

Result<int> RunServe(const ServeOptions& options) {
  KVCOVE_ASSIGN(server::DaemonOptions daemon_options, DaemonOptionsOf(options));
  daemon_options.host.data_directory = options.data_directory;
  if (options.data_directory.empty()) {
    const std::size_t slash = options.socket.rfind('/');
    daemon_options.host.data_directory =
        (slash == std::string::npos ? std::string(".") : options.socket.substr(0, slash)) + "/data";
  }
  KVCOVE_ASSIGN(const auto metrics_address, MetricsOption(options.metrics, options.security));
  const bool local_metrics = !metrics_address || rpc::IsLoopback(*metrics_address);
  KVCOVE_ASSIGN(const auto parts, SplitByNode(options, daemon_options));
  KVCOVE_ASSIGN(auto metrics_places,
                AdminPlaces(metrics_address, parts.size(), !options.take_over));
  KVCOVE_ASSIGN(const auto admin_address, HostAdminOption(options.admin, options.security));
  // Without a port that asks for credentials nobody reads their files: their variables may be there
  // for other commands and for engines.
  SecurityOptions::Loaded security;
  if (admin_address || !local_metrics) {
    KVCOVE_ASSIGN(security, options.security.Load());
  }
  KVCOVE_ASSIGN(auto admin_places, AdminPlaces(admin_address, 1, !options.take_over));
  KVCOVE_ASSIGN(const auto kv_events_options,
                KvEventsOf(options.kv_events, options.security.insecure, parts.size()));
  RaiseDescriptorLimit();
  StopSignal stop(security);
  if (options.exit_with_parent && !StopSignal::FollowParent()) return 0;
  WarnOfServersContainer(options, daemon_options, {.role = Role::kServe, .socket = options.socket});
  KVCOVE_ASSIGN(auto daemons, server::OpenDaemons(parts, SystemClock::Instance()));
  if (options.take_over) ListenAfterTakeOver(metrics_places);
  if (options.take_over) ListenAfterTakeOver(admin_places);
  KVCOVE_ASSIGN(auto kv_events, KvEventsAfterStart(daemons, kv_events_options, options));
  const SecurityOptions::Loaded monitoring = local_metrics ? SecurityOptions::Loaded() : security;
  KVCOVE_ASSIGN(auto metrics, ServeAdmins(daemons, metrics_places,
                                          {.credentials = monitoring.credentials,
                                           .tls = monitoring.tls,
                                           .metrics_only = !local_metrics}));
  auto admin = ServeHostAdmin(daemons, options, admin_places, security);
  if (!admin && !options.take_over) return std::unexpected(admin.error());
  // To end now would lose the memory that was taken over.
  if (!admin) LogError("no admin interface: {}", admin.error().ToString());
  for (const AdminPlace& place : metrics_places) LogMetrics(place.address, monitoring);
  for (const server::DaemonOptions& part : parts) {
    LogInfo("serving {}{} at unix:{} (policy {}, data in '{}'{})",
            FormatSize(part.host.owner.memory_bytes), NodeText(part), part.socket_path,
            part.host.owner.policy, daemon_options.host.data_directory, DiskText(part));
  }
  ServiceManager manager;
  manager.Ready();
  if (LogMemory(daemons, stop)) WaitForEnd(options, stop, *daemons.front());
  manager.Stopping();
  if (admin) admin->reset();
  metrics.clear();
  kv_events.clear();
  daemons.clear();
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

// The names of the ports, in their order, as transport::TransportOptions has them.
std::string NamesOf(const net::RdmaChoice& choice) {
  std::string names;
  for (const net::RdmaPath& path : choice.paths) {
    names += fmt::format("{}{}/{}", names.empty() ? "" : ",", path.port.Name(), path.gid.gid.index);
  }
  return names;
}

// Reports what RDMA would use; where there is no device and nobody names one, nothing is reported.
void LogUnusedRdma(const OwnerOptions& options, const Result<net::RdmaChoice>& choice) {
  if (!NamesRdma(options) && net::ReadRdmaPorts(net::Sysfs()).empty()) return;
  if (!choice) {
    LogWarn("RDMA, which --transport tcp does not use: {}", choice.error().detail);
    return;
  }
  const std::string names = NamesOf(*choice);
  LogInfo(
      "payload moves by TCP; with --transport auto by RDMA through {} ('kvcove doctor' says why)",
      names.empty() ? "no device" : names);
}

// Opens the transport for other hosts, with the devices of ChooseRdma in their order. Named devices
// that cannot be used are an error whatever --transport says.
Result<transport::Transport*> OpenTransport(const OwnerOptions& options,
                                            const std::string& advertised, bool tls) {
  transport::TransportOptions chosen;
  chosen.tls = tls;
  chosen.plaintext = options.rdma_plaintext;
  KVCOVE_ASSIGN(chosen.kind, transport::ParseTransport("--transport", options.transport));
  const auto choice = ChooseRdma(options, advertised);
  if (!choice && NamesRdma(options)) return std::unexpected(choice.error());
  if (chosen.kind == transport::TransportOptions::Kind::kTcp) {
    LogUnusedRdma(options, choice);
    return transport::OpenTransport(chosen);
  }
  if (!choice) return transport::WithoutRdma(chosen.kind, choice.error().detail);
  if (choice->paths.empty() && !choice->left_out.empty()) {
    return transport::WithoutRdma(chosen.kind,
                                  fmt::format("{}", fmt::join(choice->left_out, "; ")));
  }
  // Without any port /sys may be missing: the library has the last word.
  chosen.devices = NamesOf(*choice);
  return transport::OpenTransport(chosen);
}

// A block device has no directory of its own that outlives a restart of the host.
Status CheckData(const pool::LocalHostOptions& options) {
  if (options.owner.disks.empty() || !options.data_directory.empty()) return {};
  if (!options.owner.disks.front().path.starts_with("/dev/")) return {};
  return Fail(Code::kInvalid,
              "--disk: a block device needs --data, a directory that keeps this owner's identity");
}

Result<int> RunOwner(const OwnerOptions& options) {
  KVCOVE_ASSIGN(server::DaemonOptions daemon_options, DaemonOptionsOf(options));
  daemon_options.host.data_directory = options.data_directory;
  KVCOVE_TRY(CheckData(daemon_options.host));
  pool::ClusterMember member;
  KVCOVE_ASSIGN(member.listen, ListenOption(options.listen, 7401, options.security));
  KVCOVE_ASSIGN(const SecurityOptions::Loaded security, options.security.Load());
  if (!options.tenant.empty() && security.credentials == nullptr) {
    return Fail(Code::kInvalid, "--tenant: without --credentials there are no tenants");
  }
  member.credentials = security.credentials;
  member.tls = security.tls;
  KVCOVE_ASSIGN(member.limits, options.limits.Load());
  member.tenant = options.tenant;
  KVCOVE_ASSIGN(std::optional<rpc::Address> admin_address,
                AdminOption(options.admin, options.security));
  KVCOVE_ASSIGN(const auto metrics_address, MetricsOption(options.metrics, options.security));
  member.advertise = options.advertise;
  member.host = options.host;
  member.checksum = !options.no_checksum;
  // The wait for a leader ends with the parent, too: SIGTERM ends this process until StopSignal.
  if (options.exit_with_parent && !StopSignal::FollowParent()) return 0;
  const Clock& clock = SystemClock::Instance();
  KVCOVE_ASSIGN(member.master,
                pool::FindMasters(options.master, clock.NowNs() + kOwnerWaitNs, clock));
  // Whatever can be wrong here is reported before the master, or a waiting 'kvcove run', takes this
  // owner for ready.
  const auto advertised = net::ChooseAdvertised(
      {.advertise = member.advertise, .listen = member.listen, .master = member.master});
  KVCOVE_ASSIGN(member.transport,
                OpenTransport(options, advertised ? advertised->address.host : std::string(),
                              member.tls != nullptr));
  daemon_options.host.cluster = member;
  KVCOVE_ASSIGN(const auto parts, SplitByNode(options, daemon_options));
  // After a take-over they come with the rest.
  KVCOVE_ASSIGN(auto admin_places, AdminPlaces(admin_address, parts.size(), !options.take_over));
  KVCOVE_ASSIGN(auto metrics_places,
                AdminPlaces(metrics_address, parts.size(), !options.take_over));
  KVCOVE_ASSIGN(const auto kv_events_options,
                KvEventsOf(options.kv_events, options.security.insecure, parts.size()));
  RaiseDescriptorLimit();
  StopSignal stop(security);
  const bool by_socket = security.credentials == nullptr || !options.tenant.empty();
  WarnOfServersContainer(options, daemon_options,
                         {.role = Role::kOwner,
                          .socket = by_socket ? options.socket : std::string(),
                          .host_id = options.host,
                          .rdma = options.transport != "tcp"});
  KVCOVE_ASSIGN(auto daemons, server::OpenDaemons(parts, clock));
  if (options.take_over) ListenAfterTakeOver(admin_places);
  if (options.take_over) ListenAfterTakeOver(metrics_places);
  KVCOVE_ASSIGN(auto kv_events, KvEventsAfterStart(daemons, kv_events_options, options));
  rpc::DropInherited();
  KVCOVE_ASSIGN(auto admins, ServeAdmins(daemons, admin_places,
                                         {.credentials = security.credentials, .tls = {}}));
  KVCOVE_ASSIGN(auto metrics, ServeAdmins(daemons, metrics_places,
                                          {.credentials = security.credentials,
                                           .tls = security.tls,
                                           .metrics_only = true}));
  for (const AdminPlace& place : metrics_places) LogMetrics(place.address, security);
  const bool shared = security.credentials != nullptr && options.tenant.empty();
  for (std::size_t i = 0; i < daemons.size(); ++i) {
    const pool::LocalHost& host = daemons[i]->host();
    LogInfo("advertising {}: {}", host.advertised(), host.advertised_choice().why);
    LogInfo("owner of {}{}{} at {}{}, master {}, admin {}",
            FormatSize(parts[i].host.owner.memory_bytes), NodeText(parts[i]), DiskText(parts[i]),
            host.address(),
            shared ? " for several tenants, all over TCP" : " and unix:" + parts[i].socket_path,
            options.master,
            admin_places.empty() ? "off" : "http://" + admin_places[i].address.ToString());
  }
  ServiceManager manager;
  manager.Ready();
  if (LogMemory(daemons, stop)) WaitForEnd(options, stop, *daemons.front());
  manager.Stopping();
  admins.clear();
  metrics.clear();
  kv_events.clear();
  daemons.clear();
  LogInfo("stopped");
  return 0;
}

void AddField(CLI::App& app, ServeOptions& options, const pool::OwnerField& field) {
  const std::string flag = pool::FlagOf(field);
  if (field.kind == pool::OwnerField::Kind::kMany) {
    app.add_option(flag, options.lists[field.key], field.help)->allow_extra_args(false);
    return;
  }
  std::string& text = options.texts[field.key];
  text = field.standard;
  if (field.kind == pool::OwnerField::Kind::kOne) {
    app.add_option(flag, text, field.help)->capture_default_str();
  } else {
    app.add_flag_callback(flag, [&text] { text = "0"; }, field.help);
  }
}

void AddFields(CLI::App& app, ServeOptions& options, bool only_daemons) {
  for (const pool::OwnerField& field : pool::OwnerFields()) {
    if (field.only_daemons == only_daemons) AddField(app, options, field);
  }
}

}  // namespace

Status ReadFields(const ServeOptions& options, pool::LocalHostOptions& host) {
  for (const pool::OwnerField& field : pool::OwnerFields()) {
    std::vector<std::string> texts;
    if (const auto text = options.texts.find(field.key); text != options.texts.end()) {
      texts = {text->second};
    }
    if (const auto list = options.lists.find(field.key); list != options.lists.end()) {
      texts = list->second;
    }
    if (texts.empty()) continue;
    KVCOVE_TRY(field.read(pool::FlagOf(field), texts, host));
  }
  return pool::CheckShares(host.owner);
}

void AddServeOptions(CLI::App& app, ServeOptions& options) {
  app.add_option("--socket", options.socket,
                 "path of the Unix socket to listen at; its directory must be private")
      ->capture_default_str();
  app.add_option("--engine-user", options.engine_user,
                 "another user whose processes may use the socket and map the memory; they set "
                 "$KVCOVE_OWNER_USER to this one");
  app.add_option("--engine-group", options.engine_group,
                 "a group whose members may use the socket as --engine-user may; this user must be "
                 "a member, or root");
  app.add_option("--numa", options.numa,
                 "NUMA nodes of the owners: 'all' (one owner on each node, with equal parts of "
                 "--memory) or the number of one node (default: one owner, bound to none)");
  app.add_option("--sysfs", options.sysfs)->group("")->configurable(false);
  AddFields(app, options, /*only_daemons=*/false);
  AddKvEventsOptions(app, options.kv_events);
  app.add_option(
         "--metrics", options.metrics,
         std::string(kMetricsHelp) +
             ". On loopback a pool of this host alone asks for no token, and answers /v1/stat, too")
      ->capture_default_str();
  app.add_flag("--take-over", options.take_over,
               "take memory, sessions and socket over from the kvcove that serves --socket now, "
               "which then ends; nothing is lost, no read waits (docs/upgrade.md)")
      ->configurable(false);
  app.add_flag("--exit-with-parent", options.exit_with_parent)->group("")->configurable(false);
  app.add_flag("--while-attended", options.while_attended)->group("")->configurable(false);
}

void AddClusterOptions(CLI::App& app, OwnerOptions& options) {
  app.add_option("--listen", options.listen, "host:port at which other hosts get and put data")
      ->capture_default_str();
  app.add_option(
      "--advertise", options.advertise,
      "host:port at which others reach --listen (default: the same, or where that is 0.0.0.0 "
      "or [::], the address from which the route to the master leaves)");
  app.add_option(
         "--transport", options.transport,
         "how payload moves to and from other hosts: 'tcp'; 'auto', by RDMA where this host "
         "has a device, and the requester one, too; 'verbs', the same, and no start without "
         "a device. RDMA pins all of --memory (docs/rdma.md)")
      ->capture_default_str();
  app.add_option("--rdma-device,--devices", options.rdma_devices,
                 "an RDMA device, such as mlx5_0 or mlx5_0:2 for its second port; repeated or with "
                 "commas: the first that works (default: found out)")
      ->delimiter(',');
  app.add_flag("--rdma-plaintext", options.rdma_plaintext,
               "with TLS: payload moves by RDMA all the same, in plaintext, since devices do not "
               "encrypt; only where no stranger reaches the RDMA network");
  app.add_option("--gid-index", options.gid_index,
                 "index of the GID that RDMA is to use (default: $MC_GID_INDEX, else found out)");
  app.add_option(
      "--host-id", options.host,
      "name of this host, equal for all processes that share its memory (default: found out)");
  app.add_flag("--no-checksum", options.no_checksum,
               "do not check the checksums of values that cross the network");
  app.add_option("--tenant", options.tenant,
                 "serve this tenant alone: its processes on this host use the memory directly");
  AddLimitOptions(app, options.limits);
}

void AddAdminOptions(CLI::App& app, ServeOptions& options, const std::string& help) {
  app.add_option("--admin", options.admin, help)->capture_default_str();
  AddSecurityOptions(app, options.security);
}

void AddDaemonOptions(CLI::App& app, ServeOptions& options) {
  AddFields(app, options, /*only_daemons=*/true);
}

void AddServe(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* serve = app.add_subcommand("serve",
                                       "Serve this host's memory to engine processes over a "
                                       "Unix socket, until SIGTERM.");
  AddServeOptions(*serve, *options);
  AddDaemonOptions(*serve, *options);
  serve->add_option("--data", options->data_directory,
                    "directory of the generations (default: 'data' beside the socket)");
  AddAdminOptions(*serve, *options,
                  "host:port of the admin interface over TCP, beside its Unix socket "
                  "(admin-kvcove.sock beside kvcove.sock); or off");
  serve->callback([options, &chosen] { chosen = [options] { return RunServe(*options); }; });
}

void AddOwner(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<OwnerOptions>();
  CLI::App* owner = app.add_subcommand("owner",
                                       "Give this host's memory to a cluster, to its own engine "
                                       "processes over a Unix socket and to others over TCP, "
                                       "until SIGTERM.");
  AddServeOptions(*owner, *options);
  AddDaemonOptions(*owner, *options);
  owner->add_option("--data", options->data_directory,
                    "with --disk: directory of this owner's identity (default: the disk's file "
                    "with '.data' behind it)");
  owner
      ->add_option(
          "--master", options->master,
          "host:port of the cluster's master; with several masters all of them, separated by "
          "commas, or etcd://HOST:2379,HOST:2379/PREFIX, as their --store (docs/ha.md)")
      ->capture_default_str();
  AddClusterOptions(*owner, *options);
  AddAdminOptions(*owner, *options, "host:port of the admin endpoint, or off");
  owner->callback([options, &chosen] { chosen = [options] { return RunOwner(*options); }; });
}

}  // namespace kvcove::cli
