// SPDX-License-Identifier: Apache-2.0
#include "device.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <cstdlib>

namespace kvcove::python {
namespace {

// cuda.h: CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
// CU_MEMORYTYPE_DEVICE.
constexpr int kMemoryType = 2;
constexpr int kOrdinalOf = 9;
constexpr unsigned kDeviceMemory = 2;

template <typename T>
bool Load(void* library, const char* name, T& function) {
  function = reinterpret_cast<T>(dlsym(library, name));  // NOLINT
  return function != nullptr;
}

}  // namespace

const Device* Device::Get() {
  static const Device* const device = Open();
  return device;
}

const Device* Device::Open() {
  const char* name = std::getenv("KVCOVE_CUDA_DRIVER");
  if (name == nullptr || *name == '\0') name = "libcuda.so.1";
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  auto* device = new Device();  // for as long as the process
  const bool loaded = Load(library, "cuInit", device->init_) &&
                      Load(library, "cuPointerGetAttribute", device->attribute_) &&
                      Load(library, "cuDeviceGet", device->get_) &&
                      Load(library, "cuDevicePrimaryCtxRetain", device->retain_) &&
                      Load(library, "cuCtxPushCurrent_v2", device->push_) &&
                      Load(library, "cuCtxPopCurrent_v2", device->pop_) &&
                      Load(library, "cuMemcpyDtoH_v2", device->to_host_) &&
                      Load(library, "cuMemcpyHtoD_v2", device->from_host_);
  if (loaded && device->init_(0) == 0) return device;
  delete device;
  return nullptr;
}

bool Device::Owns(std::uintptr_t address) const {
  unsigned type = 0;
  return attribute_(&type, kMemoryType, address) == 0 && type == kDeviceMemory;
}

Status Device::ContextOf(std::uintptr_t device, Context& context) const {
  int ordinal = -1;
  int error = attribute_(&ordinal, kOrdinalOf, device);
  if (error != 0) {
    return Fail(Code::kInternal,
                fmt::format("the GPU's driver answers {} for address {:#x}", error, device));
  }
  // Held over the driver's calls, which are made once an ordinal.
  const MutexLock lock(mutex_);
  if (const auto known = contexts_.find(ordinal); known != contexts_.end()) {
    context = known->second;
    return {};
  }
  int handle = 0;
  error = get_(&handle, ordinal);
  if (error == 0) error = retain_(&context, handle);
  if (error != 0) {
    return Fail(
        Code::kInternal,
        fmt::format("the GPU's driver answers {} for the context of GPU {}", error, ordinal));
  }
  contexts_[ordinal] = context;
  return {};
}

Status Device::Copy(std::uintptr_t device,
                    int (*copy)(const Device&, std::uintptr_t, void*, std::size_t), void* host,
                    std::size_t size) const {
  Context context = nullptr;
  KVCOVE_TRY(ContextOf(device, context));
  int error = push_(context);
  if (error != 0) {
    return Fail(
        Code::kInternal,
        fmt::format("the GPU's driver answers {} to the context of address {:#x}", error, device));
  }
  error = copy(*this, device, host, size);
  Context popped = nullptr;
  (void)pop_(&popped);
  if (error == 0) return {};
  return Fail(Code::kInternal,
              fmt::format("the GPU's driver answers {} to a copy of {} bytes at {:#x}", error, size,
                          device));
}

Status Device::ToHost(void* host, std::uintptr_t device, std::size_t size) const {
  return Copy(
      device,
      [](const Device& self, std::uintptr_t from, void* to, std::size_t count) {
        return self.to_host_(to, from, count);
      },
      host, size);
}

Status Device::FromHost(std::uintptr_t device, const void* host, std::size_t size) const {
  return Copy(
      device,
      [](const Device& self, std::uintptr_t to, void* from, std::size_t count) {
        return self.from_host_(to, from, count);
      },
      const_cast<void*>(host), size);
}

}  // namespace kvcove::python
