// SPDX-License-Identifier: Apache-2.0
// The log against a bare loop of the same device, in the same run: sequential puts against 1 MiB
// writes, and reads against reads of the same shape and depth. Then the time of a start with a
// million objects. One JSON line a row.
//   disklog_bench DIRECTORY [--threads]
#include <fmt/core.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "kvcove/base/clock.h"
#include "kvcove/disklog/disk_file.h"
#include "kvcove/uring/uring.h"

namespace kvcove::disklog {
namespace {

using Steady = std::chrono::steady_clock;
constexpr Id128 kPool{.high = 1, .low = 1};
constexpr std::uint64_t kDiskBytes = 3ULL << 30;

double Seconds(Steady::time_point since) {
  return std::chrono::duration<double>(Steady::now() - since).count();
}
double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + (static_cast<double>(now.tv_nsec) / 1e9);
}

struct Speed {
  double bytes_per_s = 0;
  double cpu_s = 0;
};

// `count` operations of `size` bytes, `depth` at once, at offsets that `offset` gives.
template <typename Start>
Speed Loop(std::uint64_t count, std::uint64_t size, std::uint64_t depth,
           const std::function<void()>& poll, Start&& start) {
  const auto begin = Steady::now();
  const double cpu = CpuSeconds();
  std::uint64_t begun = 0;
  std::uint64_t done = 0;
  while (done < count) {
    while (begun < count && begun - done < depth) {
      if (!start(begun, [&done] { ++done; })) break;
      ++begun;
    }
    poll();
  }
  return {.bytes_per_s = static_cast<double>(count * size) / Seconds(begin),
          .cpu_s = CpuSeconds() - cpu};
}

void Row(const char* name, const Speed& log, const Speed& bare, const std::string& kind) {
  fmt::print(
      "{{\"row\":\"{}\",\"backend\":\"{}\",\"log_mb_s\":{:.0f},\"bare_mb_s\":{:.0f},"
      "\"ratio\":{:.3f},\"log_cpu_s\":{:.3f},\"bare_cpu_s\":{:.3f}}}\n",
      name, kind, log.bytes_per_s / 1e6, bare.bytes_per_s / 1e6, log.bytes_per_s / bare.bytes_per_s,
      log.cpu_s, bare.cpu_s);
}

class Bench {
 public:
  Bench(std::string path, FileDeviceOptions options) : path_(std::move(path)), options_(options) {}

  Status Start() {
    KVCOVE_TRY(FormatFile({.path = path_, .size_bytes = kDiskBytes},
                          {.format = {.pool = kPool, .incarnation = kPool}, .yes = true}));
    return Open();
  }
  Status Open() {
    log_.reset();
    device_.reset();
    const auto begin = Steady::now();
    KVCOVE_ASSIGN(device_, OpenDevice(path_, options_));
    LogOptions options{
        .pool = kPool, .incarnation = kPool, .generations = {{.slot = 1, .generation = 1}}};
    KVCOVE_ASSIGN(log_, Log::Open(*device_, std::move(options)));
    open_s_ = Seconds(begin);
    while (!log_->serving()) log_->Poll(kMillisecond);
    serving_s_ = Seconds(begin);
    while (!log_->recovered()) log_->Poll(kMillisecond);
    return {};
  }
  Status Stop() {
    bool stopped = false;
    Status outcome;
    log_->Stop([&](const Status& status) {
      outcome = status;
      stopped = true;
    });
    while (!stopped) log_->Poll(kMillisecond);
    return outcome;
  }
  void SyncDevice() {
    Await(*device_, [&](Device::Done done) { device_->Sync(std::move(done)); });
  }

  Speed Puts(std::uint64_t count, std::uint64_t size) {
    AlignedBuffer value(size);
    const std::span<const std::byte> bytes = value.span().first(size);
    // Small ones: as many as fill the queue, for nobody flushes before the end.
    return Loop(
        count, size, size < (64 << 10) ? count : 64, [&] { log_->Poll(kMillisecond); },
        [&](std::uint64_t i, auto done) {
          const std::string key = KeyOf(size, i);
          return log_->Put({.slot = 1,
                            .generation = 1,
                            .version = 1,
                            .name = "bench",
                            .key = key,
                            .value = std::span(&bytes, 1)},
                           [done](const Status&) { done(); })
                     .has_value() &&
                 (i + 1 < count || (log_->Flush(), true));
        });
  }
  Speed Reads(std::uint64_t count, std::uint64_t size, std::uint64_t depth, std::uint64_t range) {
    std::vector<AlignedBuffer> buffers;
    for (std::uint64_t i = 0; i < depth; ++i) buffers.emplace_back(size + (2 * kBlockBytes));
    std::vector<std::size_t> free(depth);
    for (std::size_t i = 0; i < depth; ++i) free[i] = i;
    Random random(1);
    return Loop(
        count, size, depth, [&] { log_->Poll(kMillisecond); },
        [&](std::uint64_t i, auto done) {
          const std::uint64_t number = range == count ? i : random.Below(range);
          const std::string key = KeyOf(size, number);
          const auto found = log_->Find(1, 1, key);
          if (!found) std::abort();
          const std::size_t buffer = free.back();
          free.pop_back();
          log_->Read(*found, {.slot = 1, .generation = 1, .key = key}, buffers[buffer].span(),
                     [&, buffer, done](const ReadResult& read) {
                       if (read.miss != ReadMiss::kNone) std::abort();
                       free.push_back(buffer);
                       done();
                     });
          return true;
        });
  }
  Speed Bare(bool write, std::uint64_t count, std::uint64_t size, std::uint64_t depth,
             bool random) {
    std::vector<AlignedBuffer> buffers;
    for (std::uint64_t i = 0; i < depth; ++i) buffers.emplace_back(size);
    std::vector<std::size_t> free(depth);
    for (std::size_t i = 0; i < depth; ++i) free[i] = i;
    Random random_numbers(2);
    const std::uint64_t places = (1ULL << 30) / size;
    return Loop(
        count, size, depth, [&] { device_->Poll(kMillisecond); },
        [&](std::uint64_t i, auto done) {
          const std::size_t buffer = free.back();
          free.pop_back();
          const std::uint64_t place = random ? random_numbers.Below(places) : i;
          // Reads where the log has written; writes at the disk's end.
          const std::uint64_t offset =
              (write ? kDiskBytes - (1ULL << 30) : kZonesStart) + (place * size);
          const auto finish = [&, buffer, done](int error) {
            if (error != 0) std::abort();
            free.push_back(buffer);
            done();
          };
          if (write) {
            device_->Write(offset, buffers[buffer].span(), finish);
          } else {
            device_->Read(offset, buffers[buffer].span(), finish);
          }
          return true;
        });
  }
  std::string kind() const { return device_->kind(); }
  Log& log() { return *log_; }
  double open_s() const { return open_s_; }
  double serving_s() const { return serving_s_; }

