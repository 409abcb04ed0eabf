// SPDX-License-Identifier: Apache-2.0
// How payload moves between host memory and a device's (a GPU's). This page is all that another
// kind of device has to implement; cuda/ is one implementation, fake_device.h another.
//
// What a backend implements
//   AllocateHost   pinned memory, for the rings through which bytes go
//   RegisterHost   pins memory that is there already (a segment), so that it needs no ring
//   RecordStep     marks a point in one of the engine's streams
//   Reached        whether the device has come to a mark
//   Submit         begins to move bytes, behind a mark if one is given
//   Poll           whether a ticket is over, and how it ended
//   StreamWait     makes an engine's stream wait for a ticket, on the device
//   Close          ends it: waits until the device touches nothing any more
//
// Order. The device runs what it is given in streams; host and device are ordered by marks and
// tickets, and no call here waits for the device, except Close. A load (host to device) with a mark
// writes nothing before the device has reached the mark: the blocks that it fills may be read, or
// zeroed, by steps before. A save reads what lies behind its mark, so its caller waits until the
// mark is reached, or hands it over. Loads and saves are not ordered among each other, and neither
// waits for the other. Nothing is ordered behind the engine's default stream unless a mark says so.
//
// Memory. Host memory belongs to a ticket from Submit on until Poll has told its end, whatever the
// end is. The device reads host memory when it runs, not when Submit is called.
//
// Errors. A device may tell of an error late: Poll then fails, and everything that the ticket moved
// is void. Other tickets are not touched, unless the device itself is gone: then each fails.
//
// Threads: all calls are thread-safe. None is made under a lock of the caller's.
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

// A stream of the engine, as its framework has it (torch.cuda.Stream.cuda_stream). 0 is its default
// stream, which most frameworks use.
using StreamHandle = std::uintptr_t;

enum class DeviceWay : std::uint8_t { kLoad, kSave };  // host to device, device to host
inline constexpr std::size_t kDeviceWays = 2;

// How bytes went, for metrics.
enum class DevicePath : std::uint8_t {
  kBatched,  // copy engines, run by run
  kStaged,   // copy engines, whole objects; a kernel scatters or gathers runs on the device
  kMapped,   // a kernel reads or writes pinned host memory: there is no room on the device
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
  // Host memory is of AllocateHost or RegisterHost; a run may go on from one piece that was
  // registered to the next. The device's is of this device. Runs of one transfer do not overlap at
  // the side that is written.
  std::span<const DeviceCopy> copies;
  const DeviceMark* after = nullptr;  // null: at once
};

class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;
  // For logs: the device, its paths and why.
  virtual std::string Describe() const = 0;

  // Errors: kLimit, with what to do where the host refuses to pin so much.
  virtual Result<std::span<std::byte>> AllocateHost(std::uint64_t bytes) = 0;
  virtual void FreeHost(std::span<std::byte> memory) = 0;
  // Known until what it returns ends; no ticket may use it then. Errors: as AllocateHost.
  virtual Result<std::unique_ptr<Registered>> RegisterHost(std::span<std::byte> memory) = 0;

  // Errors: kUnavailable while the stream is captured into a graph; kInternal.
  virtual Result<std::shared_ptr<const DeviceMark>> RecordStep(StreamHandle stream) = 0;
  // Errors: work before the mark has failed.
  virtual Result<bool> Reached(const DeviceMark& mark) = 0;

  // `moved` is raised by the bytes of each path. An error: nothing has begun. What fails in between
  // fails the ticket, as a late error does.
  virtual Result<DeviceTicket> Submit(const DeviceTransfer& transfer, DeviceBytes& moved) = 0;
  // True once it is over. True and errors are told once; then the ticket is gone.
  virtual Result<bool> Poll(DeviceTicket ticket) = 0;
  // What the stream gets from now on runs behind the ticket. Nothing to do if that is over.
  virtual Status StreamWait(StreamHandle stream, DeviceTicket ticket) = 0;

  // False: the device still works at the deadline (of the process's boot-time clock); its memory is
  // then kept for ever. No other call may follow.
  virtual bool Close(std::int64_t deadline_ns) = 0;
};

}  // namespace kvcove::transport
