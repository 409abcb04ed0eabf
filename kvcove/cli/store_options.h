// SPDX-License-Identifier: Apache-2.0
// Where several masters keep their facts, as options.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "kvcove/master/etcd/etcd_client.h"

namespace kvcove::cli {

struct StoreOptions {
  std::string place;  // etcd://H1:2379,H2:2379/PREFIX
  master::EtcdFiles files;

  // Errors: as master::LoadEtcd.
  Result<master::EtcdOptions> Etcd() const { return master::LoadEtcd(place, files); }
};
// The option --store.
CLI::Option* AddStoreOptions(CLI::App& app, StoreOptions& options);

}  // namespace kvcove::cli
