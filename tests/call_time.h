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

// Longer than a busy machine stands still, and short enough that a call that never ends fails its
// test. The default of a second is for tests of time itself. A sanitized build (clang) computes up
// to ten times as long.
#if defined(KVCOVE_CALLS_ARE_SLOW)
inline constexpr std::chrono::milliseconds kCallTime{30'000};
#else
inline constexpr std::chrono::milliseconds kCallTime{15'000};
#endif
static_assert(kCallTime > 10 * CallOptions{}.timeout);

}  // namespace kvcove
