// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvcove/base/result.h"

namespace kvcove {

// For tests that reserve and commit on the real clock. A reservation holds its key for a second: a
// put whose thread stands still for longer ends with kTimeout, and is made again.
template <typename Put>
Code PutInTime(Put&& put) {
  Code code = Code::kTimeout;
  while (code == Code::kTimeout) code = put();
  return code;
}

}  // namespace kvcove
