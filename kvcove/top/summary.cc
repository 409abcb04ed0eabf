// SPDX-License-Identifier: Apache-2.0
// The lines of a screen above its tables.
#include <fmt/core.h>

#include <algorithm>

#include "kvcove/base/size.h"
#include "kvcove/base/text.h"
#include "kvcove/top/cells.h"
#include "kvcove/top/line.h"
#include "kvcove/top/screen.h"

namespace kvcove::top {
namespace {

constexpr std::size_t kLabelCells = 10;

struct Part {
  std::string text;
  Tone tone = Tone::kPlain;
};

// Writes parts behind a label, over as many lines as needed but `most` at most; parts beyond them
// are left out, and their number is said.
void Flow(const std::string& label, const std::vector<Part>& parts, std::size_t most,
          const Frame& frame, std::vector<std::string>& lines) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < most && (i == 0 || at < parts.size()); ++i) {
    Line line(frame.width, frame.color);
    line.Add(Fit(i == 0 ? label : "", kLabelCells), kBold);
    const std::string more = fmt::format("  +{}", parts.size());
    while (at < parts.size()) {
      const bool first = line.cells() <= kLabelCells;
      const bool last = i + 1 == most && at + 1 < parts.size();
      const std::size_t needed = Cells(parts[at].text) + (first ? 0 : 2) + (last ? more.size() : 0);
      if (!first && line.cells() + needed > frame.width) break;
      if (!first) line.Add("  ");
      line.Add(parts[at].text, SgrOf(parts[at].tone));
      ++at;
    }
    if (i + 1 == most && at < parts.size()) line.Add(fmt::format("  +{}", parts.size() - at));
    lines.push_back(line.Take());
  }
}

std::vector<Part> HitParts(const HitView& hits) {
  if (!hits.keys) return {{.text = "-"}};
  if (!hits.ratio) return {{.text = "nothing was read"}};
  return {{.text = fmt::format("{} of {} keys/s", PercentText(hits.ratio), CountText(hits.keys))},
          {.text = "memory " + PercentText(hits.memory)},
          {.text = "disk " + PercentText(hits.disk)},
          {.text = "missed " + PercentText(1 - *hits.ratio)}};
}

// "1.5GiB/s down"; "- down" where it is not known.
std::string RateText(Rate bytes, const char* what) {
  return fmt::format("{}{} {}", BytesText(bytes), bytes ? "/s" : "", what);
}

std::vector<Part> TrafficParts(const View& view) {
  std::vector<Part> parts = {{.text = RateText(view.down_bytes, "down")},
                             {.text = RateText(view.up_bytes, "up")}};
  if (view.disks > 0) parts.push_back({.text = RateText(view.from_disk_bytes, "from disks")});
  return parts;
}

// "memory x2 55.1 %": the hit ratio that memory of another size would have had.
std::vector<Part> ExpectedParts(const Expected& expected) {
  constexpr std::pair<const char*, const char*> kSizes[] = {
      {"half", "x1/2"}, {"same", "x1"}, {"double", "x2"}, {"quadruple", "x4"}, {"any", "any"}};
  std::vector<Part> parts;
  for (const auto& [tier, ratios] :
       {std::pair("memory ", expected.OfMemory()), std::pair("disk ", expected.OfDisk())}) {
    const char* before = tier;
    for (const auto& [name, shown] : kSizes) {
      const auto ratio = ratios.find(name);
      if (ratio == ratios.end()) continue;
      parts.push_back({.text = fmt::format("{}{} {}", before, shown, PercentText(ratio->second))});
      before = "";
    }
  }
  return parts;
}

std::string UsedText(std::uint64_t used, std::uint64_t capacity) {
  if (capacity == 0) return "none";
  return fmt::format("{} of {} ({:.0f} %)", FormatSize(used), FormatSize(capacity),
                     100 * static_cast<double>(used) / static_cast<double>(capacity));
}

