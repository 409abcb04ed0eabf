// SPDX-License-Identifier: Apache-2.0
#include "lab/replay/report.h"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <utility>

#include "kvcove/base/size.h"

namespace kvcove::lab {
namespace {

constexpr double kWidth = 720;
constexpr double kHeight = 260;
constexpr double kLeft = 64;
constexpr double kBottom = 34;
constexpr double kTop = 14;
constexpr double kRight = 16;

struct Series {
  std::string name;
  std::string color;
  std::vector<std::pair<double, double>> points;
};

std::string Escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '>')
      out += "&gt;";
    else
      out += c;
  }
  return out;
}

struct Axis {
  std::string label;
  double low = 0;
  double high = 1;
  bool log = false;
  std::vector<std::pair<double, std::string>> ticks;

  double At(double value) const {
    if (!log) return (value - low) / (high - low);
    return (std::log10(std::max(value, low)) - std::log10(low)) /
           (std::log10(high) - std::log10(low));
  }
};

// 1, 2 or 5 times a power of ten, so that there are about five ticks.
void LinearTicks(Axis& axis, const char* format_suffix) {
  const double raw = (axis.high - axis.low) / 5;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  const double step = raw / power > 5 ? 10 * power : raw / power > 2 ? 5 * power : 2 * power;
  for (double tick = axis.low; tick <= axis.high + step / 100; tick += step) {
    axis.ticks.emplace_back(tick, fmt::format("{:g}{}", tick, format_suffix));
  }
}

std::string Plot(const Axis& x, const Axis& y, const std::vector<Series>& all) {
  const double width = kWidth - kLeft - kRight;
  const double height = kHeight - kTop - kBottom;
  const auto px = [&](double value) { return kLeft + x.At(value) * width; };
  const auto py = [&](double value) { return kTop + (1 - y.At(value)) * height; };
  std::string svg = fmt::format("<svg viewBox='0 0 {} {}' role='img'>", kWidth, kHeight);
  for (const auto& [value, label] : y.ticks) {
    svg += fmt::format(
        "<line class='grid' x1='{0}' x2='{1}' y1='{2:.1f}' y2='{2:.1f}'/>"
        "<text x='{3}' y='{4:.1f}' text-anchor='end'>{5}</text>",
        kLeft, kWidth - kRight, py(value), kLeft - 8, py(value) + 4, label);
  }
  for (const auto& [value, label] : x.ticks) {
    svg += fmt::format("<text x='{:.1f}' y='{}' text-anchor='middle'>{}</text>", px(value),
                       kHeight - kBottom + 16, label);
  }
  svg += fmt::format("<text class='axis' x='{}' y='{}' text-anchor='end'>{}</text>",
                     kWidth - kRight, kHeight - 3, Escape(x.label));
  for (const Series& series : all) {
    std::string points;
    for (const auto& [at, value] : series.points) {
      points += fmt::format("{:.1f},{:.1f} ", px(at), py(value));
    }
    svg += fmt::format("<polyline points='{}' stroke='{}'/>", points, series.color);
  }
  svg += "</svg><p class='key'>";
  for (const Series& series : all) {
    svg += fmt::format("<span><i style='background:{}'></i>{}</span>", series.color,
                       Escape(series.name));
  }
  return svg + "</p>";
}

double HighestOf(const std::vector<Series>& all) {
  double highest = 0;
  for (const Series& series : all) {
    for (const auto& point : series.points) highest = std::max(highest, point.second);
  }
  return highest > 0 ? highest * 1.08 : 1;
}

std::string OverTime(const ReplayResult& result) {
  Series own{"own caches", "#8a94a6", {}};
  Series together{"with kvcove", "#0b7285", {}};
  Series loaded{"loaded", "#0b7285", {}};
  Series stored{"stored", "#e8590c", {}};
  for (std::size_t minute = 0; minute < result.bins.size(); ++minute) {
    const Bin& bin = result.bins[minute];
    if (bin.blocks == 0) continue;
    const auto blocks = static_cast<double>(bin.blocks);
    const auto at = static_cast<double>(minute);
    own.points.emplace_back(at, 100 * static_cast<double>(bin.own_hits) / blocks);
    together.points.emplace_back(at,
                                 100 * static_cast<double>(bin.own_hits + bin.pool_hits) / blocks);
    loaded.points.emplace_back(at, static_cast<double>(bin.load_bytes) / static_cast<double>(kMiB));
    stored.points.emplace_back(at,
                               static_cast<double>(bin.store_bytes) / static_cast<double>(kMiB));
  }
  Axis x{.label = "minute of the trace",
         .high = std::max<double>(1, static_cast<double>(result.bins.size()) - 1)};
  LinearTicks(x, "");
  Axis ratio{.label = "", .high = HighestOf({own, together})};
  LinearTicks(ratio, " %");
  Axis bytes{.label = "", .high = HighestOf({loaded, stored})};
  LinearTicks(bytes, " MiB");
  return "<section><h2>Hit ratio over time</h2>" + Plot(x, ratio, {own, together}) +
         "</section><section><h2>Bytes a minute of the trace</h2>" +
         Plot(x, bytes, {loaded, stored}) + "</section>";
}

