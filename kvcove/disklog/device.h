// SPDX-License-Identifier: Apache-2.0
// A file or block device that is read and written in whole blocks, without waiting.
//
// A device belongs to one thread, which submits and polls; the completions run inside Poll, on that
// thread, in any order. Only Wake may be called by others. Memory that an operation names stays
// untouched and alive until its completion has run: a device that hangs keeps it, and there is no
// way to take it back. Destroying a device waits for what the kernel still has.
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
  // 0, or an errno. A transfer is whole or an error.
  using Done = std::function<void(int error)>;

  virtual ~Device() = default;
  virtual std::uint64_t size_bytes() const = 0;
  // "io_uring" or "threads".
  virtual std::string kind() const = 0;

  // Offset, address and size are multiples of kBlockBytes. Operations beyond what the device takes
  // at once wait inside it; their callers bound their number.
  virtual void Read(std::uint64_t offset, std::span<std::byte> into, Done done) = 0;
  virtual void Write(std::uint64_t offset, std::span<const std::byte> from, Done done) = 0;
  // What was written before by operations that have *completed* survives a loss of power once this
  // completes.
  virtual void Sync(Done done) = 0;

  // Runs completions; waits up to `wait_ns` for the first. The number that ran.
  virtual std::size_t Poll(std::int64_t wait_ns) = 0;
  // Ends a wait of Poll early. Thread-safe.
  virtual void Wake() = 0;
  virtual std::size_t in_flight() const = 0;
  // Memory that many operations use, beside what is registered before: it may make them cheaper.
  // Before the first of them; no operation names these addresses once the memory is freed.
  virtual void Register(std::span<std::byte> /*memory*/) {}
};

// Completes `start(done)` before it returns; its error. For starts and tools, not beside other
// traffic. ETIMEDOUT after 30 s: the operation goes on, so its memory must live as long as `done`.
int Await(Device& device, const std::function<void(Device::Done)>& start);

// kUring: only in programs that call uring::UseUring.
enum class Backend { kBest, kUring, kThreads };

struct FileDeviceOptions {
  Backend backend = Backend::kBest;  // kBest: io_uring, or threads where the kernel forbids it
  std::uint32_t depth = 128;         // operations that the kernel has at once
  std::uint32_t threads = 8;         // of the backend kThreads
  bool direct = true;                // O_DIRECT; false only in tests
  bool read_only = false;
};

// An existing file or block device; it is locked (flock) while the device lives. Errors:
// kUnavailable (in use, or not to be opened), kInvalid (no O_DIRECT), kInternal (kUring is
// forbidden here).
Result<std::unique_ptr<Device>> OpenDevice(const std::string& path,
                                           const FileDeviceOptions& options = {});

}  // namespace kvcove::disklog
