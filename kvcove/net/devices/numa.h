// SPDX-License-Identifier: Apache-2.0
// Which NUMA nodes an owner may live on, and how a host's memory is split over several owners.
// Reads the kernel's trees, whose roots are inputs; changes nothing (kvcove/base/host/numa.h does).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kvcove/base/host/numa.h"
#include "kvcove/base/result.h"
#include "kvcove/net/devices/sysfs.h"

namespace kvcove::net {

// What this process may use, as its cpuset allows. Nothing: the kernel does not say, so all of it.
struct NodeLimits {
  std::optional<std::set<int>> memory;      // nodes
  std::optional<std::set<int>> processors;  // processors
};
// Of the lines Mems_allowed_list and Cpus_allowed_list, as /proc/self/status has them.
NodeLimits ReadNodeLimits(const std::string& status_path = "/proc/self/status");

struct NumaNode {
  int id = 0;
  std::vector<int> processors;        // those that this process may use
  std::uint64_t memory_bytes = 0;     // 0: it has none
  std::uint64_t available_bytes = 0;  // free, or a cache of files that can be dropped
  std::string unfit;                  // why `all` leaves it out; empty: it does not
  std::string barred;                 // why it cannot be named, either; empty: it can
};
// Nodes that are online, in order; none where the kernel knows no nodes.
std::vector<NumaNode> ReadNumaNodes(const Sysfs& sysfs, const NodeLimits& limits);

// What one owner gets.
struct OwnerShare {
  NodePlace place;  // not bound where the kernel knows no nodes
  std::uint64_t memory_bytes = 0;
};
// `numa`: "all", one owner on each fit node with an equal part of `memory_bytes`; "N", one owner
// with all of it on that node; empty, one owner that is bound to none. Errors: kInvalid for a node
// that is not there or cannot be used, or that has not that much memory; with what there is.
Result<std::vector<OwnerShare>> SplitOverNodes(const std::string& numa, std::uint64_t memory_bytes,
                                               const std::vector<NumaNode>& nodes);

// "node 0: 16 processors, 120 GiB of 128 GiB can be had"
std::string Describe(const NumaNode& node);

}  // namespace kvcove::net
