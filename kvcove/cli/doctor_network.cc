// SPDX-License-Identifier: Apache-2.0
// `kvcove doctor`: addresses, RDMA devices, the master.
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <netdb.h>

#include "kvcove/base/clock.h"
#include "kvcove/cli/doctor.h"
#include "kvcove/net/advertise.h"
#include "kvcove/net/devices/rdma.h"
#include "kvcove/pool/masters.h"
#include "kvcove/rpc/client.h"
#include "kvcove/transport/pick/transports.h"

namespace kvcove::cli {
namespace {

constexpr std::uint16_t kMasterPort = 7400;
constexpr std::int64_t kLeaderWaitNs = 3 * kSecond;  // until etcd names a leader
constexpr std::uint16_t kOwnerPort = 7401;

Finding Listening(const std::string& text, const SecurityOptions& security) {
  Finding finding{.what = "listening on " + text, .seen = "free"};
  Result<rpc::Address> address = rpc::ParseAddress(text, 0);
  Result<UniqueFd> fd =
      address ? rpc::ListenTcp(*address) : Result<UniqueFd>(std::unexpected(address.error()));
  if (!fd) {
    finding.verdict = Verdict::kFail;
    finding.seen = fd.error().detail;
    finding.change =
        "stop who listens there ('ss -ltnp'), or name another address with --listen "
        "or --admin";
  } else if (!rpc::IsLoopback(*address) && security.credentials.empty() && !security.insecure) {
    finding.verdict = Verdict::kNote;
    finding.change =
        "other hosts reach it: give --credentials, and TLS where the network is not "
        "yours";
  }
  return finding;
}

Finding Addresses() {
  std::string names;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) == 0) {
    for (const ifaddrs* at = all; at != nullptr; at = at->ifa_next) {
      if (at->ifa_addr == nullptr) continue;
      const int family = at->ifa_addr->sa_family;
      if (family != AF_INET && family != AF_INET6) continue;
      char host[NI_MAXHOST];
      const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      if (getnameinfo(at->ifa_addr, length, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) == 0) {
        names += fmt::format("{}{} ({})", names.empty() ? "" : ", ", host, at->ifa_name);
      }
    }
    freeifaddrs(all);
  }
  return {.what = "addresses of this host", .seen = names.empty() ? "none" : names};
}

// As an owner would: with TLS and with the proof that it knows the cluster's token.
Finding Master(const std::string& text, const rpc::Access& access) {
  const std::string what = "master " + text;
  const Result<rpc::Address> address = rpc::ParseAddress(text, kMasterPort);
  if (!address) return {.what = what, .verdict = Verdict::kFail, .seen = address.error().detail};
  return Reaching(what, *address, access,
                  "start 'kvcove master', and let this host reach it through firewalls");
}

// What an owner here that listens on all addresses would advertise. `host` becomes it.
Finding Advertising(const DoctorOptions& options, const Result<rpc::Addresses>& master,
                    std::string& host) {
  Finding finding{.what = "address to advertise"};
  if (options.master.empty()) {
    finding.verdict = Verdict::kNote;
    finding.seen = "not known without a master";
    finding.change = "name the master with --master";
    return finding;
  }
  const auto listening = [&](const char* all) {
    return master ? net::ChooseAdvertised({.advertise = options.advertise,
                                           .listen = {.host = all, .port = kOwnerPort},
                                           .master = *master})
                  : Result<net::Advertised>(std::unexpected(master.error()));
  };
  Result<net::Advertised> chosen = listening("0.0.0.0");
  // Only the route to a master at an IPv6 address needs this one. An error is about the first.
  if (!chosen) {
    if (auto six = listening("::")) chosen = std::move(six);
  }
  if (!chosen) {
    finding.verdict = Verdict::kFail;
    finding.seen = chosen.error().detail;
    return finding;
  }
  host = chosen->address.host;
  finding.seen = fmt::format("{}: {}", chosen->address.ToString(), chosen->why);
  return finding;
}

std::string Describe(const net::RdmaPath& path) {
  return fmt::format("{}{}, {}; GID {} ({}): {}", path.port.Name(),
                     path.interface.empty() ? "" : " of " + path.interface, path.why,
                     path.gid.gid.index, path.gid.gid.Address(), path.gid.why);
}

// Opens the device as --transport verbs would.
Finding OpeningRdma(const std::vector<std::string>& ports) {
  const transport::TransportOptions options{.kind = transport::TransportOptions::Kind::kVerbs,
                                            .devices = fmt::format("{}", fmt::join(ports, ","))};
  const auto opened = transport::OpenTransport(options);
  if (opened) return {.what = "opening an RDMA device", .seen = "it opens"};
  return {.what = "opening an RDMA device",
          .verdict = Verdict::kWarn,
          .seen = opened.error().detail,
          .change =
              "install rdma-core (libibverbs.so.1 and the driver's provider), and give this "
              "process /dev/infiniband"};
}

