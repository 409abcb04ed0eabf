// SPDX-License-Identifier: Apache-2.0
// A GPU of NVIDIA behind transport/device.h, by the calls of its driver.
//
//   streams   four of our own that do not wait for the default stream: for each way one that copies
//             and one that runs kernels. Those of loads have the highest priority, those of saves
//             the lowest, so a save delays no load.
//   load      runs of `threshold` bytes and more: one batched call. Smaller ones: their objects go
//             to a slot of staging memory as they lie, then one kernel scatters them. The copy to
//             the slot needs not wait for the mark, as it touches no KV; the kernel does.
//   save      the same backwards: a kernel gathers into a slot, and one copy takes it to the host.
//   no room for slots   a kernel reads or writes the pinned host memory itself, with few blocks of
//             threads and bounded launches, so that decoding goes on beside it.
//   no kernels (an old driver, a GPU before Volta)   all runs by themselves.
//
//            copy stream            kernel stream
//   load     host -> slot  filled-> scatter -done     slot again: the copy waits for the scatter
//   save     slot -> host <-filled  gather            slot again: the gather waits for the copy
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/transport/cuda/driver.h"
#include "kvcove/transport/cuda/events.h"
#include "kvcove/transport/cuda/paths.h"
#include "kvcove/transport/device.h"

namespace kvcove::transport::cuda {

struct DeviceOptions {
  static constexpr std::uint64_t kProbe = ~std::uint64_t{0};
  // Of a run's bytes: from here on it goes by itself. kProbe: Open measures.
  std::uint64_t threshold = kProbe;
  // A slot holds a chunk: small ones, so that the link is busy while the next chunk is planned and
  // a kernel has the one before.
  std::uint64_t slot_bytes = 4 << 20;  // of staging on the device; 0: none
  std::uint32_t load_slots = 16;
  std::uint32_t save_slots = 8;
  // Each way: lists of runs that kernels may be reading, and the runs of one. 6 MiB, pinned: with
  // runs of 8 KiB, 1 GiB may be under way (loads that the engine's stream waits for).
  std::uint32_t run_blocks = 256;
  std::uint32_t block_runs = 1024;
  std::uint32_t staged_grid = 32;         // blocks of threads of a kernel within the device
  std::uint32_t mapped_grid = 16;         // and of one over the link
  std::uint64_t mapped_bytes = 64 << 20;  // of one such launch
};

class Device final : public DeviceBackend {
 public:
  // Errors: kUnavailable where the driver has no such GPU; kInternal.
  static Result<std::unique_ptr<Device>> Open(const Driver& driver, int ordinal,
                                              const DeviceOptions& options);
  ~Device() override;

  std::string Describe() const override;
  Result<std::span<std::byte>> AllocateHost(std::uint64_t bytes) override;
  void FreeHost(std::span<std::byte> memory) override;
  Result<std::unique_ptr<Registered>> RegisterHost(std::span<std::byte> memory) override;
  Result<std::shared_ptr<const DeviceMark>> RecordStep(StreamHandle stream) override;
  Result<bool> Reached(const DeviceMark& mark) override;
  Result<DeviceTicket> Submit(const DeviceTransfer& transfer, DeviceBytes& moved) override;
  Result<bool> Poll(DeviceTicket ticket) override;
  Status StreamWait(StreamHandle stream, DeviceTicket ticket) override;
  bool Close(std::int64_t deadline_ns) override;

  std::uint64_t threshold() const { return threshold_; }

 private:
  // Staging memory on the device, and its runs.
  struct Slot {
    CuPointer memory = 0;
    CuPointer runs = 0;
    CuEvent filled = nullptr;
    CuEvent free = nullptr;
    bool used = false;
  };
  // Pinned memory for a kernel's runs.
  struct RunBlock {
    MoveRun* host = nullptr;
    CuPointer device = 0;
  };
  struct Staging {
    std::vector<Slot> slots;
    std::size_t next_slot = 0;
    std::vector<RunBlock> blocks;  // free ones
  };
  struct Channel {
    CuStream copy = nullptr;
    CuStream kernel = nullptr;
    std::uint64_t slots = 0;  // from the start on
    Mutex mutex;  // held over the driver's calls that enqueue: those of a transfer stay together
    Staging staging KVCOVE_GUARDED_BY(mutex);
  };
  struct Ticket {
    DeviceWay way = DeviceWay::kLoad;
    CuEvent done = nullptr;  // null: there was none, and its streams must come to their end
    Status enqueued;         // an error: the ticket fails once what was enqueued is over
    std::vector<RunBlock> blocks;
  };
  struct Pinned {
    std::uint64_t bytes = 0;
    CuPointer device = 0;     // what the device calls it
    bool registered = false;  // by RegisterHost: its memory is somebody else's
  };
  using Seams = std::vector<const std::byte*>;  // as PathLimits has them
  class Enqueuer;
  class HostRegistration;

  Device(const Driver& driver, int ordinal, const DeviceOptions& options)
      : driver_(driver), ordinal_(ordinal), options_(options) {}
  Status Start();
  Status StartChannel(Channel& channel, int priority, std::uint32_t slots);
  void LoadKernels();
  // Rates of both paths at several sizes; sets `threshold_`.
  void Probe();
  Result<double> ProbeOne(std::uint64_t run_bytes, std::uint64_t threshold, std::byte* host,
                          CuPointer device);
  Channel& Of(DeviceWay way) { return channels_[static_cast<std::size_t>(way)]; }
  // kNotReady while anything of the channel runs, or waits to.
  CuResult QueryStreams(const Channel& channel) const;
  CuPointer DeviceAddressOf(const std::byte* host) const;
  void AddPinned(std::byte* memory, const Pinned& pinned);
  void DropPinned(const std::byte* memory);
  void FindSeams() KVCOVE_REQUIRES(mutex_);
  std::shared_ptr<const Seams> SeamsNow() const;
  PathLimits Limits(const Seams& seams) const;
  DeviceTicket Keep(Ticket ticket);
  void Release(Ticket& ticket);
  // All that are left: of work that is over, and that nobody asks about.
  void ForgetTickets();

  const Driver& driver_;
  const int ordinal_;
  const DeviceOptions options_;
  int handle_ = 0;
  CuContext context_ = nullptr;
  bool retained_ = false;
  CuModule module_ = nullptr;
  CuFunction scatter_ = nullptr;
  CuFunction gather_ = nullptr;
  std::uint64_t threshold_ = 0;
  std::string why_;  // the paths are what they are
  std::atomic<bool> batches_{true};
  std::atomic<bool> kept_{false};   // Close did not succeed: nothing is freed
  std::shared_ptr<Events> events_;  // of marks and tickets
  std::shared_ptr<Events> inner_;   // between streams of our own
  std::array<Channel, kDeviceWays> channels_;

  mutable Mutex mutex_;  // behind a channel's
  DeviceTicket next_ticket_ KVCOVE_GUARDED_BY(mutex_) = 1;
  std::unordered_map<DeviceTicket, Ticket> tickets_ KVCOVE_GUARDED_BY(mutex_);
  std::map<const std::byte*, Pinned> pinned_ KVCOVE_GUARDED_BY(mutex_);
  // Of pinned_; made anew with each change, so that a transfer needs no lock while it is planned.
  std::shared_ptr<const Seams> seams_ KVCOVE_GUARDED_BY(mutex_) = std::make_shared<const Seams>();
};

}  // namespace kvcove::transport::cuda
