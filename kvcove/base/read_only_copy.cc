// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/read_only_copy.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>

namespace kvcove {

Result<UniqueFd> ReadOnlyCopy(int fd) {
  // Who has the copy cannot open the file through it with other rights.
  if (fchmod(fd, S_IRUSR) != 0) return FailErrno(Code::kInternal, "fchmod of a memory file");
  UniqueFd copy(open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_RDONLY | O_CLOEXEC));
  if (!copy.valid()) {
    return FailErrno(Code::kInternal, "opening a memory file to read, through /proc/self/fd");
  }
  return copy;
}

}  // namespace kvcove
