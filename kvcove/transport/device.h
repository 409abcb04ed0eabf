// SPDX-License-Identifier: Apache-2.0
// How payload moves between host memory and a device's memory (a GPU's). A new kind of device
// implements this page and nothing else; cuda/ is one implementation, fake_device.h another.
//
// What a backend implements
//   AllocateHost   allocates pinned memory, for rings
//   RegisterHost   pins existing memory (a segment), so that its bytes need no ring
//   RecordStep     marks a point in one of the engine's streams
//   Reached        returns whether the device has reached a mark
//   Submit         begins to move bytes, behind a mark if one is given
//   Poll           returns whether a ticket is over, and how it ended
//   StreamWait     makes an engine's stream wait for a ticket, on the device
//   Close          waits until the device touches no memory of transfers any more
//
// Order. The device runs its work in streams; marks and tickets order host and device, and no call
// here waits for the device, except Close. A load (host to device) with a mark writes nothing
// before the device has reached the mark: earlier steps may still read its blocks, or zero them. A
// save must read its blocks after the step that fills them, so its caller waits until that step's
// mark is reached, or passes the mark. Loads and saves are not ordered among each other, and
// neither waits for the other. Nothing is ordered behind the engine's default stream unless a mark
// says so.
//
// Memory. Host memory belongs to a ticket from Submit on until Poll has reported its end, whatever
// the end is. The device reads host memory when it runs, not when Submit is called.
//
// Errors. A device may report an error late: Poll then fails, and all bytes that the ticket moved
// are void. Other tickets are not affected, unless the device itself has failed: then each fails.
//
// Threads: all calls are thread-safe. Callers hold no lock of their own during a call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kvcove/base/result.h"
#include "kvcove/transport/endpoint.h"

namespace kvcove::transport {

// A stream of the engine, as its framework names it (torch.cuda.Stream.cuda_stream). 0 is the
// default stream, which most frameworks use.
using StreamHandle = std::uintptr_t;

enum class DeviceWay : std::uint8_t { kLoad, kSave };  // host to device, device to host
inline constexpr std::size_t kDeviceWays = 2;

// The path that bytes took, for metrics.
enum class DevicePath : std::uint8_t {
  kBatched,  // copy engines, run by run
  kStaged,   // copy engines, whole objects; a kernel scatters or gathers runs on the device
  kMapped,   // a kernel reads or writes pinned host memory: the device has no room for staging
};
inline constexpr std::size_t kDevicePaths = 3;
using DeviceBytes = std::array<std::uint64_t, kDevicePaths>;

// A run of bytes, the same in both memories.
struct DeviceCopy {
  std::byte* host = nullptr;
  std::uintptr_t device = 0;
  std::uint64_t bytes = 0;
};

// A point in an engine's stream. Immutable; the backend outlives it.
class DeviceMark {
 public:
  virtual ~DeviceMark() = default;
};

using DeviceTicket = std::uint64_t;  // never reused; 0 is none

struct DeviceTransfer {
  DeviceWay way = DeviceWay::kLoad;
  // Host memory is from AllocateHost or RegisterHost; a run may extend from one registered piece
  // into the next. Device memory is this device's. Runs of one transfer do not overlap at the side
  // that is written.
  std::span<const DeviceCopy> copies;
  const DeviceMark* after = nullptr;  // null: at once
};

class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;
  // Describes the device, its paths and the reason for them, for logs.
  virtual std::string Describe() const = 0;

  // Allocates pinned memory. Errors: kLimit where the host refuses to pin so much, with advice.
  virtual Result<std::span<std::byte>> AllocateHost(std::uint64_t bytes) = 0;
  virtual void FreeHost(std::span<std::byte> memory) = 0;
  // Pins memory until the returned object is destroyed; no ticket may use it at that moment.
  // Errors: as AllocateHost.
  virtual Result<std::unique_ptr<Registered>> RegisterHost(std::span<std::byte> memory) = 0;

  // Marks the present end of the stream. Errors: kUnavailable while the stream is captured into a
  // graph; kInternal.
  virtual Result<std::shared_ptr<const DeviceMark>> RecordStep(StreamHandle stream) = 0;
  // Returns true once all work before the mark is done. Errors: such work has failed.
  virtual Result<bool> Reached(const DeviceMark& mark) = 0;

  // Begins a transfer; adds the bytes of each path to `moved`. An error: nothing has begun. A
  // failure after the beginning fails the ticket, as a late error does.
  virtual Result<DeviceTicket> Submit(const DeviceTransfer& transfer, DeviceBytes& moved) = 0;
  // Returns true once the ticket is over. True, or an error, is returned once; then the ticket is
  // unknown.
  virtual Result<bool> Poll(DeviceTicket ticket) = 0;
  // Makes all work that the stream gets from now on wait for the ticket. Does nothing if the ticket
  // is over.
  virtual Status StreamWait(StreamHandle stream, DeviceTicket ticket) = 0;

  // Waits for the device. False: it still works at the deadline (of the process's boot-time clock);
  // the backend then never frees the memory, and only the destructor may follow.
  virtual bool Close(std::int64_t deadline_ns) = 0;
};

}  // namespace kvcove::transport
