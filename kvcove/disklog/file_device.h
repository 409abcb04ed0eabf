// SPDX-License-Identifier: Apache-2.0
// Common parts of the backends of OpenDevice. The io_uring backend is in kvcove/uring, because it
// needs liburing.
#pragma once

#include <memory>
#include <utility>

#include "kvcove/base/posix.h"
#include "kvcove/disklog/device.h"

namespace kvcove::disklog {

// A locked file. The device that receives it closes and so unlocks it at its end.
struct OpenFile {
  UniqueFd fd;
  std::uint64_t size_bytes = 0;
};

// One read, write or sync that a device has accepted.
struct Operation {
  enum class Kind : std::uint8_t { kRead, kWrite, kSync } kind = Kind::kSync;
  std::uint64_t offset = 0;
  std::byte* data = nullptr;
  std::size_t size = 0;
  Device::Done done;
  std::size_t moved = 0;  // bytes transferred so far
  int error = 0;          // errno
};

class FileDevice : public Device {
 public:
  explicit FileDevice(OpenFile file) : file_(std::move(file)) {}
  std::uint64_t size_bytes() const final { return file_.size_bytes; }

  void Read(std::uint64_t offset, std::span<std::byte> into, Done done) final {
    Submit({.kind = Operation::Kind::kRead,
            .offset = offset,
            .data = into.data(),
            .size = into.size(),
            .done = std::move(done)});
  }
  void Write(std::uint64_t offset, std::span<const std::byte> from, Done done) final {
    // The cast is safe: backends only read from the memory of a kWrite.
    Submit({.kind = Operation::Kind::kWrite,
            .offset = offset,
            .data = const_cast<std::byte*>(from.data()),  // NOLINT(*-const-cast)
            .size = from.size(),
            .done = std::move(done)});
  }
  void Sync(Done done) final { Submit({.done = std::move(done)}); }

 protected:
  int fd() const { return file_.fd.get(); }

 private:
  virtual void Submit(Operation operation) = 0;

  const OpenFile file_;
};

using MakeDevice = Result<std::unique_ptr<Device>> (*)(OpenFile file,
                                                       const FileDeviceOptions& options);
// Sets the constructor of io_uring devices. Null, the default: the program has no io_uring, and
// OpenDevice uses threads. Thread-safe.
void SetUringMaker(MakeDevice maker);
Result<std::unique_ptr<Device>> MakeThreadDevice(OpenFile file, const FileDeviceOptions& options);

}  // namespace kvcove::disklog
