// SPDX-License-Identifier: Apache-2.0
// The kernel's tree of devices, read with care: files come and go, and some refuse to be read. Its
// root is an input, so that tests bring trees of their own. No function fails; what cannot be read
// is not there.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace kvcove::net {

// "mlx5_2" before "mlx5_10".
bool NaturalLess(std::string_view a, std::string_view b);

// The numbers of "0-15,32-47": processors or nodes. What is no number is passed over.
std::set<int> ParseList(std::string_view list);

// Immutable; thread-safe.
class Sysfs {
 public:
  explicit Sysfs(std::string root = "/sys") : root_(std::move(root)) {}

  // The first line of a file, without blanks around it; empty when it cannot be read.
  std::string Line(const std::string& path) const;
  // All lines of a file of at most a few KiB.
  std::vector<std::string> Lines(const std::string& path) const;
  // The number that the file begins with, as "4: ACTIVE" and "-1" do.
  std::optional<int> Number(const std::string& path) const;
  // Names in a directory, in natural order.
  std::vector<std::string> List(const std::string& path) const;
  bool Exists(const std::string& path) const;
  // The parts of the path below the root that links lead to; empty when they lead nowhere.
  std::vector<std::string> Parts(const std::string& path) const;

 private:
  std::string Text(const std::string& path) const;
  std::string root_;
};

}  // namespace kvcove::net
