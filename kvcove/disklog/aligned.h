// SPDX-License-Identifier: Apache-2.0
// Memory that O_DIRECT accepts: it starts and ends at the boundary of a block.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <span>
#include <string_view>
#include <utility>

namespace kvcove::disklog {

inline constexpr std::uint64_t kBlockBytes = 4096;
inline constexpr std::uint64_t kHugePageBytes = 2ULL << 20;

constexpr std::uint64_t AlignUp(std::uint64_t value, std::uint64_t to) {
  return (value + to - 1) / to * to;
}

// Owns memory of whole blocks. Not thread-safe.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // Allocates whole blocks, at least `bytes`, all zero. Throws std::bad_alloc.
  explicit AlignedBuffer(std::uint64_t bytes) : size_(AlignUp(bytes, kBlockBytes)) {
    if (size_ == 0) return;
    // A device accepts a bounded number of runs of physical memory in one request (virtio: 254).
    // With scattered pages of 4 KiB, a transfer of 1 MiB would need two requests instead of one.
    const bool huge = size_ >= kHugePageBytes;
    const std::uint64_t align = huge ? kHugePageBytes : kBlockBytes;
    data_ = static_cast<std::byte*>(std::aligned_alloc(align, AlignUp(size_, align)));
    if (data_ == nullptr) throw std::bad_alloc();
    if (huge) (void)madvise(data_, size_, MADV_HUGEPAGE);
    std::memset(data_, 0, size_);
  }
  explicit AlignedBuffer(std::string_view bytes) : AlignedBuffer(bytes.size()) {
    if (data_ != nullptr) std::memcpy(data_, bytes.data(), bytes.size());
  }
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~AlignedBuffer() { std::free(data_); }

  std::span<std::byte> span() { return {data_, size_}; }
  std::string_view view() const { return {reinterpret_cast<const char*>(data_), size_}; }
  std::uint64_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
};

}  // namespace kvcove::disklog
