// SPDX-License-Identifier: Apache-2.0
#include "kvcove/top/screen.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "kvcove/base/text.h"
#include "kvcove/top/cells.h"
#include "kvcove/top/line.h"

namespace kvcove::top {
namespace {

constexpr std::size_t kLeastNameCells = 12;
constexpr std::size_t kMostNameCells = 44;
constexpr std::size_t kTextCells = 32;  // at most, of another column of text

std::string TitleOf(const View* view, const State& state, const Frame& frame) {
  Line line(frame.width, frame.color);
  line.Add("kvcove top", kBold);
  line.Add("  " + Printable(frame.endpoint));
  if (view != nullptr) {
    line.Add("  " + Printable(view->now.role));
    if (view->now.term != 0) line.Add(fmt::format(", term {}", view->now.term));
  }
  line.Add(fmt::format("  every {}", TimeText(state.interval_s)));
  if (!frame.time.empty()) line.Add("  " + frame.time);
  if (state.paused) line.Add("  PAUSED", SgrOf(Tone::kWarn));
  return line.Take();
}

// ---- the tables

// Returns how many rows each table gets of `left`. Rows are dealt one by one, two to the focused
// table for each one of the others, until all have what they want.
std::vector<std::size_t> DealRows(const std::vector<Table>& tables, const std::string& focus,
                                  std::size_t left) {
  std::vector<std::size_t> got(tables.size());
  bool dealt = true;
  while (dealt && left > 0) {
    dealt = false;
    for (std::size_t i = 0; i < tables.size(); ++i) {
      const std::size_t turn = tables[i].name == focus ? 2 : 1;
      const std::size_t more = std::min({turn, tables[i].rows.size() - got[i], left});
      got[i] += more;
      left -= more;
      dealt = dealt || more > 0;
    }
  }
  return got;
}

// Returns the widths of the columns; 0: there is no room for this one.
std::vector<std::size_t> WidthsOf(const Table& table, std::size_t width) {
  std::vector<std::size_t> widths(table.columns.size());
  for (std::size_t i = 0; i < widths.size(); ++i) {
    // Two cells for the mark of the sorted column, so that sorting moves none. Numbers have a least
    // width, so that columns do not move with each digit.
    widths[i] = Cells(table.columns[i].title) + (i == 0 ? 8 : 2);
    if (table.columns[i].number) widths[i] = std::max<std::size_t>(widths[i], 8);
    for (const auto& row : table.rows) widths[i] = std::max(widths[i], Cells(row[i].text));
    widths[i] = std::min(widths[i], i == 0 ? kMostNameCells : kTextCells);
  }
  // Leaves columns out, the highest rank and the last one first, until the rest fits.
  const auto sum = [&] {
    std::size_t all = std::max(std::min(widths[0], width), kLeastNameCells);
    for (std::size_t i = 1; i < widths.size(); ++i) all += widths[i] == 0 ? 0 : widths[i] + 1;
    return all;
  };
  // The name may be cut before a column is left out, but not so far that hosts look alike.
  const std::size_t name = widths[0];
  widths[0] = std::min<std::size_t>(name, 22);
  while (sum() > width) {
    std::size_t worst = 0;
    for (std::size_t i = 1; i < widths.size(); ++i) {
      if (widths[i] != 0 && table.columns[i].rank >= table.columns[worst].rank) worst = i;
    }
    if (worst == 0) break;
    widths[worst] = 0;
  }
  const std::size_t others = sum() - std::max(std::min(widths[0], width), kLeastNameCells);
  widths[0] = std::min(name, width > others ? width - others : 0);
  return widths;
}

struct Shown {
  std::size_t rows = 0;
  std::size_t all = 0;  // without the filter
  bool focused = false;
};

void AddTable(const Table& table, const Sort& sort, const Shown& shown, std::size_t first,
              const Frame& frame, std::vector<std::string>& lines) {
  constexpr std::size_t kMarkCells = 2;
  const std::vector<std::size_t> widths =
      WidthsOf(table, frame.width - std::min(frame.width, kMarkCells));
  const std::string_view sgr = shown.focused ? kReverse : kBold;
  Line header(frame.width, frame.color);
  header.Add(shown.focused ? "> " : "  ", sgr);
  for (std::size_t i = 0; i < widths.size(); ++i) {
    if (widths[i] == 0) continue;
    std::string title = table.columns[i].title;
    if (i == 0) {
      title += shown.rows < shown.all ? fmt::format(" {}/{}", shown.rows, shown.all)
                                      : fmt::format(" {}", shown.all);
    }
    if (sort.column == i) title += sort.reverse != table.columns[i].number ? " v" : " ^";
    if (i > 0) header.Add(" ", sgr);
    header.Add(Fit(title, widths[i], table.columns[i].number), sgr);
  }
  if (shown.focused && frame.color) {
    header.Add(std::string(frame.width - header.cells(), ' '), sgr);
  }
  lines.push_back(header.Take());
  for (std::size_t at = first; at < first + shown.rows; ++at) {
    Line line(frame.width, frame.color);
    line.Add("  ");
    for (std::size_t i = 0; i < widths.size(); ++i) {
      if (widths[i] == 0) continue;
      if (i > 0) line.Add(" ");
      const Cell& cell = table.rows[at][i];
      line.Add(Fit(cell.text, widths[i], table.columns[i].number), SgrOf(cell.tone));
    }
    lines.push_back(line.Take());
  }
}

// `first_rows`: as Draw.
void AddTables(const View& view, const State& state, const Frame& frame, std::size_t room,
               std::vector<std::string>& lines,
               std::map<std::string, std::size_t>* first_rows = nullptr) {
  std::vector<Table> tables = TablesOf(view);
  if (std::ranges::find(tables, state.focus, &Table::name) == tables.end()) {
    if (tables.empty()) return;
  } else if (state.zoomed) {
    std::erase_if(tables, [&](const Table& table) { return table.name != state.focus; });
  }
  std::vector<std::size_t> all;
  for (Table& table : tables) {
    all.push_back(table.rows.size());
    const auto sort = state.sorts.find(table.name);
    if (sort != state.sorts.end()) table.sort = sort->second;
    table.Filter(state.filter);
    table.SortBy(table.sort);
  }
  const std::size_t headers = tables.size();
  // Blank lines between tables only where no row is left out for them.
  std::size_t wanted = 2 * headers;
  for (const Table& table : tables) wanted += table.rows.size();
  const bool blanks = wanted <= room;
  const std::vector<std::size_t> rows =
      DealRows(tables, state.focus, room > headers ? room - headers : 0);
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const auto scrolled = state.first_rows.find(tables[i].name);
    const std::size_t most = tables[i].rows.size() - rows[i];
    const std::size_t first =
        scrolled == state.first_rows.end() ? 0 : std::min(scrolled->second, most);
    if (first_rows != nullptr) (*first_rows)[tables[i].name] = first;
    if (blanks) lines.emplace_back();
    AddTable(tables[i], tables[i].sort,
             {.rows = rows[i], .all = all[i], .focused = tables[i].name == state.focus}, first,
             frame, lines);
  }
}

constexpr const char* kHelp[] = {
    "",
    "q               quit",
    "Tab, 1 to 4     the list that the next keys are about, marked by '>'",
    "up, down        scroll it, also j and k, page up, page down, Home, End",
    "s, r            sort it by the next column; the other way round",
    "z               give it the whole screen, and back",
    "/               show the rows that contain a text: Enter keeps it, Escape ends it",
    "space           pause and continue",
    "+, -            sample half as often, twice as often",
    "",
    "hits     values read, of values read and keys missed; disk: those that a disk had",
    "bytes    down: read out of the owners' memory, up: stored there",
    "p50 p99  of calls since the sample before; in parentheses: since the start",
    "LEASE    since the owner renewed its lease, which runs for one second",
    "",
    "docs/operating.md explains the reasons of misses. Any key ends this help.",
};

std::string KeyLine(const State& state, const Frame& frame) {
  Line line(frame.width, frame.color);
  if (state.typing) {
    line.Add("rows with: " + Printable(state.filter) + "_   Enter keep  Escape end");
    return line.Take();
  }
  line.Add("q quit  Tab list  s sort  r reverse  z zoom  / filter  space pause  ? help");
  if (!state.filter.empty()) line.Add("  filter: " + Printable(state.filter), SgrOf(Tone::kWarn));
  return line.Take();
}

// Cuts the lines to the height, the last one of which is `last`.
std::vector<std::string> Fill(std::vector<std::string> lines, std::string last,
                              std::size_t height) {
  if (height == 0) return {};
  lines.resize(height - 1);
  lines.push_back(std::move(last));
  return lines;
}

void AddTrouble(const Frame& frame, std::vector<std::string>& lines) {
  if (frame.trouble.empty()) return;
  Line line(frame.width, frame.color);
  line.Add(Printable(frame.trouble), SgrOf(Tone::kBad));
  lines.push_back(line.Take());
}

}  // namespace

