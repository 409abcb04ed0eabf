// SPDX-License-Identifier: Apache-2.0
#include "kvcove/top/metrics_text.h"

#include "kvcove/base/text.h"

namespace kvcove::top {
namespace {

// Reads `a="1",b="2"}` and moves `text` behind the brace. False: it is in another form.
bool TakeLabels(std::string_view& text, Labels& labels) {
  while (!text.empty() && text.front() != '}') {
    const std::size_t equals = text.find("=\"");
    if (equals == std::string_view::npos) return false;
    const std::string name(text.substr(0, equals));
    text.remove_prefix(equals + 2);
    std::string value;
    while (!text.empty() && text.front() != '"') {
      char letter = text.front();
      text.remove_prefix(1);
      if (letter == '\\' && !text.empty()) {
        letter = text.front() == 'n' ? '\n' : text.front();
        text.remove_prefix(1);
      }
      value += letter;
    }
    if (text.empty()) return false;
    text.remove_prefix(1);
    if (text.starts_with(',')) text.remove_prefix(1);
    labels[name] = std::move(value);
  }
  if (text.empty()) return false;
  text.remove_prefix(1);
  return true;
}

}  // namespace

void ReadMetrics(
    std::string_view text, const std::function<bool(std::string_view name)>& wanted,
    const std::function<void(std::string_view name, const Labels& labels, double value)>& take) {
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.empty() || line.front() == '#') continue;
    const std::size_t name_end = line.find_first_of("{ ");
    if (name_end == std::string_view::npos) continue;
    const std::string_view name = line.substr(0, name_end);
    if (!wanted(name)) continue;
    line.remove_prefix(name_end);
    Labels labels;
    if (line.front() == '{') {
      line.remove_prefix(1);
      if (!TakeLabels(line, labels)) continue;
    }
    while (line.starts_with(' ')) line.remove_prefix(1);
    if (const auto value = NumberOf<double>(line)) take(name, labels, *value);
  }
}

}  // namespace kvcove::top
