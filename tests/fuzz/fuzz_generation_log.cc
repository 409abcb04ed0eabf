// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/generation_log.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto parsed = kvcove::master::ParseLog({reinterpret_cast<const char*>(data), size});
  if (!parsed) return 0;
  kvcove::master::Generations generations(parsed->incarnation);
  for (const auto& record : parsed->records) generations.Restore(record);
  (void)generations.Snapshot();
  return 0;
}