std::vector<Part> MemoryParts(const View& view) {
  const std::uint64_t used = view.capacity_bytes - std::min(view.capacity_bytes, view.free_bytes);
  std::vector<Part> parts = {
      {.text = UsedText(used, view.capacity_bytes)},
      {.text = CountText(static_cast<double>(view.objects)) + " objects"},
      {.text = fmt::format("{} of {} owners", view.owners_live, view.owners.size()),
       .tone = view.owners_live < view.owners.size() ? Tone::kBad : Tone::kPlain}};
  if (view.disks > 0) {
    parts.push_back({.text = "disk " + UsedText(view.disk_bytes, view.disk_capacity_bytes)});
  }
  if (view.disks_aside > 0) {
    parts.push_back({.text = fmt::format("{} of {} disks SET ASIDE", view.disks_aside, view.disks),
                     .tone = Tone::kBad});
  }
  return parts;
}

// "lookup 12us 80us": the median and the 99th percentile; in parentheses where they are those since
// the start, for there were no calls lately.
std::vector<Part> CallParts(const View& view) {
  std::vector<Part> parts;
  for (const bool lately : {true, false}) {
    for (const CallView& call : view.calls) {
      if (call.since_start == lately) continue;
      const std::string name = Printable(call.name);
      const std::string times = fmt::format("{} {}", TimeText(call.p50_s), TimeText(call.p99_s));
      parts.push_back({.text = call.since_start ? fmt::format("{} ({})", name, times)
                                                : fmt::format("{} {}", name, times)});
    }
  }
  if (parts.empty()) parts.push_back({.text = "no calls"});
  return parts;
}

// Misses that an operator should look at (docs/operating.md).
bool IsAlarming(const std::string& reason) {
  return reason == "lease" || reason == "owner gone" || reason == "timeout" ||
         reason == "unavailable" || reason == "shard away" || reason.starts_with("disk ");
}

std::vector<Part> MissParts(const View& view) {
  std::vector<Part> parts;
  for (const MissView& miss : view.misses) {
    if (miss.total == 0) continue;
    const bool now = miss.keys.value_or(0) > 0;
    parts.push_back({.text = fmt::format("{} {}", Printable(miss.reason), CountText(miss.keys)),
                     .tone = now && IsAlarming(miss.reason) ? Tone::kBad : Tone::kPlain});
  }
  if (parts.empty()) parts.push_back({.text = "none"});
  return parts;
}

std::vector<Part> CounterParts(const View& view) {
  std::vector<Part> parts;
  for (const auto& [name, count] : view.now.counters) {
    const bool bad = count > 0 && (name.ends_with("not proven") || name.starts_with("refused"));
    // Only the ones that happened, but resets, which are asked about.
    if (count == 0 && name != "resets") continue;
    parts.push_back(
        {.text = fmt::format("{} {}", count, name), .tone = bad ? Tone::kWarn : Tone::kPlain});
  }
  if (view.now.registered) {
    parts.push_back(
        {.text = Counted(*view.now.registered, "engine registered", "engines registered")});
  }
  if (view.now.tasks) {
    const auto unfinished = std::ranges::count_if(*view.now.tasks, &Task::unfinished);
    parts.push_back({.text = Counted(static_cast<std::uint64_t>(unfinished), "task under way",
                                     "tasks under way")});
  }
  return parts;
}

}  // namespace

void AddSummary(const View& view, const Frame& frame, std::vector<std::string>& lines) {
  const std::size_t most = frame.height >= 20 ? 2 : 1;
  if (view.now.owners) {
    Flow("hits", HitParts(view.hits), 1, frame, lines);
    Flow("bytes", TrafficParts(view), 1, frame, lines);
    Flow("memory", MemoryParts(view), most, frame, lines);
    // The tables need the lines of a small screen more.
    const std::vector<Part> expected = ExpectedParts(view.now.expected);
    if (most > 1 && !expected.empty()) Flow("expected", expected, most, frame, lines);
  }
  Flow("p50 p99", CallParts(view), most, frame, lines);
  Flow("misses/s", MissParts(view), most, frame, lines);
  const std::vector<Part> counters = CounterParts(view);
  if (!counters.empty()) Flow("counts", counters, most, frame, lines);
}

}  // namespace kvcove::top
