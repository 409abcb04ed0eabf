// SPDX-License-Identifier: Apache-2.0
// How long a disk takes. Thread-safe.
#pragma once

#include "kvcove/base/metrics.h"

namespace kvcove::owner {

struct TierTimes {
  Histogram reads;   // of a record
  Histogram writes;  // from a value's way into the log until it is on the device
};

}  // namespace kvcove::owner
