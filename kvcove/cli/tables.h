// SPDX-License-Identifier: Apache-2.0
// JSON answers as tables for people.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvcove::cli {

// A field that ends in "bytes" is shown as a size.
struct Column {
  const char* title;
  const char* field;
  bool optional = false;  // left out where no row has anything in it
};

// Prints a table with a row an object, or `empty` when there is none.
void PrintList(const nlohmann::json& list, std::span<const Column> columns, const char* empty);
// Prints a line a field: those that `first` names, in its order, then the others.
void PrintObject(const nlohmann::json& body, std::span<const std::string_view> first = {});
// Returns a value for a terminal: names and keys are whatever engines made of them.
std::string TextOf(const nlohmann::json& value);
// Returns "12.3 %", or "-" where nothing was asked for.
std::string RatioText(std::uint64_t hits, std::uint64_t misses);

}  // namespace kvcove::cli
