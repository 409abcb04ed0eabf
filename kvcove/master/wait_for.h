// SPDX-License-Identifier: Apache-2.0
// Waits in a thread for an answer that comes from another one.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/master/deferred.h"

namespace kvcove::master {

// `call` gets where its answer goes; an answer that comes too late goes nowhere. `poll`, if any, is
// called every few milliseconds meanwhile; its error ends the wait. Errors: the answer's; kTimeout;
// that of `poll`.
template <typename T>
Result<T> WaitFor(const Clock& clock, std::int64_t until_ns,
                  const std::function<void(Reply<T>)>& call,
                  const std::function<Status()>& poll = {}) {
  constexpr std::chrono::milliseconds kTurn(5);
  struct State {
    Mutex mutex;
    CondVar changed;
    std::optional<Result<T>> answer KVCOVE_GUARDED_BY(mutex);
  };
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
      if (clock.NowNs() >= until_ns) {
        return Fail(Code::kTimeout, "the control store does not answer");
      }
    }
    if (poll) KVCOVE_TRY(poll());
  }
}

}  // namespace kvcove::master
