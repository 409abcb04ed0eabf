// SPDX-License-Identifier: Apache-2.0
// Look-ups beside a bare table, resets beside one sync.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "kvcove/base/random.h"
#include "kvcove/base/size.h"
#include "lab/commands/bench.h"
#include "lab/commands/bench_local.h"

namespace kvcove::lab::local_bench {
namespace {

// Hashes and whole keys in two arrays, found with prefetches: about the least that such a look-up
// can cost.
class BareTable {
 public:
  explicit BareTable(std::uint64_t objects) {
    while (mask_ + 1 < objects * 2) mask_ = mask_ * 2 + 1;
    slots_.assign(mask_ + 1, 0);
  }
  static std::uint64_t HashOf(std::string_view key) {
    std::uint64_t hash = key.size();
    for (std::size_t at = 0; at + 8 <= key.size(); at += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, key.data() + at, 8);
      hash = (hash ^ word) * 0x9E3779B97F4A7C15ULL;
      hash ^= hash >> 32;
    }
    return hash;
  }
  void Insert(const std::string& key) {
    keys_.insert(keys_.end(), key.begin(), key.end());
    const std::uint64_t hash = HashOf(key);
    std::uint64_t at = hash & mask_;
    while (slots_[at] != 0) at = (at + 1) & mask_;
    slots_[at] = (hash >> 40 << 40) | (keys_.size() / key.size());
  }
  std::size_t Count(std::span<const std::string> keys) const {
    std::uint64_t hashes[128] = {};
    std::size_t found = 0;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      hashes[i] = HashOf(keys[i]);
      __builtin_prefetch(&slots_[hashes[i] & mask_]);
    }
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::uint64_t slot = slots_[hashes[i] & mask_];
      if (slot != 0) {
        const char* key = &keys_[((slot & 0xFFFFFFFFFF) - 1) * keys[i].size()];
        __builtin_prefetch(key);
        __builtin_prefetch(key + 64);
      }
    }
    for (std::size_t i = 0; i < keys.size(); ++i) {
      for (std::uint64_t at = hashes[i] & mask_; slots_[at] != 0; at = (at + 1) & mask_) {
        if (slots_[at] >> 40 != hashes[i] >> 40) continue;
        const char* key = &keys_[((slots_[at] & 0xFFFFFFFFFF) - 1) * keys[i].size()];
        if (std::memcmp(key, keys[i].data(), keys[i].size()) == 0) {
          ++found;
          break;
        }
      }
    }
    return found;
  }

 private:
  std::uint64_t mask_ = 1;
  std::vector<std::uint64_t> slots_;
  std::vector<char> keys_;
};

}  // namespace

Status BenchExists(const BenchOptions& options, const std::string& form, std::uint64_t objects) {
  constexpr std::size_t kBatch = 128;
  constexpr std::size_t kPicks = 512;
  KVCOVE_ASSIGN(Target target,
                Target::Open(form, std::max<std::uint64_t>(objects * 64 * 5 / 4, 64 * kMiB),
                             objects * 5 / 4 + 1024));
  KVCOVE_TRY(Fill(*target.session, objects, 64));
  BareTable table(objects);
  for (std::uint64_t i = 0; i < objects; ++i) table.Insert(KeyOf(i));
  Random random(3);
  std::vector<std::vector<std::string>> keys(kPicks);
  std::vector<std::vector<std::string_view>> views(kPicks);
  for (std::size_t p = 0; p < kPicks; ++p) {
    for (std::size_t i = 0; i < kBatch; ++i) keys[p].push_back(KeyOf(random.Below(objects)));
    views[p].assign(keys[p].begin(), keys[p].end());
  }
  std::vector<ItemResult> results(kBatch);
  Status failed;
  std::size_t found = 0;
  Row row{.bench = "exists",
          .form = form,
          .objects = objects,
          .object_bytes = 64,
          .batch = kBatch,
          .limit = "bare table with prefetch"};
  const auto exists = [&](std::size_t turn) {
    (void)target.session->Exists(views[turn % kPicks], results, {.timeout = kTimeout});
    for (const ItemResult& result : results) {
      if (!result.ok()) failed = Fail(result.code, "a key of the benchmark was not found");
    }
  };
  const auto bare = [&](std::size_t turn) { found += table.Count(keys[turn % kPicks]); };
  for (std::size_t turn = 0; turn < kPicks; ++turn) exists(turn);
  KVCOVE_TRY(failed);
  Measure(options, row, kBatch * 110, exists, bare);
  KVCOVE_TRY(failed);
  if (found == 0) return Fail(Code::kInternal, "the bare table found nothing");
  Print(options, row);
  return {};
}

Status BenchReset(const BenchOptions& options, const std::string& form, std::uint64_t objects) {
  KVCOVE_ASSIGN(Target target,
                Target::Open(form, std::max<std::uint64_t>(objects * 64 * 5 / 4, 64 * kMiB),
                             objects * 5 / 4 + 1024));
  // What one sync of a short append costs on the same file system.
  const std::string path = target.directory->path() + "/sync";
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  std::vector<double> ours;
  std::vector<double> syncs;
  const int rounds = objects > 100'000 ? 8 : 200;
  for (int round = 0; round < rounds; ++round) {
    KVCOVE_TRY(Fill(*target.session, objects, 64));
    std::int64_t start = Now();
    KVCOVE_TRY(target.session->Reset({.timeout = kTimeout}));
    ours.push_back(static_cast<double>(Now() - start) / 1e3);
    start = Now();
    (void)!write(file.get(), path.data(), path.size());
    fdatasync(file.get());
    syncs.push_back(static_cast<double>(Now() - start) / 1e3);
    // The space comes back in the background; the next round starts when it has.
    for (int tries = 0; tries < 2000; ++tries) {
      const auto stat = target.pool->Stat(kTimeout);
      if (stat && stat->object_bytes == 0) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  Row row{.bench = "reset",
          .form = form,
          .objects = objects,
          .object_bytes = 64,
          .batch = 1,
          .limit = "one fdatasync"};
  row.p50_us = Quantile(ours, 0.5);
  row.p99_us = Quantile(ours, 0.99);
  row.limit_p50_us = Quantile(syncs, 0.5);
  row.extra = {{"limit_p99_us", Quantile(syncs, 0.99)}, {"rounds", rounds}};
  // Nothing is moved: both rates are resets a second.
  row.bytes_per_s = 1e6 / row.p50_us;
  row.limit_bytes_per_s = 1e6 / row.limit_p50_us;
  Print(options, row);
  return {};
}

}  // namespace kvcove::lab::local_bench
