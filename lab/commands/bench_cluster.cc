// SPDX-License-Identifier: Apache-2.0
#include "lab/commands/bench_cluster.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "kvcove/base/size.h"
#include "kvcove/base/text.h"
#include "kvcove/http/server.h"
#include "kvcove/wire/shard_map.h"

namespace kvcove::lab {
namespace {

Result<rpc::Address> FreeAddress() {
  rpc::Address address{.host = "127.0.0.1", .port = 0};
  KVCOVE_ASSIGN(const UniqueFd free_port, rpc::ListenTcp(address));
  return address;
}

}  // namespace

Result<std::unique_ptr<BenchProcess>> BenchProcess::Start(std::vector<std::string> arguments,
                                                          cli::ProcessOptions options) {
  arguments.insert(arguments.begin(), cli::SelfPath());
  options.words = std::move(arguments);
  KVCOVE_ASSIGN(cli::Process process, cli::Process::Start(options));
  return std::make_unique<BenchProcess>(std::move(process));
}

std::uint64_t BenchProcess::ResidentBytes() const {
  std::ifstream status(fmt::format("/proc/{}/status", process_.pid()));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return LeadingNumber(std::string_view(line).substr(8)) * kKiB;
  }
  return 0;
}

double BenchProcess::CpuSeconds() const {
  std::ifstream stat(fmt::format("/proc/{}/stat", process_.pid()));
  std::string line;
  std::getline(stat, line);
  // Behind the name, which may hold anything: the state is field 3, user and system time 14 and 15.
  std::istringstream fields(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  std::string skipped;
  for (int i = 3; i < 14; ++i) fields >> skipped;
  double user = 0;
  double system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

Status Cluster::StartMasters(const ClusterBenchOptions& options, std::string& addresses) {
  KVCOVE_ASSIGN(const rpc::Address client, FreeAddress());
  KVCOVE_ASSIGN(const rpc::Address peer, FreeAddress());
  const std::string url = "http://" + client.ToString();
  const std::string peers = "http://" + peer.ToString();
  // It says more than a benchmark's reader wants.
  const UniqueFd quiet(open("/dev/null", O_WRONLY | O_CLOEXEC));
  KVCOVE_ASSIGN(
      cli::Process started,
      cli::Process::Start(
          {.words = {options.etcd, "--name", "bench", "--data-dir", directory->path() + "/etcd",
                     "--listen-client-urls", url, "--advertise-client-urls", url,
                     "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
                     "--initial-cluster", "bench=" + peers, "--log-level", "error"},
           .output = quiet.get(),
           .end_signal = SIGKILL}));
  etcd = std::make_unique<BenchProcess>(std::move(started));
  for (std::size_t i = 0; i < options.masters; ++i) {
    KVCOVE_ASSIGN(const rpc::Address address, FreeAddress());
    KVCOVE_ASSIGN(const rpc::Address admin, FreeAddress());
    KVCOVE_ASSIGN(auto one,
                  BenchProcess::Start({"--log", "error", "master", "--exit-with-parent", "--admin",
                                       admin.ToString(), "--listen", address.ToString(), "--shards",
                                       "on", "--store", "etcd://" + client.ToString() + "/bench"}));
    others.push_back(std::move(one));
    admins.push_back(admin);
    addresses += (i == 0 ? "" : ",") + address.ToString();
  }
  return {};
}

Status Cluster::AwaitShares() const {
  const std::size_t share = wire::kSlices / admins.size();
  for (int tries = 0; tries < 1000; ++tries) {
    for (const rpc::Address& admin : admins) {
      const auto reply =
          http::Call({.host = admin.host, .port = admin.port, .target = "/v1/masters"});
      if (!reply || reply->status != 200) continue;
      const auto body = nlohmann::json::parse(reply->body, nullptr, /*allow_exceptions=*/false);
      if (!body.is_object() || !body.contains("masters")) continue;
      const auto served = std::ranges::count_if(body["masters"], [&](const auto& one) {
        return one.value("slices", std::size_t{0}) + 128 > share;
      });
      if (static_cast<std::size_t>(served) == admins.size()) return {};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return Fail(Code::kTimeout, "the masters did not share the directory");
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
  KVCOVE_ASSIGN(auto directory, cli::TemporaryDirectory::Make());
  cluster.store = options.store;
  cluster.directory = std::make_unique<cli::TemporaryDirectory>(std::move(directory));
  std::string master;
  if (options.masters > 1) {
    KVCOVE_TRY(cluster.StartMasters(options, master));
  } else {
    KVCOVE_ASSIGN(cluster.master_address, FreeAddress());
    KVCOVE_ASSIGN(cluster.admin_address, FreeAddress());
    KVCOVE_TRY(cluster.StartMaster());
    master = cluster.master_address.ToString();
  }
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
  if (options.masters > 1) KVCOVE_TRY(cluster.AwaitShares());
  KVCOVE_ASSIGN(cluster.session, cluster.pool->OpenSession({.name = "bench", .engine = "bench"}));
  return cluster;
}

}  // namespace kvcove::lab
