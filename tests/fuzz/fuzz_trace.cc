// SPDX-License-Identifier: Apache-2.0
// Fuzzes: lab/replay/trace.cc
#include "lab/replay/trace.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvcove::lab;
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  std::vector<Request> requests;
  for (const auto& [name, format] : TraceFormats()) (void)TraceReader(format).Add(line, requests);
  return 0;
}
