// SPDX-License-Identifier: Apache-2.0
// The options of `kvcove serve` and `kvcove owner`, which `kvcove run` passes on.
#pragma once

#include <string>
#include <vector>

#include "kvcove/cli/command.h"
#include "kvcove/pool/local_host.h"
#include "kvcove/pool/pool.h"

namespace kvcove::cli {

struct ServeOptions {
  std::string socket = DefaultSocketPath();
  std::string data_directory;
  SizeOption memory{"4GiB"};
  SizeOption granule{"0"};
  std::string numa;
  std::string sysfs = "/sys";
  std::uint64_t max_objects = 0;
  std::string policy = "default";
  std::vector<std::string> quotas;
  std::string engine_user;
  std::string engine_group;
  bool no_populate = false;
  std::string huge_pages = "auto";
  std::vector<std::string> disks;
  std::string disk_admit = "policy";
  std::string disk_write_rate = "0";
  std::vector<std::string> disk_quotas;
  std::vector<std::string> disk_bandwidths;
  std::string metrics = "off";
  bool take_over = false;
  bool exit_with_parent = false;
  bool while_attended = false;
};

struct OwnerOptions : ServeOptions {
  std::string master = "127.0.0.1:7400";
  std::string listen = "127.0.0.1:7401";
  std::string advertise;
  std::vector<std::string> rdma_devices;
  std::string gid_index;
  std::string host;
  std::string tenant;
  std::string admin = "127.0.0.1:7481";
  SecurityOptions security;
  LimitOptions limits{pool::ClusterMember().limits};
  bool no_checksum = false;
};

// What `serve` and `owner` have in common.
void AddServeOptions(CLI::App& app, ServeOptions& options);
void AddDiskOptions(CLI::App& app, ServeOptions& options);
// What `owner` has beside that, except --master.
void AddClusterOptions(CLI::App& app, OwnerOptions& options);

}  // namespace kvcove::cli
