// SPDX-License-Identifier: Apache-2.0
// What travels between an engine's processes: whatever decodes is coded to the same again.
// Fuzzes: kvcove/connector/plan.cc
#include <cstdlib>

#include "kvcove/connector/plan.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvcove::connector;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (const auto plan = DecodePlan(bytes)) {
    if (*DecodePlan(Encode(*plan)) != *plan) std::abort();
  }
  if (const auto report = DecodeReport(bytes)) {
    if (*DecodeReport(Encode(*report)) != *report) std::abort();
  }
  if (const auto question = DecodeQuestion(bytes)) {
    if (Encode(*DecodeQuestion(Encode(*question))) != Encode(*question)) std::abort();
  }
  return 0;
}
