// SPDX-License-Identifier: Apache-2.0
// Enqueues transfers, and measures which path is the faster one.
#include <algorithm>

#include "kvcove/base/clock.h"
#include "kvcove/transport/cuda/device.h"

namespace kvcove::transport::cuda {
namespace {

// Bytes of a probe: several chunks, as a batch of the connector has.
constexpr std::uint64_t kProbeBytes = 16 << 20;

}  // namespace

// Enqueues one transfer, under its channel's lock. After the first error it enqueues nothing more.
class Device::Enqueuer {
 public:
  Enqueuer(Device& device, const DeviceTransfer& transfer, Staging& staging, DeviceBytes& moved)
      : device_(device),
        driver_(device.driver_),
        staging_(staging),
        copy_(device.Of(transfer.way).copy),
        kernel_(device.Of(transfer.way).kernel),
        load_(transfer.way == DeviceWay::kLoad),
        after_(transfer.after == nullptr ? nullptr
                                         : static_cast<const EventMark*>(transfer.after)->event()),
        moved_(moved) {}

  void Run(std::span<const DeviceCopy> copies) {
    const std::shared_ptr<const Seams> seams = device_.SeamsNow();
    std::vector<DeviceCopy> unlisted;
    const std::vector<DeviceCopy> alone =
        PlanPaths(copies, device_.Limits(*seams), [&](const PathChunk& chunk) {
          // Each chunk needs a list of runs. If none is free, its runs are copied one by one: that
          // is slower, and a wait for a list under the channel's lock could last as long as a step.
          if (staging_.blocks.empty()) return Unstage(chunk, unlisted);
          blocks_.push_back(staging_.blocks.back());
          staging_.blocks.pop_back();
          if (staging_.slots.empty()) {
            MoveMapped(chunk);
          } else {
            MoveStaged(chunk);
          }
        });
    CopyAlone(alone);
    CopyAlone(unlisted);
  }

  // Returns the ticket, whose event is behind all work that was enqueued.
  Result<Ticket> Finish(DeviceWay way) {
    // One event must cover both streams. A chunk's events order its own two steps only: they order
    // neither a scatter with the runs that are copied one by one, nor work before an error. An
    // early event would give the host memory, or the KV blocks, to a new user while the GPU uses
    // them.
    const bool joined = !used_copy_ || !used_kernel_ ||
                        Join(last_is_kernel_ ? copy_ : kernel_, last_is_kernel_ ? kernel_ : copy_);
    // Without an event: enqueued work may still run, so Poll waits until both streams are idle.
    Ticket ticket{.way = way, .enqueued = status_, .blocks = std::move(blocks_)};
    if (!joined) return ticket;
    auto event = device_.events_->Take();
    if (event) {
      CuStream stream = last_is_kernel_ ? kernel_ : copy_;
      const CuResult recorded = driver_.event_record(*event, stream);
      if (recorded == kSuccess) {
        ticket.done = *event;
        return ticket;
      }
      device_.events_->Give(*event);
      if (ticket.enqueued) ticket.enqueued = CheckResult(recorded, "the end of a transfer");
    } else if (ticket.enqueued) {
      ticket.enqueued = std::unexpected<Error>(event.error());
    }
    return ticket;
  }

 private:
  void Do(CuResult result, const char* act) {
    if (status_ && result != kSuccess) status_ = CheckResult(result, act);
  }
  bool ok() const { return status_.has_value(); }
  void Count(DevicePath path, std::uint64_t bytes) {
    if (ok()) moved_[static_cast<std::size_t>(path)] += bytes;
  }

