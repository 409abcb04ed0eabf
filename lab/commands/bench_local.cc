// SPDX-License-Identifier: Apache-2.0
// `kvcove bench local`: what the pool of one host does, beside the limit of this machine for the
// same work, measured in the same run, turn by turn. bench/README.md says what the figures mean.
#include "lab/commands/bench_local.h"

#include <fmt/core.h>

#include <algorithm>

#include "kvcove/base/size.h"
#include "lab/commands/bench.h"

namespace kvcove::lab::local_bench {
namespace {

template <typename T>
bool Wanted(const std::vector<T>& chosen, const std::type_identity_t<T>& one) {
  return chosen.empty() || std::find(chosen.begin(), chosen.end(), one) != chosen.end();
}

}  // namespace

Result<Target> Target::Open(const std::string& form, std::uint64_t memory,
                            std::uint64_t max_objects) {
  Target target;
  target.form = form;
  std::string address;
  KVCOVE_ASSIGN(auto directory, cli::TemporaryDirectory::Make());
  target.directory = std::make_unique<cli::TemporaryDirectory>(std::move(directory));
  if (form == "embedded") {
    address = fmt::format("embedded:?memory={}&max_objects={}", memory, max_objects);
  } else {
    KVCOVE_ASSIGN(target.daemon,
                  cli::ServeProcess::Start(
                      target.directory->path() + "/kvcove.sock",
                      {"--memory", std::to_string(memory), "--max-objects",
                       std::to_string(max_objects), "--data", target.directory->path() + "/data"}));
    address = target.daemon->address();
  }
  KVCOVE_ASSIGN(target.pool, Pool::Open(address, kTimeout));
  KVCOVE_ASSIGN(target.session, target.pool->OpenSession({.name = "bench", .engine = "bench"}));
  if (!target.pool->WaitPopulated(std::chrono::seconds(60))) {
    return Fail(Code::kTimeout, "the segment was not populated within a minute");
  }
  return target;
}

Result<int> Run(const BenchOptions& options) {
  for (const std::string form : {"process", "embedded"}) {
    if (!Wanted(options.forms, form)) continue;
    if (Wanted(options.benches, "get")) {
      for (const Shape& shape : {Shape{kMiB, 1, kGiB}, Shape{4 * kKiB, 128, kGiB},
                                 Shape{64 * kKiB, 128, kGiB}, Shape{kMiB, 64, kGiB}}) {
        if (!Wanted(options.batches, shape.batch)) continue;
        KVCOVE_TRY(BenchGet(options, form, shape));
      }
    }
    if (Wanted(options.benches, "put")) {
      for (const Shape& shape :
           {Shape{4 * kKiB, 1, 256 * kMiB}, Shape{4 * kKiB, 128, kGiB}, Shape{kMiB, 64, kGiB}}) {
        if (!Wanted(options.batches, shape.batch)) continue;
        KVCOVE_TRY(BenchPut(options, form, shape));
      }
    }
    // 64 MiB in one loan: half of a sixteenth of 2 GiB.
    for (const Shape& shape : {Shape{64 * kKiB, 128, 2 * kGiB}, Shape{kMiB, 64, 2 * kGiB}}) {
      if (!Wanted(options.batches, shape.batch)) continue;
      if (Wanted(options.benches, "borrow")) KVCOVE_TRY(BenchBorrow(options, form, shape));
      if (Wanted(options.benches, "reserve")) KVCOVE_TRY(BenchReserve(options, form, shape));
    }
    if (Wanted(options.benches, "exists")) {
      for (const std::uint64_t objects : {10'000ULL, 1'000'000ULL, 10'000'000ULL}) {
        if (objects > options.most_objects) continue;
        if (objects > 1'000'000 && form == "embedded" && options.forms.empty()) continue;
        KVCOVE_TRY(BenchExists(options, form, objects));
      }
    }
    if (Wanted(options.benches, "reset")) {
      for (const std::uint64_t objects : {1'000ULL, 1'000'000ULL}) {
        if (objects <= options.most_objects) KVCOVE_TRY(BenchReset(options, form, objects));
      }
    }
  }
  if (Wanted(options.benches, "memory") && Wanted(options.forms, "embedded")) {
    KVCOVE_TRY(BenchMemory(options, std::min<std::uint64_t>(options.most_objects, 1'000'000)));
  }
  return 0;
}

}  // namespace kvcove::lab::local_bench
