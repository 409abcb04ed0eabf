// SPDX-License-Identifier: Apache-2.0
#include "kvcove/cli/run_summaries.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace kvcove::cli {
namespace {

// What this process keeps has a bound, whatever is written to the pipe.
constexpr std::size_t kLongestLine = 4096;  // PIPE_BUF: a longer one may come in parts
constexpr std::size_t kMostEngines = 1024;

}  // namespace

Result<RunSummaries> RunSummaries::Open() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) {
    return Fail(Code::kLimit, fmt::format("no pipe for summaries: {}", strerror(errno)));
  }
  return RunSummaries(UniqueFd(ends[0]), UniqueFd(ends[1]));
}

std::string RunSummaries::path() const {
  return fmt::format("/proc/{}/fd/{}", getpid(), writing_.get());
}

void RunSummaries::Read() {
  std::array<char, kLongestLine> some{};
  while (true) {
    const ssize_t count = read(reading_.get(), some.data(), some.size());
    if (count <= 0) return;  // nothing more now
    unread_.append(some.data(), static_cast<std::size_t>(count));
    std::size_t begin = 0;
    for (std::size_t end = 0; (end = unread_.find('\n', begin)) != std::string::npos;
         begin = end + 1) {
      Take(std::string_view(unread_).substr(begin, end - begin));
    }
    unread_.erase(0, begin);
    if (unread_.size() > kLongestLine) unread_.clear();
  }
}

void RunSummaries::Take(std::string_view line) {
  const std::size_t blank = line.find(' ');
  if (blank == std::string_view::npos || blank == 0 || line.size() > kLongestLine) return;
  const std::string name(line.substr(0, blank));
  if (last_.size() >= kMostEngines && !last_.contains(name)) return;
  last_[name] = line.substr(blank + 1);
}

}  // namespace kvcove::cli
