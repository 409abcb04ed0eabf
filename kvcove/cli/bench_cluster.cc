// SPDX-License-Identifier: Apache-2.0
#include "kvcove/cli/bench_cluster.h"

#include <fmt/core.h>

#include <fstream>
#include <thread>

#include "kvcove/base/size.h"

namespace kvcove::cli {
namespace {

Result<rpc::Address> FreeAddress() {
  rpc::Address address{.host = "127.0.0.1", .port = 0};
  KVCOVE_ASSIGN(const UniqueFd free_port, rpc::ListenTcp(address));
  return address;
}

}  // namespace

Result<std::unique_ptr<BenchProcess>> BenchProcess::Start(std::vector<std::string> arguments,
                                                          ProcessOptions options) {
  arguments.insert(arguments.begin(), SelfPath());
  options.words = std::move(arguments);
  KVCOVE_ASSIGN(Process process, Process::Start(options));
  return std::make_unique<BenchProcess>(std::move(process));
}

std::uint64_t BenchProcess::ResidentBytes() const {
  std::ifstream status(fmt::format("/proc/{}/status", process_.pid()));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::strtoull(line.c_str() + 8, nullptr, 10) * kKiB;
  }
  return 0;
}

Status Cluster::StartMaster() {
  const bool file = store.empty();
  KVCOVE_ASSIGN(master, BenchProcess::Start({"--log", "warn", "master", "--exit-with-parent",
                                             "--admin", admin_address.ToString(), "--listen",
                                             master_address.ToString(), file ? "--data" : "--store",
                                             file ? directory->path() + "/master" : store}));
  return {};
}

Result<Cluster> Cluster::Start(const ClusterBenchOptions& options) {
  Cluster cluster;
  KVCOVE_ASSIGN(auto directory, TemporaryDirectory::Make());
  cluster.store = options.store;
  cluster.directory = std::make_unique<TemporaryDirectory>(std::move(directory));
  KVCOVE_ASSIGN(cluster.master_address, FreeAddress());
  KVCOVE_ASSIGN(cluster.admin_address, FreeAddress());
  KVCOVE_TRY(cluster.StartMaster());
  const std::string master = cluster.master_address.ToString();
  for (int i = 0; i < options.owners; ++i) {
    KVCOVE_ASSIGN(
        auto owner,
        BenchProcess::Start(
            {"--log", "error", "owner", "--exit-with-parent", "--admin", "off", "--master", master,
             "--listen", "127.0.0.1:0", "--memory", std::to_string(options.memory), "--max-objects",
             std::to_string(options.max_objects), "--socket",
             fmt::format("{}/owner{}/kvcove.sock", cluster.directory->path(), i)},
            {.environment = {{"KVCOVE_HOST_ID", fmt::format("owner{}", i)}}}));
    cluster.owners.push_back(std::move(owner));
  }
  const std::string address =
      fmt::format("kvcove://{}?host=requester&checksum={}", master, options.checksum ? 1 : 0);
  for (int tries = 0; tries < 500 && cluster.pool == nullptr; ++tries) {
    auto pool = Pool::Open(address, kTimeout);
    if (pool) {
      const auto stat = (*pool)->Stat();
      if (stat &&
          stat->payload_bytes >= options.memory * static_cast<std::uint64_t>(options.owners)) {
        cluster.pool = std::move(*pool);
        break;
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (cluster.pool == nullptr) return Fail(Code::kTimeout, "the cluster did not start");
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  KVCOVE_ASSIGN(cluster.session, cluster.pool->OpenSession({.name = "bench", .engine = "bench"}));
  return cluster;
}

}  // namespace kvcove::cli
