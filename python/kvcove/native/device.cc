// SPDX-License-Identifier: Apache-2.0
#include "device.h"

#include "kvcove/base/clock.h"

namespace kvcove::python {
namespace {

constexpr std::int64_t kMost = 10 * kSecond;

std::int64_t Deadline() { return SystemClock::Instance().NowNs() + kMost; }

}  // namespace

Device* Device::Get() {
  static Device* const device = [] {
    const transport::cuda::Driver* const driver = transport::cuda::Driver::OfProcess();
    return driver == nullptr ? nullptr : new Device(*driver);  // for as long as the process
  }();
  return device;
}

void Device::Set(const DeviceSettings& settings) {
  const MutexLock lock(mutex_);
  settings_ = settings;
}

Result<transport::DeviceQueue*> Device::QueueOf(std::uintptr_t address) const {
  KVCOVE_ASSIGN(const int ordinal, driver_.OrdinalOf(address));
  const std::lock_guard<std::mutex> opening(opening_);
  DeviceSettings settings;
  {
    const MutexLock lock(mutex_);
    if (const auto known = queues_.find(ordinal); known != queues_.end()) {
      return known->second.get();
    }
    settings = settings_;
  }
  KVCOVE_ASSIGN(auto device, transport::cuda::Device::Open(driver_, ordinal, settings.device));
  KVCOVE_ASSIGN(auto queue, transport::DeviceQueue::Open(std::move(device), settings.queue,
                                                         SystemClock::Instance()));
  const MutexLock lock(mutex_);
  return (queues_[ordinal] = std::move(queue)).get();
}

Status Device::ToHost(void* host, std::uintptr_t device, std::size_t size) const {
  KVCOVE_ASSIGN(transport::DeviceQueue* const queue, QueueOf(device));
  return queue->Move(transport::DeviceWay::kSave, static_cast<std::byte*>(host), device, size,
                     Deadline());
}

Status Device::FromHost(std::uintptr_t device, const void* host, std::size_t size) const {
  KVCOVE_ASSIGN(transport::DeviceQueue* const queue, QueueOf(device));
  return queue->Move(transport::DeviceWay::kLoad, static_cast<std::byte*>(const_cast<void*>(host)),
                     device, size, Deadline());
}

}  // namespace kvcove::python
