// SPDX-License-Identifier: Apache-2.0
// A pool with a disk against fio, in turn on one directory in one run: what comes up, what goes
// down, and what both cost. Embedded pool, values in memory of this process. One JSON line a row.
//   disk_bench DIRECTORY [--pool URL] [load|look|gets|demotion|random ...]
// All rows, unless some are named. URL: instead of the embedded pool, one that has an owner with as
// much memory and disk, the disk in DIRECTORY.
// Errors end it: without fio on the path there is nothing to compare with.
#include <fmt/core.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "kvcove/base/random.h"
#include "kvcove/pool/pool.h"
#include "kvcove/uring/uring.h"

namespace kvcove {
namespace {

using Steady = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::uint64_t kMi = 1 << 20;
constexpr std::uint64_t kMemory = 512 * kMi;
constexpr std::uint64_t kDisk = 8192 * kMi;
constexpr std::uint64_t kLarge = 5120;  // values of 1 MiB
constexpr std::uint64_t kSmall = 60'000;
constexpr std::uint64_t kSmallSize = 64 << 10;
constexpr int kRounds = 5;
constexpr double kGi = 1024.0 * kMi;
constexpr CallOptions kLong{.timeout = milliseconds(30'000)};

double Since(Steady::time_point begin) {
  return std::chrono::duration<double>(Steady::now() - begin).count();
}
double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + (static_cast<double>(now.tv_nsec) / 1e9);
}

struct Speed {
  double bytes_s = 0;
  double cpu_s_a_gib = 0;
};

// What fio does as the limit of a row. The file is as long as the pool's disk, and written once
// before: a device, and what caches it, treats 1 GiB that is written again and again better than 8
// GiB.
struct Work {
  std::string rw;
  std::string block;
  int depth = 0;
  std::uint64_t area = kDisk;  // bytes at the file's start, as many as the row's values take
  int seconds = 2;             // 0: once over the area
};

// fio with one job on a file of its own, O_DIRECT.
Result<Speed> Fio(const std::string& directory, const Work& work) {
  const std::string command = fmt::format(
      "fio --name=limit --filename={}/fio.bin --filesize={} --rw={} --bs={} --iodepth={} --size={} "
      "--direct=1 --ioengine=io_uring --output-format=json --thread{}",
      directory, kDisk, work.rw, work.block, work.depth, work.area,
      work.seconds > 0 ? fmt::format(" --time_based --runtime={}", work.seconds) : "");
  std::string text;
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return FailErrno(Code::kInternal, "starting fio");
  std::array<char, 4096> part{};
  while (const std::size_t count = fread(part.data(), 1, part.size(), pipe)) {
    text.append(part.data(), count);
  }
  const int ended = pclose(pipe);
  // fio may say something before the object.
  const auto json = nlohmann::json::parse(text.substr(std::min(text.find('{'), text.size())),
                                          nullptr, /*allow_exceptions=*/false);
  if (ended != 0 || json.is_discarded()) {
    return Fail(Code::kUnavailable, "fio (Debian: apt install fio) failed: " + command);
  }
  const auto& job = json["jobs"][0];
  const auto& way = job[work.rw.ends_with("read") ? "read" : "write"];
  const double bytes = way["io_bytes"];
  const double cpu = (job["usr_cpu"].get<double>() + job["sys_cpu"].get<double>()) / 100 *
                     job["job_runtime"].get<double>() / 1000;
  return Speed{.bytes_s = way["bw_bytes"], .cpu_s_a_gib = cpu / (bytes / kGi)};
}

// The processor time of one XXH3 and one memcpy of a GiB, in pieces of `size`.
double HashAndCopy(std::uint64_t size) {
  std::string from(64 * kMi, 'x');
  std::string to(64 * kMi, 'y');
  const double begin = CpuSeconds();
  std::uint64_t sum = 0;
  for (int round = 0; round < 16; ++round) {
    for (std::uint64_t at = 0; at < from.size(); at += size) {
      sum += XXH3_128bits(from.data() + at, size).low64;
      std::memcpy(to.data() + at, from.data() + at, size);
    }
  }
  const double seconds = CpuSeconds() - begin;
  return sum == 1 ? 0 : seconds;
}

class Bench {
 public:
  Bench(std::string directory, std::string url, std::vector<std::string> only)
      : directory_(std::move(directory)), url_(std::move(url)), only_(std::move(only)) {}

  Status Open() {
    if (url_.empty()) {
      url_ = fmt::format("embedded:?memory={}&disk={}:{}&data={}&disk_admit=all", kMemory,
                         directory_, kDisk, directory_ + "/data");
    }
    KVCOVE_ASSIGN(pool_, Pool::Open(url_));
    KVCOVE_ASSIGN(session_, pool_->OpenSession({.name = "bench", .assume_weights = true}));
    return {};
  }
  Status Run();

 private:
  // fio for two seconds, then the pool. The rounds' medians are the row.
  struct Round {
    Speed ours;
    Speed fio;
    double share = 0;  // what the disk served, or took
  };
  template <typename Figure>
  static double Median(const std::vector<Round>& rounds, Figure figure) {
    std::vector<double> all;
    for (const Round& round : rounds) all.push_back(figure(round));
    std::ranges::sort(all);
    return all[all.size() / 2];
  }
  static std::string Speeds(const std::vector<Round>& rounds) {
    return fmt::format(
        "\"mb_s\":{:.0f},\"fio_mb_s\":{:.0f},\"ratio\":{:.3f}",
        Median(rounds, [](const Round& r) { return r.ours.bytes_s / 1e6; }),
        Median(rounds, [](const Round& r) { return r.fio.bytes_s / 1e6; }),
        Median(rounds, [](const Round& r) { return r.ours.bytes_s / r.fio.bytes_s; }));
  }
  static std::string KeyOf(std::uint64_t size, std::uint64_t i) {
    return fmt::format("{}/{:08}", size, i);
  }
  PoolStat Stat() { return *pool_->Stat(); }
  Status PutOne(std::uint64_t size, std::uint64_t i);
  // Puts `count` values, without losing any.
  Status PutAll(std::uint64_t size, std::uint64_t count);
  void Drain();
  // The seconds that one call for `keys` takes.
  Result<double> Load(std::uint64_t size, std::span<const std::uint64_t> numbers);
  Result<bool> Look(std::uint64_t size, std::span<const std::uint64_t> numbers,
                    const CallOptions& options);
  Result<Round> Loads(std::uint64_t size, std::uint64_t count, bool random);
  Status Row(const char* name, std::uint64_t size, std::uint64_t count, bool random,
             const Work& limit);
  Status Demotion();
  Status GetsMeanwhile();
  Status LookThenLoad();
  std::vector<std::uint64_t> Next(std::uint64_t count, bool random);

  bool Wanted(const std::string& row) const {
    return only_.empty() || std::ranges::find(only_, row) != only_.end();
  }

  const std::string directory_;
  std::string url_;
  const std::vector<std::string> only_;
  std::unique_ptr<Pool> pool_;
  SessionPtr session_;
  std::string value_ = std::string(kMi, 'v');
  std::string into_ = std::string(64 * kMi, '\0');
  Random random_{1};
  std::uint64_t stored_ = 0;  // values of the size that is being measured; the oldest on the disk
  std::uint64_t next_ = 0;
};

Status Bench::PutOne(std::uint64_t size, std::uint64_t i) {
  std::memcpy(value_.data(), &i, sizeof(i));
  const ConstBuffer piece{.data = value_.data(), .size = size};
  const std::string key = KeyOf(size, i);
  const PutItem item{.key = key, .value = {&piece, 1}, .after = {}};
  ItemResult result;
  KVCOVE_ASSIGN(const Token token, session_->Capture({}));
  (void)session_->Put(token, {&item, 1}, {&result, 1}, kLong);
  if (result.code == Code::kOk || result.code == Code::kExists) return {};
  return Fail(result.code, "a put of " + key);
}

void Bench::Drain() {
  while (Stat().disk_queued_bytes > 0) std::this_thread::sleep_for(milliseconds(1));
}

// The queue is an eighth of the memory.
Status Bench::PutAll(std::uint64_t size, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    KVCOVE_TRY(PutOne(size, i));
    if (i % (8 * kMi / size) == 0) Drain();
  }
  Drain();
  stored_ = count - (2 * kMemory / size);  // not what memory has
  next_ = 0;
  return {};
}

std::vector<std::uint64_t> Bench::Next(std::uint64_t count, bool random) {
  std::vector<std::uint64_t> numbers;
  for (std::uint64_t i = 0; i < count; ++i) {
    numbers.push_back(random ? random_.Below(stored_) : next_++ % stored_);
  }
  std::ranges::sort(numbers);
  numbers.erase(std::ranges::unique(numbers).begin(), numbers.end());
  return numbers;
}

Result<double> Bench::Load(std::uint64_t size, std::span<const std::uint64_t> numbers) {
  std::vector<std::string> keys;
  std::vector<MutableBuffer> pieces;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    keys.push_back(KeyOf(size, numbers[i]));
    pieces.push_back({.data = into_.data() + (i * size), .size = size});
  }
  std::vector<GetItem> items;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    items.push_back({.key = keys[i], .into = {&pieces[i], 1}});
  }
  std::vector<ItemResult> results(items.size());
  const auto begin = Steady::now();
  (void)session_->Get(items, results, kLong);
  const double seconds = Since(begin);
  for (std::size_t i = 0; i < items.size(); ++i) {
    std::uint64_t number = 0;
    std::memcpy(&number, into_.data() + (i * size), sizeof(number));
    if (!results[i].ok()) {
      return Fail(results[i].code,
                  fmt::format("{}: {}", keys[i], MissReasonName(results[i].reason)));
    }
    if (number != numbers[i]) return Fail(Code::kCorrupt, keys[i] + " has another's value");
  }
  return seconds;
}

