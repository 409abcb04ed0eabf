// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/result.h"

#include <sys/resource.h>

#include <cerrno>
#include <string>
#include <system_error>

namespace kvcove {

std::string_view CodeName(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kMiss:
      return "miss";
    case Code::kTimeout:
      return "timeout";
    case Code::kBufferBusy:
      return "timeout, buffer busy";
    case Code::kStale:
      return "stale generation";
    case Code::kClosed:
      return "session closed";
    case Code::kNoSpace:
      return "out of space";
    case Code::kExists:
      return "exists already";
    case Code::kInProgress:
      return "being written";
    case Code::kDenied:
      return "denied";
    case Code::kIncompatible:
      return "incompatible";
    case Code::kCorrupt:
      return "corrupt";
    case Code::kInvalid:
      return "invalid";
    case Code::kUnavailable:
      return "unavailable";
    case Code::kLimit:
      return "limit reached";
    case Code::kBufferTooSmall:
      return "buffer too small";
    case Code::kNotProven:
      return "reset not proven";
    case Code::kInternal:
      return "internal";
    case Code::kNotListed:
      return "stored, not listed yet";
  }
  return "unknown code";
}

std::string Error::ToString() const {
  std::string text(CodeName(code));
  if (!detail.empty()) text.append(": ").append(detail);
  return text;
}

std::unexpected<Error> FailErrno(Code code, std::string detail) {
  const int saved = errno;
  detail.append(": ").append(std::generic_category().message(saved));
  rlimit limit{};
  if (saved == EFBIG && getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    detail += " (this process may write " + std::to_string(limit.rlim_cur) +
              " B into a file: ulimit -f unlimited, LimitFSIZE=infinity)";
  }
  if (saved == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    detail += " (this process may open " + std::to_string(limit.rlim_cur) +
              " files: ulimit -n, LimitNOFILE=)";
  }
  if (saved == ENOMEM && getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    detail += " (this process may map " + std::to_string(limit.rlim_cur) +
              " B: ulimit -v unlimited, LimitAS=infinity)";
  }
  return Fail(code, std::move(detail));
}

}  // namespace kvcove