std::string Latencies(const ReplayResult& result) {
  Axis x{.label = "microseconds a request (logarithmic)", .low = 1, .high = 1e6, .log = true};
  for (double tick = 1; tick <= 1e6; tick *= 10)
    x.ticks.emplace_back(tick, fmt::format("{:g}", tick));
  Axis y{.label = "", .high = 100};
  LinearTicks(y, " %");
  std::vector<Series> all;
  const auto add = [&](const char* name, const char* color, const std::vector<double>& sorted) {
    if (sorted.empty()) return;
    Series series{name, color, {}};
    for (int i = 0; i <= 200; ++i) {
      const auto at = static_cast<std::size_t>(i / 200.0 * static_cast<double>(sorted.size() - 1));
      series.points.emplace_back(std::min(sorted[at], 1e6), i / 2.0);
    }
    all.push_back(std::move(series));
  };
  add("lookup", "#5f3dc4", result.lookup_us);
  add("load", "#0b7285", result.load_us);
  add("store", "#e8590c", result.store_us);
  return "<section><h2>Latency: share of requests done within</h2>" + Plot(x, y, all) +
         "</section>";
}

std::string Capacities(const std::vector<Chain>& chains) {
  const std::vector<std::uint64_t> capacities = {500,  1000,  2000,  3000,  5000,
                                                 7000, 10000, 15000, 20000, 30000};
  std::vector<Series> all = {{"optimum", "#2b8a3e", {}},
                             {"kvcove default", "#0b7285", {}},
                             {"S3-FIFO", "#e8590c", {}},
                             {"LRU", "#8a94a6", {}}};
  for (const std::uint64_t capacity : capacities) {
    const auto at = static_cast<double>(capacity);
    all[0].points.emplace_back(at, 100 * SimulateOptimum(chains, capacity).ratio());
    const char* names[] = {"", "default", "s3fifo", "lru"};
    for (std::size_t i = 1; i < 4; ++i) {
      const auto count = Simulate(names[i], chains, capacity);
      if (count) all[i].points.emplace_back(at, 100 * count->ratio());
    }
  }
  Axis x{.label = "capacity in blocks (logarithmic; one cache, simulated)",
         .low = 500,
         .high = 30000,
         .log = true};
  for (const double tick : {500, 1000, 2000, 5000, 10000, 20000, 30000}) {
    x.ticks.emplace_back(tick, fmt::format("{:g}", tick));
  }
  Axis y{.label = "", .high = HighestOf(all)};
  LinearTicks(y, " %");
  return "<section><h2>Hit ratio against capacity</h2>" + Plot(x, y, all) + "</section>";
}

// One bar: what came from where.
std::string Tiers(const TierResult& tiers, const ReplayResult& result) {
  struct Part {
    const char* name;
    const char* color;
    std::uint64_t blocks;
  };
  const std::uint64_t found = result.own_hits + result.pool_hits;
  const Part parts[] = {{"own caches", "#8a94a6", result.own_hits},
                        {"memory", "#0b7285", tiers.memory_hits - result.own_hits},
                        {"disk", "#e8590c", tiers.disk_hits},
                        {"computed", "#e9ecef", result.blocks - found}};
  const auto all = static_cast<double>(std::max<std::uint64_t>(result.blocks, 1));
  std::string svg = fmt::format("<svg viewBox='0 0 {} 40' role='img'>", kWidth);
  std::string key = "<p class='key'>";
  double at = 0;
  for (const Part& part : parts) {
    const double width = static_cast<double>(part.blocks) / all * kWidth;
    svg += fmt::format("<rect x='{:.1f}' y='6' width='{:.1f}' height='28' fill='{}'/>", at, width,
                       part.color);
    key += fmt::format("<span><i style='background:{}'></i>{} {:.1f} %</span>", part.color,
                       part.name, 100 * static_cast<double>(part.blocks) / all);
    at += width;
  }
  return fmt::format(
      "<section><h2>Blocks by tier</h2>{}</svg>{}</p><p>Disk of {} blocks: {} of values written, "
      "{:.1f} % of what memory gave up ({:.1f} % simulated), write amplification {:.3f}; both "
      "tiers simulated without own caches: {:.1f} %.</p></section>",
      svg, key, tiers.disk_blocks, FormatSize(tiers.put_bytes), 100 * tiers.written_ratio(),
      100 * tiers.simulated_written, tiers.write_amplification(), 100 * tiers.simulated);
}

