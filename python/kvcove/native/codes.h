// SPDX-License-Identifier: Apache-2.0
// The integers of mooncake.store.
#pragma once

#include <cstdint>

#include "kvcove/model/ids.h"

namespace kvcove::python {

// That API's error codes, as far as they are answered here.
enum StoreCode : std::int64_t {
  kStoreOk = 0,
  kStoreInternal = -1,
  kNoAvailableHandle = -200,
  kInvalidVersion = -300,
  kInvalidParams = -600,
  kIllegalClient = -601,
  kReplicaIsNotReady = -703,
  kObjectNotFound = -704,
  kLeaseExpired = -707,
  kReplicaIsGone = -712,
  kObjectReplicaBusy = -714,
  kTransferFail = -800,
  kChecksumMismatch = -801,
  kRpcFail = -900,
  kRpcTimeout = -901,
  kUnavailableInCurrentStatus = -1010,
  kUnavailableInCurrentMode = -1011,
};

std::int64_t FromMiss(MissReason reason);
// A reason counts with kMiss.
std::int64_t FromCode(Code code, MissReason reason = MissReason::kNone);

}  // namespace kvcove::python
