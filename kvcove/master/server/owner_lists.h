// SPDX-License-Identifier: Apache-2.0
// The list of owners as requesters get it, encoded. With 1,000 owners it takes a millisecond to
// make and 100 KB, and after a master's restart 8,000 requesters ask for it within a second. So a
// list is given out again for as long as nine times what it took to make: making lists never costs
// more than a tenth of a core, and a list is never older than ten times its own cost. With few
// owners that is microseconds.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"

namespace kvcove::master {

// Thread-safe.
class OwnerLists {
 public:
  using Text = std::shared_ptr<const std::string>;

  static constexpr std::int64_t kTimes = 9;
  static constexpr std::int64_t kMostNs = 50 * kMillisecond;

  explicit OwnerLists(const Clock& clock) : clock_(clock) {}

  // `reader`: all whose list is the same have the same one. `make` is called without a lock, and
  // from two threads at once where both find that it is time.
  Text Get(const std::string& reader, const std::function<std::string()>& make)
      KVCOVE_EXCLUDES(mutex_);

 private:
  struct List {
    Text text;
    std::int64_t until_ns = 0;
  };
  static constexpr std::size_t kMostReaders = 64;

  const Clock& clock_;
  Mutex mutex_;
  std::map<std::string, List> lists_ KVCOVE_GUARDED_BY(mutex_);
};

}  // namespace kvcove::master
