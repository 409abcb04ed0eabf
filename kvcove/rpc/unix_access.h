// SPDX-License-Identifier: Apache-2.0
// Which users may connect to a Unix socket, and the modes of the socket and its directory that let
// them. Always: the user of this process, and root. On top of that one user, or the members of one
// group.
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
  std::optional<std::uint32_t> user;   // may connect
  std::optional<std::uint32_t> group;  // its members may connect
  // Of directory and socket; with `user` or `group`.
  std::optional<std::uint32_t> file_group;

  bool alone() const { return !file_group.has_value(); }
  // May the process at the other end of this connected socket stay? Fills in who it is.
  bool Allows(int fd, ucred& peer) const;
};

// Names or numbers; empty: nobody. Errors: kInvalid for those that the system does not know.
Result<UnixAccess> ParseUnixAccess(const std::string& user, const std::string& group);

// A user's number. Errors: kInvalid.
Result<std::uint32_t> ParseUser(const std::string& user);

// Makes the directory of a socket if it does not exist, or checks it. Errors: kDenied with what to
// do, kInvalid.
Status PrepareSocketDirectory(const std::string& socket_path, const UnixAccess& access);

// A listening socket at `path`, not blocking, with the modes above, in a directory that is prepared
// first. A socket that nobody serves any more is replaced. Errors: kUnavailable when it is in use,
// kDenied with what to do, kInvalid.
Result<UniqueFd> ListenUnix(const std::string& path, const UnixAccess& access);

}  // namespace kvcove::rpc
