// SPDX-License-Identifier: Apache-2.0
// What a container gives this process, and what that means for its role: for `kvcove doctor
// --container`, and for the start of a server.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/base/host/memory.h"
#include "kvcove/base/mounts.h"
#include "kvcove/base/result.h"
#include "kvcove/cli/doctor.h"

namespace kvcove::cli {

// What a process of kvcove is: an engine is one that maps the pool.
enum class Role { kServe, kOwner, kMaster, kEngine };
inline constexpr std::string_view kRoles[] = {"serve", "owner", "master", "engine"};
inline std::string_view RoleName(Role role) { return kRoles[static_cast<int>(role)]; }
// Errors: kInvalid; `what` names the setting.
Result<Role> ParseRole(std::string_view what, std::string_view text);
inline bool HoldsMemory(Role role) { return role == Role::kServe || role == Role::kOwner; }

// Whether this process's namespace of the kind ("pid", "user") is another than the one with which
// the kernel begins; nothing where /proc does not show it. `root` stands before /proc, in tests.
std::optional<bool> OwnNamespace(std::string_view kind, const std::string& root = "");

// What the kernel and the container's runtime have set for this process.
struct ContainerFacts {
  // Reads them. `root` stands before /proc, /run, /sys and the markers of runtimes, in tests;
  // limits of the process and of /dev/shm are this process's all the same.
  static ContainerFacts Read(const std::string& root = "");

  // Whether the directory or file, which need not exist, would be in the writable layer of the
  // container, which nobody else sees and which ends with it: no mount of its own is there.
  bool IsInLayer(const std::string& path) const;

  std::string how;                 // what shows that this is a container; empty: nothing does
  std::optional<bool> own_pids;    // a PID namespace of its own
  std::optional<bool> own_users;   // a user namespace of its own
  bool names_peers = false;        // SO_PEERPIDFD works: the peer's PID namespace does not matter
  std::string network;             // "net:[4026531840]"
  std::uint32_t user = 0;          // effective
  std::uint64_t locked_bytes = 0;  // RLIMIT_MEMLOCK; ~0: no limit
  std::optional<std::uint64_t> shm_bytes;  // size of /dev/shm; nothing: there is none
  std::uint64_t huge_page_bytes = 0;       // of hugetlb; 0: the kernel has none
  std::uint64_t huge_set_aside = 0;        // such pages of the whole host
  std::uint64_t huge_limit_bytes = ~0ULL;  // of the control groups; ~0: none
  std::string huge_group;                  // the group that sets it
  MemoryRoom memory;
  bool memory_limited = false;  // a control group limits it, not only the host
  std::vector<Mount> mounts;    // later ones cover earlier ones
};

// What the process in the container is for.
struct ContainerUse {
  Role role = Role::kOwner;
  std::uint64_t memory_bytes = 0;  // of the owner; for an engine, that it maps
  std::string socket;              // data socket; empty: none
  std::string data;                // directory that must outlive the container; empty: none
  std::vector<std::string> disks;  // paths
  std::string host_id;             // --host-id, or $KVCOVE_HOST_ID
  bool rdma = false;               // payload may move by RDMA
};

// Returns a finding a subject, each of which says what it means for the role.
std::vector<Finding> ContainerFindings(const ContainerFacts& facts, const ContainerUse& use);

// At the start of a server: logs a line for each finding that something is wrong. Nothing outside
// of a container.
void WarnOfContainer(const ContainerUse& use);

}  // namespace kvcove::cli
