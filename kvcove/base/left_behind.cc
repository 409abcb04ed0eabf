// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/left_behind.h"

#include <utility>
#include <vector>

#include "kvcove/base/mutex.h"

namespace kvcove {

void LeaveBehind(std::shared_ptr<void> what) {
  struct All {
    Mutex mutex;
    std::vector<std::shared_ptr<void>> kept KVCOVE_GUARDED_BY(mutex);
  };
  // Never destroyed: the thread may outlive static objects.
  static All* const all = new All;
  const MutexLock lock(all->mutex);
  all->kept.push_back(std::move(what));
}

}  // namespace kvcove
