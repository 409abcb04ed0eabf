// SPDX-License-Identifier: Apache-2.0
// Memory and threads of one NUMA node, by the kernel's own calls (mbind(2), sched_setaffinity(2)).
// kvcove/net/devices/numa.h says which nodes there are.
#pragma once

#include <sched.h>

#include <cstddef>
#include <vector>

#include "kvcove/base/result.h"

namespace kvcove {

inline constexpr int kNoNode = -1;

// Where an owner's memory and threads shall be.
struct NodePlace {
  int node = kNoNode;
  std::vector<int> processors;  // of that node; none: threads run anywhere
  bool bound() const { return node != kNoNode; }
};

// The pages of a mapping come from this node alone, whichever process touches them first: for a
// mapping of a memory file the kernel keeps the policy with the file. Pages that are there already
// stay. Errors: kDenied when a sandbox forbids mbind (docker's profile does without CAP_SYS_NICE);
// kInvalid for a node that has no memory or that this process may not use.
Status BindMemory(std::byte* data, std::size_t size, int node);

// While it lives, this thread and the threads that it starts run on the processors of `place`: what
// they touch first lies there, where no policy says otherwise. A thread that was started meanwhile
// stays there. Belongs to the thread that made it.
class OnNode {
 public:
  explicit OnNode(const NodePlace& place);
  ~OnNode();
  OnNode(const OnNode&) = delete;
  OnNode& operator=(const OnNode&) = delete;

 private:
  bool changed_ = false;
  cpu_set_t before_{};
};

// The node of the processor that this thread runs on now; kNoNode when the kernel does not say. No
// system call on the usual processors (vDSO).
int NodeOfThisThread();

}  // namespace kvcove
