// SPDX-License-Identifier: Apache-2.0
#include "kvcove/cli/store_options.h"

namespace kvcove::cli {

CLI::Option* AddStoreOptions(CLI::App& app, StoreOptions& options) {
  CLI::Option* store = app.add_option("--store", options.place,
                                      "of several masters: where all of them keep their facts, "
                                      "etcd://HOST:2379,HOST:2379,HOST:2379/PREFIX (docs/ha.md)");
  app.add_option("--store-user-file", options.files.user,
                 "a file with user = \"...\" and password = \"...\" of etcd, closed to others");
  app.add_option("--store-tls-authority", options.files.tls.authority,
                 "speak TLS with etcd, whose certificate this authority has signed");
  app.add_option("--store-tls-certificate", options.files.tls.certificate,
                 "what this process shows etcd");
  app.add_option("--store-tls-key", options.files.tls.key, "its key");
  return store;
}

}  // namespace kvcove::cli
