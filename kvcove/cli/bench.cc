// SPDX-License-Identifier: Apache-2.0
// `kvcove bench local`: what the pool of one host does, beside the limit of this machine for the
// same work, measured in the same run, turn by turn. bench/README.md says what the figures mean.
#include "kvcove/cli/bench.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <malloc.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "kvcove/base/clock.h"
#include "kvcove/base/posix.h"
#include "kvcove/base/random.h"
#include "kvcove/base/size.h"
#include "kvcove/cli/command.h"
#include "kvcove/pool/pool.h"

extern char** environ;

namespace kvcove::cli {

double Quantile(std::vector<double>& values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
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

namespace {

constexpr std::uint32_t kEchoRequestBytes = 4096 + 256;
constexpr std::uint32_t kEchoReplyBytes = 64;

// A pool of either form with one session.
struct Target {
  std::unique_ptr<TemporaryDirectory> directory;
  std::unique_ptr<ServeProcess> daemon;
  std::unique_ptr<Pool> pool;
  SessionPtr session;
  std::string form;

  static Result<Target> Open(const std::string& form, std::uint64_t memory,
                             std::uint64_t max_objects = 0) {
    Target target;
    target.form = form;
    std::string address;
    KVCOVE_ASSIGN(auto directory, TemporaryDirectory::Make());
    target.directory = std::make_unique<TemporaryDirectory>(std::move(directory));
    if (form == "embedded") {
      address = fmt::format("embedded:?memory={}&max_objects={}", memory, max_objects);
    } else {
      KVCOVE_ASSIGN(target.daemon,
                    ServeProcess::Start(target.directory->path() + "/kvcove.sock",
                                        {"--memory", std::to_string(memory), "--max-objects",
                                         std::to_string(max_objects), "--data",
                                         target.directory->path() + "/data"}));
      address = target.daemon->address();
    }
    KVCOVE_ASSIGN(target.pool, Pool::Open(address, kTimeout));
    KVCOVE_ASSIGN(target.session, target.pool->OpenSession({.name = "bench", .engine = "bench"}));
    if (!target.pool->WaitPopulated(std::chrono::seconds(60))) {
      return Fail(Code::kTimeout, "the segment was not populated within a minute");
    }
    return target;
  }
};

// Memory like the segment's (a shared memory file, populated) to copy from and to: the limit.
class PlainMemory {
 public:
  static Result<PlainMemory> Make(std::uint64_t bytes) {
    PlainMemory memory;
    KVCOVE_ASSIGN(const UniqueFd fd, CreateMemoryFile("kvcove-bench", bytes));
    KVCOVE_ASSIGN(memory.map_, Mapping::Map(fd.get(), bytes, Mapping::Access::kReadWrite));
    for (std::uint64_t at = 0; at < bytes; at += 4096) memory.map_.data()[at] = std::byte{1};
    return memory;
  }
  std::byte* data() const { return map_.data(); }

 private:
  Mapping map_;
};

struct Shape {
  std::uint64_t object_bytes;
  std::uint64_t batch;
  std::uint64_t memory;
};

Status BenchGet(const BenchOptions& options, const std::string& form, const Shape& shape) {
  KVCOVE_ASSIGN(Target target, Target::Open(form, shape.memory));
  const std::uint64_t objects = shape.memory / shape.object_bytes * 7 / 8;
  KVCOVE_TRY(Fill(*target.session, objects, shape.object_bytes));
  KVCOVE_ASSIGN(const PlainMemory plain, PlainMemory::Make(shape.memory));
  std::vector<std::byte> buffer(shape.object_bytes * shape.batch, std::byte{0});
  Random random(1);
  constexpr std::size_t kPicks = 64;
  std::vector<std::vector<std::uint64_t>> picks(kPicks);
  std::vector<std::vector<std::string>> keys(kPicks);
  for (std::size_t p = 0; p < kPicks; ++p) {
    for (std::uint64_t i = 0; i < shape.batch; ++i) {
      picks[p].push_back(random.Below(objects));
      keys[p].push_back(KeyOf(picks[p].back()));
    }
  }
  std::vector<MutableBuffer> pieces(shape.batch);
  std::vector<GetItem> items(shape.batch);
  std::vector<ItemResult> results(shape.batch);
  Status failed;
  const auto get = [&](std::size_t turn) {
    for (std::uint64_t i = 0; i < shape.batch; ++i) {
      pieces[i] = {.data = buffer.data() + i * shape.object_bytes, .size = shape.object_bytes};
      items[i] = {.key = keys[turn % kPicks][i], .into = {&pieces[i], 1}};
    }
    if (auto got = target.session->Get(items, results, {.timeout = kTimeout}); !got) failed = got;
    for (const ItemResult& result : results) {
      if (!result.ok()) failed = Fail(result.code, "a get of the benchmark failed");
    }
  };
  const auto copy = [&](std::size_t turn) {
    for (std::uint64_t i = 0; i < shape.batch; ++i) {
      std::memcpy(buffer.data() + i * shape.object_bytes,
                  plain.data() + picks[turn % kPicks][i] * shape.object_bytes, shape.object_bytes);
    }
  };
  const std::uint64_t bytes = shape.object_bytes * shape.batch;
  Row row{.bench = "get",
          .form = form,
          .objects = objects,
          .object_bytes = shape.object_bytes,
          .batch = shape.batch,
          .limit = "memcpy"};
  if (form == "process" && shape.batch > 1) {
    // A process of its own filled the segment's pages, but this one may not have touched all of
    // them: cold is another client's first touch.
    KVCOVE_ASSIGN(auto fresh, Pool::Open(target.daemon->address(), kTimeout));
    KVCOVE_ASSIGN(auto session, fresh->OpenSession({.name = "bench", .engine = "cold"}));
    std::swap(target.session, session);
    Row cold = row;
    cold.state = "cold";
    BenchOptions once = options;
    once.seconds = 0;
    Measure(once, cold, bytes, get, copy);
    Print(options, cold);
    std::swap(target.session, session);
  }
  for (std::size_t turn = 0; turn < kPicks; ++turn) {  // warm both
    get(turn);
    copy(turn);
  }
  KVCOVE_TRY(failed);
  Measure(options, row, bytes, get, copy);
  KVCOVE_TRY(failed);
  Print(options, row);
  return {};
}

// A process that answers each request of fixed size with a short one: a bare Unix-socket round
// trip.
class EchoProcess {
 public:
  static Result<std::unique_ptr<EchoProcess>> Start() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      return FailErrno(Code::kInternal, "socketpair");
    }
    auto echo = std::make_unique<EchoProcess>();
    echo->socket_ = UniqueFd(ends[0]);
    const UniqueFd theirs(fcntl(ends[1], F_DUPFD_CLOEXEC, 10));
    close(ends[1]);
    std::string self = SelfPath();
    std::string name = "bench-echo";
    char* argv[] = {self.data(), name.data(), nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, theirs.get(), 3);
    const int failed = posix_spawn(&echo->pid_, argv[0], &actions, nullptr, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed != 0) return Fail(Code::kInternal, "starting the echo process");
    return echo;
  }
  ~EchoProcess() {
    socket_.Reset();
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
  }
  void RoundTrip() {
    char request[kEchoRequestBytes] = {};
    char reply[kEchoReplyBytes];
    (void)!send(socket_.get(), request, sizeof(request), MSG_NOSIGNAL);
    (void)!recv(socket_.get(), reply, sizeof(reply), MSG_WAITALL);
  }

 private:
  UniqueFd socket_;
  pid_t pid_ = 0;
};

Result<int> RunEcho() {
  char request[kEchoRequestBytes];
  const char reply[kEchoReplyBytes] = {};
  while (recv(3, request, sizeof(request), MSG_WAITALL) == sizeof(request)) {
    (void)!send(3, reply, sizeof(reply), MSG_NOSIGNAL);
  }
  return 0;
}

Status BenchPut(const BenchOptions& options, const std::string& form, const Shape& shape) {
  KVCOVE_ASSIGN(Target target, Target::Open(form, shape.memory));
  KVCOVE_ASSIGN(const PlainMemory plain, PlainMemory::Make(shape.memory));
  KVCOVE_ASSIGN(const auto echo, EchoProcess::Start());
  const std::uint64_t bytes = shape.object_bytes * shape.batch;
  const std::vector<std::byte> values(bytes, std::byte{3});
  const std::uint64_t places = shape.memory / shape.object_bytes;
  // Full from the start, so that each put evicts; and every page of this process is touched.
  KVCOVE_TRY(Fill(*target.session, places, shape.object_bytes, 1ULL << 40));
  KVCOVE_ASSIGN(const Token token, target.session->Capture({}));
  std::vector<ConstBuffer> pieces(shape.batch);
  std::vector<PutItem> items(shape.batch);
  std::vector<ItemResult> results(shape.batch);
  std::vector<std::string> keys(shape.batch);
  std::uint64_t next = 0;
  Status failed;
  const auto prepare = [&] {
    for (std::uint64_t i = 0; i < shape.batch; ++i) {
      keys[i] = KeyOf(next++);
      pieces[i] = {.data = values.data() + i * shape.object_bytes, .size = shape.object_bytes};
      items[i] = {.key = keys[i], .value = {&pieces[i], 1}, .after = {}};
    }
  };
  prepare();
  const auto put = [&](std::size_t) {
    if (auto done = target.session->Put(token, items, results, {.timeout = kTimeout}); !done) {
      failed = done;
    }
    for (const ItemResult& result : results) {
      if (!result.ok()) failed = Fail(result.code, "a put of the benchmark failed");
    }
  };
  Random random(2);
  const bool small = shape.batch == 1 && shape.object_bytes <= 4096;
  const auto limit = [&](std::size_t) {
    if (small) {
      echo->RoundTrip();
    } else {
      const std::uint64_t from = random.Below(places - shape.batch);
      for (std::uint64_t i = 0; i < shape.batch; ++i) {
        std::memcpy(plain.data() + (from + i) * shape.object_bytes,
                    values.data() + i * shape.object_bytes, shape.object_bytes);
      }
    }
  };
  Row row{.bench = "put",
          .form = form,
          .objects = places,
          .object_bytes = shape.object_bytes,
          .batch = shape.batch,
          .limit = small ? "unix socket round trip" : "memcpy"};
  // Keys are made outside the timed part.
  std::vector<double> ours;
  std::vector<double> theirs;
  const std::int64_t until = Now() + static_cast<std::int64_t>(options.seconds * 1e9);
  while (Now() < until || ours.size() < 20) {
    std::int64_t start = Now();
    put(0);
    ours.push_back(static_cast<double>(Now() - start) / 1e3);
    prepare();
    start = Now();
    limit(0);
    theirs.push_back(static_cast<double>(Now() - start) / 1e3);
  }
  KVCOVE_TRY(failed);
  row.p50_us = Quantile(ours, 0.5);
  row.p99_us = Quantile(ours, 0.99);
  row.limit_p50_us = Quantile(theirs, 0.5);
  row.bytes_per_s = static_cast<double>(bytes) / row.p50_us * 1e6;
  row.limit_bytes_per_s = static_cast<double>(bytes) / row.limit_p50_us * 1e6;
  Print(options, row);
  return {};
}

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

// Anonymous memory, and of shared memory what this process touched.
std::uint64_t ResidentBytes() {
  std::ifstream status("/proc/self/status");
  std::uint64_t sum = 0;
  for (std::string line; std::getline(status, line);) {
    for (const std::string_view name : {"RssAnon:", "RssShmem:"}) {
      if (line.starts_with(name))
        sum += std::strtoull(line.c_str() + name.size(), nullptr, 10) * kKiB;
    }
  }
  return sum;
}

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

template <typename T>
bool Wanted(const std::vector<T>& chosen, const std::type_identity_t<T>& one) {
  return chosen.empty() || std::find(chosen.begin(), chosen.end(), one) != chosen.end();
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

}  // namespace

void AddBench(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* bench =
      app.add_subcommand("bench", "Measure this build against this machine's limits.");
  bench->require_subcommand(1);
  CLI::App* local = bench->add_subcommand(
      "local", "The pool of one host: get, put, exists, reset, memory; embedded and as a process.");
  local->add_flag("--json", options->json, "JSON lines on stdout (docs/json.md)");
  local->add_option("--bench", options->benches, "only these: get, put, exists, reset, memory")
      ->check(CLI::IsMember({"get", "put", "exists", "reset", "memory"}));
  local->add_option("--form", options->forms, "only these: process, embedded")
      ->check(CLI::IsMember({"process", "embedded"}));
  local->add_option("--batch", options->batches, "only gets and puts of these batch sizes");
  local->add_option("--most-objects", options->most_objects, "leave out what needs more objects")
      ->capture_default_str();
  local->add_option("--seconds", options->seconds, "a row")->capture_default_str();
  local->callback([options, &chosen] { chosen = [options] { return Run(*options); }; });

  CLI::App* remote = bench->add_subcommand(
      "remote", "A master, owners and this process over loopback TCP: get, put, exists, reset.");
  remote->add_flag("--json", options->json, "JSON lines on stdout (docs/json.md)");
  remote->add_option("--bench", options->benches, "only these: get, put, exists, reset")
      ->check(CLI::IsMember({"get", "put", "exists", "reset"}));
  remote->add_option("--batch", options->batches, "only gets and puts of these batch sizes");
  remote->add_option("--seconds", options->seconds, "a row")->capture_default_str();
  remote->add_option("--most-objects", options->most_objects, "of the reset row")
      ->capture_default_str();
  remote->callback([options, &chosen] { chosen = [options] { return RunRemoteBench(*options); }; });

  CLI::App* scale = bench->add_subcommand(
      "scale", "How far one master goes, and what resets, silence and garbage cost others.");
  scale->add_flag("--json", options->json, "JSON lines on stdout (docs/json.md)");
  scale
      ->add_option("--bench", options->benches,
                   "only these: directory, restart, lookups, reset, silent, garbage")
      ->check(CLI::IsMember({"directory", "restart", "lookups", "reset", "silent", "garbage"}));
  scale->add_option("--seconds", options->seconds, "a measurement")->capture_default_str();
  scale->add_option("--most-objects", options->most_objects, "leave out what needs more objects")
      ->capture_default_str();
  scale->callback([options, &chosen] { chosen = [options] { return RunScaleBench(*options); }; });

  CLI::App* control = bench->add_subcommand(
      "control", "What a master's end, removals and resets cost those who do something else.");
  control->add_flag("--json", options->json, "JSON lines on stdout (docs/json.md)");
  control->add_option("--bench", options->benches, "only these: reads, resets, removals, pattern")
      ->check(CLI::IsMember({"reads", "resets", "removals", "pattern"}));
  control->add_option("--most-objects", options->most_objects, "of a row")->capture_default_str();
  control->callback(
      [options, &chosen] { chosen = [options] { return RunControlBench(*options); }; });

  CLI::App* connector = bench->add_subcommand(
      "connector", "What an engine's scheduler pays: look-ups of 4,096 blocks, steps.");
  connector->add_flag("--json", options->json, "JSON lines on stdout (docs/json.md)");
  connector->add_option("--seconds", options->seconds, "a row")->capture_default_str();
  connector->callback(
      [options, &chosen] { chosen = [options] { return RunConnectorBench(*options); }; });

  CLI::App* stream = app.add_subcommand("bench-stream", "The other end of a plain TCP socket.");
  stream->group("");
  stream->callback([&chosen] { chosen = RunStream; });
  CLI::App* echo = app.add_subcommand("bench-echo", "The other end of a bare round trip.");
  echo->group("");
  echo->callback([&chosen] { chosen = RunEcho; });
}

}  // namespace kvcove::cli
