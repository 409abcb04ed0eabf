// SPDX-License-Identifier: Apache-2.0
#include "kvcove/net/devices/sysfs.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <sstream>

#include "kvcove/base/posix.h"

namespace kvcove::net {
namespace {

constexpr bool IsDigit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

bool NaturalLess(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty()) {
    if (!IsDigit(a.front()) || !IsDigit(b.front())) {
      if (a.front() != b.front()) return a.front() < b.front();
      a.remove_prefix(1);
      b.remove_prefix(1);
      continue;
    }
    const auto digits = [](std::string_view text) {
      return text.substr(0, std::min(text.find_first_not_of("0123456789"), text.size()));
    };
    const std::string_view left = digits(a);
    const std::string_view right = digits(b);
    if (left.size() != right.size()) return left.size() < right.size();
    if (left != right) return left < right;
    a.remove_prefix(left.size());
    b.remove_prefix(right.size());
  }
  return a.size() < b.size();
}

std::set<int> ParseList(std::string_view list) {
  std::set<int> numbers;
  while (!list.empty()) {
    const std::string_view range = list.substr(0, list.find(','));
    list.remove_prefix(std::min(range.size() + 1, list.size()));
    int first = 0;
    const auto [at, error] = std::from_chars(range.data(), range.data() + range.size(), first);
    if (error != std::errc()) continue;
    int last = first;
    const char* const end = range.data() + range.size();
    if (at != end && *at == '-') std::from_chars(at + 1, end, last);
    for (int i = first; i <= last && i < CPU_SETSIZE; ++i) numbers.insert(i);
  }
  return numbers;
}

std::string Sysfs::Text(const std::string& path) const {
  // Not a pipe: opening one would wait.
  const UniqueFd fd(open((root_ + "/" + path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  char bytes[4096];
  const ssize_t size = fd.valid() ? read(fd.get(), bytes, sizeof(bytes)) : -1;
  return size <= 0 ? std::string() : std::string(bytes, static_cast<std::size_t>(size));
}

std::string Sysfs::Line(const std::string& path) const {
  const std::string text = Text(path);
  const std::string_view line = std::string_view(text).substr(0, text.find('\n'));
  const std::size_t begin = line.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return std::string(line.substr(begin, line.find_last_not_of(" \t\r") + 1 - begin));
}

std::vector<std::string> Sysfs::Lines(const std::string& path) const {
  std::vector<std::string> lines;
  std::istringstream text(Text(path));
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

std::optional<int> Sysfs::Number(const std::string& path) const {
  const std::string line = Line(path);
  int number = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), number);
  if (error != std::errc()) return std::nullopt;
  return number;
}

std::vector<std::string> Sysfs::List(const std::string& path) const {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator at(root_ + "/" + path, error);
  for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  std::ranges::sort(names, NaturalLess);
  return names;
}

bool Sysfs::Exists(const std::string& path) const {
  std::error_code ignored;
  return std::filesystem::exists(root_ + "/" + path, ignored);
}

std::vector<std::string> Sysfs::Parts(const std::string& path) const {
  std::error_code error;
  const std::filesystem::path root = std::filesystem::canonical(root_, error);
  if (error) return {};
  const std::filesystem::path full = std::filesystem::canonical(root_ + "/" + path, error);
  if (error) return {};
  std::vector<std::string> parts;
  for (const auto& part : full.lexically_relative(root)) parts.push_back(part.string());
  if (!parts.empty() && parts.front() == "..") parts.clear();  // out of the tree
  return parts;
}

}  // namespace kvcove::net
