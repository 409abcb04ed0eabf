// SPDX-License-Identifier: Apache-2.0
// What an object costs beside its payload, and what fragments leave unusable.
#include <fmt/core.h>
#include <malloc.h>

#include <algorithm>
#include <fstream>

#include "kvcove/base/random.h"
#include "kvcove/base/size.h"
#include "kvcove/base/text.h"
#include "lab/commands/bench.h"
#include "lab/commands/bench_local.h"

namespace kvcove::lab::local_bench {
namespace {

// Anonymous memory, and of shared memory what this process touched.
std::uint64_t ResidentBytes() {
  std::ifstream status("/proc/self/status");
  std::uint64_t sum = 0;
  for (std::string line; std::getline(status, line);) {
    for (const std::string_view name : {"RssAnon:", "RssShmem:"}) {
      if (line.starts_with(name))
        sum += LeadingNumber(std::string_view(line).substr(name.size())) * kKiB;
    }
  }
  return sum;
}

}  // namespace

Status BenchMemory(const BenchOptions& options, std::uint64_t objects) {
  Row row{.bench = "memory",
          .form = "embedded",
          .objects = objects,
          .object_bytes = 64,
          .batch = 1,
          .limit = "128 bytes an object"};
  {
    KVCOVE_ASSIGN(Target target,
                  Target::Open("embedded", objects * 64 * 5 / 4, objects * 5 / 4 + 1024));
    KVCOVE_TRY(Fill(*target.session, 1000, 64));
    malloc_trim(0);  // what earlier rows freed would hide what this one takes
    const std::uint64_t before = ResidentBytes();
    KVCOVE_TRY(Fill(*target.session, objects - 1000, 64, 1000));
    const std::uint64_t after = ResidentBytes();
    const double each = static_cast<double>(after - before) / static_cast<double>(objects - 1000);
    row.extra["bytes_per_object_beside_payload_and_key"] = each - 110;
    row.bytes_per_s = 128;
    row.limit_bytes_per_s = each - 110;
  }
  // Mixed sizes come and go; then a part is removed, and what is free is filled again until
  // something must go.
  KVCOVE_ASSIGN(Target target, Target::Open("embedded", 512 * kMiB));
  KVCOVE_ASSIGN(const Token token, target.session->Capture({}));
  const std::vector<std::byte> value(256 * kKiB, std::byte{5});
  Random random(4);
  const auto put = [&](const std::string& key) -> Result<std::uint64_t> {
    // Sizes from 64 B to 256 KiB, equally likely by magnitude.
    const std::uint64_t size = std::min<std::uint64_t>(
        (64ULL << random.Below(13)) + random.Below(64ULL << 6), value.size());
    const ConstBuffer piece{.data = value.data(), .size = size};
    const PutItem item{.key = key, .value = {&piece, 1}, .after = {}};
    ItemResult result;
    KVCOVE_TRY(target.session->Put(token, {&item, 1}, {&result, 1}, {.timeout = kTimeout}));
    if (!result.ok()) return Fail(result.code, "a put of the memory benchmark failed");
    return size;
  };
  const std::uint64_t churn = 1'000'000;
  for (std::uint64_t i = 0; i < churn; ++i) {
    KVCOVE_TRY(put(fmt::format("{}/{}", random.Below(5) == 0 ? "part" : "rest", i)));
  }
  KVCOVE_TRY(target.session->RemoveMatching("part/*", {.timeout = kTimeout}));
  KVCOVE_ASSIGN(const PoolStat freed, target.pool->Stat(kTimeout));
  PoolStat stat = freed;
  for (std::uint64_t i = 0; stat.evictions == freed.evictions; ++i) {
    KVCOVE_TRY(put(fmt::format("again/{}", i)));
    KVCOVE_ASSIGN(const PoolStat now, target.pool->Stat(kTimeout));
    if (now.evictions != freed.evictions) break;
    stat = now;
  }
  row.extra["churn_puts"] = churn;
  row.extra["free_bytes_before_refill"] = freed.free_bytes;
  row.extra["unusable_share_of_free"] =
      static_cast<double>(stat.free_bytes) / static_cast<double>(freed.free_bytes);
  Print(options, row);
  return {};
}

}  // namespace kvcove::lab::local_bench
