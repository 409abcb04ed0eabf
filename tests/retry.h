// SPDX-License-Identifier: Apache-2.0
// Repeats what callers of the pool are told to repeat, and nothing else.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kvcove/requester/types.h"
#include "tests/becomes.h"

namespace kvcove {

// Returns true if base/result.h says of the code that a retry may help: "yes", or "later".
inline bool MayBeRepeated(Code code) {
  return code == Code::kTimeout || code == Code::kNoSpace || code == Code::kInProgress ||
         code == Code::kUnavailable || code == Code::kLimit;
}

// Returns true if all keys are stored. `put` gets keys and returns their results. It is called
// again for the keys whose code says so. A put in vain may have stored its value, so kExists is
// then a success. `failed` gets the last code that was none.
template <typename Put>
bool PutWithRetries(const std::vector<std::string>& keys, Put&& put, Code* failed = nullptr) {
  std::vector<std::string> left = keys;
  std::set<std::string> tried;
  Code last = Code::kOk;
  bool over = false;
  const bool ended = Becomes([&] {
    const std::vector<ItemResult> results = put(std::as_const(left));
    std::vector<std::string> again;
    for (std::size_t i = 0; i < left.size(); ++i) {
      if (results[i].ok()) continue;
      if (results[i].code == Code::kExists && tried.contains(left[i])) continue;
      last = results[i].code;
      over = over || !MayBeRepeated(last);
      tried.insert(left[i]);
      again.push_back(left[i]);
    }
    left = std::move(again);
    return over || left.empty();
  });
  if (failed != nullptr) *failed = last;
  return ended && left.empty();
}

}  // namespace kvcove
