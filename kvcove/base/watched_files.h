// SPDX-License-Identifier: Apache-2.0
// Files that a process reads again when they have changed, such as tokens and certificates.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/base/result.h"

namespace kvcove {

// Thread-safe. A file counts as changed when its inode, size or time of change differs: so does one
// that was moved into the place of another.
class WatchedFiles {
 public:
  using Read = std::function<Status()>;

  // `what` begins the line that says that they cannot be read: "the credentials". An empty path
  // stands for no file.
  WatchedFiles(std::string what, std::vector<std::string> paths,
               const Clock& clock = SystemClock::Instance());

  // Reads them for the first time. Errors: those of `read`.
  Status Open(const Read& read);
  enum class Look {
    kNotDue,  // somebody has looked within the last second
    kSame,
    kFailed,  // what was read before counts; they are read again with the next look
    kRead,
  };
  // Looks whether they have changed since they were read, at most once a second, or `now`; if so,
  // reads them. Of several callers one looks. An error is logged once, and its end. Waits for the
  // file system: not to be called under a lock.
  Look Refresh(bool now, const Read& read);

 private:
  std::string Stamp() const;

  const std::string what_;
  const std::vector<std::string> paths_;
  const Clock& clock_;
  std::atomic<std::int64_t> next_ns_{0};
  Mutex mutex_;
  std::string stamp_ KVCOVE_GUARDED_BY(mutex_);  // of what was read last
  std::string said_ KVCOVE_GUARDED_BY(mutex_);   // the error
};

}  // namespace kvcove
