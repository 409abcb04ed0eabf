// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/directory.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <vector>

namespace kvcove {
namespace {

// Creates the directory and what is missing above it.
Status MakeDirectories(const std::string& path) {
  for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    if (mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
      return FailErrno(Code::kInvalid, fmt::format("creating the directory '{}'", part));
    }
    if (end == std::string::npos) return {};
  }
}

bool IsSymbolicLink(const std::string& path) {
  struct stat status{};
  return lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode);
}

// A directory that kvcove can make or already has; empty if none comes to mind.
std::string Suggestion(const std::string& path, const struct stat& status, DirectoryUse use) {
  std::vector<std::string> candidates;
  const auto add = [&](const char* variable, const char* name) {
    const char* value = std::getenv(variable);
    if (value != nullptr && *value == '/') candidates.push_back(fmt::format("{}/{}", value, name));
  };
  if (use != DirectoryUse::kData) add("XDG_RUNTIME_DIR", "kvcove");
  // Inside it, unless it is another user's, who could take away what is there.
  if ((status.st_uid == geteuid() || status.st_uid == 0) &&
      faccessat(AT_FDCWD, path.c_str(), W_OK | X_OK, AT_EACCESS) == 0) {
    candidates.push_back(fmt::format("{}/kvcove-{}", path == "/" ? "" : path, geteuid()));
  }
  add("HOME", ".kvcove");
  for (const std::string& candidate : candidates) {
    struct stat there{};
    if (candidate == path) continue;
    if (lstat(candidate.c_str(), &there) != 0 ||
        (S_ISDIR(there.st_mode) && there.st_uid == geteuid() && (there.st_mode & 0077) == 0)) {
      return candidate;
    }
  }
  return {};
}

std::unexpected<Error> Refuse(const std::string& path, const struct stat& status,
                              DirectoryUse use) {
  std::string text = use != DirectoryUse::kData
                         ? fmt::format(
                               "the socket's directory '{}' must belong to this user and "
                               "be closed to all others",
                               path)
                         : fmt::format(
                               "the data directory '{}' must belong to this user, and no "
                               "other may write to it",
                               path);
  text += status.st_uid == geteuid()
              ? fmt::format("; it has the mode {:04o}", status.st_mode & 07777U)
              : fmt::format("; it belongs to the user {}", status.st_uid);
  const std::string other = Suggestion(path, status, use);
  text += "; name another directory";
  if (!other.empty()) text += fmt::format(", such as '{}'", other);
  // Never of a directory that others may need as it is: a shared one, or one of the system's.
  if (status.st_uid == geteuid() && status.st_uid != 0 && (status.st_mode & S_ISVTX) == 0) {
    text += fmt::format(", or run: chmod 700 '{}'", path);
  }
  return Fail(Code::kDenied, text);
}

std::string WithoutSlashes(std::string path) {
  // Behind a slash the system follows a symbolic link, whatever the flags say.
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

}  // namespace

Result<UniqueFd> CheckOwnDirectory(const std::string& name, DirectoryUse use) {
  const std::string path = WithoutSlashes(name);
  const int follow = use == DirectoryUse::kData ? O_NOFOLLOW : 0;
  // What is checked is what is used, even if somebody exchanges the name meanwhile.
  const UniqueFd found(open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC | follow));
  if (!found.valid() && follow != 0 && IsSymbolicLink(path)) {
    return Fail(Code::kDenied, fmt::format("the data directory '{}' is a symbolic link; name the "
                                           "directory itself",
                                           path));
  }
  struct stat status{};
  if (!found.valid() || fstat(found.get(), &status) != 0) {
    return FailErrno(Code::kInvalid, fmt::format("opening the directory '{}'", path));
  }
  const mode_t forbidden = use == DirectoryUse::kData          ? 0022
                           : use == DirectoryUse::kGroupSocket ? 0067
                                                               : 0077;
  if (status.st_uid != geteuid() || (status.st_mode & forbidden) != 0) {
    return Refuse(path, status, use);
  }
  UniqueFd directory(openat(found.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.valid()) {
    return FailErrno(Code::kInvalid, fmt::format("opening the directory '{}'", path));
  }
  return directory;
}

bool IsClosedToOthers(const struct stat& file) {
  return (file.st_mode & (file.st_uid == 0 ? 0037 : 0077)) == 0;
}

Result<UniqueFd> OpenOwnDirectory(const std::string& path, DirectoryUse use) {
  KVCOVE_TRY(MakeDirectories(path));
  return CheckOwnDirectory(path, use);
}

}  // namespace kvcove