// A GiB in calls for `count` values each.
Result<Bench::Round> Bench::Loads(std::uint64_t size, std::uint64_t count, bool random) {
  double seconds = 0;
  std::uint64_t bytes = 0;
  std::uint64_t asked = 0;
  const double cpu_before = CpuSeconds();
  const std::uint64_t read_before = Stat().disk_hits;
  while (bytes < 1024 * kMi) {
    const std::vector<std::uint64_t> numbers = Next(count, random);
    KVCOVE_ASSIGN(const double one, Load(size, numbers));
    seconds += one;
    bytes += numbers.size() * size;
    asked += numbers.size();
  }
  return Round{
      .ours = {.bytes_s = static_cast<double>(bytes) / seconds,
               .cpu_s_a_gib = (CpuSeconds() - cpu_before) / (static_cast<double>(bytes) / kGi)},
      .share = static_cast<double>(Stat().disk_hits - read_before) / static_cast<double>(asked)};
}

Status Bench::Row(const char* name, std::uint64_t size, std::uint64_t count, bool random,
                  const Work& limit) {
  std::vector<Round> rounds;
  for (int i = 0; i < kRounds; ++i) {
    KVCOVE_ASSIGN(const Speed fio, Fio(directory_, limit));
    KVCOVE_ASSIGN(Round round, Loads(size, count, random));
    round.fio = fio;
    round.fio.cpu_s_a_gib += HashAndCopy(size);
    rounds.push_back(round);
  }
  fmt::print(
      "{{\"row\":\"{}\",{},\"cpu_s_a_gib\":{:.3f},\"limit_cpu_s_a_gib\":{:.3f},"
      "\"cpu_ratio\":{:.2f},\"from_disk\":{:.3f}}}\n",
      name, Speeds(rounds), Median(rounds, [](const Round& r) { return r.ours.cpu_s_a_gib; }),
      Median(rounds, [](const Round& r) { return r.fio.cpu_s_a_gib; }),
      Median(rounds, [](const Round& r) { return r.ours.cpu_s_a_gib / r.fio.cpu_s_a_gib; }),
      Median(rounds, [](const Round& r) { return r.share; }));
  return {};
}

