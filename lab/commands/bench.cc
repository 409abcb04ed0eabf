// SPDX-License-Identifier: Apache-2.0
// What the benchmarks share, and the command `kvcove bench`.
#include "lab/commands/bench.h"

#include <fmt/core.h>
#include <sys/socket.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "kvcove/base/random.h"
#include "kvcove/base/size.h"
#include "kvcove/pool/pool.h"
#include "lab/commands/bench_local.h"
#include "lab/commands/commands.h"

namespace kvcove::lab {

double Quantile(std::vector<double>& values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(q * static_cast<double>(values.size()));
  return values[static_cast<std::size_t>(std::max(rank, 1.0)) - 1];
}

void Summarize(Row& row, std::uint64_t bytes, std::vector<double>& ours,
               std::vector<double>& theirs) {
  row.p50_us = Quantile(ours, 0.5);
  row.p99_us = Quantile(ours, 0.99);
  row.limit_p50_us = Quantile(theirs, 0.5);
  row.bytes_per_s = static_cast<double>(bytes) / row.p50_us * 1e6;
  row.limit_bytes_per_s =
      row.limit_p50_us > 0 ? static_cast<double>(bytes) / row.limit_p50_us * 1e6 : 0;
}

void Print(const BenchOptions& options, const Row& row) {
  const double ratio = row.limit_bytes_per_s > 0 ? row.bytes_per_s / row.limit_bytes_per_s : 0;
  if (options.json) {
    nlohmann::json object = {{"schema", "kvcove.bench.1"},
                             {"bench", row.bench},
                             {"form", row.form},
                             {"objects", row.objects},
                             {"object_bytes", row.object_bytes},
                             {"batch", row.batch},
                             {"state", row.state},
                             {"p50_us", row.p50_us},
                             {"p99_us", row.p99_us},
                             {"bytes_per_s", row.bytes_per_s},
                             {"limit", row.limit},
                             {"limit_p50_us", row.limit_p50_us},
                             {"limit_bytes_per_s", row.limit_bytes_per_s},
                             {"ratio", ratio}};
    object.update(row.extra);
    fmt::print("{}\n", object.dump());
  } else {
    fmt::print(
        "{:<7} {:<8} {:>9} x {:>8} batch {:>4} {:<5} p50 {:>10.1f} us  p99 {:>10.1f} us  "
        "{}: {:.1f} us  ratio {:.2f}{}\n",
        row.bench, row.form, row.objects, FormatSize(row.object_bytes), row.batch, row.state,
        row.p50_us, row.p99_us, row.limit, row.limit_p50_us, ratio,
        row.extra.empty() ? std::string() : "  " + row.extra.dump());
  }
  std::fflush(stdout);
}

std::string KeyOf(std::uint64_t number, std::size_t bytes) {
  std::string key =
      fmt::format("bench/llama-3-70b@5f3a@tp_rank:0@group:0@{:016x}{:016x}", Mix64(number), number);
  key.resize(bytes, 'k');
  return key;
}

Status Fill(Session& session, std::uint64_t objects, std::uint64_t object_bytes, std::uint64_t from,
            const char* what) {
  const std::size_t batch = object_bytes <= 16 * kKiB ? 1024 : 32;
  const std::vector<std::byte> value(object_bytes, std::byte{7});
  const ConstBuffer piece{.data = value.data(), .size = value.size()};
  KVCOVE_ASSIGN(const Token token, session.Capture({}));
  for (std::uint64_t at = 0; at < objects; at += batch) {
    const std::size_t count = std::min<std::uint64_t>(batch, objects - at);
    std::vector<std::string> keys;
    std::vector<PutItem> items;
    std::vector<ItemResult> results(count);
    keys.reserve(count);
    for (std::size_t i = 0; i < count; ++i) keys.push_back(KeyOf(from + at + i));
    for (const std::string& key : keys) {
      items.push_back({.key = key, .value = {&piece, 1}, .after = {}});
    }
    KVCOVE_TRY(session.Put(token, items, results, {.timeout = kTimeout}));
    for (const ItemResult& result : results) {
      if (!result.ok() && result.code != Code::kExists) {
        return Fail(result.code, fmt::format("{} object {}", what, at));
      }
    }
  }
  return {};
}

void AddBench(CLI::App& app, cli::Action& chosen) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* bench = app.add_subcommand(
      "bench", "Measure this build against this machine's limits, and engines under a load.");
  bench->require_subcommand(1);
  CLI::App* local = bench->add_subcommand(
      "local",
      "The pool of one host: get, put, borrow, reserve, exists, reset, memory; embedded and as a "
      "process.");
  local->add_flag("--json", options->json, "print JSON lines on stdout (docs/json.md)");
  local
      ->add_option("--bench", options->benches,
                   "measure only these: get, put, borrow, reserve, exists, reset, memory")
      ->check(CLI::IsMember({"get", "put", "borrow", "reserve", "exists", "reset", "memory"}));
  local->add_option("--form", options->forms, "measure only these: process, embedded")
      ->check(CLI::IsMember({"process", "embedded"}));
  local->add_option("--batch", options->batches,
                    "only gets, puts, loans and reservations of these batch sizes");
  local
      ->add_option("--most-objects", options->most_objects, "leave out rows that need more objects")
      ->capture_default_str();
  local->add_option("--seconds", options->seconds, "seconds that each row is measured")
      ->capture_default_str();
  local->callback(
      [options, &chosen] { chosen = [options] { return local_bench::Run(*options); }; });

