// SPDX-License-Identifier: Apache-2.0
// A bounded queue of byte strings, each in one piece. No lock: the caller guards the positions; a
// string that was reserved belongs to its holder until it is released.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace kvcove::owner {

class ByteRing {
 public:
  // The memory is not touched here: what is never used costs nothing.
  explicit ByteRing(std::uint64_t bytes)
      : size_(bytes), bytes_(std::make_unique_for_overwrite<std::byte[]>(bytes)) {}

  std::uint64_t size() const { return size_; }
  // From the oldest string that is not released to the newest.
  std::uint64_t used() const { return tail_ - head_; }

  // Where the string begins; positions grow for ever. Nothing when there is no room.
  std::optional<std::uint64_t> Reserve(std::uint64_t bytes) {
    if (head_ == tail_) head_ = tail_ = 0;
    const std::uint64_t at = tail_ % size_;
    // A string does not go round: what is left at the end is skipped.
    const std::uint64_t start = at + bytes <= size_ ? tail_ : tail_ + (size_ - at);
    if (bytes > size_ || start + bytes - head_ > size_) return std::nullopt;
    tail_ = start + bytes;
    return start;
  }
  std::span<std::byte> At(std::uint64_t start, std::uint64_t bytes) const {
    return {bytes_.get() + (start % size_), bytes};
  }
  // The oldest string, which ends there.
  void Release(std::uint64_t end) { head_ = end; }
  // All of them.
  void Clear() { head_ = tail_; }

 private:
  const std::uint64_t size_;
  std::uint64_t head_ = 0;
  std::uint64_t tail_ = 0;
  const std::unique_ptr<std::byte[]> bytes_;
};

}  // namespace kvcove::owner
