// SPDX-License-Identifier: Apache-2.0
#include "kvcove/policy/policy.h"

#include <fmt/core.h>

#include "kvcove/policy/lru.h"
#include "kvcove/policy/segments.h"

namespace kvcove::policy {
namespace {

struct Known {
  std::string_view name;
  std::unique_ptr<EvictionPolicy> (*make)();
};
constexpr Known kPolicies[] = {
    {"default",
     [] -> std::unique_ptr<EvictionPolicy> { return std::make_unique<SegmentPolicy>(); }},
    {"lru", [] -> std::unique_ptr<EvictionPolicy> { return std::make_unique<Lru>(); }},
};

}  // namespace

std::vector<std::string_view> PolicyNames() {
  std::vector<std::string_view> names;
  for (const Known& known : kPolicies) names.push_back(known.name);
  return names;
}

std::string ListPolicies(const std::vector<std::string_view>& names) {
  std::string list;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) list += i + 1 < names.size() ? ", " : " or ";
    list += names[i];
  }
  return list;
}

Result<std::unique_ptr<EvictionPolicy>> MakePolicy(std::string_view name) {
  for (const Known& known : kPolicies) {
    if (known.name == name) return known.make();
  }
  return Fail(Code::kInvalid, fmt::format("'{}' is not an eviction policy; use {}", name,
                                          ListPolicies(PolicyNames())));
}

}  // namespace kvcove::policy
