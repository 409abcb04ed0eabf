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
#include <cstddef>
#include <cstdlib>
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

struct UnixName {
  sockaddr_un address{};
  socklen_t length = sizeof(address);
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

Result<UnixName> PathName(const std::string& path) {
  UnixName name;
  name.address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(name.address.sun_path)) {
    return Fail(Code::kInvalid, fmt::format("the socket path '{}' is longer than {} bytes", path,
                                            sizeof(name.address.sun_path) - 1));
  }
  std::memcpy(name.address.sun_path, path.data(), path.size());
  return name;
}

// Returns a name in the abstract namespace: it begins with a zero byte and ends with its length.
Result<UnixName> AbstractName(const std::string& text) {
  KVCOVE_ASSIGN(UnixName name, PathName('@' + text));
  name.address.sun_path[0] = '\0';
  name.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return name;
}

// Checks who listens at the socket: another user's process would get all values that are put, and
// could answer any value.
Status CheckServer(int fd, const std::string& path) {
  UnixAccess trusted;
  if (const char* user = std::getenv("KVCOVE_OWNER_USER"); user != nullptr && *user != '\0') {
    const auto uid = ParseUser(user);
    if (!uid) {
      return Fail(Code::kInvalid, fmt::format("$KVCOVE_OWNER_USER: {}", uid.error().detail));
    }
    trusted.user = *uid;
  }
  ucred peer{};
  if (trusted.Allows(fd, peer)) return {};
  return Fail(Code::kDenied, fmt::format("'{}' belongs to another user (uid {}); if kvcove runs as "
                                         "that user, name it in $KVCOVE_OWNER_USER",
                                         path, peer.uid));
}

// `shown`: the name, for errors.
Result<UniqueFd> ConnectTo(const UnixName& name, const std::string& shown,
                           std::int64_t deadline_ns) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return FailErrno(Code::kInternal, "creating a Unix socket");
  // A daemon that is frozen accepts nobody; when the queue of its socket is full, connect() waits.
  const auto left_ns = [&] { return LeftNs(deadline_ns, SystemClock::Instance()); };
  const auto limit_connect = [&] {
    const std::int64_t left = std::clamp(Interrupt::TurnNs(left_ns()), kMillisecond, kSecond);
    const timeval limit{.tv_sec = left / kSecond, .tv_usec = left % kSecond / kMicrosecond};
    setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  };
  limit_connect();
  while (connect(fd.get(), name.get(), name.length) != 0) {
    if (errno != EINTR && errno != EAGAIN) {
      return FailErrno(Code::kUnavailable, fmt::format("connecting to '{}'", shown));
    }
    if (errno == EINTR) {
      Interrupt::LookNow();
    } else {
      Interrupt::LookIfDue();
    }
    if (left_ns() <= 0) {
      return Fail(Code::kTimeout, fmt::format("'{}' did not answer in time", shown));
    }
    limit_connect();
  }
  KVCOVE_TRY(CheckServer(fd.get(), shown));
  return fd;
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

Result<UniqueFd> ListenAbstract(const std::string& name) {
  KVCOVE_ASSIGN(const UnixName bound, AbstractName(name));
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid() || bind(fd.get(), bound.get(), bound.length) != 0 || listen(fd.get(), 64) != 0) {
    return FailErrno(Code::kUnavailable, fmt::format("listening on '@{}'", name));
  }
  return fd;
}

Result<UniqueFd> ConnectUnix(const std::string& path, std::int64_t deadline_ns) {
  KVCOVE_ASSIGN(const UnixName name, PathName(path));
  return ConnectTo(name, path, deadline_ns);
}

Result<UniqueFd> ConnectAbstract(const std::string& name, std::int64_t deadline_ns) {
  KVCOVE_ASSIGN(const UnixName bound, AbstractName(name));
  return ConnectTo(bound, '@' + name, deadline_ns);
}

}  // namespace kvcove::rpc
