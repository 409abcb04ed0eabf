// SPDX-License-Identifier: Apache-2.0
// Disks by io_uring (kvcove/disklog/device.h).
#pragma once

namespace kvcove::uring {

// From now on OpenDevice tries io_uring first, and threads where the kernel forbids it. Call it
// before the first disk is opened.
void UseUring();

}  // namespace kvcove::uring
