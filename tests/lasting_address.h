// SPDX-License-Identifier: Apache-2.0
// Ports for servers of tests: two tests that run at once, of one suite or of two, never meet.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

#include "kvcove/base/posix.h"
#include "kvcove/base/random.h"
#include "kvcove/rpc/address.h"

namespace kvcove {

// A port of loopback that stays free while nobody listens there: a server that is killed must come
// back under the same one. It lies below the range from which connections get theirs, and this
// process keeps a socket bound to it until it ends, which keeps out other tests but no server
// (SO_REUSEADDR).
inline rpc::Address LastingAddress() {
  static std::vector<UniqueFd> kept;
  Random random(RandomU64());
  while (true) {
    const auto port = static_cast<std::uint16_t>(10'000 + random.Below(20'000));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd.valid()) throw std::system_error(errno, std::generic_category(), "socket()");
    if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) continue;
    const int on = 1;
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    kept.push_back(std::move(fd));
    return {.host = "127.0.0.1", .port = port};
  }
}

}  // namespace kvcove
