// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/cuda/driver.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <cstdlib>

namespace kvcove::transport::cuda {
namespace {

// cuda.h: CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
// CU_MEMORYTYPE_DEVICE.
constexpr int kMemoryType = 2;
constexpr int kOrdinal = 9;
constexpr unsigned kDeviceMemory = 2;

class Library {
 public:
  explicit Library(void* handle) : handle_(handle) {}
  template <typename F>
  void Find(F& function, const char* name) const {
    function = reinterpret_cast<F>(dlsym(handle_, name));  // NOLINT
  }
  template <typename F>
  void Need(F& function, const char* name) {
    Find(function, name);
    if (function == nullptr && missing_.empty()) missing_ = name;
  }
  const std::string& missing() const { return missing_; }

 private:
  void* handle_;
  std::string missing_;
};

void FindAll(Driver& driver, Library& library) {
  library.Need(driver.init, "cuInit");
  library.Need(driver.pointer_attribute, "cuPointerGetAttribute");
  library.Need(driver.device_get, "cuDeviceGet");
  library.Need(driver.retain, "cuDevicePrimaryCtxRetain");
  library.Need(driver.release, "cuDevicePrimaryCtxRelease_v2");
  library.Need(driver.push, "cuCtxPushCurrent_v2");
  library.Need(driver.pop, "cuCtxPopCurrent_v2");
  library.Need(driver.capture_mode, "cuThreadExchangeStreamCaptureMode");
  library.Need(driver.is_capturing, "cuStreamIsCapturing");
  library.Need(driver.priorities, "cuCtxGetStreamPriorityRange");
  library.Need(driver.stream_create, "cuStreamCreateWithPriority");
  library.Need(driver.stream_destroy, "cuStreamDestroy_v2");
  library.Need(driver.stream_query, "cuStreamQuery");
  library.Need(driver.stream_wait, "cuStreamWaitEvent");
  library.Need(driver.event_create, "cuEventCreate");
  library.Need(driver.event_destroy, "cuEventDestroy_v2");
  library.Need(driver.event_record, "cuEventRecord");
  library.Need(driver.event_query, "cuEventQuery");
  library.Need(driver.host_alloc, "cuMemHostAlloc");
  library.Need(driver.host_free, "cuMemFreeHost");
  library.Need(driver.host_register, "cuMemHostRegister_v2");
  library.Need(driver.host_unregister, "cuMemHostUnregister");
  library.Need(driver.host_pointer, "cuMemHostGetDevicePointer_v2");
  library.Need(driver.alloc, "cuMemAlloc_v2");
  library.Need(driver.free, "cuMemFree_v2");
  library.Need(driver.to_device, "cuMemcpyHtoDAsync_v2");
  library.Need(driver.to_host, "cuMemcpyDtoHAsync_v2");
  library.Find(driver.batch, "cuMemcpyBatchAsync");
  library.Find(driver.batch_v2, "cuMemcpyBatchAsync_v2");
  library.Find(driver.module_load, "cuModuleLoadData");
  library.Find(driver.module_unload, "cuModuleUnload");
  library.Find(driver.module_function, "cuModuleGetFunction");
  library.Find(driver.launch, "cuLaunchKernel");
}

}  // namespace

const Driver* Driver::Open(const std::string& library, std::string& why) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    why = dlerror();
    return nullptr;
  }
  auto* driver = new Driver();  // never freed, as the library is never closed
  Library found(handle);
  FindAll(*driver, found);
  if (found.missing().empty()) return driver;
  why = fmt::format("{} has no {}", library, found.missing());
  delete driver;
  return nullptr;
}

const Driver* Driver::OfProcess() {
  static const Driver* const driver = [] {
    const char* name = std::getenv("KVCOVE_CUDA_DRIVER");
    std::string why;
    return Open(name == nullptr || *name == '\0' ? "libcuda.so.1" : name, why);
  }();
  return driver;
}

bool Driver::Owns(std::uintptr_t address) const {
  unsigned type = 0;
  return pointer_attribute(&type, kMemoryType, address) == kSuccess && type == kDeviceMemory;
}

Result<int> Driver::OrdinalOf(std::uintptr_t address) const {
  int ordinal = -1;
  const CuResult result = pointer_attribute(&ordinal, kOrdinal, address);
  if (result == kSuccess) return ordinal;
  return Fail(Code::kInternal,
              fmt::format("the GPU's driver answers {} for address {:#x}", result, address));
}

std::optional<CuResult> Driver::CopyBatch(CuPointer* to, CuPointer* from, std::size_t* bytes,
                                          std::size_t count, CuStream stream) const {
  CuCopyAttributes attributes;
  std::size_t first = 0;
  if (batch_v2 != nullptr) {
    const CuResult result = batch_v2(to, from, bytes, count, &attributes, &first, 1, stream);
    if (result != kNotSupported) return result;
  }
  std::size_t failed = 0;
  if (batch != nullptr) {
    return batch(to, from, bytes, count, &attributes, &first, 1, &failed, stream);
  }
  return std::nullopt;
}

Scope::Scope(const Driver& driver, CuContext context) : driver_(driver) {
  const CuResult pushed = driver_.push(context);
  pushed_ = pushed == kSuccess;
  if (!pushed_) {
    status_ = CheckResult(pushed, "the push of a GPU's context");
    return;
  }
  (void)driver_.capture_mode(&mode_);
}

Scope::~Scope() {
  if (!pushed_) return;
  (void)driver_.capture_mode(&mode_);
  CuContext popped = nullptr;
  (void)driver_.pop(&popped);
}

Status CheckResult(CuResult result, const std::string& act) {
  if (result == kSuccess) return {};
  return Fail(Code::kInternal, fmt::format("the GPU's driver answers {} to {}", result, act));
}

}  // namespace kvcove::transport::cuda
