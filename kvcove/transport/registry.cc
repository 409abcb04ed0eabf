// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/registry.h"

#include <fmt/core.h>

namespace kvcove::transport {

Result<std::shared_ptr<void>> Registry::Register(std::span<std::byte> memory) {
  struct Registration {
    std::shared_ptr<int> counted;
    std::vector<std::unique_ptr<Registered>> each;
  };
  if (memory.data() == nullptr || memory.empty()) {
    return Fail(Code::kInvalid, "there is no memory to register");
  }
  // Calls side by side may exceed the bound by a few. That is harmless: the bound exists to report
  // a leak.
  if (count() >= kMaxRegistrations) {
    return Fail(Code::kLimit, fmt::format("{} pieces of memory are registered already; register "
                                          "fewer, larger ones",
                                          count()));
  }
  auto registration = std::make_shared<Registration>();
  registration->counted = count_;
  for (Transport* transport : transports_) {
    KVCOVE_ASSIGN(auto registered, transport->Register(memory));
    registration->each.push_back(std::move(registered));
  }
  return std::shared_ptr<void>(std::move(registration));
}

}  // namespace kvcove::transport
