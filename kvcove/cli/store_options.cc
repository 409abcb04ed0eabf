// SPDX-License-Identifier: Apache-2.0
#include "kvcove/cli/store_options.h"

namespace kvcove::cli {

CLI::Option* AddStoreOptions(CLI::App& app, StoreOptions& options) {
  CLI::Option* store = app.add_option("--store", options.place,
                                      "control store of several masters, equal for all of them, "
                                      "etcd://HOST:2379,HOST:2379,HOST:2379/PREFIX (docs/ha.md)");
  app.add_option("--store-user-file", options.files.user,
                 "a file with user = \"...\" and password = \"...\" of etcd, closed to others");
  app.add_option("--store-tls-authority", options.files.tls.authority,
                 "speak TLS with etcd, whose certificate this authority has signed");
  app.add_option("--store-tls-certificate", options.files.tls.certificate,
                 "PEM file with the certificate of this process for etcd");
  app.add_option("--store-tls-key", options.files.tls.key,
                 "PEM file with the key of the certificate for etcd");
  return store;
}

}  // namespace kvcove::cli
