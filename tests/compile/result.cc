// SPDX-License-Identifier: Apache-2.0
// Compiled, never linked: tests/CMakeLists.txt says what must compile and what must not. With
// DROPPED=1 a Status, with DROPPED=2 a Result goes unlooked at, which is an error in CI.
#include "kvcove/base/result.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace {

struct Base {
  virtual ~Base() = default;
};
struct Derived : Base {};

kvcove::Status Done(bool well) {
  if (!well) return kvcove::Fail(kvcove::Code::kLimit, "not well");
  return {};
}
kvcove::Result<int> Number() { return 5; }
kvcove::Result<std::string> Text() { return "text"; }
kvcove::Result<std::vector<int>> None() { return {}; }
kvcove::Result<std::optional<int>> Maybe() { return std::nullopt; }
kvcove::Result<std::unique_ptr<Base>> Up() { return std::make_unique<Derived>(); }
kvcove::Result<std::unique_ptr<Derived>> Down() { return std::make_unique<Derived>(); }
kvcove::Result<std::unique_ptr<Base>> Converted() { return Down(); }
// A copy of a result is a result, not whether it has a value.
kvcove::Result<bool> Copied(kvcove::Result<bool>& given) {
  kvcove::Result<bool> copy(given);
  return copy;
}
kvcove::Status Chain() {
  KVCOVE_TRY(Number());
  KVCOVE_ASSIGN(const auto text, Text());
  return text.empty() ? kvcove::Status() : Done(true);
}

}  // namespace

bool Use() {
#if DROPPED == 1
  Done(true);
#elif DROPPED == 2
  Number();
#endif
  (void)Done(false);
  kvcove::Result<bool> no = false;
  kvcove::Status status = Done(true);
  status = kvcove::Fail(kvcove::Code::kInvalid, "assigned");
  return Chain() && None() && Maybe() && Up() && Converted() && *Copied(no) && status;
}
