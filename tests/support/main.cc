// SPDX-License-Identifier: Apache-2.0
// The main function of every test program. Beside GoogleTest's options it takes --tests_of=SOURCE,
// which runs the cases of one source: a program holds the tests of a whole module, and ctest runs
// it once a source.
#include <fnmatch.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/process.h"

namespace kvcove {
namespace {

using Run = void (*)(const std::vector<std::string>&);

// A function's static: roles are registered by initializers of other units.
std::map<std::string, Run>& Roles() {
  static std::map<std::string, Run> roles;
  return roles;
}

// GoogleTest's own pattern language: patterns with * and ? between colons.
bool AnyMatches(std::string_view patterns, const std::string& name) {
  while (!patterns.empty()) {
    const std::size_t end = std::min(patterns.find(':'), patterns.size());
    if (fnmatch(std::string(patterns.substr(0, end)).c_str(), name.c_str(), 0) == 0) return true;
    patterns.remove_prefix(std::min(end + 1, patterns.size()));
  }
  return false;
}

// Narrows the filter that is in force to the cases of `source`. False: it has none at all.
bool Narrow(std::string_view source) {
  const std::string filter = GTEST_FLAG_GET(filter);
  const std::size_t dash = std::min(filter.find('-'), filter.size());
  const std::string_view wanted = dash == 0 ? "*" : std::string_view(filter).substr(0, dash);
  const std::string_view unwanted =
      std::string_view(filter).substr(std::min(dash + 1, filter.size()));
  bool any = false;
  std::string chosen;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      if (!std::string_view(test.file()).ends_with(source)) continue;
      any = true;
      const std::string name = std::string(suite.name()) + "." + test.name();
      if (AnyMatches(wanted, name) && !AnyMatches(unwanted, name)) chosen += name + ":";
    }
  }
  // An empty filter would choose everything.
  GTEST_FLAG_SET(filter, chosen.empty() ? "-*" : chosen);
  return any;
}

}  // namespace

ProcessRole::ProcessRole(const char* name, Run run) {
  if (Roles().emplace(name, run).second) return;
  std::fprintf(stderr, "two roles of this test program have the name %s\n", name);
  std::abort();
}

}  // namespace kvcove

int main(int argc, char** argv) {
  if (argc > 1) {
    const auto role = kvcove::Roles().find(argv[1]);
    if (role != kvcove::Roles().end()) {
      role->second({argv + 2, argv + argc});
      return 0;
    }
  }
  testing::InitGoogleTest(&argc, argv);
  constexpr std::string_view kTestsOf = "--tests_of=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (!argument.starts_with(kTestsOf)) {
      std::fprintf(stderr,
                   "unknown option %s; --help lists GoogleTest's, and --tests_of=SOURCE runs one "
                   "source's cases\n",
                   argv[i]);
      return 2;
    }
    if (!kvcove::Narrow(argument.substr(kTestsOf.size()))) {
      std::fprintf(stderr, "no test of this program stands in %s\n", argv[i] + kTestsOf.size());
      return 2;
    }
  }
  return RUN_ALL_TESTS();
}
