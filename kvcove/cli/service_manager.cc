// SPDX-License-Identifier: Apache-2.0
#include "kvcove/cli/service_manager.h"

#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"

namespace kvcove::cli {
namespace {

void Notify(const std::string& state) {
  const char* const socket = std::getenv("NOTIFY_SOCKET");
  if (socket == nullptr || *socket == '\0') return;
  if (!NotifyAt(socket, state)) LogWarn("the service manager at '{}' does not hear us", socket);
}

}  // namespace

bool NotifyAt(const std::string& socket_name, const std::string& state) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const bool known = socket_name.starts_with('/') || socket_name.starts_with('@');
  if (!known || socket_name.size() >= sizeof(address.sun_path)) return false;
  std::memcpy(address.sun_path, socket_name.data(), socket_name.size());
  if (socket_name.front() == '@') address.sun_path[0] = '\0';
  const UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return false;
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_name.size());
  return sendto(fd.get(), state.data(), state.size(), MSG_NOSIGNAL,
                reinterpret_cast<const sockaddr*>(&address), size) >= 0;
}

void NotifyReady() { Notify("READY=1"); }

void NotifySuccessor(std::int32_t pid) { Notify(fmt::format("MAINPID={}", pid)); }

}  // namespace kvcove::cli
