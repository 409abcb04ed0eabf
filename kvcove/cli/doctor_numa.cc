// SPDX-License-Identifier: Apache-2.0
// What `kvcove doctor` says of NUMA nodes, and of the owners that run here.
#include <fmt/core.h>

#include <algorithm>

#include "kvcove/base/clock.h"
#include "kvcove/base/host/numa.h"
#include "kvcove/base/posix.h"
#include "kvcove/base/size.h"
#include "kvcove/cli/doctor.h"
#include "kvcove/net/devices/numa.h"
#include "kvcove/pool/host_status.h"
#include "kvcove/pool/pool.h"

namespace kvcove::cli {
namespace {

// Binding is tried: sandboxes forbid it, and say nothing before.
Status TryBinding(int node) {
  KVCOVE_ASSIGN(const UniqueFd file, CreateMemoryFile("kvcove-doctor", 4096));
  KVCOVE_ASSIGN(const Mapping memory, Mapping::Map(file.get(), 4096, Mapping::Access::kReadWrite));
  return BindMemory(memory.data(), memory.size(), node);
}

Finding Nodes(const std::string& sysfs, std::uint64_t memory_bytes) {
  const auto nodes = net::ReadNumaNodes(net::Sysfs(sysfs), net::ReadNodeLimits());
  Finding finding{.what = "NUMA nodes",
                  .seen = nodes.empty() ? "the kernel knows none: the host is one node" : ""};
  for (const net::NumaNode& node : nodes) {
    finding.seen += (finding.seen.empty() ? "" : "; ") + Describe(node);
  }
  const auto fit =
      std::ranges::count_if(nodes, [](const net::NumaNode& node) { return node.unfit.empty(); });
  if (fit < 2) return finding;
  finding.verdict = Verdict::kNote;
  finding.change = fmt::format(
      "an owner on each node keeps copies near: --numa all, with {} on each of {} nodes",
      FormatSize(memory_bytes / static_cast<std::uint64_t>(fit)), fit);
  if (const auto shares = net::SplitOverNodes("all", memory_bytes, nodes); !shares) {
    finding.verdict = Verdict::kWarn;
    finding.change = shares.error().detail;
  }
  const auto first = std::ranges::find(nodes, "", &net::NumaNode::unfit);
  if (const Status bound = TryBinding(first->id); !bound) {
    finding.verdict = Verdict::kWarn;
    finding.change = fmt::format(
        "memory cannot be bound to a node ({}), so --numa relies on the threads that touch it "
        "first: give the container CAP_SYS_NICE (--cap-add SYS_NICE)",
        bound.error().detail);
  }
  return finding;
}

Finding Owners() {
  const auto owners = pool::StatusOfOwners(DefaultSocketPath(), kSecond);
  Finding finding{.what = "owners of this host",
                  .seen = owners.empty() ? "none at " + DefaultSocketPath() : ""};
  for (const pool::OwnerStatus& owner : owners) {
    finding.seen += (finding.seen.empty() ? "" : "; ") + owner.socket;
    if (owner.reached) {
      finding.seen += fmt::format(": {}{}", FormatSize(owner.stat.payload_bytes),
                                  owner.node < 0 ? "" : fmt::format(" of node {}", owner.node));
      continue;
    }
    finding.verdict = Verdict::kWarn;
    finding.seen += ": " + owner.reached.error().ToString();
    finding.change = "look at that owner's log; a socket that nobody serves may be removed";
  }
  return finding;
}

}  // namespace

void AddNumaFindings(const DoctorOptions& options, std::uint64_t memory_bytes,
                     std::vector<Finding>& findings) {
  findings.push_back(Nodes(options.sysfs, memory_bytes));
  findings.push_back(Owners());
}

}  // namespace kvcove::cli
