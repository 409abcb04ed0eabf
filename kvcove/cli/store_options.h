// SPDX-License-Identifier: Apache-2.0
// Where several masters keep their facts, as options.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "kvcove/master/etcd_client.h"
#include "kvcove/rpc/tls.h"

namespace kvcove::cli {

struct StoreOptions {
  std::string place;  // etcd://H1:2379,H2:2379/PREFIX
  std::string user_file;
  rpc::TlsFiles tls;

  // Errors: kInvalid, kDenied for a file that others may read.
  Result<master::EtcdOptions> Etcd() const;
};
// The option --store.
CLI::Option* AddStoreOptions(CLI::App& app, StoreOptions& options);

}  // namespace kvcove::cli