  // Makes a stream wait for the engine's mark, once a transfer.
  void Await(CuStream stream, bool& waits) {
    if (after_ == nullptr || waits || !ok()) return;
    waits = true;
    Do(driver_.stream_wait(stream, after_, 0), "a wait for the engine's step");
  }
  // Makes `then` wait for the present work of `first`, also after an error. A wait that is enqueued
  // keeps the recording that it found, so the event may be used again at once. False: `then` does
  // not wait.
  bool Join(CuStream first, CuStream then) {
    auto event = device_.inner_->Take();
    if (!event) {
      Do(1, "an event");
      return false;
    }
    CuResult result = driver_.event_record(*event, first);
    if (result == kSuccess) result = driver_.stream_wait(then, *event, 0);
    Do(result, "a wait between streams");
    device_.inner_->Give(*event);
    return result == kSuccess;
  }

  // Appends the chunk's runs to `alone`. Runs and spans are in the order of their offsets.
  static void Unstage(const PathChunk& chunk, std::vector<DeviceCopy>& alone) {
    std::size_t span = 0;
    for (const PathRun& run : chunk.runs) {
      while (run.offset >= chunk.spans[span].offset + chunk.spans[span].bytes) ++span;
      const PathSpan& in = chunk.spans[span];
      alone.push_back(
          {.host = in.host + (run.offset - in.offset), .device = run.device, .bytes = run.bytes});
    }
  }

  void CopyAlone(std::span<const DeviceCopy> copies) {
    if (copies.empty()) return;
    Await(copy_, copy_waits_);
    used_copy_ = true;
    last_is_kernel_ = false;
    std::uint64_t bytes = 0;
    std::vector<CuPointer> host;
    std::vector<CuPointer> device;
    std::vector<std::size_t> sizes;
    host.reserve(copies.size());
    device.reserve(copies.size());
    sizes.reserve(copies.size());
    for (const DeviceCopy& copy : copies) {
      host.push_back(reinterpret_cast<CuPointer>(copy.host));  // NOLINT
      device.push_back(copy.device);
      sizes.push_back(copy.bytes);
      bytes += copy.bytes;
    }
    Copy(load_ ? device : host, load_ ? host : device, sizes);
    Count(DevicePath::kBatched, bytes);
  }

  // Enqueues copies on the copy stream, in no order among each other.
  void Copy(std::vector<CuPointer>& to, std::vector<CuPointer>& from,
            std::vector<std::size_t>& sizes) {
    if (!ok()) return;
    if (device_.batches_ && sizes.size() > 1) {
      const auto result =
          driver_.CopyBatch(to.data(), from.data(), sizes.data(), sizes.size(), copy_);
      if (result && *result != kNotSupported) return Do(*result, "a batch of copies");
      // Nothing was enqueued. No later transfer tries again.
      device_.batches_ = false;
    }
    for (std::size_t i = 0; i < sizes.size() && ok(); ++i) {
      if (load_) {
        Do(driver_.to_device(to[i], reinterpret_cast<const void*>(from[i]), sizes[i],  // NOLINT
                             copy_),
           "a copy to the device");
      } else {
        Do(driver_.to_host(reinterpret_cast<void*>(to[i]), from[i], sizes[i],  // NOLINT
                           copy_),
           "a copy from the device");
      }
    }
  }

  void CopySpans(const PathChunk& chunk, const Slot& slot) {
    std::vector<CuPointer> host;
    std::vector<CuPointer> device;
    std::vector<std::size_t> sizes;
    for (const PathSpan& span : chunk.spans) {
      host.push_back(reinterpret_cast<CuPointer>(span.host));  // NOLINT
      device.push_back(slot.memory + span.offset);
      sizes.push_back(span.bytes);
    }
    Copy(load_ ? device : host, load_ ? host : device, sizes);
  }

  void Launch(CuPointer runs, std::size_t count, std::uint32_t most_blocks) {
    if (!ok()) return;
    auto size = static_cast<unsigned>(count);
    void* arguments[] = {&runs, &size};
    Do(driver_.launch(load_ ? device_.scatter_ : device_.gather_, std::min(size, most_blocks), 1, 1,
                      kMoveThreads, 1, 1, 0, kernel_, arguments, nullptr),
       "a kernel");
  }

