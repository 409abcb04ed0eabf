// SPDX-License-Identifier: Apache-2.0
// What a thread that hangs may use one day, though nobody waits for it any more.
#pragma once

#include <memory>

namespace kvcove {

// Keeps it until the process ends, where leak checkers find it. Thread-safe.
void LeaveBehind(std::shared_ptr<void> what);

}  // namespace kvcove
