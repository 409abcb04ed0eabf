// SPDX-License-Identifier: Apache-2.0
// The calls of CUDA's driver that kvcove makes, found in its library when the process runs. Neither
// headers nor libraries of CUDA are needed to build. Tests put another library in its place
// (fake/fake_driver.h); $KVCOVE_CUDA_DRIVER does it for a whole process.
//
// Types, numbers and versions of functions are those of cuda.h (12.0 to 13.x).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "kvcove/base/result.h"
#include "kvcove/transport/device.h"

namespace kvcove::transport::cuda {

using CuResult = int;
using CuContext = void*;
using CuStream = void*;
using CuEvent = void*;
using CuModule = void*;
using CuFunction = void*;
using CuPointer = std::uint64_t;

inline constexpr CuResult kSuccess = 0;
inline constexpr CuResult kNotReady = 600;
inline constexpr CuResult kNotSupported = 801;

struct CuLocation {
  int type = 0;
  int id = 0;
};
struct CuCopyAttributes {
  int order = 1;  // CU_MEMCPY_SRC_ACCESS_ORDER_STREAM: sources are read when the copy runs
  CuLocation from, to;
  unsigned flags = 0;
};

// Immutable; all functions are thread-safe.
struct Driver {
  // Null where the library is not there or lacks a call; `why` says so.
  static const Driver* Open(const std::string& library, std::string& why);
  // $KVCOVE_CUDA_DRIVER, else libcuda.so.1: opened once a process. Null: this process has no GPU.
  static const Driver* OfProcess();

  // True for memory of a GPU that the host cannot read.
  bool Owns(std::uintptr_t address) const;
  // The GPU on which it lies. An address's context is no help: memory that was mapped (cuMemMap: an
  // engine's sleep mode, expandable segments) has none.
  Result<int> OrdinalOf(std::uintptr_t address) const;
  // One call for both forms of cuMemcpyBatchAsync. Nothing where the driver has neither.
  std::optional<CuResult> CopyBatch(CuPointer* to, CuPointer* from, std::size_t* bytes,
                                    std::size_t count, CuStream stream) const;

  // Needed.
  CuResult (*init)(unsigned) = nullptr;
  CuResult (*pointer_attribute)(void* data, int attribute, CuPointer pointer) = nullptr;
  CuResult (*device_get)(int* device, int ordinal) = nullptr;
  CuResult (*retain)(CuContext*, int device) = nullptr;
  CuResult (*release)(int device) = nullptr;
  CuResult (*push)(CuContext) = nullptr;
  CuResult (*pop)(CuContext*) = nullptr;
  CuResult (*capture_mode)(int* mode) = nullptr;  // cuThreadExchangeStreamCaptureMode
  CuResult (*is_capturing)(CuStream, int* status) = nullptr;
  CuResult (*priorities)(int* least, int* greatest) = nullptr;
  CuResult (*stream_create)(CuStream*, unsigned flags, int priority) = nullptr;
  CuResult (*stream_destroy)(CuStream) = nullptr;
  CuResult (*stream_query)(CuStream) = nullptr;
  CuResult (*stream_wait)(CuStream, CuEvent, unsigned flags) = nullptr;
  CuResult (*event_create)(CuEvent*, unsigned flags) = nullptr;
  CuResult (*event_destroy)(CuEvent) = nullptr;
  CuResult (*event_record)(CuEvent, CuStream) = nullptr;
  CuResult (*event_query)(CuEvent) = nullptr;
  CuResult (*host_alloc)(void**, std::size_t, unsigned flags) = nullptr;
  CuResult (*host_free)(void*) = nullptr;
  CuResult (*host_register)(void*, std::size_t, unsigned flags) = nullptr;
  CuResult (*host_unregister)(void*) = nullptr;
  CuResult (*host_pointer)(CuPointer*, void* host, unsigned flags) = nullptr;
  CuResult (*alloc)(CuPointer*, std::size_t) = nullptr;
  CuResult (*free)(CuPointer) = nullptr;
  CuResult (*to_device)(CuPointer, const void*, std::size_t, CuStream) = nullptr;
  CuResult (*to_host)(void*, CuPointer, std::size_t, CuStream) = nullptr;
  // May be missing: copies run by run then, and no kernels.
  CuResult (*batch)(CuPointer*, CuPointer*, std::size_t*, std::size_t count, CuCopyAttributes*,
                    std::size_t* first, std::size_t attributes, std::size_t* failed,
                    CuStream) = nullptr;  // CUDA 12.8
  CuResult (*batch_v2)(CuPointer*, CuPointer*, std::size_t*, std::size_t count, CuCopyAttributes*,
                       std::size_t* first, std::size_t attributes, CuStream) = nullptr;  // 13.0
  CuResult (*module_load)(CuModule*, const void* image) = nullptr;
  CuResult (*module_unload)(CuModule) = nullptr;
  CuResult (*module_function)(CuFunction*, CuModule, const char* name) = nullptr;
  CuResult (*launch)(CuFunction, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                     CuStream, void** arguments, void** extra) = nullptr;
};

// The calling thread works in a GPU's primary context while this lives, and a capture of a CUDA
// graph in another thread is not disturbed by what it calls: without that, a query of an event
// would void an engine's capture.
class Scope {
 public:
  Scope(const Driver& driver, CuContext context);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  // Errors: kInternal with the driver's number.
  const Status& status() const { return status_; }

 private:
  const Driver& driver_;
  int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED, then the thread's own
  bool pushed_ = false;
  Status status_;
};

// kInternal: "the GPU's driver answers 700 to `act`"; nothing for success.
Status CheckResult(CuResult result, const std::string& act);

}  // namespace kvcove::transport::cuda
