// SPDX-License-Identifier: Apache-2.0
// The lists of a view as tables of cells, which can be sorted and filtered. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kvcove/top/view.h"

namespace kvcove::top {

enum class Tone { kPlain, kGood, kWarn, kBad };

struct Cell {
  std::string text;
  double value = 0;  // by which a column of numbers is sorted
  Tone tone = Tone::kPlain;
};

struct Column {
  std::string title;
  bool number = false;  // right-aligned, sorted by value, the largest first
  int rank = 0;         // a narrow screen leaves out columns of a higher rank first
};

struct Sort {
  std::size_t column = 0;
  bool reverse = false;
};

struct Table {
  std::string name;  // "owners"; a key of State::sorts
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;
  Sort sort;  // at first

  // Sorts the rows; rows that are equal stay in their order, which is that of the endpoint.
  void SortBy(const Sort& by);
  // Leaves the rows with a cell that contains the text, whatever the case of its ASCII letters.
  void Filter(std::string_view text);
};

// Returns a table for each list that the view has, also for empty ones.
std::vector<Table> TablesOf(const View& view);

}  // namespace kvcove::top
