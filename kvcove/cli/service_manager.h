// SPDX-License-Identifier: Apache-2.0
// What systemd hears of this process over $NOTIFY_SOCKET (sd_notify(3), Type=notify). Without that
// variable nothing is said. docs/upgrade.md has a unit file.
//
// A take-over: the old process is the service's main process, so its word counts, and it says who
// the new main process is before it ends. systemd reads that before it sees the end.
#pragma once

#include <cstdint>
#include <string>

namespace kvcove::cli {

// Calls are served.
void NotifyReady();
// Another process of this service is its main process from now on.
void NotifySuccessor(std::int32_t pid);

// `socket` as $NOTIFY_SOCKET has it: a path, or a name in the abstract namespace behind '@'. False:
// nobody has got it.
bool NotifyAt(const std::string& socket, const std::string& state);

}  // namespace kvcove::cli
