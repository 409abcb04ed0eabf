// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/copy.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace kvcove {
namespace {

TEST(CopyTest, CopiesEverySizeAtEveryPlaceAndNothingBeside) {
  constexpr std::size_t kMost = 9000;
  std::vector<std::uint8_t> from(kMost + 64);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::uint8_t>((i * 31) | 1);
  for (const std::size_t size : {0, 1, 63, 64, 65, 2047, 2048, 2049, 2111, 4096, 8191, 9000}) {
    for (std::size_t to_at = 0; to_at < 66; to_at += 13) {
      for (const std::size_t from_at : {0, 1, 7, 63}) {
        std::vector<std::uint8_t> to(kMost + 256, 0);
        CopyPastCaches(to.data() + to_at, from.data() + from_at, size);
        std::vector<std::uint8_t> expected(to.size(), 0);
        std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(from_at), size,
                    expected.begin() + static_cast<std::ptrdiff_t>(to_at));
        ASSERT_EQ(to, expected) << size << " bytes from " << from_at << " to " << to_at;
      }
    }
  }
}

}  // namespace
}  // namespace kvcove
