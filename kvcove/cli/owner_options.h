// SPDX-License-Identifier: Apache-2.0
// The options of `kvcove serve` and `kvcove owner`, which `kvcove run` passes on.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/cli/command.h"
#include "kvcove/cli/kv_events.h"
#include "kvcove/pool/local_host.h"
#include "kvcove/pool/pool.h"

namespace kvcove::cli {

struct ServeOptions {
  std::string socket = DefaultSocketPath();
  std::string data_directory;
  // What was given of pool::OwnerFields, by key; one text for those that may be there once.
  std::map<std::string_view, std::string> texts;
  std::map<std::string_view, std::vector<std::string>> lists;
  std::string numa;
  std::string sysfs = "/sys";
  std::string engine_user;
  std::string engine_group;
  std::string metrics = "off";
  std::string admin = "off";
  KvEventsTexts kv_events;
  SecurityOptions security;
  bool take_over = false;
  bool exit_with_parent = false;
  bool while_attended = false;
};

struct OwnerOptions : ServeOptions {
  OwnerOptions() { admin = "127.0.0.1:7481"; }
  std::string master = "127.0.0.1:7400";
  std::string listen = "127.0.0.1:7401";
  std::string advertise;
  std::string transport = "tcp";
  std::vector<std::string> rdma_devices;
  std::string gid_index;
  bool rdma_plaintext = false;
  std::string host;
  std::string tenant;
  LimitOptions limits{pool::ClusterMember().limits};
  bool no_checksum = false;
};

// Reads the texts and lists of `options` into `host`. Errors: kInvalid, with the option.
Status ReadFields(const ServeOptions& options, pool::LocalHostOptions& host);

// What `serve`, `owner` and `run` have in common.
void AddServeOptions(CLI::App& app, ServeOptions& options);
// The admin endpoint over TCP, and who may use it. `help`: of --admin.
void AddAdminOptions(CLI::App& app, ServeOptions& options, const std::string& help);
// What `serve` and `owner` have beside that.
void AddDaemonOptions(CLI::App& app, ServeOptions& options);
// What `owner` has beside both, except --master.
void AddClusterOptions(CLI::App& app, OwnerOptions& options);

}  // namespace kvcove::cli
