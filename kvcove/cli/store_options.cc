// SPDX-License-Identifier: Apache-2.0
#include "kvcove/cli/store_options.h"

namespace kvcove::cli {

Result<master::EtcdOptions> StoreOptions::Etcd() const {
  master::EtcdOptions etcd;
  KVCOVE_ASSIGN(etcd.place, master::ParseEtcdPlace(place));
  if (!user_file.empty()) {
    KVCOVE_ASSIGN(etcd.user, rpc::LoadUserPassword(user_file));
  }
  if (tls.empty()) return etcd;
  if (tls.authority.empty()) {
    return Fail(Code::kInvalid,
                "--store-tls-certificate and --store-tls-key need --store-tls-authority, which "
                "says whom to trust");
  }
  rpc::TlsFiles files = tls;
  files.foreign_server = true;
  KVCOVE_ASSIGN(etcd.tls, rpc::Tls::Open(files));
  return etcd;
}

CLI::Option* AddStoreOptions(CLI::App& app, StoreOptions& options) {
  CLI::Option* store = app.add_option("--store", options.place,
                                      "of several masters: where all of them keep their facts, "
                                      "etcd://HOST:2379,HOST:2379,HOST:2379/PREFIX (docs/ha.md)");
  app.add_option("--store-user-file", options.user_file,
                 "a file with user = \"...\" and password = \"...\" of etcd, closed to others");
  app.add_option("--store-tls-authority", options.tls.authority,
                 "speak TLS with etcd, whose certificate this authority has signed");
  app.add_option("--store-tls-certificate", options.tls.certificate,
                 "what this process shows etcd");
  app.add_option("--store-tls-key", options.tls.key, "its key");
  return store;
}

}  // namespace kvcove::cli
