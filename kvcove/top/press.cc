// SPDX-License-Identifier: Apache-2.0
// Applies keys to the state of a screen.
#include <algorithm>

#include "kvcove/base/text.h"
#include "kvcove/top/screen.h"

namespace kvcove::top {
namespace {

constexpr std::size_t kPage = 10;
constexpr std::size_t kMostFilterBytes = 64;

// Edits the filter. Enter keeps it, Escape removes it.
void Type(const Key& key, State& state) {
  switch (key.kind) {
    case Key::Kind::kText:
      if (state.filter.size() < kMostFilterBytes && IsUtf8(key.text)) state.filter += key.text;
      break;
    case Key::Kind::kBackspace:
      // A character's later bytes are 10xxxxxx.
      while (!state.filter.empty()) {
        const auto last = static_cast<unsigned char>(state.filter.back());
        state.filter.pop_back();
        if ((last & 0xC0U) != 0x80U) break;
      }
      break;
    case Key::Kind::kEscape:
      state.filter.clear();
      state.typing = false;
      break;
    case Key::Kind::kEnter:
      state.typing = false;
      break;
    default:
      break;
  }
}

void MoveFocus(const std::vector<Table>& tables, std::size_t by, State& state) {
  if (tables.empty()) return;
  const auto at = std::ranges::find(tables, state.focus, &Table::name);
  const auto index = at == tables.end() ? 0 : static_cast<std::size_t>(at - tables.begin());
  state.focus = tables[(index + by) % tables.size()].name;
}

void Scroll(const Table& table, std::ptrdiff_t by, State& state) {
  std::size_t& first = state.first_rows[table.name];
  const auto last = static_cast<std::ptrdiff_t>(table.rows.empty() ? 0 : table.rows.size() - 1);
  first = static_cast<std::size_t>(
      std::clamp(static_cast<std::ptrdiff_t>(first) + by, std::ptrdiff_t{0}, last));
}

void ChangeSort(const Table& table, bool reverse, State& state) {
  const auto [at, added] = state.sorts.try_emplace(table.name, table.sort);
  Sort& sort = at->second;
  if (reverse) {
    sort.reverse = !sort.reverse;
  } else {
    sort = {.column = (sort.column + 1) % (table.columns.size() + 1)};
  }
}

void ChangeInterval(double factor, State& state) {
  state.interval_s = std::clamp(state.interval_s * factor, kLeastIntervalS, kMostIntervalS);
}

void PressLetter(char letter, const std::vector<Table>& tables, const Table* focused,
                 State& state) {
  switch (letter) {
    case 'q':
      state.quit = true;
      break;
    case ' ':
    case 'p':
      state.paused = !state.paused;
      break;
    case 'h':
    case '?':
      state.help = true;
      break;
    case '/':
      state.typing = true;
      break;
    case 'z':
      state.zoomed = !state.zoomed;
      break;
    case '+':
      ChangeInterval(2, state);
      break;
    case '-':
      ChangeInterval(0.5, state);
      break;
    case 's':
    case 'r':
      if (focused != nullptr) ChangeSort(*focused, letter == 'r', state);
      break;
    case 'j':
    case 'k':
      if (focused != nullptr) Scroll(*focused, letter == 'j' ? 1 : -1, state);
      break;
    default:
      if (letter >= '1' && static_cast<std::size_t>(letter - '1') < tables.size()) {
        state.focus = tables[static_cast<std::size_t>(letter - '1')].name;
      }
  }
}

}  // namespace

void Press(const Key& key, const std::vector<Table>& tables, State& state) {
  if (state.typing) return Type(key, state);
  // Any key ends the help; `q` does no more than that.
  if (state.help) {
    state.help = false;
    return;
  }
  const auto at = std::ranges::find(tables, state.focus, &Table::name);
  const Table* const focused = at == tables.end() ? nullptr : &*at;
  constexpr auto kAll = std::ptrdiff_t{1} << 30;
  switch (key.kind) {
    case Key::Kind::kText:
      if (key.text.size() == 1) PressLetter(key.text.front(), tables, focused, state);
      break;
    case Key::Kind::kTab:
      MoveFocus(tables, 1, state);
      break;
    case Key::Kind::kBackTab:
      MoveFocus(tables, tables.empty() ? 0 : tables.size() - 1, state);
      break;
    case Key::Kind::kEscape:
      state.filter.clear();
      state.zoomed = false;
      break;
    case Key::Kind::kUp:
      if (focused != nullptr) Scroll(*focused, -1, state);
      break;
    case Key::Kind::kDown:
      if (focused != nullptr) Scroll(*focused, 1, state);
      break;
    case Key::Kind::kPageUp:
      if (focused != nullptr) Scroll(*focused, -std::ptrdiff_t{kPage}, state);
      break;
    case Key::Kind::kPageDown:
      if (focused != nullptr) Scroll(*focused, std::ptrdiff_t{kPage}, state);
      break;
    case Key::Kind::kHome:
      if (focused != nullptr) Scroll(*focused, -kAll, state);
      break;
    case Key::Kind::kEnd:
      if (focused != nullptr) Scroll(*focused, kAll, state);
      break;
    default:
      break;
  }
}

}  // namespace kvcove::top
