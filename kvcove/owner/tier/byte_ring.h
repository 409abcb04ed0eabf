// SPDX-License-Identifier: Apache-2.0
// A bounded queue of byte strings, each contiguous in memory. Has no lock: the caller guards the
// positions. The bytes of a reserved string belong to its holder until the string is released.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace kvcove::owner {

class ByteRing {
 public:
  // Allocates the ring without touching its memory: pages that are never used cost nothing.
  explicit ByteRing(std::uint64_t bytes)
      : size_(bytes), bytes_(std::make_unique_for_overwrite<std::byte[]>(bytes)) {}

  std::uint64_t size() const { return size_; }
  // Returns the bytes from the oldest string that is not released to the end of the newest one.
  std::uint64_t used() const { return tail_ - head_; }

  // Reserves `bytes` behind the newest string. Returns the string's position, or nothing if there
  // is no room.
  std::optional<std::uint64_t> Reserve(std::uint64_t bytes) {
    // Starts over when empty, so that a string as large as the ring fits.
    if (head_ == tail_) head_ = tail_ = 0;
    const std::uint64_t at = tail_ % size_;
    // A string does not wrap around: the bytes left at the end of the ring are skipped.
    const std::uint64_t start = at + bytes <= size_ ? tail_ : tail_ + (size_ - at);
    if (bytes > size_ || start + bytes - head_ > size_) return std::nullopt;
    tail_ = start + bytes;
    return start;
  }
  // Returns the memory of the string at position `start`.
  std::span<std::byte> At(std::uint64_t start, std::uint64_t bytes) const {
    return {bytes_.get() + (start % size_), bytes};
  }
  // Releases the oldest string. `end`: its position plus its length.
  void Release(std::uint64_t end) { head_ = end; }
  // Releases all strings.
  void Clear() { head_ = tail_; }

 private:
  const std::uint64_t size_;
  std::uint64_t head_ = 0;
  std::uint64_t tail_ = 0;
  const std::unique_ptr<std::byte[]> bytes_;
};

}  // namespace kvcove::owner
