// SPDX-License-Identifier: Apache-2.0
// The functions of CUDA's driver that kvcove calls, found in its library at run time. A build needs
// neither headers nor libraries of CUDA. Tests open another library (fake/fake_driver.h);
// $KVCOVE_CUDA_DRIVER names one for a whole process.
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
  // Opens a library. The result lives as long as the process. Null: the library is missing or lacks
  // a needed function; `why` says which.
  static const Driver* Open(const std::string& library, std::string& why);
  // Opens $KVCOVE_CUDA_DRIVER, else libcuda.so.1, once a process. Null: this process has no GPU.
  static const Driver* OfProcess();

  // Returns true for memory of a GPU that the host cannot read.
  bool Owns(std::uintptr_t address) const;
  // Returns the number of the GPU that has this address. The address's context would not tell:
  // memory that was mapped (cuMemMap: an engine's sleep mode, expandable segments) has none.
  Result<int> OrdinalOf(std::uintptr_t address) const;
  // Calls the form of cuMemcpyBatchAsync that the driver has. Nothing: it has neither.
  std::optional<CuResult> CopyBatch(CuPointer* to, CuPointer* from, std::size_t* bytes,
                                    std::size_t count, CuStream stream) const;

  // Functions that every driver must have.
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
  // Functions that may be missing: then copies are enqueued run by run, and no kernels are used.
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

// Makes a GPU's primary context current in this thread until it ends, with the relaxed capture
// mode: in any other mode, a query of an event would void an engine's capture of a CUDA graph in
// another thread.
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
  int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED; after the exchange the thread's former mode
  bool pushed_ = false;
  Status status_;
};

// Returns ok for kSuccess, else kInternal: "the GPU's driver answers 700 to `act`".
Status CheckResult(CuResult result, const std::string& act);

}  // namespace kvcove::transport::cuda
