// SPDX-License-Identifier: Apache-2.0
#include "codes.h"

namespace kvcove::python {

// The one table from kvcove's codes to that API's.
std::int64_t FromMiss(MissReason reason) {
  switch (reason) {
    case MissReason::kLease:
      return kLeaseExpired;
    case MissReason::kClosed:
      return kUnavailableInCurrentStatus;
    case MissReason::kUnavailable:
    case MissReason::kShardAway:
      return kRpcFail;
    case MissReason::kLimited:
    case MissReason::kNoRoom:
      return kObjectReplicaBusy;
    case MissReason::kOwnerGone:
      return kReplicaIsGone;
    case MissReason::kTimeout:
    case MissReason::kDiskTimeout:
      return kRpcTimeout;
    case MissReason::kDenied:
      return kIllegalClient;
    case MissReason::kNone:
    case MissReason::kNeverPut:
    case MissReason::kEvicted:
    case MissReason::kRemoved:
    case MissReason::kReset:
    case MissReason::kRaced:
    case MissReason::kDiskDamaged:  // it is dropped: there is nothing any more
    case MissReason::kDiskFailed:
    case MissReason::kWarmingUp:  // a fresh master: there may be something, and nobody could get it
      return kObjectNotFound;
  }
  return kObjectNotFound;
}

std::int64_t FromCode(Code code, MissReason reason) {
  switch (code) {
    case Code::kOk:
    case Code::kExists:  // the old value stays, and that API calls it a success
    case Code::kNotListed:
      return kStoreOk;
    case Code::kMiss:
      return FromMiss(reason);
    case Code::kTimeout:
    case Code::kBufferBusy:
      return kRpcTimeout;
    case Code::kStale:
      return kInvalidVersion;
    case Code::kClosed:
    case Code::kNotProven:
      return kUnavailableInCurrentStatus;
    case Code::kNoSpace:
    case Code::kLimit:
      return kNoAvailableHandle;
    case Code::kInProgress:
      return kReplicaIsNotReady;
    case Code::kDenied:
      return kIllegalClient;
    case Code::kIncompatible:
      return kUnavailableInCurrentMode;
    case Code::kCorrupt:
      return kChecksumMismatch;
    case Code::kInvalid:
    case Code::kBufferTooSmall:
      return kInvalidParams;
    case Code::kUnavailable:
      return kRpcFail;
    case Code::kInternal:
      return kStoreInternal;
  }
  return kStoreInternal;
}

}  // namespace kvcove::python
