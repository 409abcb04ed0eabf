// SPDX-License-Identifier: Apache-2.0
// What `kvcove doctor` finds. Its checks of the network have a file of their own.
#pragma once

#include <string>
#include <vector>

#include "kvcove/cli/command.h"

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
  std::string sysfs = "/sys";
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

// Errors: kInvalid for options that do not fit together.
Status AddNetworkFindings(const DoctorOptions& options, std::vector<Finding>& findings);

}  // namespace kvcove::cli
