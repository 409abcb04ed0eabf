// SPDX-License-Identifier: Apache-2.0
// `kvcove bench gpu`: runs of bytes between pinned host memory and a GPU, each row beside one plain
// copy of as many bytes; memory of a pool's in place, beside the way through a ring; and what it
// costs the caller to submit runs.
#include <fmt/core.h>

#include <cstring>
#include <deque>

#include "kvcove/base/size.h"
#include "kvcove/transport/cuda/device.h"
#include "lab/commands/bench.h"

namespace kvcove::lab {
namespace {

using transport::DeviceBytes;
using transport::DeviceCopy;
using transport::DeviceWay;
using transport::cuda::CuContext;
using transport::cuda::CuPointer;
using transport::cuda::Driver;
using transport::cuda::Scope;

constexpr int kSkipped = 77;
constexpr std::uint64_t kMost = 64 << 20;  // bytes of a row

// Memory on the GPU, in its primary context.
class GpuMemory {
 public:
  static Result<std::unique_ptr<GpuMemory>> Take(const Driver& driver, int ordinal,
                                                 std::uint64_t bytes) {
    std::unique_ptr<GpuMemory> memory(new GpuMemory(driver));
    KVCOVE_TRY(transport::cuda::CheckResult(driver.device_get(&memory->handle_, ordinal),
                                            fmt::format("GPU {}", ordinal)));
    KVCOVE_TRY(transport::cuda::CheckResult(driver.retain(&memory->context_, memory->handle_),
                                            "its primary context"));
    const Scope scope(driver, memory->context_);
    KVCOVE_TRY(scope.status());
    KVCOVE_TRY(transport::cuda::CheckResult(driver.alloc(&memory->address_, bytes),
                                            fmt::format("{} of its memory", FormatSize(bytes))));
    return memory;
  }
  ~GpuMemory() {
    if (context_ == nullptr) return;
    {
      const Scope scope(driver_, context_);
      if (address_ != 0) (void)driver_.free(address_);
    }
    (void)driver_.release(handle_);
  }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;
  CuPointer address() const { return address_; }

 private:
  explicit GpuMemory(const Driver& driver) : driver_(driver) {}
  const Driver& driver_;
  int handle_ = 0;
  CuContext context_ = nullptr;
  CuPointer address_ = 0;
};

class GpuBench {
 public:
  GpuBench(transport::cuda::Device& device, std::span<std::byte> host, CuPointer address)
      : device_(device), host_(host), address_(address) {}

  // Runs that touch in host memory, as in an object, and lie apart on the GPU, as layers do.
  std::vector<DeviceCopy> Runs(std::uint64_t count, std::uint64_t bytes) const {
    std::vector<DeviceCopy> copies;
    for (std::uint64_t i = 0; i < count; ++i) {
      copies.push_back(
          {.host = host_.data() + i * bytes, .device = address_ + 2 * i * bytes, .bytes = bytes});
    }
    return copies;
  }
  transport::DeviceTicket Submit(DeviceWay way, std::span<const DeviceCopy> copies) {
    const auto ticket = device_.Submit({.way = way, .copies = copies}, moved_);
    if (!ticket) failed_ = true;
    return ticket ? *ticket : 0;
  }
  bool Over(transport::DeviceTicket ticket) {
    if (ticket == 0) return true;
    const auto over = device_.Poll(ticket);
    if (!over) failed_ = true;
    return !over || *over;
  }
  void Wait(transport::DeviceTicket ticket) {
    while (!Over(ticket)) {
    }
  }
  void Move(DeviceWay way, std::span<const DeviceCopy> copies) { Wait(Submit(way, copies)); }
  bool failed() const { return failed_; }

