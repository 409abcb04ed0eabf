// SPDX-License-Identifier: Apache-2.0
// The encoded list of owners that requesters get. With 1,000 owners a list takes a millisecond to
// make and 100 KB, and after a master's restart 8,000 requesters ask for it within a second. So
// each list is used again for nine times the time that it took to make, but for 50 ms at most:
// making the lists of one reader costs a tenth of a core at most (more if a list takes over 5 ms),
// and a list is never older than ten times its own cost. With few owners that is microseconds.
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

  static constexpr std::int64_t kTimes = 9;                   // use of a list, in terms of its cost
  static constexpr std::int64_t kMostNs = 50 * kMillisecond;  // longest use

  explicit OwnerLists(const Clock& clock) : clock_(clock) {}

  // Returns a list that is fresh enough, or makes one. `reader` names the content: callers with the
  // same list pass the same text. Calls `make` without a lock, and from several threads at once if
  // they find the list too old together; none waits for the list of another one.
  Text Get(const std::string& reader, const std::function<std::string()>& make)
      KVCOVE_EXCLUDES(mutex_);

 private:
  struct List {
    Text text;
    std::int64_t until_ns = 0;  // end of its use
  };
  static constexpr std::size_t kMostReaders = 64;  // beyond, all lists are dropped and made again

  const Clock& clock_;
  Mutex mutex_;
  std::map<std::string, List> lists_ KVCOVE_GUARDED_BY(mutex_);
};

}  // namespace kvcove::master
