// SPDX-License-Identifier: Apache-2.0
// For tests: all memory from kFar on is that of one device, whose time the test drives.
#pragma once

#include <cstdint>
#include <memory>

#include "kvcove/connector/worker/worker.h"
#include "kvcove/transport/fake_device.h"

namespace kvcove::connector {

inline constexpr std::uintptr_t kFar = std::uintptr_t{1} << 60;

class OneDevice final : public DeviceMemory {
 public:
  OneDevice(const transport::DeviceQueueOptions& options, const Clock& clock) {
    auto backend = std::make_unique<transport::FakeDevice>(kFar);
    fake = backend.get();
    queue = std::move(*transport::DeviceQueue::Open(std::move(backend), options, clock));
  }
  bool Owns(std::uintptr_t address) const override { return address >= kFar; }
  Result<transport::DeviceQueue*> QueueOf(std::uintptr_t address) const override {
    if (address >= end) return Fail(Code::kInternal, "error 1");
    return queue.get();
  }
  transport::FakeDevice* fake = nullptr;
  std::unique_ptr<transport::DeviceQueue> queue;
  std::uintptr_t end = UINTPTR_MAX;  // nothing at and behind it is there
};

}  // namespace kvcove::connector