  CLI::App* remote = bench->add_subcommand(
      "remote", "A master, owners and this process over loopback TCP: get, put, exists, reset.");
  remote->add_flag("--json", options->json, "print JSON lines on stdout (docs/json.md)");
  remote->add_option("--bench", options->benches, "measure only these: get, put, exists, reset")
      ->check(CLI::IsMember({"get", "put", "exists", "reset"}));
  remote->add_option("--batch", options->batches,
                     "only gets, puts, loans and reservations of these batch sizes");
  remote->add_option("--seconds", options->seconds, "seconds that each row is measured")
      ->capture_default_str();
  remote->add_option("--most-objects", options->most_objects, "objects of the reset row, at most")
      ->capture_default_str();
  remote->callback([options, &chosen] { chosen = [options] { return RunRemoteBench(*options); }; });

  CLI::App* scale = bench->add_subcommand(
      "scale",
      "Measure the limits of masters, and the cost of resets, silence and garbage for others.");
  scale->add_flag("--json", options->json, "print JSON lines on stdout (docs/json.md)");
  scale
      ->add_option(
          "--bench", options->benches,
          "measure only these: directory, restart, lookups, locate, reset, silent, garbage, "
          "shards, shard-model; the last two only if they are named")
      ->check(CLI::IsMember({"directory", "restart", "lookups", "locate", "reset", "silent",
                             "garbage", "shards", "shard-model"}));
  scale->add_option("--etcd", options->etcd, "path of etcd's program, for --bench shards")
      ->capture_default_str();
  scale->add_option("--seconds", options->seconds, "seconds of each measurement")
      ->capture_default_str();
  scale
      ->add_option("--most-objects", options->most_objects, "leave out rows that need more objects")
      ->capture_default_str();
  scale->callback([options, &chosen] { chosen = [options] { return RunScaleBench(*options); }; });

  CLI::App* control = bench->add_subcommand(
      "control", "Measure the cost of a master's end, of removals and of resets for other calls.");
  control->add_flag("--json", options->json, "print JSON lines on stdout (docs/json.md)");
  control
      ->add_option("--bench", options->benches,
                   "measure only these: reads, resets, removals, pattern")
      ->check(CLI::IsMember({"reads", "resets", "removals", "pattern"}));
  control->add_option(
      "--store", options->store,
      "etcd://H1:2379/PREFIX: resets of a master that keeps its facts there, beside "
      "a bare transaction");
  control->add_option("--most-objects", options->most_objects, "objects of a row, at most")
      ->capture_default_str();
  control->callback(
      [options, &chosen] { chosen = [options] { return RunControlBench(*options); }; });

  CLI::App* connector = bench->add_subcommand(
      "connector",
      "Measure the cost for an engine: look-ups of 4,096 blocks, steps, plans, a slow pool.");
  connector->add_flag("--json", options->json, "print JSON lines on stdout (docs/json.md)");
  connector->add_option("--seconds", options->seconds, "seconds that each row is measured")
      ->capture_default_str();
  connector->callback(
      [options, &chosen] { chosen = [options] { return RunConnectorBench(*options); }; });

  CLI::App* turns = bench->add_subcommand(
      "turns",
      "Measure what the next turn of a conversation finds at another engine while the first one "
      "still saves.");
  turns->add_flag("--json", options->json, "print JSON lines on stdout (docs/json.md)");
  turns
      ->add_option("--save-wait-ms", options->save_wait_ms,
                   "milliseconds that a look-up waits for saves under way")
      ->capture_default_str();
  turns->callback([options, &chosen] { chosen = [options] { return RunTurnsBench(*options); }; });

  AddEngineBench(*bench, chosen);

  CLI::App* gpu = bench->add_subcommand(
      "gpu", "Runs of 4 KiB to 1 MiB to and from a GPU, beside one copy of as many bytes.");
  gpu->add_flag("--json", options->json, "print JSON lines on stdout (docs/json.md)");
  gpu->add_option("--seconds", options->seconds, "seconds that each row is measured")
      ->capture_default_str();
  const auto ordinal = std::make_shared<int>(0);
  gpu->add_option("--gpu", *ordinal, "number of the GPU")->capture_default_str();
  gpu->callback([options, ordinal, &chosen] {
    chosen = [options, ordinal] { return RunGpuBench(*options, *ordinal); };
  });

  CLI::App* stream = app.add_subcommand("bench-stream", "The other end of a plain TCP socket.");
  stream->group("");
  stream->callback([&chosen] { chosen = RunStream; });
  CLI::App* echo = app.add_subcommand("bench-echo", "The other end of a bare round trip.");
  echo->group("");
  echo->callback([&chosen] { chosen = local_bench::RunEcho; });
}

}  // namespace kvcove::lab
