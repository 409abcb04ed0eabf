// SPDX-License-Identifier: Apache-2.0
// A LoopBeat for an event loop. A loop without work sleeps, and one with much work runs handlers
// without returning to its caller, so a handler of its own turns the beat, twice a second: it runs
// if the loop runs handlers, whatever else there is to do.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <string_view>

#include "kvcove/base/loop_beat.h"

namespace kvcove::rpc {

// Belongs to the loop's thread, and ends before the loop.
class Pulse {
 public:
  Pulse(boost::asio::io_context& loop, std::string_view name)
      : state_(std::make_shared<State>(loop, name)) {
    Await(state_);
  }

 private:
  static constexpr std::chrono::milliseconds kPeriod{500};
  static_assert(kPeriod < LoopBeat::kLongestTurn);

  struct State {
    State(boost::asio::io_context& loop, std::string_view name) : beat(name), timer(loop) {}
    LoopBeat beat;
    boost::asio::steady_timer timer;
  };

  // The handler may be queued when this object ends, and run when the loop is started again for
  // another one: it does not keep the state, and does nothing without it.
  static void Await(const std::shared_ptr<State>& state) {
    state->timer.expires_after(kPeriod);
    state->timer.async_wait([weak = std::weak_ptr<State>(state)](const auto& stopped) {
      const std::shared_ptr<State> kept = weak.lock();
      if (stopped || kept == nullptr) return;
      kept->beat.Turn();
      Await(kept);
    });
  }

  const std::shared_ptr<State> state_;
};

}  // namespace kvcove::rpc
