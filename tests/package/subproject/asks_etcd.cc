// SPDX-License-Identifier: Apache-2.0
// A program of somebody else whose pool's masters etcd names: with an argument it has a client of
// etcd, where nobody answers, and the admin interface of embedded pools.
#include <cstdio>

#include "kvcove/pool/pool.h"
#include "kvcove/server/embedded_admin.h"
#include "kvcove/server/etcd_masters.h"

int main(int count, char** /*arguments*/) {
  if (count > 1) {
    kvcove::server::UseEtcd();
    kvcove::server::ServeEmbedded();
    if (!kvcove::Pool::Open("embedded:?memory=1MiB")) return 1;
  }
  const auto pool =
      kvcove::Pool::Open("kvcove://etcd://127.0.0.1:1/pool", std::chrono::milliseconds(500));
  std::puts(pool.error().detail.c_str());
}
