// SPDX-License-Identifier: Apache-2.0
#include "kvcove/cli/tables.h"

#include <fmt/core.h>

#include <algorithm>

#include "kvcove/base/size.h"
#include "kvcove/base/text.h"

namespace kvcove::cli {
namespace {

using nlohmann::json;

// Columns of equal width, the header first.
void PrintTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += fmt::format("{:<{}}  ", row[i], widths[i]);
    }
    while (line.ends_with(' ')) line.pop_back();
    fmt::print("{}\n", line);
  }
}

// Returns the beginning of the identity that a host has by default, "BOOT ID/net:[N]", of which one
// part may tell two pods of a host apart; another name is shown whole.
std::string HostText(const std::string& host) {
  const std::size_t net = host.find("/net:[");
  if (net == std::string::npos || net < 8) return Printable(host);
  return host.substr(0, 8) + "-" + host.substr(net + 6, host.size() - net - 7);
}

std::string FieldText(std::string_view field, const json& value) {
  if (field.ends_with("bytes") && value.is_number()) {
    return FormatSize(value.get<std::uint64_t>());
  }
  if (field == "host" && value.is_string()) return HostText(value.get<std::string>());
  return TextOf(value);
}

bool Nothing(const json& value) {
  return value.is_null() || (value.is_number() && value.get<double>() == 0) ||
         (value.is_string() && value.get_ref<const std::string&>().empty());
}

}  // namespace

std::string TextOf(const json& value) {
  if (value.is_null()) return "-";
  if (value.is_string()) return Printable(value.get<std::string>());
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_number_float()) return fmt::format("{:.1f}", value.get<double>());
  if (!value.is_structured()) return value.dump();
  std::string text;
  for (const auto& [key, one] : value.items()) {
    if (value.is_object() && Nothing(one)) continue;
    text += text.empty() ? "" : ", ";
    if (value.is_object()) text += Printable(key) + " ";
    text += TextOf(one);
  }
  return text.empty() ? "-" : text;
}

std::string RatioText(std::uint64_t hits, std::uint64_t misses) {
  if (hits + misses == 0) return "-";
  return fmt::format("{:.1f} %",
                     100.0 * static_cast<double>(hits) / static_cast<double>(hits + misses));
}

void PrintList(const json& list, std::span<const Column> columns, const char* empty) {
  if (list.empty()) return fmt::print("{}\n", empty);
  std::vector<std::vector<std::string>> rows(1 + list.size());
  for (const Column& column : columns) {
    const auto value = [&](const json& item) {
      return item.contains(column.field) ? item[column.field] : json("");
    };
    if (column.optional &&
        std::ranges::all_of(list, [&](const json& item) { return Nothing(value(item)); })) {
      continue;
    }
    rows[0].emplace_back(column.title);
    for (std::size_t i = 0; i < list.size(); ++i) {
      rows[1 + i].push_back(FieldText(column.field, value(list[i])));
    }
  }
  PrintTable(rows);
}

void PrintObject(const json& body, std::span<const std::string_view> first) {
  std::vector<std::vector<std::string>> rows;
  for (const std::string_view key : first) {
    const auto at = body.find(key);
    if (at != body.end()) rows.push_back({std::string(key), FieldText(key, *at)});
  }
  for (const auto& [key, value] : body.items()) {
    if (std::ranges::find(first, key) == first.end()) {
      rows.push_back({key, FieldText(key, value)});
    }
  }
  if (!rows.empty()) PrintTable(rows);
}

}  // namespace kvcove::cli
