// SPDX-License-Identifier: Apache-2.0
// A range of host memory that one device knows. The range is registered in pieces, one a call: the
// device pins each page (some 40 to 170 ms a GiB), so an owner's memory is registered in the
// background, while TCP serves. docs/rdma.md says who registers what.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "kvcove/transport/verbs/verbs_api.h"

namespace kvcove::transport::verbs {

// A part of registered memory that is within one registration.
struct Keyed {
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  std::uint32_t local_key = 0;
  std::uint32_t remote_key = 0;  // 0 for Access::kLocal: no key to such memory leaves the process
};

// RegisterNext() and Deregister() are for one thread at a time. Cover() is thread-safe, also beside
// RegisterNext(), but not beside Deregister(), which frees what Cover() reads.
class Memory {
 public:
  static constexpr std::uint64_t kPieceBytes = 1ULL << 30;

  // Registers nothing yet. The memory stays mapped until Deregister() has succeeded.
  Memory(std::shared_ptr<Context> context, std::span<std::byte> memory, Access access,
         std::uint64_t piece_bytes = kPieceBytes);
  // No lane may use the memory any more.
  ~Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Registers the next piece; returns true once there is none left. Errors: Context::Register's;
  // what has been registered before remains so, and the call may be repeated. kInvalid after a
  // Deregister() that has failed.
  Result<bool> RegisterNext();
  std::uint64_t registered_bytes() const;

  // Appends the parts of [data, data + bytes) to `parts`, in order. Errors, with nothing appended:
  // kInvalid for bytes that are not of this memory, kUnavailable for bytes that are not registered
  // yet.
  Status Cover(const std::byte* data, std::uint64_t bytes, std::vector<Keyed>& parts) const;

  // Ends all registrations. Cover() refuses each byte from now on, also if the call fails. No lane
  // may use the memory any more. Errors: the device's; the memory stays mapped, call it again.
  Status Deregister();

 private:
  std::uint64_t BytesOf(std::size_t piece) const;

  const std::shared_ptr<Context> context_;
  const std::span<std::byte> memory_;
  const Access access_;
  const std::uint64_t piece_bytes_;
  std::vector<std::unique_ptr<MemoryRegion>> regions_;  // its size never changes
  // The first so many regions are there. RegisterNext() stores it (release) behind the region that
  // Cover() then reads (acquire).
  std::atomic<std::size_t> registered_{0};
};

}  // namespace kvcove::transport::verbs
