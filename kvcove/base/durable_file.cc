// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/durable_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "kvcove/base/posix.h"

namespace kvcove {
namespace {

constexpr std::size_t kMostBytes = 4096;

Status WriteNew(const std::string& path, std::string_view text) {
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  bool written = fd.valid();
  while (written && !text.empty()) {
    const ssize_t count = write(fd.get(), text.data(), text.size());
    written = count >= 0;
    if (written) text.remove_prefix(static_cast<std::size_t>(count));
  }
  if (!written || fsync(fd.get()) != 0) return FailErrno(Code::kUnavailable, "writing " + path);
  return {};
}

}  // namespace

Status SyncDirectory(const std::string& directory) {
  const UniqueFd fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || fsync(fd.get()) != 0) {
    return FailErrno(Code::kUnavailable, "syncing " + directory);
  }
  return {};
}

Status ReplaceFile(const std::string& directory, const std::string& name, std::string_view text) {
  const std::string path = directory + "/" + name;
  const std::string next = path + ".new";
  Status replaced = WriteNew(next, text);
  if (replaced && rename(next.c_str(), path.c_str()) != 0) {
    replaced = FailErrno(Code::kUnavailable, "writing " + path);
  }
  if (!replaced) {
    (void)unlink(next.c_str());
    return replaced;
  }
  return SyncDirectory(directory);
}

Status RemoveFile(const std::string& directory, const std::string& name) {
  const std::string path = directory + "/" + name;
  if (unlink(path.c_str()) != 0) {
    if (errno == ENOENT) return {};
    return FailErrno(Code::kUnavailable, "removing " + path);
  }
  return SyncDirectory(directory);
}

Result<std::optional<std::string>> ReadSmallFile(const std::string& directory,
                                                 const std::string& name) {
  const std::string path = directory + "/" + name;
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid() && errno == ENOENT) return std::optional<std::string>();
  std::string text(kMostBytes, '\0');
  const ssize_t size = fd.valid() ? read(fd.get(), text.data(), text.size()) : -1;
  if (size < 0) return FailErrno(Code::kUnavailable, "reading " + path);
  text.resize(static_cast<std::size_t>(size));
  return std::optional(std::move(text));
}

}  // namespace kvcove