 private:
  transport::cuda::Device& device_;
  const std::span<std::byte> host_;
  const CuPointer address_;
  DeviceBytes moved_{};
  bool failed_ = false;
};

void MeasureRuns(const BenchOptions& options, GpuBench& bench, std::uint64_t count,
                 std::uint64_t bytes) {
  const std::vector<DeviceCopy> runs = bench.Runs(count, bytes);
  const std::vector<DeviceCopy> plain = bench.Runs(1, count * bytes);
  for (const DeviceWay way : {DeviceWay::kLoad, DeviceWay::kSave}) {
    Row row{.bench = way == DeviceWay::kLoad ? "gpu_load" : "gpu_save",
            .form = "gpu",
            .objects = count,
            .object_bytes = bytes,
            .batch = count,
            .limit = "one pinned copy"};
    Measure(
        options, row, count * bytes, [&](std::size_t) { bench.Move(way, runs); },
        [&](std::size_t) { bench.Move(way, plain); });
    Print(options, row);
  }
}

// Each way while the other one never stops.
void MeasureBothWays(const BenchOptions& options, GpuBench& bench) {
  constexpr std::uint64_t kBytes = 640 << 10;
  const std::vector<DeviceCopy> all = bench.Runs(100, kBytes);
  const std::span<const DeviceCopy> measured = std::span(all).first(50);
  const std::span<const DeviceCopy> others = std::span(all).last(50);
  for (const DeviceWay way : {DeviceWay::kLoad, DeviceWay::kSave}) {
    const bool load = way == DeviceWay::kLoad;
    const DeviceWay other = load ? DeviceWay::kSave : DeviceWay::kLoad;
    Row row{.bench = load ? "gpu_load_both_ways" : "gpu_save_both_ways",
            .form = "gpu",
            .objects = 50,
            .object_bytes = kBytes,
            .batch = 50,
            .limit = "the same alone"};
    std::deque<transport::DeviceTicket> beside;
    const auto keep_busy = [&] {
      while (!beside.empty() && bench.Over(beside.front())) beside.pop_front();
      while (beside.size() < 3) beside.push_back(bench.Submit(other, others));
    };
    std::vector<double> both;
    std::vector<double> alone;
    const auto timed = [](std::vector<double>& us, const auto& work) {
      const std::int64_t start = Now();
      work();
      us.push_back(static_cast<double>(Now() - start) / 1e3);
    };
    // In turns of many: what is under way the other way must end before one that is alone.
    const std::int64_t until = Now() + static_cast<std::int64_t>(2e9 * options.seconds);
    while (both.empty() || Now() < until) {
      for (int i = 0; i < 20; ++i) timed(alone, [&] { bench.Move(way, measured); });
      for (int i = 0; i < 20; ++i) {
        keep_busy();
        timed(both, [&] {
          const auto ticket = bench.Submit(way, measured);
          while (!bench.Over(ticket)) keep_busy();
        });
      }
      for (; !beside.empty(); beside.pop_front()) bench.Wait(beside.front());
    }
    Summarize(row, 50 * kBytes, both, alone);
    Print(options, row);
  }
}

// `segment` is memory that is there already, as a pool's is. By way of the ring the processor
// copies, a batch at a time as the connector does, and the GPU moves the batch before.
void MeasureInPlace(const BenchOptions& options, transport::cuda::Device& device,
                    std::span<std::byte> segment, std::span<std::byte> ring, CuPointer address) {
  constexpr std::uint64_t kBytes = 640 << 10;
  constexpr std::uint64_t kRuns = 100;
  constexpr std::uint64_t kBatch = 25;  // runs
  GpuBench in_place(device, segment, address);
  GpuBench by_ring(device, ring, address);
  const std::vector<DeviceCopy> runs = in_place.Runs(kRuns, kBytes);
  const std::vector<DeviceCopy> all = by_ring.Runs(kRuns, kBytes);
  for (const DeviceWay way : {DeviceWay::kLoad, DeviceWay::kSave}) {
    const bool load = way == DeviceWay::kLoad;
    const auto ring_way = [&](std::size_t) {
      std::vector<transport::DeviceTicket> tickets;
      for (std::uint64_t from = 0; from < kRuns; from += kBatch) {
        const std::uint64_t at = from * kBytes;
        if (load) std::memcpy(ring.data() + at, segment.data() + at, kBatch * kBytes);
        tickets.push_back(by_ring.Submit(way, std::span(all).subspan(from, kBatch)));
      }
      for (std::uint64_t i = 0; i < tickets.size(); ++i) {
        by_ring.Wait(tickets[i]);
        const std::uint64_t at = i * kBatch * kBytes;
        if (!load) std::memcpy(segment.data() + at, ring.data() + at, kBatch * kBytes);
      }
    };
    Row row{.bench = load ? "gpu_load_in_place" : "gpu_save_in_place",
            .form = "gpu",
            .objects = kRuns,
            .object_bytes = kBytes,
            .batch = kRuns,
            .limit = "by way of a pinned ring"};
    Measure(options, row, kRuns * kBytes, [&](std::size_t) { in_place.Move(way, runs); }, ring_way);
    Print(options, row);
  }
  if (in_place.failed() || by_ring.failed()) fmt::print(stderr, "a transfer in place failed\n");
}

// What the thread that submits pays; the transfer itself is not in it.
void MeasureSubmission(const BenchOptions& options, GpuBench& bench) {
  constexpr std::uint64_t kRuns = 10'000;
  const std::vector<DeviceCopy> runs = bench.Runs(kRuns, 4096);
  std::vector<double> us;
  for (int turn = 0; turn < 50; ++turn) {
    const std::int64_t start = Now();
    const transport::DeviceTicket ticket = bench.Submit(DeviceWay::kLoad, runs);
    us.push_back(static_cast<double>(Now() - start) / 1e3);
    bench.Wait(ticket);
  }
  Row row{.bench = "gpu_submit",
          .form = "gpu",
          .objects = kRuns,
          .object_bytes = 4096,
          .batch = kRuns,
          .limit = "none"};
  std::vector<double> none;
  Summarize(row, 0, us, none);
  Print(options, row);
}

}  // namespace

Result<int> RunGpuBench(const BenchOptions& options, int ordinal) {
  const Driver* const driver = Driver::OfProcess();
  if (driver == nullptr) {
    fmt::print(stderr, "skipped: this host has no GPU driver (libcuda.so.1)\n");
    return kSkipped;
  }
  auto opened = transport::cuda::Device::Open(*driver, ordinal, {});
  if (!opened) {
    fmt::print(stderr, "skipped: {}\n", opened.error().detail);
    return kSkipped;
  }
  transport::cuda::Device& device = **opened;
  fmt::print(stderr, "{}\n", device.Describe());
  KVCOVE_ASSIGN(const auto memory, GpuMemory::Take(*driver, ordinal, 2 * kMost));
  KVCOVE_ASSIGN(const std::span<std::byte> host, device.AllocateHost(kMost));
  std::fill(host.begin(), host.end(), std::byte{7});
  GpuBench bench(device, host, memory->address());
  for (std::uint64_t bytes = 4 << 10; bytes <= 1 << 20; bytes *= 2) {
    MeasureRuns(options, bench, kMost / bytes, bytes);
  }
  MeasureRuns(options, bench, 100, 640 << 10);    // a block of all layers is one run
  MeasureRuns(options, bench, 80 * 64, 8 << 10);  // 80 layers x 64 blocks
  MeasureBothWays(options, bench);
  std::vector<std::byte> segment(kMost, std::byte{7});
  if (const auto registered = device.RegisterHost(segment)) {
    MeasureInPlace(options, device, segment, host, memory->address());
  } else {
    fmt::print(stderr, "not measured in place: {}\n", registered.error().detail);
  }
  MeasureSubmission(options, bench);
  const bool closed = device.Close(Now() + 10 * kSecond);
  if (bench.failed() || !closed) return Fail(Code::kInternal, "a transfer of the GPU failed");
  return 0;
}

}  // namespace kvcove::lab
