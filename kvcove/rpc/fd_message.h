// SPDX-License-Identifier: Apache-2.0
// Short messages with descriptors between two processes of one host, over a connected Unix socket.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/base/posix.h"

namespace kvcove::rpc {

inline constexpr std::size_t kMaxMessageBytes = 4096;
inline constexpr std::size_t kMaxMessageFds = 64;

struct FdMessage {
  std::string body;
  std::vector<UniqueFd> fds;
};

// Errors of both: kTimeout; kUnavailable when the other side has ended; kCorrupt.
Status SendMessage(int socket, std::string_view body, std::span<const int> fds,
                   std::int64_t deadline_ns);
Result<FdMessage> ReceiveMessage(int socket, std::int64_t deadline_ns);

}  // namespace kvcove::rpc
