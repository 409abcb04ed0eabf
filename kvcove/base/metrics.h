// SPDX-License-Identifier: Apache-2.0
// Metrics in Prometheus' text form, collected when they are asked for. The counters are members of
// the objects that count; `Metrics` names them for one scrape.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kvcove {

// Durations of calls, in buckets of powers of two from 1 us to 33 s. Thread-safe, without a lock: a
// scrape may see a call in its bucket and not yet in the sum.
class Histogram {
 public:
  static constexpr std::size_t kBuckets = 26;
  // Calls by bucket: bucket i has those that took less than 2^i us and have no earlier one, the
  // last one all others.
  using Counts = std::array<std::uint64_t, kBuckets>;

  // Counts one call; a duration below 0 counts as 0.
  void Add(std::int64_t duration_ns);
  // Returns the calls so far.
  Counts Count() const;

 private:
  friend class Metrics;
  std::array<std::atomic<std::uint64_t>, kBuckets> counts_{};
  std::atomic<std::uint64_t> sum_ns_{0};
};

// Durations of seconds to days, in buckets of powers of four. Plain values.
struct LongTimes {
  // Bucket i has those of less than 4^i s that have no earlier one, the last one all others.
  static constexpr std::size_t kBuckets = 12;
  std::array<std::uint64_t, kBuckets> counts{};
  std::uint64_t sum_s = 0;

  void Add(std::uint64_t seconds);
};

using Labels = std::map<std::string, std::string>;

// A value of a metric whose series are named by clients. `labels`: the names that clients give.
struct NamedValue {
  Labels labels;
  double value = 0;
};

// One scrape. Belongs to one thread. A name that is added again with other labels is another series
// of the same metric, and keeps the first help text. Bytes of a label that are no UTF-8, for which
// Prometheus would refuse the whole scrape, become escapes.
class Metrics {
 public:
  // Add one sample. `help` says what the value counts, and its unit, without the name.
  void Gauge(const std::string& name, const std::string& help, double value,
             const Labels& labels = {});
  void Counter(const std::string& name, const std::string& help, double value,
               const Labels& labels = {});
  // Adds a gauge whose series are named by clients, so that there may be any number: the
  // kMostNamedSeries largest, and one for the sum of the others, whose names are "(others)".
  // Names that read the same are one series, since Prometheus takes none twice. `labels`: those
  // that every series has.
  static constexpr std::size_t kMostNamedSeries = 200;
  void Gauges(const std::string& name, const std::string& help, std::vector<NamedValue> values,
              const Labels& labels = {});
  // Adds a counter if the name ends in _total, as the names of counters do, and else a gauge: for
  // tables of metrics, which then have no column for the type.
  void Add(const std::string& name, const std::string& help, double value,
           const Labels& labels = {});
  void Histogram(const std::string& name, const std::string& help, const kvcove::Histogram& values,
                 const Labels& labels = {});
  void Histogram(const std::string& name, const std::string& help, const LongTimes& values,
                 const Labels& labels = {});
  // Adds this process's descriptors and start, as Prometheus' own clients do, its build, its
  // dropped log lines, and how often memory.high of its control groups has slowed their processes.
  // `root`: in tests, a directory in front of /proc and the control groups' mounts.
  void Process(const std::string& root = {});
  // Returns all samples as the body of a scrape.
  std::string Text() const;

 private:
  struct Family {
    std::string name;
    std::string text;  // the lines HELP and TYPE, and the samples
  };
  std::string& SamplesOf(const std::string& name, const std::string& help, std::string_view type);

  std::vector<Family> families_;
};

}  // namespace kvcove
