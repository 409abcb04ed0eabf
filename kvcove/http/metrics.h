// SPDX-License-Identifier: Apache-2.0
// Metrics in Prometheus' text form, collected when they are asked for. Counters live where they are
// counted; this only names them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kvcove::http {

// How long calls took, in powers of two from 1 us to 33 s. Thread-safe, without a lock.
class Histogram {
 public:
  void Add(std::int64_t duration_ns);

 private:
  friend class Metrics;
  static constexpr std::size_t kBuckets = 26;
  std::array<std::atomic<std::uint64_t>, kBuckets> counts_{};
  std::atomic<std::uint64_t> sum_ns_{0};
};

using Labels = std::map<std::string, std::string>;

// One scrape. Belongs to one thread. A name that comes again, with other labels, is another series
// of the same metric.
class Metrics {
 public:
  void Gauge(const std::string& name, const std::string& help, double value,
             const Labels& labels = {});
  void Counter(const std::string& name, const std::string& help, double value,
               const Labels& labels = {});
  // Adds a counter if the name ends in _total, as the names of counters do, and else a gauge: for
  // tables of metrics, which then have no column for the type.
  void Add(const std::string& name, const std::string& help, double value,
           const Labels& labels = {});
  void Histogram(const std::string& name, const std::string& help, const http::Histogram& values,
                 const Labels& labels = {});
  // This process's descriptors, under the names that Prometheus' own clients use, its log lines
  // that were dropped, and how often its control groups' memory.high slowed their processes.
  // `root` stands before /proc and the control groups' mounts, in tests.
  void Process(const std::string& root = {});
  std::string Text() const;

 private:
  struct Family {
    std::string name;
    std::string text;  // its two comments and its samples
  };
  std::string& SamplesOf(const std::string& name, const std::string& help, std::string_view type);

  std::vector<Family> families_;
};

}  // namespace kvcove::http