// `ports` become those of this host that can be used.
Status AddRdma(const DoctorOptions& options, const std::string& advertised,
               std::vector<std::string>& ports, std::vector<Finding>& findings) {
  const net::Sysfs sysfs(options.sysfs);
  net::RdmaRequest request{
      .devices = options.rdma_devices, .near = std::nullopt, .routed = advertised};
  if (options.near.empty()) {
    request.near = net::NodeOfThisProcess(sysfs);
  } else {
    KVCOVE_ASSIGN(request.near, net::FindTarget(sysfs, options.near));
  }
  findings.push_back({.what = "data between hosts",
                      .seen = "TCP; by RDMA with --transport auto or verbs (docs/rdma.md)"});
  const auto index = GidIndexOption(options.gid_index);
  if (index) request.gid_index = *index;
  const auto choice = index ? net::ChooseRdma(sysfs, request)
                            : Result<net::RdmaChoice>(std::unexpected(index.error()));
  if (!choice) {
    // Nothing needs it unless somebody asks.
    const bool asked = !options.rdma_devices.empty() || !options.gid_index.empty();
    findings.push_back({.what = "RDMA devices",
                        .verdict = asked ? Verdict::kFail : Verdict::kWarn,
                        .seen = choice.error().detail});
    return {};
  }
  if (choice->paths.empty()) {
    findings.push_back({.what = "RDMA devices",
                        .seen = choice->left_out.empty() ? "none" : "none that can be used"});
  }
  int place = 0;
  for (const net::RdmaPath& path : choice->paths) {
    findings.push_back({.what = fmt::format("RDMA device {}", ++place), .seen = Describe(path)});
    ports.push_back(fmt::format("{}/{}", path.port.Name(), path.gid.gid.index));
  }
  if (options.sysfs != "/sys") ports.clear();  // of another host, for all that is known
  if (!ports.empty()) findings.push_back(OpeningRdma(ports));
  for (const std::string& line : choice->left_out) {
    findings.push_back({.what = "RDMA device left out", .verdict = Verdict::kNote, .seen = line});
  }
  if (choice->paths.empty() || !options.near.empty() || !options.rdma_devices.empty()) return {};
  for (const std::string& gpu : net::Gpus(sysfs)) {
    KVCOVE_ASSIGN(request.near, net::FindTarget(sysfs, gpu));
    KVCOVE_ASSIGN(const net::RdmaChoice near, net::ChooseRdma(sysfs, request));
    findings.push_back(
        {.what = "RDMA device for the GPU " + gpu,
         .seen = fmt::format("{}, {}", near.paths.front().port.Name(), near.paths.front().why)});
  }
  return {};
}

}  // namespace

Finding Reaching(const std::string& what, const rpc::Address& address, const rpc::Access& access,
                 const std::string& start) {
  Finding finding{.what = what};
  const std::int64_t began = SystemClock::Instance().NowNs();
  const auto fd = rpc::ConnectTcp(address, began + kSecond);
  if (!fd) {
    finding.verdict = Verdict::kFail;
    finding.seen = fd.error().detail;
    finding.change = start;
    return finding;
  }
  const std::int64_t said_ns = SystemClock::Instance().NowNs();
  const auto let_in = rpc::Client::Connect(address, access, said_ns + 2 * kSecond);
  if (let_in) {
    finding.seen = fmt::format("answers in {:.2f} ms, and lets this host in",
                               static_cast<double>(said_ns - began) * 1e-6);
    return finding;
  }
  const Error& why = let_in.error();
  // No credential would change these two.
  if (why.code == Code::kTimeout || why.code == Code::kCorrupt) {
    finding.verdict = Verdict::kFail;
    finding.seen = why.code == Code::kTimeout
                       ? "takes the connection, and does not answer: " + why.detail
                       : "does not answer as kvcove does: " + why.detail;
    finding.change = why.code == Code::kTimeout
                         ? "look at the process that listens there: it is stopped, has too much to "
                           "do, or is none of kvcove's"
                         : "name the port of 'kvcove master' or 'kvcove owner': another program "
                           "listens there";
    return finding;
  }
  const bool shown = access.credentials || access.tls != nullptr;
  finding.verdict = shown ? Verdict::kFail : Verdict::kWarn;
  finding.seen = "does not let this host in: " + why.detail;
  finding.change =
      shown ? "give the files that the owner gets; its host's clock and the name in the "
              "certificate count, too"
            : "give --credentials and the --tls-... files as the owner gets them: they are tried";
  return finding;
}

Status AddNetworkFindings(const DoctorOptions& options, std::vector<Finding>& findings) {
  if (!options.advertise.empty() && options.master.empty()) {
    return Fail(Code::kInvalid, "--advertise: name the master, too, with --master");
  }
  const Clock& clock = SystemClock::Instance();
  const Result<rpc::Addresses> masters =
      pool::FindMasters(options.master, clock.NowNs() + kLeaderWaitNs, clock);
  std::string host;
  findings.push_back(Addresses());
  findings.push_back(Advertising(options, masters, host));
  std::vector<std::string> ports;
  KVCOVE_TRY(AddRdma(options, host, ports, findings));
  for (const std::string& listen : options.listen) {
    findings.push_back(Listening(listen, options.security));
  }
  KVCOVE_ASSIGN(const SecurityOptions::Loaded security, options.security.Load());
  KVCOVE_TRY(AddPeerFindings(options, security, ports, findings));
  if (options.master.empty()) return {};
  KVCOVE_ASSIGN(const rpc::Access access,
                rpc::ServerAccess(security.credentials, /*tenant=*/"", security.tls));
  if (!masters) {
    findings.push_back({.what = "master " + options.master,
                        .verdict = Verdict::kFail,
                        .seen = masters.error().detail});
  }
  for (const rpc::Address& master : masters ? masters->list() : std::vector<rpc::Address>()) {
    findings.push_back(Master(master.ToString(), access));
  }
  return {};
}

}  // namespace kvcove::cli
