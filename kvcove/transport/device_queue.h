// SPDX-License-Identifier: Apache-2.0
// The transfers under way between host memory and a device: pinned rings, tickets, and one thread
// (kvcove-device) that polls the tickets and runs callbacks. No other thread polls the device.
//
//   load   Lend a piece of the ring, fill it, Submit; the piece is returned when the ticket is
//          over.
//   save   Lend, Submit; the callback finds the bytes in the piece, and releases it when they are
//          stored.
//
// Host memory of a transfer is a HostMemory: a piece of the ring, or extents of a segment that the
// caller has borrowed or reserved, and that RegisterHost has pinned. The queue keeps it until the
// ticket is over, also if the ticket failed or its caller has ended. One lock guards all state; it
// is never held over a call of the backend or a callback.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/transport/device.h"
#include "kvcove/transport/device_ring.h"

namespace kvcove::transport {

// Pinned bytes of one value, or of several values in order. The destructor returns them.
class HostMemory {
 public:
  virtual ~HostMemory() = default;
  virtual std::span<const std::span<std::byte>> extents() const = 0;
};

struct DeviceQueueOptions {
  std::uint64_t ring_bytes = 64 << 20;    // each way, pinned
  std::uint32_t most_tickets = 4096;      // tickets under way; more are refused
  std::chrono::microseconds look{50};     // pause between two polls of the tickets under way
  std::chrono::milliseconds close{5000};  // the destructor's wait for the device
  bool thread = true;                     // false: tests call Advance
  bool poison = false;                    // tests: overwrite pieces that are returned to a ring
};

// How a ticket ended.
struct DeviceDone {
  Status status;
  DeviceBytes moved{};
  std::int64_t ns = 0;                     // from Submit on
  std::shared_ptr<const HostMemory> host;  // for a save: its bytes
};

struct DeviceQueueStats {
  std::array<std::uint64_t, kDeviceWays> busy_ns{};  // time with a ticket of that way under way
  std::uint64_t tickets = 0;                         // under way now
  std::uint64_t lent_bytes = 0;                      // pinned bytes lent now
  std::uint64_t pinned_bytes = 0;
};

// Thread-safe. Outlives its users' calls and loans.
class DeviceQueue {
 public:
  using OnDone = std::function<void(DeviceDone&)>;
  using OnReached = std::function<void(const Status&)>;
  // Groups callbacks for Forget; never dereferenced. Null: the callback cannot be forgotten while
  // it runs.
  using Owner = const void*;

  // Allocates the rings and starts the thread. Errors: kLimit where the host pins no memory.
  static Result<std::unique_ptr<DeviceQueue>> Open(std::unique_ptr<DeviceBackend> backend,
                                                   const DeviceQueueOptions& options,
                                                   const Clock& clock);
  // Stops the thread, drops the callbacks of tickets under way, and waits for the device. A device
  // that does not end in time keeps its memory until the process ends.
  ~DeviceQueue();

  std::string Describe() const;
  // Returns the memory of the rings, most of what is lent, which never moves.
  std::span<const std::span<std::byte>> rings() const { return ring_memory_; }
  // Lends one extent of pinned memory; waits until the ring has room. A loan larger than the ring
  // is pinned by itself, one at a time. Errors: kTimeout; kLimit where the host pins no more.
  Result<std::shared_ptr<const HostMemory>> Lend(DeviceWay way, std::uint64_t bytes,
                                                 std::int64_t deadline_ns);

  // Begins a transfer and keeps `host` until the ticket is over; then calls `done`, once, on
  // kvcove-device, without a lock. Errors: kLimit for too many tickets, and the backend's; `done`
  // is not called then.
  Result<DeviceTicket> Submit(const DeviceTransfer& transfer,
                              std::shared_ptr<const HostMemory> host, Owner owner, OnDone done);
  Result<std::shared_ptr<const DeviceMark>> RecordStep(StreamHandle stream) {
    return backend_->RecordStep(stream);
  }
  // Calls `reached`, as `done` is called, once the mark is reached, or work before it has failed.
  // Marks are polled in the order of these calls.
  void WhenReached(std::shared_ptr<const DeviceMark> mark, Owner owner, OnReached reached);
  Status StreamWait(StreamHandle stream, DeviceTicket ticket) {
    return backend_->StreamWait(stream, ticket);
  }
  // Drops the owner's callbacks; waits for one that runs. Do not call it from within a callback.
  // Their transfers continue, and keep their memory.
  void Forget(Owner owner);

  // Moves bytes between any host memory and the device by way of the ring, behind the present work
  // of the default stream; returns when they have arrived. Errors: kTimeout; kBufferBusy for a load
  // that may still write to the device.
  Status Move(DeviceWay way, std::byte* host, std::uintptr_t device, std::uint64_t bytes,
              std::int64_t deadline_ns);

  Result<std::unique_ptr<Registered>> RegisterHost(std::span<std::byte> memory) {
    return backend_->RegisterHost(memory);
  }
  DeviceQueueStats stats() const;
  // Polls tickets and marks once; returns true if one ended. For one thread at a time.
  bool Advance();

 private:
  struct Flight {
    DeviceTicket ticket = 0;
    DeviceWay way = DeviceWay::kLoad;
    std::int64_t since_ns = 0;
    DeviceBytes moved{};
    std::shared_ptr<const HostMemory> host;
    Owner owner = nullptr;
    OnDone done;
  };
  struct Watch {
    std::shared_ptr<const DeviceMark> mark;
    Owner owner = nullptr;
    OnReached reached;
  };
  class Loan;

  DeviceQueue(std::unique_ptr<DeviceBackend> backend, const DeviceQueueOptions& options,
              const Clock& clock)
      : options_(options), clock_(clock), backend_(std::move(backend)) {}
  void Loop();
  void GiveBack(DeviceWay way, std::span<std::byte> piece, bool own);
  Result<std::shared_ptr<const HostMemory>> LendOwn(DeviceWay way, std::uint64_t bytes);
  bool AdvanceTickets();
  bool AdvanceMarks();
  void End(Flight& flight, const Status& status);
  void EndCall();
  Status MoveSome(DeviceWay way, std::byte* host, std::uintptr_t device, std::uint64_t bytes,
                  std::int64_t deadline_ns);

  const DeviceQueueOptions options_;
  const Clock& clock_;
  const std::unique_ptr<DeviceBackend> backend_;
  std::array<std::span<std::byte>, kDeviceWays> ring_memory_;

  mutable Mutex mutex_;
  CondVar work_;   // notified of tickets and marks to poll, and of the end
  CondVar freed_;  // notified of a returned piece, a callback's end, and the queue's end
  std::array<DeviceRing, kDeviceWays> rings_ KVCOVE_GUARDED_BY(mutex_);
  std::array<std::deque<std::shared_ptr<Flight>>, kDeviceWays> flights_ KVCOVE_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Watch>> watches_ KVCOVE_GUARDED_BY(mutex_);
  std::array<std::int64_t, kDeviceWays> busy_since_ns_ KVCOVE_GUARDED_BY(mutex_){};
  std::array<std::uint64_t, kDeviceWays> busy_ns_ KVCOVE_GUARDED_BY(mutex_){};
  std::uint64_t own_bytes_ KVCOVE_GUARDED_BY(mutex_) = 0;   // the loan that is pinned by itself
  std::uint64_t submitting_ KVCOVE_GUARDED_BY(mutex_) = 0;  // calls of Submit in the backend
  Owner calling_ KVCOVE_GUARDED_BY(mutex_) = nullptr;       // of the callback that runs
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace kvcove::transport
