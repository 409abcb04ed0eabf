// SPDX-License-Identifier: Apache-2.0
// GPU memory, through the driver's library (libcuda.so.1, or $KVCOVE_CUDA_DRIVER), opened at run
// time. Never needed to build or to start. Thread-safe.
//
// Copies run in the primary context of the GPU that the memory lies on. The context of a pointer is
// no help: memory that was mapped (cuMemMap: an engine's sleep mode, expandable segments) has none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "kvcove/base/mutex.h"
#include "kvcove/base/result.h"

namespace kvcove::python {

class Device {
 public:
  // Null where this process has no driver.
  static const Device* Get();

  // True for memory of a GPU that the host cannot read.
  bool Owns(std::uintptr_t address) const;
  // Both wait until the bytes are there. Errors: kInternal with the driver's number.
  Status ToHost(void* host, std::uintptr_t device, std::size_t size) const;
  Status FromHost(std::uintptr_t device, const void* host, std::size_t size) const;

 private:
  Device() = default;
  static const Device* Open();
  // As in cuda.h; 0 is success.
  using Result = int;
  using Context = void*;
  // The primary context of the GPU that `device` lies on. It is retained once, for as long as the
  // process.
  Status ContextOf(std::uintptr_t device, Context& context) const;
  Status Copy(std::uintptr_t device, int (*copy)(const Device&, std::uintptr_t, void*, std::size_t),
              void* host, std::size_t size) const;

  mutable Mutex mutex_;
  mutable std::map<int, Context> contexts_ KVCOVE_GUARDED_BY(mutex_);  // by ordinal
  Result (*init_)(unsigned) = nullptr;
  Result (*attribute_)(void* data, int attribute, std::uint64_t pointer) = nullptr;
  Result (*get_)(int* device, int ordinal) = nullptr;
  Result (*retain_)(Context*, int device) = nullptr;
  Result (*push_)(Context) = nullptr;
  Result (*pop_)(Context*) = nullptr;
  Result (*to_host_)(void*, std::uint64_t, std::size_t) = nullptr;
  Result (*from_host_)(std::uint64_t, const void*, std::size_t) = nullptr;
};

}  // namespace kvcove::python
