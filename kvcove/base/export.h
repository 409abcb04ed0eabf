// SPDX-License-Identifier: Apache-2.0
// What the shared library shows. All code is compiled with hidden symbols; these two say what is
// not. tests/package/exports.txt lists the result, so that an addition is a decision.
#pragma once

// Before the name of a class or function that users of the library may call.
#define KVCOVE_API __attribute__((visibility("default")))
// Before a member of such a class, or the name of a class inside it, which would be shown with it.
#define KVCOVE_INTERNAL __attribute__((visibility("hidden")))
