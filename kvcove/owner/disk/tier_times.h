// SPDX-License-Identifier: Apache-2.0
// How long a disk takes. Thread-safe.
#pragma once

#include "kvcove/http/metrics.h"

namespace kvcove::owner {

struct TierTimes {
  http::Histogram reads;   // of a record
  http::Histogram writes;  // from a value's way into the log until it is on the device
};

}  // namespace kvcove::owner
