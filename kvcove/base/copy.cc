// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/copy.h"

#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace kvcove {
namespace {

#ifdef __SSE2__
constexpr std::size_t kLine = 64;
// Below that the fence at the end costs more than the stores save.
constexpr std::size_t kLeastStreamed = 2048;

// Whole lines at an aligned place.
void StreamLines(std::byte* to, const std::byte* from, std::size_t size) {
  for (std::size_t at = 0; at < size; at += kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from + at);
    auto* target = reinterpret_cast<__m128i*>(to + at);
    const __m128i first = _mm_loadu_si128(source);
    const __m128i second = _mm_loadu_si128(source + 1);
    const __m128i third = _mm_loadu_si128(source + 2);
    const __m128i fourth = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, first);
    _mm_stream_si128(target + 1, second);
    _mm_stream_si128(target + 2, third);
    _mm_stream_si128(target + 3, fourth);
  }
  // Streaming stores are not ordered before the release that publishes the value.
  _mm_sfence();
}
#endif

}  // namespace

void CopyPastCaches(void* to, const void* from, std::size_t size) {
#ifdef __SSE2__
  if (size >= kLeastStreamed) {
    auto* target = static_cast<std::byte*>(to);
    const auto* source = static_cast<const std::byte*>(from);
    const std::size_t head = -reinterpret_cast<std::uintptr_t>(target) % kLine;
    const std::size_t lines = (size - head) / kLine * kLine;
    std::memcpy(target, source, head);
    StreamLines(target + head, source + head, lines);
    std::memcpy(target + head + lines, source + head + lines, size - head - lines);
    return;
  }
#endif
  std::memcpy(to, from, size);
}

}  // namespace kvcove
