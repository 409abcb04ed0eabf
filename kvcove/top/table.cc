// SPDX-License-Identifier: Apache-2.0
#include "kvcove/top/table.h"

#include <fmt/core.h>

#include <algorithm>
#include <ranges>
#include <utility>

#include "kvcove/base/text.h"
#include "kvcove/top/cells.h"

namespace kvcove::top {
namespace {

Cell TextCell(const std::string& text, Tone tone = Tone::kPlain) {
  return {.text = text.empty() ? "-" : Printable(text), .tone = tone};
}

Cell CountCell(Rate count) { return {.text = CountText(count), .value = count.value_or(-1)}; }

Cell BytesCell(Rate bytes) { return {.text = BytesText(bytes), .value = bytes.value_or(-1)}; }

Cell Whole(std::uint64_t count) { return CountCell(static_cast<double>(count)); }

// "19 %" of a capacity; "-" where there is none.
Cell UsedCell(std::uint64_t used, std::uint64_t capacity, double warn) {
  if (capacity == 0) return {.text = "-", .value = -1};
  const double share = static_cast<double>(used) / static_cast<double>(capacity);
  return {.text = fmt::format("{:.0f} %", share * 100),
          .value = share,
          .tone = share >= warn ? Tone::kWarn : Tone::kPlain};
}

Cell StateCell(const std::string& state) {
  const Tone tone = state == "live" || state == "open" || state == "done" ? Tone::kGood
                    : state == "draining" || state == "queued" || state == "running" ||
                            state == "must reset" || state == "cancelled"
                        ? Tone::kWarn
                    : state == "gone" || state == "no lease" || state == "failed" ? Tone::kBad
                                                                                  : Tone::kPlain;
  return TextCell(state, tone);
}

// The lease's age as the master sees it, or what is left of it as the owner sees it.
Cell LeaseCell(const Owner& owner) {
  // An owner renews its lease several times within its second.
  if (owner.lease_age_s) {
    return {.text = TimeText(owner.lease_age_s),
            .value = *owner.lease_age_s,
            .tone = *owner.lease_age_s > 1 ? Tone::kBad : Tone::kPlain};
  }
  if (!owner.lease_left_s) return {.text = "-"};
  return {.text = "ends in " + TimeText(owner.lease_left_s),
          .value = *owner.lease_left_s,
          .tone = *owner.lease_left_s <= 0 ? Tone::kBad : Tone::kPlain};
}

Cell DisksCell(const Owner& owner) {
  if (owner.disks == 0) return {.text = "-", .value = -1};
  if (owner.disks_aside == 0) {
    return {.text = fmt::format("{}", owner.disks), .value = static_cast<double>(owner.disks)};
  }
  return {.text = fmt::format("{} of {} aside", owner.disks_aside, owner.disks),
          .value = static_cast<double>(owner.disks_aside) * 1e6,
          .tone = Tone::kBad};
}

Table Owners(const View& view) {
  Table table{.name = "owners",
              .columns = {{.title = "OWNER"},
                          {.title = "STATE", .rank = 1},
                          {.title = "MEMORY", .number = true, .rank = 2},
                          {.title = "USED", .number = true, .rank = 1},
                          {.title = "DOWN/s", .number = true, .rank = 1},
                          {.title = "UP/s", .number = true, .rank = 1},
                          {.title = "HITS/s", .number = true, .rank = 3},
                          {.title = "LEASE", .number = true, .rank = 2},
                          {.title = "DISK", .number = true, .rank = 3},
                          {.title = "USED", .number = true, .rank = 3},
                          {.title = "DISKS", .number = true, .rank = 4},
                          {.title = "FROM DISK/s", .number = true, .rank = 5},
                          {.title = "OBJECTS", .number = true, .rank = 6},
                          {.title = "EVICTED/s", .number = true, .rank = 6},
                          {.title = "TENANT", .rank = 7},
                          {.title = "HOST", .rank = 8}},
              .rows = {},
              .sort = {.column = 4}};
  for (const OwnerView& one : view.owners) {
    const Owner& now = one.now;
    table.rows.push_back(
        {TextCell(now.address), StateCell(now.state),
         BytesCell(static_cast<double>(now.capacity_bytes)),
         // Memory that is full is what a cache is for.
         UsedCell(now.capacity_bytes - std::min(now.free_bytes, now.capacity_bytes),
                  now.capacity_bytes, /*warn=*/2),
         BytesCell(one.down_bytes), BytesCell(one.up_bytes), CountCell(one.hits), LeaseCell(now),
         now.disks == 0 ? Cell{.text = "-", .value = -1}
                        : BytesCell(static_cast<double>(now.disk_capacity_bytes)),
         UsedCell(now.disk_bytes, now.disk_capacity_bytes, /*warn=*/2), DisksCell(now),
         now.disks == 0 ? Cell{.text = "-", .value = -1} : BytesCell(one.from_disk_bytes),
         Whole(now.objects), CountCell(one.evictions), TextCell(now.tenant), TextCell(now.host)});
  }
  return table;
}

Table Namespaces(const View& view) {
  Table table{.name = "namespaces",
              .columns = {{.title = "NAMESPACE"},
                          {.title = "VERSION", .rank = 2},
                          {.title = "BYTES", .number = true, .rank = 1},
                          {.title = "STATE", .rank = 3}},
              .rows = {},
              .sort = {.column = 2}};
  for (const Namespace& space : *view.now.namespaces) {
    const bool dead = space.dead.value_or(false);
    table.rows.push_back(
        {TextCell(space.name), TextCell(space.version),
         BytesCell(space.bytes ? Rate(static_cast<double>(*space.bytes)) : std::nullopt),
         TextCell(dead ? "dead" : "", dead ? Tone::kWarn : Tone::kPlain)});
  }
  return table;
}

Table Engines(const View& view) {
  Table table{.name = "engines",
              .columns = {{.title = "ENGINE"},
                          {.title = "STATE", .rank = 1},
                          {.title = "VERSION", .rank = 3},
                          {.title = "NAMESPACE", .rank = 2}}};
  for (const Engine& engine : *view.now.engines) {
    table.rows.push_back({TextCell(engine.name), StateCell(engine.state), TextCell(engine.version),
                          TextCell(engine.space)});
  }
  return table;
}

Table Tasks(const View& view) {
  Table table{.name = "tasks",
              .columns = {{.title = "TASK"},
                          {.title = "KIND", .rank = 1},
                          {.title = "STATE", .rank = 1},
                          {.title = "COPIED", .number = true, .rank = 2},
                          {.title = "BYTES", .number = true, .rank = 3},
                          {.title = "LEFT", .number = true, .rank = 2},
                          {.title = "TIME", .number = true, .rank = 4},
                          {.title = "FROM", .rank = 3},
                          {.title = "TO", .rank = 5}}};
  for (const Task& task : *view.now.tasks) {
    table.rows.push_back({TextCell(fmt::format("{}", task.id)),
                          TextCell(task.kind),
                          StateCell(task.state),
                          Whole(task.copied),
                          BytesCell(static_cast<double>(task.copied_bytes)),
                          Whole(task.left),
                          {.text = TimeText(task.seconds), .value = task.seconds},
                          TextCell(task.from),
                          TextCell(task.to)});
  }
  // The order of the endpoint: the newest first.
  table.sort.column = table.columns.size();
  return table;
}

bool Contains(std::string_view text, std::string_view part) {
  const auto equal = [](char a, char b) { return ToLower(a) == ToLower(b); };
  return std::ranges::search(text, part, equal).begin() != text.end() || part.empty();
}

}  // namespace

// Rows that are equal keep their order, by their places: std::stable_sort of this library calls
// what it has deprecated itself.
void Table::SortBy(const Sort& by) {
  if (by.column >= columns.size()) return;
  const bool number = columns[by.column].number;
  const auto before = [&](const std::vector<Cell>& a, const std::vector<Cell>& b) {
    const Cell& left = a[by.column];
    const Cell& right = b[by.column];
    return number ? left.value > right.value : left.text < right.text;
  };
  std::vector<std::size_t> places(rows.size());
  std::ranges::copy(std::views::iota(std::size_t{0}, rows.size()), places.begin());
  std::ranges::sort(places, [&](std::size_t a, std::size_t b) {
    if (before(rows[a], rows[b])) return !by.reverse;
    if (before(rows[b], rows[a])) return by.reverse;
    return a < b;
  });
  std::vector<std::vector<Cell>> sorted;
  for (const std::size_t place : places) sorted.push_back(std::move(rows[place]));
  rows = std::move(sorted);
}

void Table::Filter(std::string_view text) {
  std::erase_if(rows, [&](const std::vector<Cell>& row) {
    return std::ranges::none_of(row, [&](const Cell& cell) { return Contains(cell.text, text); });
  });
}

std::vector<Table> TablesOf(const View& view) {
  std::vector<Table> tables;
  if (view.now.owners) tables.push_back(Owners(view));
  if (view.now.namespaces) tables.push_back(Namespaces(view));
  if (view.now.engines) tables.push_back(Engines(view));
  if (view.now.tasks) tables.push_back(Tasks(view));
  return tables;
}

}  // namespace kvcove::top
