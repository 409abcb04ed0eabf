// SPDX-License-Identifier: Apache-2.0
// Calls that a breaker lets through: one to a dead or frozen peer ends in milliseconds.
#pragma once

#include <functional>
#include <string>

#include "kvcove/rpc/breaker.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::rpc {

// Thread-safe, like the channel and the breaker, which outlive it.
class GuardedChannel final : public wire::Channel {
 public:
  using OnChange = std::function<void(Breaker::Change)>;
  // `peer` names the other side in errors, such as "the master". `on_change` is called without a
  // lock, when a call has changed what the breaker thinks of the peer.
  GuardedChannel(wire::Channel& channel, Breaker& breaker, std::string peer, OnChange on_change)
      : channel_(channel),
        breaker_(breaker),
        peer_(std::move(peer)),
        on_change_(std::move(on_change)) {}

  // Errors: also kUnavailable for a call that was not made, or that was given less time than it
  // asked for.
  Result<std::string> Call(wire::Method method, std::span<const std::byte> body,
                           std::int64_t deadline_ns) override;

 private:
  wire::Channel& channel_;
  Breaker& breaker_;
  const std::string peer_;
  const OnChange on_change_;
};

// What an error of a call says about its peer.
Breaker::Outcome OutcomeOf(const Error& error);

}  // namespace kvcove::rpc