  // Writes the chunk's runs for the kernel; `base` is the slot's address on the device. The list
  // remains unchanged in pinned memory until the ticket is over, as the GPU copies it later.
  void WriteRuns(const PathChunk& chunk, CuPointer base) {
    MoveRun* runs = blocks_.back().host;
    for (const PathRun& run : chunk.runs) {
      const CuPointer staged = base + run.offset;
      *runs++ = {.from = load_ ? staged : run.device,
                 .to = load_ ? run.device : staged,
                 .bytes = run.bytes};
    }
  }

  void MoveStaged(const PathChunk& chunk) {
    Slot& slot = staging_.slots[staging_.next_slot];
    staging_.next_slot = (staging_.next_slot + 1) % staging_.slots.size();
    WriteRuns(chunk, slot.memory);
    CuStream first = load_ ? copy_ : kernel_;
    CuStream then = load_ ? kernel_ : copy_;
    used_kernel_ = used_copy_ = true;
    // The slot's last user may still read it: for a load the scatter, for a save the copy.
    if (slot.used && ok()) Do(driver_.stream_wait(first, slot.free, 0), "a wait for a slot");
    const std::size_t list = chunk.runs.size() * sizeof(MoveRun);
    if (ok()) {
      Do(driver_.to_device(slot.runs, blocks_.back().host, list, first), "a list of runs");
    }
    if (load_) {
      CopySpans(chunk, slot);
    } else {
      Await(kernel_, kernel_waits_);
      Launch(slot.runs, chunk.runs.size(), device_.options_.staged_grid);
    }
    if (ok()) Do(driver_.event_record(slot.filled, first), "an event of a slot");
    if (ok()) Do(driver_.stream_wait(then, slot.filled, 0), "a wait for a slot's bytes");
    if (load_) {
      Await(kernel_, kernel_waits_);
      Launch(slot.runs, chunk.runs.size(), device_.options_.staged_grid);
    } else {
      CopySpans(chunk, slot);
    }
    if (ok()) Do(driver_.event_record(slot.free, then), "an event of a slot");
    slot.used = true;
    last_is_kernel_ = load_;
    Count(DevicePath::kStaged, chunk.bytes);
  }

  void MoveMapped(const PathChunk& chunk) {
    used_kernel_ = last_is_kernel_ = true;
    Await(kernel_, kernel_waits_);
    MoveRun* runs = blocks_.back().host;
    std::size_t begun = 0;
    std::uint64_t bytes = 0;
    std::size_t span = 0;
    for (std::size_t i = 0; i < chunk.runs.size(); ++i) {
      const PathRun& run = chunk.runs[i];
      while (run.offset >= chunk.spans[span].offset + chunk.spans[span].bytes) ++span;
      const PathSpan& in = chunk.spans[span];
      const CuPointer host = device_.DeviceAddressOf(in.host) + (run.offset - in.offset);
      runs[i] = {
          .from = load_ ? host : run.device, .to = load_ ? run.device : host, .bytes = run.bytes};
      bytes += run.bytes;
      if (bytes < device_.options_.mapped_bytes && i + 1 < chunk.runs.size()) continue;
      Launch(blocks_.back().device + begun * sizeof(MoveRun), i + 1 - begun,
             device_.options_.mapped_grid);
      begun = i + 1;
      bytes = 0;
    }
    Count(DevicePath::kMapped, chunk.bytes);
  }

