// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/watched_files.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <utility>

#include "kvcove/base/log.h"

namespace kvcove {

WatchedFiles::WatchedFiles(std::string what, std::vector<std::string> paths, const Clock& clock)
    : what_(std::move(what)), paths_(std::move(paths)), clock_(clock) {}

std::string WatchedFiles::Stamp() const {
  std::string stamp;
  for (const std::string& path : paths_) {
    struct stat status{};
    if (path.empty() || stat(path.c_str(), &status) != 0) continue;
    stamp += fmt::format("{} {} {} {} {}\n", path, status.st_ino, status.st_size,
                         status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
  }
  return stamp;
}

Status WatchedFiles::Open(const Read& read) {
  // Taken first: what changes while it is read is read again.
  std::string stamp = Stamp();
  KVCOVE_TRY(read());
  const MutexLock lock(mutex_);
  stamp_ = std::move(stamp);
  return {};
}

WatchedFiles::Look WatchedFiles::Refresh(bool now, const Read& read) {
  const std::int64_t now_ns = clock_.NowNs();
  std::int64_t next_ns = next_ns_.load(std::memory_order_relaxed);
  if (!now && now_ns < next_ns) return Look::kNotDue;
  if (!next_ns_.compare_exchange_strong(next_ns, now_ns + kSecond) && !now) return Look::kNotDue;
  std::string stamp = Stamp();
  bool same = false;
  bool healed = false;
  {
    const MutexLock lock(mutex_);
    same = stamp == stamp_;
    // The files of before may be put back in place of those that could not be read.
    if (same) healed = !std::exchange(said_, std::string()).empty();
  }
  if (healed) LogWarn("{} are in order again: they are those of before", what_);
  if (same) return Look::kSame;
  const Status done = read();
  const std::string error = done ? std::string() : done.error().ToString();
  bool changed = false;
  {
    const MutexLock lock(mutex_);
    if (done) stamp_ = std::move(stamp);
    changed = std::exchange(said_, error) != error;
  }
  if (changed && !done) LogError("{} are those of before: {}", what_, error);
  if (changed && done) LogWarn("{} are in order again, and were read", what_);
  return done ? Look::kRead : Look::kFailed;
}

}  // namespace kvcove
