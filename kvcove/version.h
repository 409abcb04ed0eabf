// SPDX-License-Identifier: Apache-2.0
// The version of kvcove. It stands here and nowhere else: CMake, the Python package and
// `kvcove --version` read it from this file.
#pragma once

#include <string_view>

#include "kvcove/base/export.h"

// What the caller was compiled with. docs/cpp.md says what a change of each number means.
#define KVCOVE_VERSION_MAJOR 0
#define KVCOVE_VERSION_MINOR 1
#define KVCOVE_VERSION_PATCH 0

namespace kvcove {

// "0.1.0": of the library that the caller runs with, which may be another one than the headers'.
KVCOVE_API std::string_view Version();

}  // namespace kvcove