std::vector<std::string> Draw(const View* view, const State& state, const Frame& frame,
                              std::map<std::string, std::size_t>* first_rows) {
  std::vector<std::string> lines = {TitleOf(view, state, frame)};
  AddTrouble(frame, lines);
  if (state.help) {
    for (const char* text : kHelp) {
      Line line(frame.width, frame.color);
      line.Add(text);
      lines.push_back(line.Take());
    }
  } else if (view == nullptr) {
    if (frame.trouble.empty()) lines.emplace_back("waiting for the first answer");
  } else {
    if (!state.zoomed) AddSummary(*view, frame, lines);
    const std::size_t used = lines.size() + 1;
    AddTables(*view, state, frame, frame.height > used ? frame.height - used : 0, lines,
              first_rows);
  }
  return Fill(std::move(lines), KeyLine(state, frame), frame.height);
}

std::vector<std::string> DrawWhole(const View& view, const State& state, const Frame& frame) {
  State unfocused = state;
  unfocused.focus.clear();
  std::vector<std::string> lines = {TitleOf(&view, state, frame)};
  AddTrouble(frame, lines);
  AddSummary(view, frame, lines);
  AddTables(view, unfocused, frame, std::numeric_limits<std::size_t>::max() / 2, lines);
  return lines;
}

}  // namespace kvcove::top
