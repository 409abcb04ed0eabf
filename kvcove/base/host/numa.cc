// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/host/numa.h"

#include <fmt/core.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "kvcove/base/log.h"

namespace kvcove {
namespace {

// <numaif.h> comes with libnuma, which nothing else here needs.
constexpr int kBind = 2;  // MPOL_BIND
constexpr std::size_t kWordBits = 8 * sizeof(unsigned long);
constexpr std::size_t kMaxNodes = 1024;

}  // namespace

Status BindMemory(std::byte* data, std::size_t size, int node) {
  if (node < 0 || static_cast<std::size_t>(node) >= kMaxNodes) {
    return Fail(Code::kInvalid, fmt::format("there is no NUMA node {}", node));
  }
  std::array<unsigned long, kMaxNodes / kWordBits> mask{};
  const auto bit = static_cast<std::size_t>(node);
  mask[bit / kWordBits] = 1UL << (bit % kWordBits);
  // The kernel reads one bit less than it is told.
  if (syscall(SYS_mbind, data, size, kBind, mask.data(), kMaxNodes + 1, 0) == 0) return {};
  const int why = errno;
  return FailErrno(why == EPERM ? Code::kDenied : Code::kInvalid,
                   fmt::format("binding memory to NUMA node {}", node));
}

OnNode::OnNode(const NodePlace& place) {
  if (place.processors.empty()) return;
  cpu_set_t wanted;
  CPU_ZERO(&wanted);
  for (const int processor : place.processors) {
    if (processor >= 0 && processor < CPU_SETSIZE) CPU_SET(processor, &wanted);
  }
  if (sched_getaffinity(0, sizeof(before_), &before_) != 0) return;
  changed_ = sched_setaffinity(0, sizeof(wanted), &wanted) == 0;
  if (!changed_) {
    LogWarn("threads cannot be kept on the processors of NUMA node {}: they run anywhere",
            place.node);
  }
}

OnNode::~OnNode() {
  if (changed_) (void)sched_setaffinity(0, sizeof(before_), &before_);
}

int NodeOfThisThread() {
  unsigned processor = 0;
  unsigned node = 0;
  return getcpu(&processor, &node) == 0 ? static_cast<int>(node) : kNoNode;
}

}  // namespace kvcove
