// SPDX-License-Identifier: Apache-2.0
// What the benchmarks share: rows, and how a figure is taken beside its limit.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/cli/command.h"
#include "kvcove/pool/pool.h"

namespace kvcove::lab {

inline constexpr std::chrono::milliseconds kTimeout{10000};

struct BenchOptions {
  bool json = false;
  std::vector<std::string> benches;
  std::vector<std::string> forms;
  std::vector<std::uint64_t> batches;  // only gets and puts of these batch sizes; empty: all
  std::uint64_t most_objects = 10'000'000;
  double seconds = 1;
  std::uint32_t save_wait_ms = 200;  // of `bench turns`: SchedulerOptions::save_wait
  std::string store;                 // etcd://...: of the masters of `bench control`; empty: files
  std::string etcd = "etcd";         // its program, for what needs several masters
};

struct Row {
  std::string bench;
  std::string form;
  std::uint64_t objects = 0;
  std::uint64_t object_bytes = 0;
  std::uint64_t batch = 1;
  // Or the first touch of each page by this process: "cold", with nothing mapped beforehand;
  // "first", 2 s after it attached.
  std::string state = "warm";
  double p50_us = 0;
  double p99_us = 0;
  double bytes_per_s = 0;
  std::string limit;
  double limit_bytes_per_s = 0;
  double limit_p50_us = 0;
  nlohmann::json extra = nlohmann::json::object();
};

inline std::int64_t Now() { return SystemClock::Instance().NowNs(); }
// Returns the nearest-rank quantile: the least of the values that a share `q` of them does not
// exceed. Sorts them.
double Quantile(std::vector<double>& values, double q);
// The row's figures, from the microseconds of each turn; a turn moves `bytes`.
void Summarize(Row& row, std::uint64_t bytes, std::vector<double>& ours,
               std::vector<double>& theirs);
void Print(const BenchOptions& options, const Row& row);
std::string KeyOf(std::uint64_t number, std::size_t bytes = 110);
// Stores `objects` of `object_bytes` under KeyOf(from), KeyOf(from + 1), ...
Status Fill(Session& session, std::uint64_t objects, std::uint64_t object_bytes,
            std::uint64_t from = 0, const char* what = "filling");

// Runs `work` and `limit` turn by turn for the given time; `bytes` is what one turn of either
// moves.
template <typename Work, typename Limit>
void Measure(const BenchOptions& options, Row& row, std::uint64_t bytes, Work&& work,
             Limit&& limit) {
  std::vector<double> ours;
  std::vector<double> theirs;
  const std::int64_t until = Now() + static_cast<std::int64_t>(options.seconds * 1e9);
  for (std::size_t turn = 0; turn < 20 || Now() < until; ++turn) {
    std::int64_t start = Now();
    work(turn);
    ours.push_back(static_cast<double>(Now() - start) / 1e3);
    start = Now();
    limit(turn);
    theirs.push_back(static_cast<double>(Now() - start) / 1e3);
    if (ours.size() >= 200'000) break;
  }
  Summarize(row, bytes, ours, theirs);
}

// `kvcove bench remote`.
Result<int> RunRemoteBench(const BenchOptions& options);
// `kvcove bench scale`.
Result<int> RunScaleBench(const BenchOptions& options);
// Of it, what several masters need.
Status BenchShards(const BenchOptions& options);
Status BenchShardModel(const BenchOptions& options);
// `kvcove bench control`.
Result<int> RunControlBench(const BenchOptions& options);
// `kvcove bench connector`.
Result<int> RunConnectorBench(const BenchOptions& options);
// `kvcove bench turns`.
Result<int> RunTurnsBench(const BenchOptions& options);
// Adds `kvcove bench engine`.
void AddEngineBench(CLI::App& bench, cli::Action& chosen);
// 77: there is no GPU; stderr says why.
Result<int> RunGpuBench(const BenchOptions& options, int ordinal);
// The other end of its limits: a plain TCP socket.
Result<int> RunStream();

}  // namespace kvcove::lab
