// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/inherited.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <set>
#include <utility>

#include "kvcove/base/mutex.h"
#include "kvcove/base/text.h"

namespace kvcove::rpc {
namespace {

struct Inherited {
  Mutex mutex;
  std::vector<UniqueFd> listeners KVCOVE_GUARDED_BY(mutex);
};

Inherited& Instance() {
  static Inherited inherited;
  return inherited;
}

int OptionOf(int fd, int option) {
  int value = 0;
  socklen_t length = sizeof(value);
  return getsockopt(fd, SOL_SOCKET, option, &value, &length) == 0 ? value : 0;
}

bool ListensOnTcp(int fd) {
  const int domain = OptionOf(fd, SO_DOMAIN);
  return (domain == AF_INET || domain == AF_INET6) && OptionOf(fd, SO_ACCEPTCONN) != 0;
}

std::pair<std::string, std::uint16_t> NameOf(int fd) {
  sockaddr_storage name{};
  socklen_t length = sizeof(name);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) != 0) return {};
  char text[INET6_ADDRSTRLEN] = {};
  if (name.ss_family == AF_INET6) {
    const auto* six = reinterpret_cast<const sockaddr_in6*>(&name);
    inet_ntop(AF_INET6, &six->sin6_addr, text, sizeof(text));
    return {text, ntohs(six->sin6_port)};
  }
  const auto* four = reinterpret_cast<const sockaddr_in*>(&name);
  inet_ntop(AF_INET, &four->sin_addr, text, sizeof(text));
  return {text, ntohs(four->sin_port)};
}

}  // namespace

Address BoundAddress(int fd) {
  auto [host, port] = NameOf(fd);
  return {.host = std::move(host), .port = port};
}

std::vector<UniqueFd> CopyTcpListeners() {
  std::vector<UniqueFd> listeners;
  DIR* directory = opendir("/proc/self/fd");
  if (directory == nullptr) return listeners;
  std::set<ino_t> copied;
  while (const dirent* entry = readdir(directory)) {
    const std::optional<int> fd = NumberOf<int>(entry->d_name);
    struct stat socket{};
    // Owners of one process copy the listeners one after the other. If each copied the copies of
    // those before, the number would double with each owner.
    if (!fd || !ListensOnTcp(*fd) || fstat(*fd, &socket) != 0 ||
        !copied.insert(socket.st_ino).second) {
      continue;
    }
    listeners.emplace_back(fcntl(*fd, F_DUPFD_CLOEXEC, 0));
  }
  closedir(directory);
  return listeners;
}

void InheritTcpListeners(std::vector<UniqueFd> listeners) {
  const MutexLock lock(Instance().mutex);
  Instance().listeners = std::move(listeners);
}

UniqueFd TakeInherited(const Address& address) {
  const MutexLock lock(Instance().mutex);
  std::vector<UniqueFd>& listeners = Instance().listeners;
  for (auto at = listeners.begin(); at != listeners.end(); ++at) {
    const auto [host, port] = NameOf(at->get());
    const std::string wanted = address.host == "localhost" ? "127.0.0.1" : address.host;
    if (host != wanted || port != address.port) continue;
    UniqueFd found = std::move(*at);
    listeners.erase(at);
    return found;
  }
  return {};
}

std::size_t DropInherited() {
  std::vector<UniqueFd> left;
  const MutexLock lock(Instance().mutex);
  left.swap(Instance().listeners);
  return left.size();
}

}  // namespace kvcove::rpc
