// SPDX-License-Identifier: Apache-2.0
// Any bytes as a file of the first format: a start that accepts them plans facts that the next
// start reads.
// Fuzzes: kvcove/master/store kvcove/master/control
#include <cstdlib>

#include "kvcove/base/clock.h"
#include "kvcove/base/log.h"
#include "kvcove/master/control/start.h"
#include "kvcove/master/store/generation_log.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvcove;
  using namespace kvcove::master;
  SetLogLevel(LogLevel::kOff);
  const auto parsed = ParseLog({reinterpret_cast<const char*>(data), size});
  if (!parsed) return 0;
  const auto plan = PlanStart({}, 0, kSecond, 0, &*parsed);
  if (!plan) return 0;
  Facts facts;
  ApplyTransaction(plan->changes, 1, facts);
  if (!Decode(facts)) std::abort();
  return 0;
}
