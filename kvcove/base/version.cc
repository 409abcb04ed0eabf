// SPDX-License-Identifier: Apache-2.0
#include "kvcove/version.h"

#define KVCOVE_TEXT_(number) #number
#define KVCOVE_TEXT(number) KVCOVE_TEXT_(number)

namespace kvcove {

std::string_view Version() {
  return KVCOVE_TEXT(KVCOVE_VERSION_MAJOR) "." KVCOVE_TEXT(KVCOVE_VERSION_MINOR) "." KVCOVE_TEXT(
      KVCOVE_VERSION_PATCH);
}

}  // namespace kvcove
