// SPDX-License-Identifier: Apache-2.0
// A cluster of processes of this machine, for benchmarks.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "kvcove/cli/bench.h"
#include "kvcove/rpc/address.h"

namespace kvcove::cli {

// A descriptor that is passed on is this one there.
inline constexpr int kPassedFd = 3;

// A command of this program as a process, ended with the object.
class Process {
 public:
  // `variable`: "NAME=value", before the environment.
  static Result<std::unique_ptr<Process>> Start(std::vector<std::string> arguments,
                                                const std::string& variable = {}, int pass_fd = -1);
  ~Process();
  // As when it crashes.
  void Kill();
  void Signal(int signal) const;
  // Bytes of memory that are its own or shared, now.
  std::uint64_t ResidentBytes() const;

 private:
  pid_t pid_ = 0;
};

struct ClusterBenchOptions {
  int owners = 1;
  std::uint64_t memory = 0;  // of each owner
  bool checksum = true;
  std::uint64_t max_objects = 0;
};

// A master and some owners, and a requester without owner on its host.
struct Cluster {
  static Result<Cluster> Start(const ClusterBenchOptions& options);
  Status StartMaster();

  std::unique_ptr<TemporaryDirectory> directory;
  rpc::Address master_address;
  rpc::Address admin_address;
  std::unique_ptr<Process> master;
  std::vector<std::unique_ptr<Process>> owners;
  std::unique_ptr<Pool> pool;
  std::unique_ptr<Session> session;
};

}  // namespace kvcove::cli