// Puts as fast as they go for two seconds, on a disk that has been written once, as fio's file has:
// what is beyond the disk's speed is dropped.
Status Bench::Demotion() {
  std::uint64_t i = 1'000'000;
  while (Stat().disk_written_bytes < kDisk) KVCOVE_TRY(PutOne(kMi, i++));
  std::vector<Round> rounds;
  for (int round = 0; round < kRounds; ++round) {
    Drain();
    KVCOVE_ASSIGN(const Speed fio, Fio(directory_, {.rw = "write", .block = "1m", .depth = 16}));
    const PoolStat before = Stat();
    const double cpu_before = CpuSeconds();
    const auto begin = Steady::now();
    for (; Since(begin) < 2; ++i) KVCOVE_TRY(PutOne(kMi, i));
    const double seconds = Since(begin);
    const PoolStat after = Stat();
    const auto written = static_cast<double>(after.disk_written_bytes - before.disk_written_bytes);
    rounds.push_back({.ours = {.bytes_s = written / seconds,
                               .cpu_s_a_gib = (CpuSeconds() - cpu_before) / (written / kGi)},
                      .fio = fio,
                      .share = written / (written + (static_cast<double>(after.disk_dropped_full -
                                                                         before.disk_dropped_full) *
                                                     kMi))});
  }
  fmt::print(
      "{{\"row\":\"demotion\",{},\"cpu_s_a_gib_with_puts\":{:.3f},\"fio_cpu_s_a_gib\":{:.3f},"
      "\"written_of_evicted\":{:.3f}}}\n",
      Speeds(rounds), Median(rounds, [](const Round& r) { return r.ours.cpu_s_a_gib; }),
      Median(rounds, [](const Round& r) { return r.fio.cpu_s_a_gib; }),
      Median(rounds, [](const Round& r) { return r.share; }));
  Drain();
  return {};
}

