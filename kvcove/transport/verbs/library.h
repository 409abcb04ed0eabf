// SPDX-License-Identifier: Apache-2.0
// RDMA devices of this host, by libibverbs. The library is opened at run time, so nothing that
// kvcove builds needs it; a build needs its header.
#pragma once

#include <string>

#include "kvcove/transport/verbs/verbs_api.h"

namespace kvcove::transport::verbs {

// Opens a library under this name. The result lives as long as the process. Errors: kUnavailable;
// the library is missing, or lacks a function.
Result<Verbs*> OpenLibrary(const std::string& name);
// Opens libibverbs.so.1 with the first call; later calls return the same.
Result<Verbs*> VerbsOfProcess();

}  // namespace kvcove::transport::verbs
