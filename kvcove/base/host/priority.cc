// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/host/priority.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

namespace kvcove {
namespace {

constexpr int kRaised = -10;

}  // namespace

// Without the flag a thread that is started meanwhile would keep the priority for ever.
RaisedPriority::RaisedPriority() {
  const auto thread = static_cast<id_t>(gettid());
  before_ = getpriority(PRIO_PROCESS, thread);
  const sched_param none{};
  if (before_ <= kRaised || (sched_getscheduler(0) & ~SCHED_RESET_ON_FORK) != SCHED_OTHER ||
      sched_setscheduler(0, SCHED_OTHER | SCHED_RESET_ON_FORK, &none) != 0) {
    return;
  }
  raised_ = setpriority(PRIO_PROCESS, thread, kRaised) == 0;
}

RaisedPriority::~RaisedPriority() {
  if (raised_) (void)setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), before_);
}

}  // namespace kvcove
