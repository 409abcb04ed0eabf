// SPDX-License-Identifier: Apache-2.0
// GPU memory, through the driver's library (libcuda.so.1, or $KVCOVE_CUDA_DRIVER), opened at run
// time. Never needed to build or to start. Thread-safe.
//
// Each GPU is opened when its memory is first used, and stays for as long as the process: its
// streams, its pinned rings and the thread kvcove-device (transport/device_queue.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "kvcove/base/mutex.h"
#include "kvcove/base/result.h"
#include "kvcove/connector/worker/worker.h"
#include "kvcove/transport/cuda/device.h"
#include "kvcove/transport/device_queue.h"

namespace kvcove::python {

struct DeviceSettings {
  transport::cuda::DeviceOptions device;
  transport::DeviceQueueOptions queue;
};

class Device final : public connector::DeviceMemory {
 public:
  // Null where this process has no driver.
  static Device* Get();

  // For GPUs that are opened from now on.
  void Set(const DeviceSettings& settings);
  // True for memory of a GPU that the host cannot read.
  bool Owns(std::uintptr_t address) const override { return driver_.Owns(address); }
  Result<transport::DeviceQueue*> QueueOf(std::uintptr_t address) const override;
  // Both wait until the bytes are there, behind what the GPU's default stream has. Errors:
  // kInternal with the driver's number; kTimeout.
  Status ToHost(void* host, std::uintptr_t device, std::size_t size) const;
  Status FromHost(std::uintptr_t device, const void* host, std::size_t size) const;

 private:
  explicit Device(const transport::cuda::Driver& driver) : driver_(driver) {}

  const transport::cuda::Driver& driver_;
  // Held while a GPU is opened, and its threads started, so that it is opened once: not a Mutex, as
  // that says no such thing happens under it.
  mutable std::mutex opening_;
  mutable Mutex mutex_;  // behind it
  mutable std::map<int, std::unique_ptr<transport::DeviceQueue>> queues_
      KVCOVE_GUARDED_BY(mutex_);  // by ordinal
  DeviceSettings settings_ KVCOVE_GUARDED_BY(mutex_);
};

}  // namespace kvcove::python
