// SPDX-License-Identifier: Apache-2.0
// What `kvcove doctor` finds. Its checks of the network and of peers have files of their own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvcove/cli/command.h"
#include "kvcove/rpc/access.h"
#include "kvcove/rpc/address.h"

namespace kvcove::cli {

struct DoctorOptions {
  SizeOption memory{"4GiB"};
  std::string data = "kvcove-master";  // as `kvcove master` has it
  std::vector<std::string> listen = {"127.0.0.1:7400", "127.0.0.1:7401", "127.0.0.1:7480",
                                     "127.0.0.1:7481"};
  std::string master;
  std::string advertise;
  std::vector<std::string> rdma_devices;
  std::string gid_index;
  std::string near;
  std::vector<std::string> peers;  // host:port of owners on other hosts
  bool rdma_plaintext = false;
  std::vector<std::string> disks;  // PATH:SIZE
  std::string sysfs = "/sys";
  SecurityOptions security;  // of the owner, for the master's port
  bool container = false;
  std::string role = "owner";  // of the container's process
  bool as_json = false;
};

enum class Verdict { kOk, kNote, kWarn, kFail };
constexpr const char* kVerdicts[] = {"ok", "note", "warn", "FAIL"};

struct Finding {
  std::string what;
  Verdict verdict = Verdict::kOk;
  std::string seen;
  std::string change;  // what to do; empty: nothing
};

// `memory_bytes`: what the owners of this host shall get together.
void AddNumaFindings(const DoctorOptions& options, std::uint64_t memory_bytes,
                     std::vector<Finding>& findings);
// Of --disk, if it is given. Errors: kInvalid when it is not PATH:SIZE.
Status AddDiskFindings(const DoctorOptions& options, std::vector<Finding>& findings);
// Whether a server answers at the address and lets this host in. `start`: what to do if nobody
// answers.
Finding Reaching(const std::string& what, const rpc::Address& address, const rpc::Access& access,
                 const std::string& start);
// Of --peer, if it is given. `ports`: the RDMA ports of this host, as "mlx5_0:1/3". Errors:
// kInvalid for an address that is none; those of the files.
Status AddPeerFindings(const DoctorOptions& options, const SecurityOptions::Loaded& security,
                       const std::vector<std::string>& ports, std::vector<Finding>& findings);
// With those of --peer. Errors: kInvalid for options that do not fit together.
Status AddNetworkFindings(const DoctorOptions& options, std::vector<Finding>& findings);

}  // namespace kvcove::cli
