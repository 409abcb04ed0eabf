// SPDX-License-Identifier: Apache-2.0
// For tests: what one object writes for its successor, another one reads.
#pragma once

#include <gtest/gtest.h>

#include "kvcove/base/carry.h"

namespace kvcove {

template <typename T>
void CarryOver(T& from, T& into) {
  StateWriter writer = *StateWriter::Open();
  CarryOne(writer, from);
  const UniqueFd file = *writer.Finish();
  StateReader reader = *StateReader::Open(file);
  CarryOne(reader, into);
  EXPECT_TRUE(reader.ok());
}

}  // namespace kvcove
