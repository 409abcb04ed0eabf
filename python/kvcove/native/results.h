// SPDX-License-Identifier: Apache-2.0
// What a batch answered, an item each. Immutable once a call has returned it.
#pragma once

#include <vector>

#include "arguments.h"

namespace kvcove::python {

struct Results {
  std::vector<ItemResult> items;

  explicit Results(std::size_t count) : items(count) {}
  bool AllOk() const;
  std::size_t CountOk() const;
};

void BindResults(nb::module_& module);

}  // namespace kvcove::python