 private:
  static std::string KeyOf(std::uint64_t size, std::uint64_t i) {
    return fmt::format("{}/{:040}", size, i);
  }
  const std::string path_;
  const FileDeviceOptions options_;
  double open_s_ = 0;     // superblocks
  double serving_s_ = 0;  // until gets are answered
  std::unique_ptr<Device> device_;
  std::unique_ptr<Log> log_;
};

Status Throughput(Bench& bench) {
  constexpr std::uint64_t kMiBytes = 1 << 20;
  KVCOVE_TRY(bench.Start());
  const Speed bare = bench.Bare(true, 1000, kMiBytes, 16, false);
  Speed puts = bench.Puts(1000, kMiBytes);
  bench.SyncDevice();
  // The second time no block is written for the first time: what a disk in use does.
  const Speed again = bench.Bare(true, 1000, kMiBytes, 16, false);
  Row("put_1mib_first_writes", puts, bare, bench.kind());
  Row("put_1mib_against_rewrites", puts, again, bench.kind());
  Row("read_64x1mib", bench.Reads(640, kMiBytes, 64, 1000),
      bench.Bare(false, 640, kMiBytes, 64, true), bench.kind());
  bench.Puts(4096, 64 << 10);
  bench.SyncDevice();
  Row("read_random_64kib_depth32", bench.Reads(8000, 64 << 10, 32, 4096),
      bench.Bare(false, 8000, 64 << 10, 32, true), bench.kind());
  return {};
}

Status Starts(Bench& bench) {
  constexpr std::uint64_t kObjects = 1'000'000;
  KVCOVE_TRY(bench.Start());
  bench.Puts(kObjects, 1024);
  for (const bool clean : {false, true}) {
    if (clean) {
      KVCOVE_TRY(bench.Stop());
    } else {
      bench.SyncDevice();
    }
    const auto begin = Steady::now();
    const double cpu = CpuSeconds();
    KVCOVE_TRY(bench.Open());
    fmt::print(
        "{{\"row\":\"start_{}\",\"backend\":\"{}\",\"objects\":{},\"open_s\":{:.3f},\"serving_s\":{"
        ":.3f},\"seconds\":{:.3f},"
        "\"cpu_s\":{:.3f},\"read_mb\":{:.0f},\"scanned\":{},\"index_bytes_an_object\":{:.1f}}}\n",
        clean ? "clean" : "killed", bench.kind(), bench.log().space().objects, bench.open_s(),
        bench.serving_s(), Seconds(begin), CpuSeconds() - cpu,
        static_cast<double>(bench.log().recovery().read_bytes) / 1e6,
        bench.log().recovery().scanned,
        static_cast<double>(bench.log().space().index_bytes) /
            static_cast<double>(std::max<std::uint64_t>(1, bench.log().space().objects)));
  }
  return {};
}

int Main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "disklog_bench DIRECTORY [--threads]: writes a disk of 3 GiB there\n");
    return 2;
  }
  FileDeviceOptions options;
  if (argc > 2 && std::string_view(argv[2]) == "--threads") options.backend = Backend::kThreads;
  const std::string path = std::string(argv[1]) + "/disklog_bench.disk";
  Status outcome;
  {
    Bench bench(path, options);
    outcome = Throughput(bench);
  }
  if (outcome) {
    Bench bench(path, options);
    outcome = Starts(bench);
  }
  unlink(path.c_str());
  if (outcome) return 0;
  fmt::print(stderr, "{}\n", outcome.error().ToString());
  return 1;
}

}  // namespace
}  // namespace kvcove::disklog

int main(int argc, char** argv) {
  kvcove::uring::UseUring();
  setvbuf(stdout, nullptr, _IOLBF, 0);
  return kvcove::disklog::Main(argc, argv);
}