  Device& device_;
  const Driver& driver_;
  Staging& staging_;
  const CuStream copy_;
  const CuStream kernel_;
  const bool load_;
  const CuEvent after_;
  DeviceBytes& moved_;
  Status status_;
  std::vector<RunBlock> blocks_;
  bool copy_waits_ = false;
  bool kernel_waits_ = false;
  bool used_copy_ = false;
  bool used_kernel_ = false;
  bool last_is_kernel_ = false;
};

PathLimits Device::Limits(const Seams& seams) const {
  return {.threshold = threshold_,
          // Without slots a chunk is what one list of runs holds.
          .chunk_bytes = options_.slot_bytes > 0 ? options_.slot_bytes : 32 << 20,
          .chunk_runs = options_.block_runs,
          .seams = seams};
}

Result<DeviceTicket> Device::Submit(const DeviceTransfer& transfer, DeviceBytes& moved) {
  const Scope scope(driver_, context_);
  KVCOVE_TRY(scope.status());
  Channel& channel = Of(transfer.way);
  Result<Ticket> ticket;
  {
    const MutexLock lock(channel.mutex);
    Enqueuer enqueuer(*this, transfer, channel.staging, moved);
    enqueuer.Run(transfer.copies);
    ticket = enqueuer.Finish(transfer.way);
  }
  KVCOVE_TRY(ticket);
  return Keep(std::move(*ticket));
}

Result<double> Device::ProbeOne(std::uint64_t run_bytes, std::uint64_t threshold, std::byte* host,
                                CuPointer device) {
  constexpr std::int64_t kMost = 200 * kMillisecond;
  std::vector<DeviceCopy> copies;
  // Leaves gaps on the device: runs that touch on both sides would be planned as one.
  for (std::uint64_t at = 0; at < kProbeBytes; at += run_bytes) {
    copies.push_back({.host = host + at, .device = device + 2 * at, .bytes = run_bytes});
  }
  threshold_ = threshold;
  DeviceBytes moved{};
  const Clock& clock = SystemClock::Instance();
  const std::int64_t start = clock.NowNs();
  KVCOVE_ASSIGN(const DeviceTicket ticket,
                Submit({.way = DeviceWay::kLoad, .copies = copies}, moved));
  while (true) {
    KVCOVE_ASSIGN(const bool over, Poll(ticket));
    const std::int64_t took = clock.NowNs() - start;
    if (over)
      return static_cast<double>(kProbeBytes) /
             static_cast<double>(std::max<std::int64_t>(took, 1));
    if (took > kMost) return Fail(Code::kTimeout, "a probe of the GPU's copies took too long");
  }
}

void Device::Probe() {
  constexpr std::uint64_t kMost = 128 << 10;
  CuPointer device = 0;
  threshold_ = 32 << 10;  // measured by others on H100
  auto host = AllocateHost(kProbeBytes);
  if (!host || driver_.alloc(&device, 2 * kProbeBytes) != kSuccess) {
    if (host) FreeHost(*host);
    why_ = "not measured: there was no memory for it";
    return;
  }
  std::uint64_t chosen = 2 * kMost;
  bool measured = true;
  // Halves the size for as long as the copy engines are nearly as fast as the kernel.
  for (std::uint64_t bytes = kMost; bytes >= 4096 && measured; bytes /= 2) {
    double alone = 0;
    double kernel = 0;
    for (int turn = 0; turn < 3 && measured; ++turn) {
      const auto by_copy = ProbeOne(bytes, 0, host->data(), device);
      measured = by_copy.has_value();
      if (!measured) break;
      alone = std::max(alone, *by_copy);
      const auto by_kernel = ProbeOne(bytes, ~std::uint64_t{0}, host->data(), device);
      measured = by_kernel.has_value();
      if (measured) kernel = std::max(kernel, *by_kernel);
    }
    if (!measured || alone < 0.95 * kernel) break;
    chosen = bytes;
  }
  threshold_ = measured ? chosen : 32 << 10;
  why_ = measured ? "measured at the start" : "not measured: the GPU was busy or failed";
  // A probe that took too long may still read and write its memory, which is not freed here then.
  if (Close(SystemClock::Instance().NowNs() + kSecond)) {
    FreeHost(*host);
    (void)driver_.free(device);
    ForgetTickets();
  } else {
    kept_ = false;
  }
}

}  // namespace kvcove::transport::cuda