// A value that memory keeps, because it is read all the time; alone, and while values go down.
Status Bench::GetsMeanwhile() {
  KVCOVE_TRY(PutOne(64 << 10, 77'777'777));
  const std::uint64_t number[] = {77'777'777};
  const auto measure = [&]() -> Result<std::pair<double, double>> {
    std::vector<double> times;
    for (int i = 0; i < 20'000; ++i) {
      KVCOVE_ASSIGN(const double one, Load(64 << 10, number));
      times.push_back(one * 1e6);
    }
    std::ranges::sort(times);
    return std::pair(times[times.size() / 2], times[times.size() * 99 / 100]);
  };
  KVCOVE_ASSIGN(const auto alone, measure());
  std::atomic<bool> stop{false};
  std::thread puts([&] {
    const auto session = pool_->OpenSession({.name = "bench", .assume_weights = true});
    if (!session) return;
    const std::string value(kMi, 'w');
    for (std::uint64_t i = 2'000'000; !stop; ++i) {
      const ConstBuffer piece{.data = value.data(), .size = value.size()};
      const std::string key = KeyOf(kMi, i);
      const PutItem item{.key = key, .value = {&piece, 1}, .after = {}};
      ItemResult result;
      const auto token = (*session)->Capture({});
      if (token) (void)(*session)->Put(*token, {&item, 1}, {&result, 1}, kLong);
    }
  });
  const auto beside = measure();
  stop = true;
  puts.join();
  if (!beside) return std::unexpected(beside.error());
  fmt::print(
      "{{\"row\":\"get_64kib_from_memory\",\"p50_us\":{:.1f},\"p99_us\":{:.1f},"
      "\"p50_us_demoting\":{:.1f},\"p99_us_demoting\":{:.1f}}}\n",
      alone.first, alone.second, beside->first, beside->second);
  Drain();
  return {};
}

