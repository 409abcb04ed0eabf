// SPDX-License-Identifier: Apache-2.0
#include "kvcove/http/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <bit>

namespace kvcove::http {

void Histogram::Add(std::int64_t duration_ns) {
  const auto ns = static_cast<std::uint64_t>(std::max<std::int64_t>(duration_ns, 0));
  const auto bucket = static_cast<std::size_t>(std::bit_width(ns / 1000));
  counts_[std::min(bucket, kBuckets - 1)].fetch_add(1, std::memory_order_relaxed);
  sum_ns_.fetch_add(ns, std::memory_order_relaxed);
}

struct Metrics::Families {
  std::vector<prometheus::MetricFamily> list;

  prometheus::ClientMetric& Add(const std::string& name, const std::string& help,
                                prometheus::MetricType type, const Labels& labels) {
    auto family = std::ranges::find(list, name, &prometheus::MetricFamily::name);
    if (family == list.end()) {
      family = list.insert(list.end(), prometheus::MetricFamily{
                                           .name = name, .help = help, .type = type, .metric = {}});
    }
    prometheus::ClientMetric& metric = family->metric.emplace_back();
    for (const auto& [key, value] : labels) metric.label.push_back({.name = key, .value = value});
    return metric;
  }
};

Metrics::Metrics() : families_(std::make_unique<Families>()) {}
Metrics::~Metrics() = default;

void Metrics::Gauge(const std::string& name, const std::string& help, double value,
                    const Labels& labels) {
  families_->Add(name, help, prometheus::MetricType::Gauge, labels).gauge.value = value;
}

void Metrics::Counter(const std::string& name, const std::string& help, double value,
                      const Labels& labels) {
  families_->Add(name, help, prometheus::MetricType::Counter, labels).counter.value = value;
}

void Metrics::Histogram(const std::string& name, const std::string& help,
                        const http::Histogram& values, const Labels& labels) {
  prometheus::ClientMetric& metric =
      families_->Add(name, help, prometheus::MetricType::Histogram, labels);
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < Histogram::kBuckets; ++i) {
    count += values.counts_[i].load(std::memory_order_relaxed);
    if (i + 1 == Histogram::kBuckets) break;
    // Bucket i holds what took less than 2^i us.
    metric.histogram.bucket.push_back(
        {.cumulative_count = count, .upper_bound = static_cast<double>(1ULL << i) * 1e-6});
  }
  metric.histogram.sample_count = count;
  metric.histogram.sample_sum =
      static_cast<double>(values.sum_ns_.load(std::memory_order_relaxed)) * 1e-9;
}

std::string Metrics::Text() const {
  return prometheus::TextSerializer().Serialize(families_->list);
}

}  // namespace kvcove::http
