// SPDX-License-Identifier: Apache-2.0
// `kvcove doctor --peer`: how data moves between this host and an owner on another one.
#include <fmt/core.h>

#include <cstdlib>
#include <optional>

#include "kvcove/base/clock.h"
#include "kvcove/cli/doctor.h"
#include "kvcove/rpc/busy.h"
#include "kvcove/transport/peer_probe.h"
#include "kvcove/transport/pick/transports.h"

namespace kvcove::cli {
namespace {

using transport::PeerProbe;
using transport::WayFigures;

constexpr std::uint16_t kPeerPort = 7401;  // of an owner

std::string RateText(double bytes_per_second) {
  return fmt::format("{:.2f} GB/s", bytes_per_second * 1e-9);
}

std::string RoundTripText(const WayFigures& figures) {
  return fmt::format("{:.1f} us there and back", static_cast<double>(figures.round_trip_ns) * 1e-3);
}

// What makes a lane possible, by the reason why there is none.
std::string ChangeFor(const Error& why) {
  if (why.answered) {
    return "the owner's log says which device it has; start it with --transport auto";
  }
  if (why.code == Code::kTimeout) {
    return "packets do not pass between these two ports: look that they are in one network, that "
           "both sides use a GID of it (--gid-index), and that no filter drops RoCE (UDP 4791)";
  }
  return "";
}

// What makes a measurement possible, by the reason why there is none.
std::string ChangeWithout(const Error& why) {
  if (rpc::BusyIn(why)) return "try again when its other callers have less to do";
  if (why.code == Code::kTimeout) return "look at the network, and at what the owner has to do";
  return "name the data port of an owner (--listen, 7401), of this version or later";
}

struct Peer {
  std::string name;
  rpc::Address address;
  rpc::Access access;
};

// Measures one port of this host with the peer. `figures`: over TCP.
Finding Through(const Peer& peer, const std::string& port, const WayFigures& tcp, bool plaintext,
                std::string& why_not) {
  Finding finding{.what = fmt::format("peer {} by RDMA through {}", peer.name, port)};
  const auto opened = transport::OpenTransport({.kind = transport::TransportOptions::Kind::kVerbs,
                                                .devices = port,
                                                .tls = peer.access.tls != nullptr,
                                                .plaintext = plaintext});
  Result<WayFigures> figures =
      opened ? PeerProbe(**opened, peer.address, peer.access, SystemClock::Instance()).ByDevice()
             : Result<WayFigures>(std::unexpected(opened.error()));
  if (!figures) {
    why_not = figures.error().detail;
    finding.verdict = Verdict::kNote;
    finding.seen = "none: " + why_not;
    finding.change = ChangeFor(figures.error());
    return finding;
  }
  finding.seen =
      fmt::format("{}; {} from it", RoundTripText(*figures), RateText(figures->from_peer));
  if (figures->from_peer < tcp.from_peer) {
    finding.verdict = Verdict::kWarn;
    finding.change =
        "TCP is faster: compare with ib_write_bw between the two hosts; where that is fast, too, "
        "the network drops packets under load (PFC, ECN)";
  }
  return finding;
}

void AddRdmaOf(const Peer& peer, const DoctorOptions& options, const WayFigures& tcp,
               const std::vector<std::string>& ports, std::vector<Finding>& findings) {
  Finding data{.what = "data with " + peer.name};
  if (ports.empty()) {
    data.seen = "by TCP: this host has no RDMA device that can be used";
  } else if (peer.access.tls != nullptr && !options.rdma_plaintext) {
    data.seen = "by TCP: TLS protects the payload, and RDMA devices do not encrypt";
    data.change =
        "--rdma-plaintext measures RDMA all the same; use it only where no stranger reaches the "
        "RDMA network";
    data.verdict = Verdict::kNote;
  } else {
    std::string first_why;
    std::optional<std::string> chosen;
    for (const std::string& port : ports) {
      std::string why_not;
      findings.push_back(Through(peer, port, tcp, options.rdma_plaintext, why_not));
      if (why_not.empty() && !chosen) chosen = port;
      if (first_why.empty()) first_why = why_not;
    }
    data.seen = chosen ? fmt::format("by RDMA with transport=auto&devices={}", *chosen)
                       : "by TCP: " + first_why;
  }
  findings.push_back(std::move(data));
}

void AddPeer(const Peer& peer, const DoctorOptions& options, const std::vector<std::string>& ports,
             std::vector<Finding>& findings) {
  findings.push_back(Reaching("peer " + peer.name, peer.address, peer.access,
                              "start 'kvcove owner' there with --listen at an address that this "
                              "host reaches, and let it through firewalls"));
  if (findings.back().verdict != Verdict::kOk) {
    if (findings.back().verdict == Verdict::kWarn) {
      findings.back().change += "; a tenant's token is taken from $KVCOVE_TOKEN";
    }
    return;
  }
  Finding finding{.what = fmt::format("peer {} by TCP", peer.name)};
  const auto tcp =
      PeerProbe(transport::Preferred(), peer.address, peer.access, SystemClock::Instance())
          .ByConnection();
  if (!tcp) {
    finding.verdict = Verdict::kWarn;
    finding.seen = "answers no measurement: " + tcp.error().detail;
    finding.change = ChangeWithout(tcp.error());
    findings.push_back(std::move(finding));
    return;
  }
  finding.seen = fmt::format("{}; {} from it, {} to it, by one connection", RoundTripText(*tcp),
                             RateText(tcp->from_peer), RateText(tcp->to_peer));
  findings.push_back(std::move(finding));
  AddRdmaOf(peer, options, *tcp, ports, findings);
}

}  // namespace

Status AddPeerFindings(const DoctorOptions& options, const SecurityOptions::Loaded& security,
                       const std::vector<std::string>& ports, std::vector<Finding>& findings) {
  if (options.peers.empty()) return {};
  rpc::Access access;
  if (security.credentials != nullptr) {
    KVCOVE_ASSIGN(access, rpc::ServerAccess(security.credentials, /*tenant=*/"", security.tls));
  } else {
    // A host of engines has a tenant's token, and no file of servers.
    const char* const token = std::getenv("KVCOVE_TOKEN");
    KVCOVE_ASSIGN(access, rpc::LoadAccess(token == nullptr ? "" : token, options.security.tls));
  }
  for (const std::string& name : options.peers) {
    const auto address = rpc::ParseAddress(name, kPeerPort);
    if (!address) return Fail(Code::kInvalid, "--peer: " + address.error().detail);
    AddPeer({.name = address->ToString(), .address = *address, .access = access}, options, ports,
            findings);
  }
  return {};
}

}  // namespace kvcove::cli
