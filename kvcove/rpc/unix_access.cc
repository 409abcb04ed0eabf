// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/unix_access.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <grp.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/directory.h"
#include "kvcove/base/interrupt.h"

namespace kvcove::rpc {
namespace {

constexpr std::size_t kMaxGroups = 1024;
constexpr std::size_t kEntryBytes = 16U << 10;
constexpr int kLockTries = 100;  // a millisecond each; the holder needs some microseconds

std::string DirectoryOf(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Returns whether a process listens there. Does not wait for one that accepts nobody: its queue is
// full then (EAGAIN).
bool IsServed(const sockaddr_un& address) {
  const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe.valid()) return true;
  return connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
         errno == EAGAIN;
}

// Lets one process at a time look at, remove and bind the names of a directory of sockets. A name
// is bound before its socket listens and refuses connections in between. Another process that
// starts then would take it for one that nobody serves, and remove it. To a client the refusal is
// the same as no name. Best effort: without the right to read the directory, or while a frozen
// process has the lock, the names are used without it.
UniqueFd LockNames(const std::string& directory) {
  UniqueFd fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (int i = 0; fd.valid() && i < kLockTries; ++i) {
    if (flock(fd.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) break;
    SleepNs(kMillisecond);
  }
  return fd;
}

std::optional<std::uint32_t> Number(const std::string& text) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

struct User {
  std::uint32_t uid = 0;
  std::optional<std::uint32_t> gid;  // nothing: a number without an entry
};

Result<User> FindUser(const std::string& name) {
  std::vector<char> space(kEntryBytes);
  passwd entry{};
  passwd* found = nullptr;
  const auto number = Number(name);
  if (number) {
    getpwuid_r(*number, &entry, space.data(), space.size(), &found);
  } else {
    getpwnam_r(name.c_str(), &entry, space.data(), space.size(), &found);
  }
  if (found != nullptr) return User{.uid = found->pw_uid, .gid = found->pw_gid};
  if (number) return User{.uid = *number, .gid = std::nullopt};
  return Fail(Code::kInvalid, fmt::format("the user '{}' is not known on this host", name));
}

Result<std::uint32_t> FindGroup(const std::string& name) {
  if (const auto number = Number(name)) return *number;
  std::vector<char> space(kEntryBytes);
  group entry{};
  group* found = nullptr;
  getgrnam_r(name.c_str(), &entry, space.data(), space.size(), &found);
  if (found != nullptr) return found->gr_gid;
  return Fail(Code::kInvalid, fmt::format("the group '{}' is not known on this host", name));
}

bool IsMember(int fd, const ucred& peer, gid_t wanted) {
  if (peer.gid == wanted) return true;
  std::vector<gid_t> groups(kMaxGroups);
  auto length = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
  if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &length) != 0) return false;
  groups.resize(length / sizeof(gid_t));
  return std::ranges::find(groups, wanted) != groups.end();
}

std::unexpected<Error> NotMember(const std::string& path, std::uint32_t group) {
  return Fail(Code::kDenied,
              fmt::format("this user may not give '{}' to the group {}: it is not one of its "
                          "groups; add this user to that group, name another with --engine-group, "
                          "or run as root",
                          path, group));
}

Status SetModes(const std::string& path, const UnixAccess& access) {
  if (access.alone()) {
    chmod(path.c_str(), 0600);
    return {};
  }
  if (lchown(path.c_str(), static_cast<uid_t>(-1), *access.file_group) != 0) {
    unlink(path.c_str());
    return NotMember(path, *access.file_group);
  }
  if (chmod(path.c_str(), 0660) != 0) {
    return FailErrno(Code::kInvalid, fmt::format("the mode of '{}'", path));
  }
  return {};
}

}  // namespace

bool UnixAccess::Allows(int fd, ucred& peer) const {
  socklen_t length = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return false;
  return peer.uid == geteuid() || peer.uid == 0 || (user && peer.uid == *user) ||
         (group && IsMember(fd, peer, *group));
}

Result<std::uint32_t> ParseUser(const std::string& user) {
  KVCOVE_ASSIGN(const User found, FindUser(user));
  return found.uid;
}

Result<UnixAccess> ParseUnixAccess(const std::string& user, const std::string& group) {
  UnixAccess access;
  if (!user.empty()) {
    KVCOVE_ASSIGN(const User found, FindUser(user));
    access.user = found.uid;
    access.file_group = found.gid;
    if (!found.gid && group.empty()) {
      return Fail(Code::kInvalid,
                  fmt::format("the user {} has no entry on this host that names its "
                              "group; name one with --engine-group, too",
                              user));
    }
  }
  if (!group.empty()) {
    KVCOVE_ASSIGN(access.group, FindGroup(group));
    access.file_group = access.group;
  }
  return access;
}

Status PrepareSocketDirectory(const std::string& socket_path, const UnixAccess& access) {
  const std::string path = DirectoryOf(socket_path);
  struct stat status{};
  const bool exists = stat(path.c_str(), &status) == 0;
  if (access.alone() || !exists) {
    KVCOVE_ASSIGN(const UniqueFd directory, OpenOwnDirectory(path, DirectoryUse::kSocket));
    if (access.alone()) return {};
    if (fchown(directory.get(), static_cast<uid_t>(-1), *access.file_group) != 0) {
      rmdir(path.c_str());
      return NotMember(path, *access.file_group);
    }
    if (fchmod(directory.get(), 0710) != 0) {
      return FailErrno(Code::kInvalid, fmt::format("the mode of '{}'", path));
    }
    return {};
  }
  // An existing directory is only checked: it may have other files, and its user must decide
  // whether a group may enter.
  KVCOVE_TRY(CheckOwnDirectory(path, DirectoryUse::kGroupSocket));
  if (status.st_gid == *access.file_group && (status.st_mode & S_IXGRP) != 0) return {};
  return Fail(Code::kDenied,
              fmt::format("the group {} cannot enter the socket's directory '{}'; name one that "
                          "does not exist yet, or run: chgrp {} '{}' && chmod 710 '{}'",
                          *access.file_group, path, *access.file_group, path, path));
}

Result<UniqueFd> ListenUnix(const std::string& path, const UnixAccess& access) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return Fail(Code::kInvalid, fmt::format("the socket path '{}' must have 1 to {} bytes", path,
                                            sizeof(address.sun_path) - 1));
  }
  KVCOVE_TRY(PrepareSocketDirectory(path, access));
  const UniqueFd locked = LockNames(DirectoryOf(path));
  std::memcpy(address.sun_path, path.data(), path.size());
  struct stat status{};
  if (lstat(path.c_str(), &status) == 0) {
    if (!S_ISSOCK(status.st_mode)) {
      return Fail(Code::kInvalid, fmt::format("'{}' exists and is no socket", path));
    }
    if (IsServed(address)) {
      return Fail(Code::kUnavailable, fmt::format("the socket '{}' is in use by another kvcove; "
                                                  "stop it or name another socket",
                                                  path));
    }
    unlink(path.c_str());
  }
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid() ||
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(fd.get(), 256) != 0) {
    return FailErrno(Code::kUnavailable, fmt::format("listening on '{}'", path));
  }
  KVCOVE_TRY(SetModes(path, access));
  return fd;
}

}  // namespace kvcove::rpc
