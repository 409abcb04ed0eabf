// SPDX-License-Identifier: Apache-2.0
// Directories that hold sockets and data. Another user who may write to such a directory could
// replace its files, so it is checked before it is used.
#pragma once

#include <sys/stat.h>

#include <string>

#include "kvcove/base/posix.h"

namespace kvcove {

enum class DirectoryUse {
  // Every user who can reach a socket may connect to it, so other users have no rights here at all.
  kSocket,
  // The same, but its group may enter (0710): the caller has named that group.
  kGroupSocket,
  // Its files have modes of their own (0600): others may read and enter it, but not write. No
  // symbolic link: somebody else may have made it.
  kData,
};

// Opens the directory; it and what is missing above it are made, closed to others (0700). Errors:
// kDenied when it does not belong to this user, or gives others more than its use allows; kInvalid.
// The text says what to do; only for a directory of this user's own it is a chmod.
Result<UniqueFd> OpenOwnDirectory(const std::string& path, DirectoryUse use);

// The same for a directory that is there; nothing is made.
Result<UniqueFd> CheckOwnDirectory(const std::string& path, DirectoryUse use);

// Whether a file with secrets is closed to all others. Of a file of root's the group may read, too:
// that is how a Kubernetes secret comes to a pod with an fsGroup. (libpq has the same rule.)
bool IsClosedToOthers(const struct stat& file);

}  // namespace kvcove
