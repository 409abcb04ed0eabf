// SPDX-License-Identifier: Apache-2.0
// What is under way between host and a device: pinned rings, tickets, and one thread
// (kvcove-device) that looks at them and calls back. Nobody else waits for the device.
//
//   load   Lend a piece of the ring, fill it, Submit; the piece comes back when the ticket is over.
//   save   Lend, Submit; the callback finds the bytes in the piece, and lets it go when they are
//          stored.
//
// Host memory of a transfer is a HostMemory: a piece of the ring, or extents of a segment that
// somebody has borrowed or reserved, and that RegisterHost has pinned. The queue keeps it until the
// ticket is over, also if it failed or its caller has ended.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/transport/device.h"
#include "kvcove/transport/device_ring.h"

namespace kvcove::transport {

// Pinned bytes that are one value's, or several values', in order. Its end gives them back.
class HostMemory {
 public:
  virtual ~HostMemory() = default;
  virtual std::span<const std::span<std::byte>> extents() const = 0;
};

struct DeviceQueueOptions {
  std::uint64_t ring_bytes = 64 << 20;  // each way, pinned
  std::uint32_t most_tickets = 4096;    // under way; more are refused
  std::chrono::microseconds look{50};   // between two looks at what is under way
  std::chrono::milliseconds close{5000};
  bool thread = true;   // false: tests call Advance
  bool poison = false;  // tests: what comes back to a ring is overwritten
};

// How a ticket ended.
struct DeviceDone {
  Status status;
  DeviceBytes moved{};
  std::int64_t ns = 0;                     // from Submit on
  std::shared_ptr<const HostMemory> host;  // of a save: its bytes
};

struct DeviceQueueStats {
  std::array<std::uint64_t, kDeviceWays> busy_ns{};  // while anything of that way was under way
  std::uint64_t tickets = 0;                         // now
  std::uint64_t lent_bytes = 0;                      // of the rings, now
  std::uint64_t pinned_bytes = 0;
};

// Thread-safe. Outlives its users' calls and loans.
class DeviceQueue {
 public:
  using OnDone = std::function<void(DeviceDone&)>;
  using OnReached = std::function<void(const Status&)>;
  // Names whose callbacks they are, for Forget. Never looked into.
  using Owner = const void*;

  // Errors: kLimit where the host pins no memory.
  static Result<std::unique_ptr<DeviceQueue>> Open(std::unique_ptr<DeviceBackend> backend,
                                                   const DeviceQueueOptions& options,
                                                   const Clock& clock);
  // Callbacks of tickets that are under way are not called any more.
  ~DeviceQueue();

  std::string Describe() const;
  // Waits until the ring has room. One extent. What is larger than the ring is pinned for this
  // loan alone, one at a time. Errors: kTimeout; kLimit where the host pins no more.
  Result<std::shared_ptr<const HostMemory>> Lend(DeviceWay way, std::uint64_t bytes,
                                                 std::int64_t deadline_ns);

  // `host` is kept until the ticket is over; then `done` is called, once, on kvcove-device, without
  // a lock. Errors: kLimit for too many tickets, and the backend's: `done` is not called then.
  Result<DeviceTicket> Submit(const DeviceTransfer& transfer,
                              std::shared_ptr<const HostMemory> host, Owner owner, OnDone done);
  Result<std::shared_ptr<const DeviceMark>> RecordStep(StreamHandle stream) {
    return backend_->RecordStep(stream);
  }
  // `reached` is called as `done` is, once the mark is reached; marks go in order.
  void WhenReached(std::shared_ptr<const DeviceMark> mark, Owner owner, OnReached reached);
  Status StreamWait(StreamHandle stream, DeviceTicket ticket) {
    return backend_->StreamWait(stream, ticket);
  }
  // No callback of the owner runs any more; waits for one that does. Not from within one.
  void Forget(Owner owner);

  // Moves bytes of any host memory, by way of the ring, behind what the default stream has; returns
  // when they are there. Errors: kTimeout; kBufferBusy for a load that may still land.
  Status Move(DeviceWay way, std::byte* host, std::uintptr_t device, std::uint64_t bytes,
              std::int64_t deadline_ns);

  Result<std::unique_ptr<Registered>> RegisterHost(std::span<std::byte> memory) {
    return backend_->RegisterHost(memory);
  }
  DeviceQueueStats stats() const;
  // One look at what is under way; true if anything ended. By one thread at a time.
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
  CondVar work_;   // there is something to look at, or the queue stops
  CondVar freed_;  // a piece of a ring is free again; a callback has returned
  std::array<DeviceRing, kDeviceWays> rings_ KVCOVE_GUARDED_BY(mutex_);
  std::array<std::deque<std::shared_ptr<Flight>>, kDeviceWays> flights_ KVCOVE_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Watch>> watches_ KVCOVE_GUARDED_BY(mutex_);
  std::array<std::int64_t, kDeviceWays> busy_since_ns_ KVCOVE_GUARDED_BY(mutex_){};
  std::array<std::uint64_t, kDeviceWays> busy_ns_ KVCOVE_GUARDED_BY(mutex_){};
  std::uint64_t own_bytes_ KVCOVE_GUARDED_BY(mutex_) = 0;  // of the loan that is larger
  std::uint64_t submitting_ KVCOVE_GUARDED_BY(mutex_) = 0;
  Owner calling_ KVCOVE_GUARDED_BY(mutex_) = nullptr;
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace kvcove::transport
