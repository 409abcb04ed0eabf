// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/store/control_store.h"

#include <fmt/core.h>

namespace kvcove::master {
namespace {

constexpr std::size_t kChangeBytes = 6;  // two lengths (docs/control-store.md)

}  // namespace

std::size_t TransactionBytes(const std::vector<FactChange>& changes) {
  std::size_t bytes = 4;
  for (const FactChange& change : changes) {
    bytes += kChangeBytes + change.key.size() + (change.value ? change.value->size() : 0);
  }
  return bytes;
}

Status CheckTransaction(const std::vector<FactChange>& changes) {
  for (const FactChange& change : changes) {
    if (change.key.size() > kMaxFactKeyBytes) {
      return Fail(Code::kLimit,
                  fmt::format("a key of the control store has {} bytes, at most {} are allowed: "
                              "'{}...'",
                              change.key.size(), kMaxFactKeyBytes, change.key.substr(0, 64)));
    }
    if (change.value && change.value->size() > kMaxFactValueBytes) {
      return Fail(Code::kLimit,
                  fmt::format("the value of '{}' in the control store has {} bytes, at most {} are "
                              "allowed",
                              change.key, change.value->size(), kMaxFactValueBytes));
    }
  }
  const std::size_t bytes = TransactionBytes(changes);
  if (bytes > kMaxTransactionBytes) {
    return Fail(Code::kLimit, fmt::format("a transaction of the control store has {} bytes, at "
                                          "most {} are allowed; its first key is '{}'",
                                          bytes, kMaxTransactionBytes, changes.front().key));
  }
  return {};
}

void ApplyTransaction(std::vector<FactChange> changes, std::uint64_t revision, Facts& facts) {
  for (FactChange& change : changes) {
    if (change.value) {
      facts.insert_or_assign(std::move(change.key), Fact{std::move(*change.value), revision});
    } else {
      facts.erase(change.key);
    }
  }
}

}  // namespace kvcove::master
