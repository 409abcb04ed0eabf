// SPDX-License-Identifier: Apache-2.0
// The timeout of calls whose duration their test says nothing about.
#pragma once

#include "kvcove/requester/types.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define KVCOVE_CALLS_ARE_SLOW 1
#endif
#endif

namespace kvcove {

// In an ordinary build it is the default, so that a call that stalls fails its test. A sanitized
// build (clang) computes up to ten times as long, and another test runs beside it on two cores.
#if defined(KVCOVE_CALLS_ARE_SLOW)
inline constexpr std::chrono::milliseconds kCallTime{10'000};
#else
inline constexpr std::chrono::milliseconds kCallTime = CallOptions{}.timeout;
#endif

}  // namespace kvcove
