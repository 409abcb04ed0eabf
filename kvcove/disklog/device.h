// SPDX-License-Identifier: Apache-2.0
// A file or block device that is read and written in whole blocks, without waiting.
//
// A device belongs to one thread, which submits and polls; the completions run inside Poll, on that
// thread, in any order. Only Wake is thread-safe. Memory that an operation names must stay alive
// and untouched until its completion has run: a device that hangs keeps the memory, and no call
// takes it back. The destructor waits for operations that the kernel still has.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "kvcove/base/result.h"

namespace kvcove::disklog {

class Device {
 public:
  // Receives 0 or an errno. A transfer is complete or an error, never short.
  using Done = std::function<void(int error)>;

  virtual ~Device() = default;
  virtual std::uint64_t size_bytes() const = 0;
  // Returns "io_uring" or "threads".
  virtual std::string kind() const = 0;

  // Begins a transfer. Offset, address and size are multiples of kBlockBytes. Operations beyond the
  // device's depth wait inside the device; callers bound their number.
  virtual void Read(std::uint64_t offset, std::span<std::byte> into, Done done) = 0;
  virtual void Write(std::uint64_t offset, std::span<const std::byte> from, Done done) = 0;
  // Begins a sync. Writes that had *completed* before this call survive a loss of power once the
  // sync completes; writes that were still in flight may not.
  virtual void Sync(Done done) = 0;

  // Runs completions, and waits up to `wait_ns` for the first. Returns how many ran.
  virtual std::size_t Poll(std::int64_t wait_ns) = 0;
  // Ends a wait of Poll early. Thread-safe.
  virtual void Wake() = 0;
  virtual std::size_t in_flight() const = 0;
  // Announces memory that many operations will use, which may make these cheaper. Adds to memory
  // that is registered already. Call it before the first of them; once the memory is freed, no
  // operation may name its addresses.
  virtual void Register(std::span<std::byte> /*memory*/) {}
};

// Calls `start(done)`, polls until `done` has run, and returns its error. For starts and tools, not
// beside other traffic. ETIMEDOUT after 30 s: the operation remains pending, so `done` must own its
// memory. EIO: the device dropped it.
int Await(Device& device, const std::function<void(Device::Done)>& start);

// kUring works only in programs that call uring::UseUring.
enum class Backend { kBest, kUring, kThreads };

struct FileDeviceOptions {
  Backend backend = Backend::kBest;  // kBest: io_uring, or threads where the kernel forbids it
  std::uint32_t depth = 128;         // operations that the kernel has at once
  std::uint32_t threads = 8;         // of the backend kThreads
  bool direct = true;                // O_DIRECT; false only in tests
  bool read_only = false;
};

// Opens an existing file or block device, and keeps it locked (flock) while the device lives. Waits
// up to 2 s for the lock. Errors: kUnavailable (in use, or cannot be opened), kInvalid (no
// O_DIRECT, or neither file nor block device), kInternal (kUring cannot be used here).
Result<std::unique_ptr<Device>> OpenDevice(const std::string& path,
                                           const FileDeviceOptions& options = {});

}  // namespace kvcove::disklog