Result<bool> Bench::Look(std::uint64_t size, std::span<const std::uint64_t> numbers,
                         const CallOptions& options) {
  std::vector<std::string> keys;
  for (const std::uint64_t number : numbers) keys.push_back(KeyOf(size, number));
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  std::vector<ItemResult> results(keys.size());
  (void)session_->Exists(views, results, options);
  return std::ranges::all_of(results, [](const ItemResult& result) { return result.ok(); });
}

Status Bench::LookThenLoad() {
  std::vector<double> alone;
  std::vector<double> after;
  for (int i = 0; i < 12; ++i) {
    const std::vector<std::uint64_t> numbers = Next(64, false);
    if (i % 2 == 1) {
      KVCOVE_ASSIGN(
          const bool all,
          Look(kMi, numbers, {.timeout = milliseconds(1000), .hold = milliseconds(2000)}));
      if (!all) return Fail(Code::kMiss, "a look-up found not all");
      std::this_thread::sleep_for(milliseconds(25));
    }
    KVCOVE_ASSIGN(const double one, Load(kMi, numbers));
    (i % 2 == 1 ? after : alone).push_back(one * 1e3);
  }
  std::ranges::sort(alone);
  std::ranges::sort(after);
  fmt::print("{{\"row\":\"look_up_then_load\",\"alone_ms\":{:.1f},\"after_25_ms\":{:.1f}}}\n",
             alone[alone.size() / 2], after[after.size() / 2]);
  return {};
}

Status Bench::Run() {
  KVCOVE_ASSIGN(const Speed first,
                Fio(directory_, {.rw = "write", .block = "1m", .depth = 16, .seconds = 0}));
  fmt::print("{{\"row\":\"fio_first_writes\",\"mb_s\":{:.0f}}}\n", first.bytes_s / 1e6);
  KVCOVE_TRY(Open());
  KVCOVE_TRY(PutAll(kMi, kLarge));
  if (Wanted("load")) {
    const Work limit{.rw = "read", .block = "1m", .depth = 64, .area = kLarge * kMi};
    KVCOVE_TRY(Row("load_64x1mib", kMi, 64, false, limit));
  }
  if (Wanted("look")) KVCOVE_TRY(LookThenLoad());
  if (Wanted("gets")) KVCOVE_TRY(GetsMeanwhile());
  if (Wanted("demotion")) KVCOVE_TRY(Demotion());
  if (!Wanted("random")) return {};
  KVCOVE_TRY(PutAll(kSmallSize, kSmall));
  const Work limit{.rw = "randread", .block = "64k", .depth = 32, .area = kSmall * kSmallSize};
  return Row("load_128x64kib_random", kSmallSize, 128, true, limit);
}

int Main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  std::string url;
  if (words.size() >= 3 && words[1] == "--pool") {
    url = words[2];
    words.erase(words.begin() + 1, words.begin() + 3);
  }
  if (words.empty()) {
    fmt::print(stderr,
               "disk_bench DIRECTORY [--pool URL] [load|look|gets|demotion|random ...]: writes a "
               "disk of 8 GiB and fio's file of 8 GiB there\n");
    return 2;
  }
  std::string directory = words[0] + "/disk_bench-XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) {
    fmt::print(stderr, "disk_bench: '{}' cannot be written\n", words[0]);
    return 1;
  }
  Status outcome;
  {
    Bench bench(directory, url, {words.begin() + 1, words.end()});
    outcome = bench.Run();
  }
  std::filesystem::remove_all(directory);
  if (outcome) return 0;
  fmt::print(stderr, "disk_bench: {}\n", outcome.error().ToString());
  return 1;
}

}  // namespace
}  // namespace kvcove

int main(int argc, char** argv) {
  kvcove::uring::UseUring();
  setvbuf(stdout, nullptr, _IOLBF, 0);
  return kvcove::Main(argc, argv);
}
