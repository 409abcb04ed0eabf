// SPDX-License-Identifier: Apache-2.0
// A screen of a view: lines of a given size. Pure: a function of the view and of the state that
// keys change. Colour alone carries no meaning.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kvcove/top/keys.h"
#include "kvcove/top/table.h"
#include "kvcove/top/view.h"

namespace kvcove::top {

// The state that keys change.
struct State {
  std::string focus = "owners";       // the table that sorting, scrolling and zooming are about
  std::map<std::string, Sort> sorts;  // by table, where it is another one than at first
  std::map<std::string, std::size_t> first_rows;  // by table
  std::string filter;
  bool typing = false;  // the filter
  bool paused = false;
  bool help = false;
  bool zoomed = false;  // the focused table has the whole screen
  bool quit = false;
  double interval_s = 1;
};

inline constexpr double kLeastIntervalS = 0.1;
inline constexpr double kMostIntervalS = 3600;

// Changes the state. `tables`: those that are shown, in their order.
void Press(const Key& key, const std::vector<Table>& tables, State& state);

struct Frame {
  std::size_t width = 80;
  std::size_t height = 24;
  bool color = false;
  std::string endpoint;  // as the user named it, and the time of the sample, as text
  std::string time;
  std::string trouble;  // why there is no newer sample; empty: there is one
};

// Adds the lines above the tables: hits, bytes, memory, latencies, misses, counts. A low screen has
// one line for each, a high one two for those that may be long.
void AddSummary(const View& view, const Frame& frame, std::vector<std::string>& lines);

// Returns `height` lines of at most `width` cells, with escape sequences only where there is
// colour. `view` null: nothing has answered yet. `first_rows` receives the first row that each list
// shows: a list that was scrolled beyond its end scrolls back from there.
std::vector<std::string> Draw(const View* view, const State& state, const Frame& frame,
                              std::map<std::string, std::size_t>* first_rows = nullptr);

// Returns the same without the line of keys, and with all rows: for a file or a pipe.
std::vector<std::string> DrawWhole(const View& view, const State& state, const Frame& frame);

}  // namespace kvcove::top
