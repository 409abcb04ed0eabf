// SPDX-License-Identifier: Apache-2.0
// The users that may connect to a Unix socket, and the modes of the socket and its directory:
// always the user of this process and root; in addition one user, or the members of one group.
//
//            directory   socket
//   alone    0700        0600
//   others   0710        0660, both of the group, or of the user's own group
//
// The modes let in the whole group, so each connection's credentials are checked as well.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>

#include "kvcove/base/posix.h"

namespace kvcove::rpc {

struct UnixAccess {
  std::optional<std::uint32_t> user;   // user who may connect
  std::optional<std::uint32_t> group;  // group whose members may connect
  // Group of directory and socket; set with `user` or `group`.
  std::optional<std::uint32_t> file_group;

  // Returns whether only this process's user and root may connect.
  bool alone() const { return !file_group.has_value(); }
  // Returns whether the process at the other end of this connected socket may use it, and fills in
  // its ids.
  bool Allows(int fd, ucred& peer) const;
};

// Reads names or numbers; empty: nobody else. Errors: kInvalid for those that the system does not
// know.
Result<UnixAccess> ParseUnixAccess(const std::string& user, const std::string& group);

// Returns a user's number. Errors: kInvalid.
Result<std::uint32_t> ParseUser(const std::string& user);

// Makes the directory of a socket if it does not exist, or checks it. Errors: kDenied with what to
// do, kInvalid.
Status PrepareSocketDirectory(const std::string& socket_path, const UnixAccess& access);

// Returns a listening socket at `path`, not blocking, with the modes above; prepares its directory
// first. Replaces a socket that nobody serves any more. Errors: kUnavailable when it is in use,
// kDenied with what to do, kInvalid.
Result<UniqueFd> ListenUnix(const std::string& path, const UnixAccess& access);

// Returns a listening socket with a name in the kernel's abstract namespace, not blocking. Nothing
// is left of it when the last descriptor closes, however the process ends. The name has no mode:
// check each connection with UnixAccess::Allows. Errors: kUnavailable when the name is in use.
Result<UniqueFd> ListenAbstract(const std::string& name);

// Return a socket, which blocks, that is connected to the process that listens at `path`, or under
// a name in the abstract namespace. Errors: kUnavailable when no process listens there, kTimeout,
// kInvalid; kDenied when the process belongs to another user than this one's, root or
// $KVCOVE_OWNER_USER.
Result<UniqueFd> ConnectUnix(const std::string& path, std::int64_t deadline_ns);
Result<UniqueFd> ConnectAbstract(const std::string& name, std::int64_t deadline_ns);

}  // namespace kvcove::rpc
