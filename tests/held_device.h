// SPDX-License-Identifier: Apache-2.0
// A disk that answers late.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

#include "tests/breaking_device.h"

namespace kvcove {

// No operation ends while it is held.
class HeldDevice final : public BreakingDevice {
 public:
  HeldDevice(std::unique_ptr<disklog::Device> device, const std::atomic<bool>& held)
      : BreakingDevice(std::move(device), kWorks), held_(held) {}
  std::size_t Poll(std::int64_t wait_ns) override {
    if (!held_) return BreakingDevice::Poll(wait_ns);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return 0;
  }

 private:
  static inline const std::atomic<bool> kWorks{false};
  const std::atomic<bool>& held_;
};

}  // namespace kvcove
