// SPDX-License-Identifier: Apache-2.0
// What the backends of OpenDevice have in common. io_uring is another module's (kvcove/uring), as
// it needs liburing.
#pragma once

#include <memory>
#include <utility>

#include "kvcove/base/posix.h"
#include "kvcove/disklog/device.h"

namespace kvcove::disklog {

// Closed, and unlocked, with the device that gets it.
struct OpenFile {
  UniqueFd fd;
  std::uint64_t size_bytes = 0;
};

struct Operation {
  enum class Kind : std::uint8_t { kRead, kWrite, kSync } kind = Kind::kSync;
  std::uint64_t offset = 0;
  std::byte* data = nullptr;
  std::size_t size = 0;
  Device::Done done;
  std::size_t moved = 0;
  int error = 0;
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
    // A write does not change what it is given.
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
// Null, as it is at first: this program has no io_uring, and threads serve. Thread-safe.
void SetUringMaker(MakeDevice maker);
Result<std::unique_ptr<Device>> MakeThreadDevice(OpenFile file, const FileDeviceOptions& options);

}  // namespace kvcove::disklog
