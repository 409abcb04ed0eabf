// SPDX-License-Identifier: Apache-2.0
// Waits in one thread for an answer that another thread gives.
#pragma once

#include <fmt/core.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "kvcove/base/clock.h"
#include "kvcove/base/interrupt.h"
#include "kvcove/base/mutex.h"
#include "kvcove/master/control/deferred.h"

namespace kvcove::master {

// Returns the error text for a file store in this directory that has not answered in time.
inline std::string StoreIsLate(const std::string& data_directory) {
  return fmt::format(
      "the control store in '{0}' does not answer in time: each change is synced, and its disk "
      "takes longer than that; 'kvcove doctor --data {0}' measures it, --data names a directory "
      "on a faster disk",
      data_directory);
}

// Makes `call` and waits for its answer until `until_ns`; a later answer is discarded. Calls
// `poll`, if any, every 5 ms meanwhile, without a lock; its error ends the wait. Errors: the
// answer's; kTimeout, with `late` as its text; that of `poll`.
template <typename T>
Result<T> WaitFor(const Clock& clock, std::int64_t until_ns,
                  const std::function<void(Reply<T>)>& call,
                  const std::function<Status()>& poll = {},
                  const std::string& late = "the control store does not answer") {
  constexpr std::chrono::milliseconds kTurn(5);
  struct State {
    Mutex mutex;
    CondVar changed;
    std::optional<Result<T>> answer KVCOVE_GUARDED_BY(mutex);
  };
  // Shared with the reply, which may be called after this function has given up.
  const auto state = std::make_shared<State>();
  call([state](Result<T> answer) {
    const MutexLock lock(state->mutex);
    state->answer = std::move(answer);
    state->changed.NotifyAll();
  });
  while (true) {
    {
      const MutexLock lock(state->mutex);
      if (!state->answer) state->changed.WaitFor(state->mutex, kTurn);
      if (state->answer) return std::move(*state->answer);
      if (LeftNs(until_ns, clock) <= 0) return Fail(Code::kTimeout, late);
    }
    if (poll) KVCOVE_TRY(poll());
  }
}

}  // namespace kvcove::master
