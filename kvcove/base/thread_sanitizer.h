// SPDX-License-Identifier: Apache-2.0
// KVCOVE_THREAD_SANITIZER: 1 in a build with the thread sanitizer, of either compiler, else 0.
#pragma once

#if defined(__SANITIZE_THREAD__)
#define KVCOVE_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define KVCOVE_THREAD_SANITIZER 1
#endif
#endif
#if !defined(KVCOVE_THREAD_SANITIZER)
#define KVCOVE_THREAD_SANITIZER 0
#endif
