// SPDX-License-Identifier: Apache-2.0
// A GPU of NVIDIA behind transport/device.h, by the calls of its driver.
//
//   streams   four of our own that do not wait for the default stream: for each way one that copies
//             and one that runs kernels. Those of loads have the highest priority, those of saves
//             the lowest, so a save delays no load.
//   load      Runs of `threshold` bytes and more are copied one by one, in one batched call.
//   Smaller
//             runs: whole host extents are copied to a slot of staging memory, then one kernel
//             scatters them. That copy need not wait for the mark, as it touches no KV; the kernel
//             waits.
//   save      The reverse: a kernel gathers into a slot, and one copy moves the slot to the host.
//   no memory for slots   A kernel reads or writes the pinned host memory itself, with few blocks
//             of threads and bounded launches, so that decoding continues beside it.
//   no kernels (an old driver, a GPU before Volta)   All runs are copied one by one.
//
//            copy stream            kernel stream
//   load     host -> slot  filled-> scatter -free     slot again: the copy waits for the scatter
//   save     slot -> host <-filled  gather            slot again: the gather waits for the copy
//
// Thread-safe. Locks: a channel's, then the device's own. Both are held over calls of the driver
// that enqueue or query, which do not wait for the GPU.
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
  // Bytes from which a run is copied by itself. kProbe: Open measures.
  std::uint64_t threshold = kProbe;
  // A slot holds a chunk. Chunks are small, so that the link is busy while the next chunk is
  // planned and a kernel scatters the one before.
  std::uint64_t slot_bytes = 4 << 20;  // staging memory on the device; 0: none
  std::uint32_t load_slots = 16;
  std::uint32_t save_slots = 8;
  // Each way: lists of runs that kernels may be reading, and the runs of one. 6 MiB, pinned: with
  // runs of 8 KiB, 1 GiB may be under way (loads for which the engine's stream waits).
  std::uint32_t run_blocks = 256;
  std::uint32_t block_runs = 1024;
  std::uint32_t staged_grid = 32;         // blocks of threads of a kernel within the device
  std::uint32_t mapped_grid = 16;         // blocks of threads of a kernel over the link
  std::uint64_t mapped_bytes = 64 << 20;  // bytes of one launch over the link
};

class Device final : public DeviceBackend {
 public:
  // Initialises the driver and opens the GPU; with kProbe measures its paths, which takes some
  // time. Errors: kUnavailable where the driver has no such GPU; kInternal; kLimit as AllocateHost.
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
    std::uint64_t slots = 0;  // constant once Open has returned
    Mutex mutex;  // held over the driver's calls that enqueue one transfer, so that none interleave
    Staging staging KVCOVE_GUARDED_BY(mutex);
  };
  struct Ticket {
    DeviceWay way = DeviceWay::kLoad;
    CuEvent done = nullptr;  // null: no event could be recorded; both streams must become idle
    Status enqueued;         // an error: the ticket fails once its enqueued work is over
    std::vector<RunBlock> blocks;
  };
  struct Pinned {
    std::uint64_t bytes = 0;
    CuPointer device = 0;     // its address on the device
    bool registered = false;  // pinned by RegisterHost: the caller owns the memory
  };
  using Seams = std::vector<const std::byte*>;  // as PathLimits has them
  class Enqueuer;
  class HostRegistration;

  Device(const Driver& driver, int ordinal, const DeviceOptions& options)
      : driver_(driver), ordinal_(ordinal), options_(options) {}
  Status Start();
  Status StartChannel(Channel& channel, int priority, std::uint32_t slots);
  void LoadKernels();
  // Measures both paths at several sizes of runs and sets `threshold_`.
  void Probe();
  // Returns the rate of one load in bytes/ns. Errors: kTimeout after 200 ms, and the device's.
  Result<double> ProbeOne(std::uint64_t run_bytes, std::uint64_t threshold, std::byte* host,
                          CuPointer device);
  Channel& Of(DeviceWay way) { return channels_[static_cast<std::size_t>(way)]; }
  // Returns kNotReady while work of the channel runs or waits, else kSuccess, also after an error.
  CuResult QueryStreams(const Channel& channel) const;
  // Returns the device's address of pinned host memory; 0: not pinned.
  CuPointer DeviceAddressOf(const std::byte* host) const;
  void AddPinned(std::byte* memory, const Pinned& pinned);
  void DropPinned(const std::byte* memory);
  void FindSeams() KVCOVE_REQUIRES(mutex_);
  std::shared_ptr<const Seams> SeamsNow() const;
  PathLimits Limits(const Seams& seams) const;
  DeviceTicket Keep(Ticket ticket);
  // Returns a ticket's event and lists to their pools. Its work must be over.
  void Release(Ticket& ticket);
  // Releases all tickets, after Close() or a probe: their work is over, and no Poll follows.
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
  std::string why_;                  // the reason for the choice of paths, for the log
  std::atomic<bool> batches_{true};  // the driver may have batched copies
  std::atomic<bool> kept_{false};    // Close did not succeed: nothing is freed
  std::shared_ptr<Events> events_;   // for marks and tickets
  std::shared_ptr<Events> inner_;    // between streams of our own
  std::array<Channel, kDeviceWays> channels_;

  mutable Mutex mutex_;  // taken after a channel's
  DeviceTicket next_ticket_ KVCOVE_GUARDED_BY(mutex_) = 1;
  std::unordered_map<DeviceTicket, Ticket> tickets_ KVCOVE_GUARDED_BY(mutex_);
  std::map<const std::byte*, Pinned> pinned_ KVCOVE_GUARDED_BY(mutex_);
  // The seams of `pinned_`. Each change makes a new list, so that a transfer needs no lock while it
  // is planned.
  std::shared_ptr<const Seams> seams_ KVCOVE_GUARDED_BY(mutex_) = std::make_shared<const Seams>();
};

}  // namespace kvcove::transport::cuda