std::string Tile(const std::string& value, const std::string& name) {
  return fmt::format("<div><b>{}</b><span>{}</span></div>", value, name);
}

constexpr const char* kStyle = R"(
body{font:15px/1.5 system-ui,sans-serif;color:#1d2433;background:#f4f6f8;margin:0}
main{max-width:800px;margin:0 auto;padding:32px 20px}
h1{font-size:24px;margin:0 0 4px}h2{font-size:16px;margin:0 0 8px}
p.sub{color:#5b6475;margin:0 0 20px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin-bottom:20px}
.tiles div,section{background:#fff;border:1px solid #e1e5ea;border-radius:8px;padding:14px 16px}
.tiles b{display:block;font-size:22px}.tiles span{color:#5b6475;font-size:13px}
section{margin-bottom:16px}svg{width:100%;height:auto}
svg text{font-size:11px;fill:#5b6475}svg .axis{font-style:italic}
svg .grid{stroke:#e9ecef}polyline{fill:none;stroke-width:2;stroke-linejoin:round}
.key span{margin-right:18px;font-size:13px}.key i{display:inline-block;width:18px;height:3px;
margin-right:6px;vertical-align:middle}.key{margin:4px 0 0}
@media (prefers-color-scheme:dark){body{background:#14181f;color:#e6e9ee}
.tiles div,section{background:#1c222c;border-color:#2b3340}svg .grid{stroke:#2b3340}
svg text,.tiles span,p.sub{fill:#9aa4b5;color:#9aa4b5}}
)";

}  // namespace

Status WriteReport(const std::string& path, const ReportFacts& facts, const ReplayResult& result,
                   const std::vector<Chain>& chains) {
  const auto percent = [](double ratio) { return fmt::format("{:.1f} %", 100 * ratio); };
  std::string html = fmt::format(
      "<!doctype html><html lang='en'><meta charset='utf-8'>"
      "<meta name='viewport' content='width=device-width,initial-scale=1'>"
      "<title>kvcove replay</title><style>{}</style><main><h1>kvcove replay</h1>"
      "<p class='sub'>{}: {} requests, {} blocks of {}; {} engines with {} blocks of their own; a "
      "pool of {} blocks, policy {}; {:.1f} s.</p><div class='tiles'>",
      kStyle, Escape(facts.title), result.requests, result.blocks, FormatSize(facts.block_bytes),
      facts.engines, facts.own_blocks, facts.shared_blocks, Escape(facts.policy), result.seconds);
  html += Tile(percent(result.hit_ratio()), "hit ratio with kvcove");
  html += Tile(percent(facts.hit_ratio_own), "own caches only");
  html += Tile(percent(facts.hit_ratio_lru), "with a shared LRU");
  html += Tile(percent(facts.hit_ratio_optimum), "optimum (knows the future)");
  html += Tile(fmt::format("{}", result.wrong_blocks), "wrong blocks");
  html += Tile(fmt::format("{}", result.stale_blocks), "stale hits");
  html += Tile(FormatSize(result.load_bytes), "loaded and verified");
  html += Tile(fmt::format("{:.1f} M", static_cast<double>(result.tokens_saved) / 1e6),
               "prefill tokens saved");
  html += "</div>" + (facts.tiers ? Tiers(*facts.tiers, result) : "") + OverTime(result) +
          Latencies(result) + Capacities(chains) + "</main></html>\n";
  std::ofstream file(path, std::ios::binary);
  file << html;
  file.close();
  if (!file) {
    return Fail(Code::kInvalid,
                fmt::format("cannot write the report '{}': {}", path, std::strerror(errno)));
  }
  return {};
}

}  // namespace kvcove::lab
