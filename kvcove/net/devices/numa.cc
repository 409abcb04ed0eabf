// SPDX-License-Identifier: Apache-2.0
#include "kvcove/net/devices/numa.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>

#include "kvcove/base/size.h"
#include "kvcove/base/text.h"

namespace kvcove::net {
namespace {

constexpr const char* kNodes = "devices/system/node";

// The number of KiB behind "Node 1 NAME:", in bytes.
std::uint64_t MemoryField(const std::vector<std::string>& lines, std::string_view name) {
  for (const std::string& line : lines) {
    const std::size_t at = line.find(name);
    if (at == std::string::npos || at == 0 || line[at - 1] != ' ') continue;
    return LeadingNumber(std::string_view(line).substr(at + name.size())) * kKiB;
  }
  return 0;
}

void ReadMemory(const Sysfs& sysfs, NumaNode& node) {
  const std::vector<std::string> lines =
      sysfs.Lines(fmt::format("{}/node{}/meminfo", kNodes, node.id));
  node.memory_bytes = MemoryField(lines, "MemTotal:");
  // Pages of files give way to memory that is bound; pages of shared memory do not.
  node.available_bytes = MemoryField(lines, "MemFree:") + MemoryField(lines, "Active(file):") +
                         MemoryField(lines, "Inactive(file):") +
                         MemoryField(lines, "SReclaimable:");
}

NumaNode ReadNode(const Sysfs& sysfs, const NodeLimits& limits, int id) {
  NumaNode node{.id = id, .processors = {}, .unfit = {}, .barred = {}};
  const std::set<int> all = ParseList(sysfs.Line(fmt::format("{}/node{}/cpulist", kNodes, id)));
  for (const int processor : all) {
    if (!limits.processors || limits.processors->contains(processor)) {
      node.processors.push_back(processor);
    }
  }
  ReadMemory(sysfs, node);
  if (node.memory_bytes == 0) {
    node.barred = "has no memory";
  } else if (limits.memory && !limits.memory->contains(id)) {
    node.barred = "is not in this process's cpuset.mems";
  } else if (all.empty()) {
    // Expanders, or the memory of a GPU: a cache there takes what somebody else counts on.
    node.unfit = "has memory but no processors; name it with --numa if it is meant for a cache";
  } else if (node.processors.empty()) {
    node.unfit = "has no processor that this process may use (cpuset.cpus, taskset)";
  }
  if (!node.barred.empty()) node.unfit = node.barred;
  return node;
}

std::string Names(const std::vector<NumaNode>& nodes) {
  std::vector<std::string> names;
  for (const NumaNode& node : nodes) {
    names.push_back(node.unfit.empty() ? fmt::format("{}", node.id)
                                       : fmt::format("{} ({})", node.id, node.unfit));
  }
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

Result<OwnerShare> ShareOn(const NumaNode& node, std::uint64_t bytes) {
  if (bytes > node.available_bytes) {
    return Fail(Code::kInvalid,
                fmt::format("--numa: an owner on NUMA node {} would get {}, but the node can give "
                            "{} now; give less --memory",
                            node.id, FormatSize(bytes), FormatSize(node.available_bytes)));
  }
  return OwnerShare{.place = {.node = node.id, .processors = node.processors},
                    .memory_bytes = bytes};
}

Result<std::vector<OwnerShare>> ShareOnAll(std::uint64_t memory_bytes,
                                           const std::vector<NumaNode>& nodes) {
  // A kernel without NUMA: the host is one node.
  if (nodes.empty()) return std::vector{OwnerShare{.place = {}, .memory_bytes = memory_bytes}};
  const auto fit = static_cast<std::uint64_t>(
      std::ranges::count_if(nodes, [](const NumaNode& node) { return node.unfit.empty(); }));
  if (fit == 0) {
    return Fail(Code::kInvalid, "--numa all: no NUMA node fits: " + Names(nodes));
  }
  std::vector<OwnerShare> shares;
  for (const NumaNode& node : nodes) {
    if (!node.unfit.empty()) continue;
    KVCOVE_ASSIGN(OwnerShare share, ShareOn(node, memory_bytes / fit));
    shares.push_back(std::move(share));
  }
  return shares;
}

}  // namespace

NodeLimits ReadNodeLimits(const std::string& status_path) {
  NodeLimits limits;
  std::ifstream file(status_path);
  for (std::string line; std::getline(file, line);) {
    for (const auto& [name, into] : {std::pair{"Mems_allowed_list:", &limits.memory},
                                     std::pair{"Cpus_allowed_list:", &limits.processors}}) {
      if (!line.starts_with(name)) continue;
      const std::size_t at = line.find_first_not_of(" \t", std::string_view(name).size());
      *into = ParseList(at == std::string::npos ? std::string_view()
                                                : std::string_view(line).substr(at));
    }
  }
  return limits;
}

std::vector<NumaNode> ReadNumaNodes(const Sysfs& sysfs, const NodeLimits& limits) {
  std::vector<NumaNode> nodes;
  for (const int id : ParseList(sysfs.Line(fmt::format("{}/online", kNodes)))) {
    nodes.push_back(ReadNode(sysfs, limits, id));
  }
  return nodes;
}

Result<std::vector<OwnerShare>> SplitOverNodes(const std::string& numa, std::uint64_t memory_bytes,
                                               const std::vector<NumaNode>& nodes) {
  if (numa.empty()) return std::vector{OwnerShare{.place = {}, .memory_bytes = memory_bytes}};
  if (numa == "all") return ShareOnAll(memory_bytes, nodes);
  int id = 0;
  const auto [end, error] = std::from_chars(numa.data(), numa.data() + numa.size(), id);
  const auto node = std::ranges::find(nodes, id, &NumaNode::id);
  if (error != std::errc() || end != numa.data() + numa.size() || node == nodes.end()) {
    return Fail(Code::kInvalid,
                fmt::format("--numa: '{}' is neither 'all' nor a NUMA node of this host; there "
                            "are: {}",
                            numa, Names(nodes)));
  }
  if (!node->barred.empty()) {
    return Fail(Code::kInvalid, fmt::format("--numa: NUMA node {} {}", id, node->barred));
  }
  KVCOVE_ASSIGN(OwnerShare share, ShareOn(*node, memory_bytes));
  return std::vector{std::move(share)};
}

std::string Describe(const NumaNode& node) {
  return fmt::format("node {}: {} processors, {} of {} can be had{}", node.id,
                     node.processors.size(), FormatSize(node.available_bytes),
                     FormatSize(node.memory_bytes),
                     node.unfit.empty() ? "" : "; left out by --numa all: it " + node.unfit);
}

}  // namespace kvcove::net
