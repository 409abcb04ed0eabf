// SPDX-License-Identifier: Apache-2.0
#include "kvcove/replay/trace.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  (void)kvcove::replay::ParseTraceLine({reinterpret_cast<const char*>(data), size});
  return 0;
}
