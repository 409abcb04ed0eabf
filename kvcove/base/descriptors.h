// SPDX-License-Identifier: Apache-2.0
// How many descriptors this process may have, and how many connections a listener may therefore
// take. A process that runs out of descriptors can neither accept, nor open a file, nor say why: so
// each listener has a bound below the process's limit, and speaks up before it is reached.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "kvcove/base/log.h"

namespace kvcove {

// Kept free of data connections: for the admin endpoint, files, sockets of Unix sessions, and the
// connections that this process opens itself.
inline constexpr std::uint64_t kReservedDescriptors = 256;

// RLIMIT_NOFILE, the soft limit.
std::uint64_t DescriptorLimit();
// Raises the soft limit to the hard one, for a process that is a server and nothing else. The limit
// afterwards.
std::uint64_t RaiseDescriptorLimit();
// Open now. Reads /proc/self/fd: for an operator's questions, not for a hot path.
std::uint64_t OpenDescriptors();
// `wanted`, or fewer when the limit does not allow for that many beside the reserve; `each`: the
// descriptors that one connection costs, times the listeners that share the limit. At least 16,
// unless fewer are wanted.
std::uint32_t ConnectionsWithin(std::uint32_t wanted, std::uint32_t each);

// The connections of one listener: counted, bounded, and in the log when the bound comes near.
// Shared by those that it counts, which may outlive the listener. Thread-safe, without a lock.
class ConnectionLimit : public std::enable_shared_from_this<ConnectionLimit> {
 public:
  // `name` says in the log whose connections these are, such as "master".
  ConnectionLimit(std::string name, std::uint32_t max);
  // One connection counts for as long as what this returns lives. Null when there are `max`
  // already: the caller closes the connection.
  std::shared_ptr<void> Take();
  // accept() failed with this errno.
  void AcceptFailed(int error);

  std::uint32_t open() const { return open_.load(std::memory_order_relaxed); }
  std::uint32_t max() const { return max_; }
  // Connections that were refused, and accepts that failed.
  std::uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  const std::string name_;
  const std::uint32_t max_;
  std::atomic<std::uint32_t> open_{0};
  std::atomic<std::uint64_t> refused_{0};
  LogLimit near_lines_;
  LogLimit full_lines_;
};

}  // namespace kvcove
