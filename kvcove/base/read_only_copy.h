// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvcove/base/posix.h"

namespace kvcove {

// Another descriptor of a memory file, that reads only: nobody maps it for writing, and nobody but
// this user opens the file again for that. A seal (F_SEAL_FUTURE_WRITE) would keep even a successor
// of this process from writing (docs/decisions/0009).
Result<UniqueFd> ReadOnlyCopy(int fd);

}  // namespace kvcove
