// SPDX-License-Identifier: Apache-2.0
// A cluster of processes of this machine, for benchmarks.
#pragma once

#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "kvcove/rpc/address.h"
#include "lab/commands/bench.h"

namespace kvcove::lab {

// A command of this program as a process, ended with the object.
class BenchProcess {
 public:
  static Result<std::unique_ptr<BenchProcess>> Start(std::vector<std::string> arguments,
                                                     cli::ProcessOptions options = {});
  explicit BenchProcess(cli::Process process) : process_(std::move(process)) {}
  ~BenchProcess() { process_.End(std::chrono::seconds(30)); }
  // As when it crashes.
  void Kill() { process_.End(std::chrono::seconds(0), SIGKILL); }
  void Signal(int signal) { process_.Signal(signal); }
  // Bytes of memory that are its own or shared, now.
  std::uint64_t ResidentBytes() const;
  // Processor time that its threads have had.
  double CpuSeconds() const;

 private:
  cli::Process process_;
};

struct ClusterBenchOptions {
  int owners = 1;
  std::uint64_t memory = 0;  // of each owner
  bool checksum = true;
  std::uint64_t max_objects = 0;
  std::string store;  // of the master; empty: a file
  // Of masters that share the directory, and etcd's program; one has its facts in a directory.
  std::size_t masters = 1;
  std::string etcd;
};

// A master and some owners, and a requester without owner on its host.
struct Cluster {
  // Several masters: when each has its share.
  static Result<Cluster> Start(const ClusterBenchOptions& options);
  Status StartMaster();

  std::unique_ptr<cli::TemporaryDirectory> directory;
  std::string store;
  rpc::Address master_address;
  rpc::Address admin_address;
  std::unique_ptr<BenchProcess> etcd;
  std::unique_ptr<BenchProcess> master;
  std::vector<std::unique_ptr<BenchProcess>> others;  // masters
  std::vector<rpc::Address> admins;                   // of all of these
  std::vector<std::unique_ptr<BenchProcess>> owners;
  std::unique_ptr<Pool> pool;
  SessionPtr session;

 private:
  Status StartMasters(const ClusterBenchOptions& options, std::string& addresses);
  Status AwaitShares() const;
};

}  // namespace kvcove::lab
