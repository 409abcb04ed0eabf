// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/pages.h"

#include <gtest/gtest.h>

#include "kvcove/base/posix.h"
#include "kvcove/base/size.h"

namespace kvcove {
namespace {

using Runs = std::vector<std::pair<std::size_t, std::size_t>>;

TEST(PagesTest, ReadingWhatIsPresentAllocatesNothing) {
  const std::size_t page = SystemPageBytes();
  const UniqueFd file = *CreateMemoryFile("kvcove-test", 64 * page);
  const Mapping owner = *Mapping::Map(file.get(), 64 * page, Mapping::Access::kReadWrite);
  ASSERT_TRUE(PopulatePages(owner.data() + 8 * page, 4 * page, Populate::kWrite));
  owner.data()[40 * page] = std::byte{1};
  const Mapping reader = *Mapping::Map(file.get(), 64 * page, Mapping::Access::kReadOnly);
  const Runs present = {{8 * page, 4 * page}, {40 * page, page}};
  EXPECT_EQ(PresentRuns(reader.data(), reader.size()), present);
  for (const auto& [offset, size] : present) {
    EXPECT_TRUE(PopulatePages(reader.data() + offset, size, Populate::kRead));
  }
  EXPECT_EQ(PresentRuns(reader.data(), reader.size()), present);
}

TEST(PagesTest, PopulatingChangesNoContents) {
  const std::size_t page = SystemPageBytes();
  const UniqueFd file = *CreateMemoryFile("kvcove-test", 4 * page);
  const Mapping mapping = *Mapping::Map(file.get(), 4 * page, Mapping::Access::kReadWrite);
  mapping.data()[page] = std::byte{9};
  ASSERT_TRUE(PopulatePages(mapping.data(), 4 * page, Populate::kWrite));
  EXPECT_EQ(mapping.data()[page], std::byte{9});
  EXPECT_EQ(PresentRuns(mapping.data(), mapping.size()), (Runs{{0, 4 * page}}));
}

TEST(PagesTest, AFailureIsAnErrorAndNoSignal) {
  const std::size_t page = SystemPageBytes();
  const UniqueFd file = *CreateMemoryFile("kvcove-test", page);
  const Mapping mapping = *Mapping::Map(file.get(), page, Mapping::Access::kReadOnly);
  EXPECT_FALSE(PopulatePages(mapping.data(), page, Populate::kWrite)) << "not writable";
}

TEST(PagesTest, PageTablesCostEightBytesAPage) {
  EXPECT_EQ(PageTableBytes(kGiB, 4 * kKiB) / kMiB, 2U);
  EXPECT_EQ(PageTableBytes(kGiB, 2 * kMiB), SystemPageBytes());
  EXPECT_EQ(PageTableBytes(1, 4 * kKiB), 0U) << "shared with what else the process maps";
}

}  // namespace
}  // namespace kvcove
