// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/metrics.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <fstream>
#include <map>
#include <sstream>

#include "kvcove/base/control_group.h"
#include "kvcove/base/descriptors.h"
#include "kvcove/base/log.h"
#include "kvcove/base/text.h"
#include "kvcove/version.h"

namespace kvcove {

void Histogram::Add(std::int64_t duration_ns) {
  const auto ns = static_cast<std::uint64_t>(std::max<std::int64_t>(duration_ns, 0));
  const auto bucket = static_cast<std::size_t>(std::bit_width(ns / 1000));
  counts_[std::min(bucket, kBuckets - 1)].fetch_add(1, std::memory_order_relaxed);
  sum_ns_.fetch_add(ns, std::memory_order_relaxed);
}

void LongTimes::Add(std::uint64_t seconds) {
  const auto bucket = static_cast<std::size_t>((std::bit_width(seconds) + 1) / 2);
  ++counts[std::min(bucket, kBuckets - 1)];
  sum_s += seconds;
}

Histogram::Counts Histogram::Count() const {
  Counts counts{};
  for (std::size_t i = 0; i < kBuckets; ++i) counts[i] = counts_[i].load(std::memory_order_relaxed);
  return counts;
}

namespace {

// Escapes a label's value (with quotes) or a help text, as the text format wants.
std::string Escaped(std::string_view text, bool quotes) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\n') {
      escaped += "\\n";
    } else {
      if (c == '\\' || (quotes && c == '"')) escaped += '\\';
      escaped += c;
    }
  }
  return escaped;
}

// Returns the label as a scrape has it.
std::string Shown(const std::string& label) { return IsUtf8(label) ? label : Printable(label); }

std::string Sample(const std::string& name, const Labels& labels, double value) {
  std::string text = name;
  char before = '{';
  for (const auto& [key, label] : labels) {
    text += fmt::format("{}{}=\"{}\"", before, key, Escaped(Shown(label), /*quotes=*/true));
    before = ',';
  }
  if (!labels.empty()) text += '}';
  return text + fmt::format(" {}\n", value);
}

}  // namespace

std::string& Metrics::SamplesOf(const std::string& name, const std::string& help,
                                std::string_view type) {
  auto family = std::ranges::find(families_, name, &Family::name);
  if (family == families_.end()) {
    family = families_.insert(families_.end(), {.name = name, .text = {}});
    family->text = fmt::format("# HELP {} {}\n# TYPE {} {}\n", name,
                               Escaped(help, /*quotes=*/false), name, type);
  }
  return family->text;
}

void Metrics::Gauge(const std::string& name, const std::string& help, double value,
                    const Labels& labels) {
  SamplesOf(name, help, "gauge") += Sample(name, labels, value);
}

void Metrics::Counter(const std::string& name, const std::string& help, double value,
                      const Labels& labels) {
  SamplesOf(name, help, "counter") += Sample(name, labels, value);
}

void Metrics::Gauges(const std::string& name, const std::string& help,
                     std::vector<NamedValue> values, const Labels& labels) {
  const std::size_t most = std::min(values.size(), kMostNamedSeries);
  // Equal values have an order, too, so that one scrape shows the names of the one before.
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(most),
                           [](const NamedValue& one, const NamedValue& other) {
                             if (one.value != other.value) return one.value > other.value;
                             return one.labels < other.labels;
                           });
  std::map<Labels, double> series;
  for (std::size_t i = 0; i < values.size(); ++i) {
    Labels all = labels;
    for (const auto& [key, label] : values[i].labels) {
      all[key] = i < most ? Shown(label) : "(others)";
    }
    series[std::move(all)] += values[i].value;
  }
  for (const auto& [all, value] : series) Gauge(name, help, value, all);
}

void Metrics::Add(const std::string& name, const std::string& help, double value,
                  const Labels& labels) {
  name.ends_with("_total") ? Counter(name, help, value, labels) : Gauge(name, help, value, labels);
}

void Metrics::Histogram(const std::string& name, const std::string& help,
                        const kvcove::Histogram& values, const Labels& labels) {
  std::string& text = SamplesOf(name, help, "histogram");
  std::uint64_t count = 0;
  Labels with_bound = labels;
  for (std::size_t i = 0; i < Histogram::kBuckets; ++i) {
    count += values.counts_[i].load(std::memory_order_relaxed);
    // Bucket i has the calls that took less than 2^i us; the last one all others, too.
    with_bound["le"] = i + 1 == Histogram::kBuckets
                           ? "+Inf"
                           : fmt::format("{}", static_cast<double>(1ULL << i) * 1e-6);
    text += Sample(name + "_bucket", with_bound, static_cast<double>(count));
  }
  text += Sample(name + "_sum", labels,
                 static_cast<double>(values.sum_ns_.load(std::memory_order_relaxed)) * 1e-9);
  text += Sample(name + "_count", labels, static_cast<double>(count));
}

void Metrics::Histogram(const std::string& name, const std::string& help, const LongTimes& values,
                        const Labels& labels) {
  std::string& text = SamplesOf(name, help, "histogram");
  std::uint64_t count = 0;
  Labels with_bound = labels;
  for (std::size_t i = 0; i < LongTimes::kBuckets; ++i) {
    count += values.counts[i];
    with_bound["le"] =
        i + 1 == LongTimes::kBuckets ? "+Inf" : fmt::format("{}", std::uint64_t{1} << (2 * i));
    text += Sample(name + "_bucket", with_bound, static_cast<double>(count));
  }
  text += Sample(name + "_sum", labels, static_cast<double>(values.sum_s));
  text += Sample(name + "_count", labels, static_cast<double>(count));
}

namespace {

// Returns when this process was started, in seconds since 1970; 0: the kernel does not say.
double ProcessStartS() {
  std::string stat;
  std::getline(std::ifstream("/proc/self/stat"), stat);
  double uptime = 0;
  std::ifstream("/proc/uptime") >> uptime;
  const std::size_t name_ends = stat.rfind(')');  // a program's name may hold spaces
  if (name_ends == std::string::npos || uptime == 0) return 0;
  std::istringstream fields(stat.substr(name_ends + 1));
  std::string skipped;
  // The start is the 22nd field, in ticks since the boot; the name is the second.
  for (int field = 3; field < 22; ++field) fields >> skipped;
  double ticks = 0;
  fields >> ticks;
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return now.count() - uptime + ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace

void Metrics::Process(const std::string& root) {
  Gauge("kvcove_build_info", "1, with the version of this build", 1,
        {{"version", std::string(Version())}});
  static const double start_s = ProcessStartS();
  Gauge("process_start_time_seconds", "when this process was started, in seconds since 1970",
        start_s);
  Gauge("process_open_fds", "open file descriptors of this process",
        static_cast<double>(OpenDescriptors()));
  Gauge("process_max_fds", "limit of open file descriptors of this process",
        static_cast<double>(DescriptorLimit()));
  Counter(
      "kvcove_log_lines_dropped_total",
      "log lines that were dropped because nobody read stderr, or because it could not be written",
      static_cast<double>(LogLinesDropped()));
  for (const ControlGroup& group : ControlGroups("memory", root)) {
    if (!group.version2 || group.Number("memory.high", ~0ULL) == ~0ULL) continue;
    Counter(
        "kvcove_memory_high_events_total",
        "times that the kernel slowed a process of this control group because of its memory.high",
        static_cast<double>(group.Named("memory.events", "high")), {{"group", group.name}});
  }
}

std::string Metrics::Text() const {
  std::string text;
  for (const Family& family : families_) text += family.text;
  return text;
}

}  // namespace kvcove
