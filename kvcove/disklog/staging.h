// SPDX-License-Identifier: Apache-2.0
// Memory for reads in flight, cut into buffers of any size. It is one piece on huge pages, so a
// device needs few runs for a transfer, and can have it registered. Belongs to one thread.
//
// Pages are populated at their first use. A buffer that finds no room gets memory of its own, so
// the caller must bound the number of reads in flight.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
#include <utility>

#include "kvcove/base/posix.h"
#include "kvcove/disklog/aligned.h"

namespace kvcove::disklog {

class Staging {
 public:
  // Maps `bytes`, rounded up to huge pages. If that fails (a limited address space), every buffer
  // gets memory of its own.
  explicit Staging(std::uint64_t bytes) {
    const std::uint64_t size = AlignUp(bytes, kHugePageBytes);
    // Maps one huge page more, so that an aligned range of `size` fits into it.
    auto mapped = Mapping::MapAnonymous(size + kHugePageBytes);
    if (!mapped) return;
    mapped_ = *std::move(mapped);
    const std::uint64_t at = reinterpret_cast<std::uintptr_t>(mapped_.data());
    memory_ = {mapped_.data() + (AlignUp(at, kHugePageBytes) - at), size};
    (void)madvise(memory_.data(), memory_.size(), MADV_HUGEPAGE);
    free_.emplace(0, size);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  std::span<std::byte> memory() const { return memory_; }

  // Whole blocks at a block's boundary, not zeroed. Its destructor returns the memory. The Staging
  // must outlive it.
  class Buffer {
   public:
    Buffer(Staging& staging, std::span<std::byte> span) : staging_(&staging), span_(span) {}
    explicit Buffer(AlignedBuffer own) : own_(std::move(own)), span_(own_.span()) {}
    Buffer(Buffer&& other) noexcept
        : staging_(std::exchange(other.staging_, nullptr)),
          own_(std::move(other.own_)),
          span_(std::exchange(other.span_, {})) {}
    Buffer& operator=(Buffer&& other) noexcept {
      std::swap(staging_, other.staging_);
      std::swap(own_, other.own_);
      std::swap(span_, other.span_);
      return *this;
    }
    ~Buffer() {
      if (staging_ != nullptr) staging_->Give(span_);
    }
    std::span<std::byte> span() const { return span_; }

   private:
    Staging* staging_ = nullptr;
    AlignedBuffer own_;
    std::span<std::byte> span_;
  };

  // Returns a buffer of at least `bytes`.
  Buffer Take(std::uint64_t bytes) {
    const std::uint64_t size = AlignUp(bytes, kBlockBytes);
    const auto run =
        std::ranges::find_if(free_, [&](const auto& one) { return one.second >= size; });
    if (run == free_.end()) return Buffer(AlignedBuffer(size));
    const auto [at, left] = *run;
    free_.erase(run);
    if (left > size) free_.emplace(at + size, left - size);
    return {*this, memory_.subspan(at, size)};
  }

 private:
  // Adds a range to the free ones, and joins it with its neighbours.
  void Give(std::span<std::byte> span) {
    const auto at = static_cast<std::uint64_t>(span.data() - memory_.data());
    auto run = free_.emplace(at, span.size()).first;
    if (const auto next = std::next(run); next != free_.end() && at + run->second == next->first) {
      run->second += next->second;
      free_.erase(next);
    }
    if (run == free_.begin()) return;
    const auto before = std::prev(run);
    if (before->first + before->second != at) return;
    before->second += run->second;
    free_.erase(run);
  }

  Mapping mapped_;  // a forked child does not inherit it
  std::span<std::byte> memory_;
  std::map<std::uint64_t, std::uint64_t> free_;  // free ranges: bytes, by offset in `memory_`
};

}  // namespace kvcove::disklog
