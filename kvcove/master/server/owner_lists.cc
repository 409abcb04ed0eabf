// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/server/owner_lists.h"

#include <algorithm>

namespace kvcove::master {

OwnerLists::Text OwnerLists::Get(const std::string& reader,
                                 const std::function<std::string()>& make) {
  const std::int64_t began_ns = clock_.NowNs();
  {
    const MutexLock lock(mutex_);
    const auto at = lists_.find(reader);
    if (at != lists_.end() && began_ns < at->second.until_ns) return at->second.text;
  }
  Text text = std::make_shared<const std::string>(make());
  const std::int64_t ended_ns = clock_.NowNs();
  // Both threads of a race store their lists; each list has its own end, so the age's bound holds
  // whichever remains.
  const std::int64_t until_ns = ended_ns + std::min((ended_ns - began_ns) * kTimes, kMostNs);
  const MutexLock lock(mutex_);
  if (lists_.size() >= kMostReaders && !lists_.contains(reader)) lists_.clear();
  lists_[reader] = {.text = text, .until_ns = until_ns};
  return text;
}

}  // namespace kvcove::master
