// SPDX-License-Identifier: Apache-2.0
// Short messages with descriptors between two processes of one host, over a connected Unix socket.
// One thread at a time may send, and one may receive.
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
// The end of the detail of kUnavailable when the other side has ended.
inline constexpr std::string_view kOtherEnded = "the other process has ended";

struct FdMessage {
  std::string body;
  std::vector<UniqueFd> fds;
};

// Send and receive one message: at most kMaxMessageBytes and kMaxMessageFds. After an error the
// stream may be in the middle of a message, and the socket is of no use any more. Errors: kTimeout;
// kUnavailable when the other side has ended; kCorrupt; kLimit when this process may not have so
// many descriptors; kInternal for a message that is too long.
Status SendMessage(int socket, std::string_view body, std::span<const int> fds,
                   std::int64_t deadline_ns);
Result<FdMessage> ReceiveMessage(int socket, std::int64_t deadline_ns);

}  // namespace kvcove::rpc
