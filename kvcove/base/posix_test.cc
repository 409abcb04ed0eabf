// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/posix.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

namespace kvcove {
namespace {

// The line "VmFlags:" that the kernel shows of the mapping at `data`.
std::string FlagsOf(const std::byte* data) {
  const std::string begin = fmt::format("{:x}-", reinterpret_cast<std::uintptr_t>(data));
  std::ifstream maps("/proc/self/smaps");
  bool found = false;
  for (std::string line; std::getline(maps, line);) {
    found = found || line.starts_with(begin);
    if (found && line.starts_with("VmFlags:")) return line + " ";
  }
  return {};
}

TEST(MappingTest, NeitherCoreDumpsNorForkedChildrenHaveIt) {
  const auto file = CreateMemoryFile("test", 1 << 16);
  ASSERT_TRUE(file);
  const auto mapping = Mapping::Map(file->get(), 1 << 16, Mapping::Access::kReadWrite);
  ASSERT_TRUE(mapping);
  const std::string flags = FlagsOf(mapping->data());
  EXPECT_NE(flags.find(" dd "), std::string::npos) << flags;
  EXPECT_NE(flags.find(" dc "), std::string::npos) << flags;
}

}  // namespace
}  // namespace kvcove
