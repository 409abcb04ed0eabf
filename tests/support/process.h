// SPDX-License-Identifier: Apache-2.0
// Parts of test programs that run in processes of their own.
#pragma once

#include <string>
#include <vector>

namespace kvcove {

// A test program that is started as `PROGRAM NAME ARGUMENT...` calls `run` instead of its tests,
// and ends when it returns. Defined at namespace scope; a name is used once in a program.
class ProcessRole {
 public:
  ProcessRole(const char* name, void (*run)(const std::vector<std::string>& arguments));
};

}  // namespace kvcove
