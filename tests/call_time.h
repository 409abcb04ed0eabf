// SPDX-License-Identifier: Apache-2.0
// The timeout of calls whose duration their test says nothing about.
#pragma once

#include <chrono>

namespace kvcove {

// Ordinary builds have that of CallOptions, so that a put or get that stalls fails its test.
// Sanitized ones compute up to ten times as long, two tests at a time on two cores.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr std::chrono::milliseconds kCallTime{10'000};
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr std::chrono::milliseconds kCallTime{10'000};
#else
inline constexpr std::chrono::milliseconds kCallTime{1000};
#endif
#else
inline constexpr std::chrono::milliseconds kCallTime{1000};
#endif

}  // namespace kvcove
