// SPDX-License-Identifier: Apache-2.0
// RDMA beside the connections of one server (docs/rdma.md): the owner's memory that the device
// knows, the making of lanes, and what their ends wait for. Private to this folder.
//
//   a server opens -> its memory is registered, in the background -> lanes are made on request
//   a connection ends -> its lane ends, and with it the exchange whose payload it was moving
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/transport/peer.h"
#include "kvcove/transport/service.h"
#include "kvcove/transport/verbs/ends.h"
#include "kvcove/transport/verbs/fabric.h"

namespace kvcove::transport::tcp {

// Thread-safe.
class LaneSide {
 public:
  // Each has a queue pair, a completion queue and a descriptor.
  static constexpr std::size_t kMaxLanes = 1024;

  // `memory`: where most served pieces are. Payload in any other memory takes the connection.
  LaneSide(verbs::Fabric& fabric, std::vector<std::span<std::byte>> memory)
      : fabric_(fabric), memory_(std::move(memory)) {}
  ~LaneSide() { Stop(); }
  LaneSide(const LaneSide&) = delete;
  LaneSide& operator=(const LaneSide&) = delete;

  // Begins to register the memory. Errors: kLimit where too much work is waiting.
  Status Start();
  // Waits until no lane that End() was given touches memory. No connection has a lane any more. The
  // registrations end in the background: without a lane the device touches nothing, and to unpin
  // large memory takes longer than an upgrade may (docs/upgrade.md). A device that does not end is
  // named in the log, again and again.
  void Stop();
  // The same, but waits for so long only, and names no device. False: a lane still touches memory,
  // or the device is registering some.
  bool StopWithin(std::chrono::nanoseconds most);

  // Takes a place for a lane, which GiveBack() returns, or End() once the lane is gone. Errors: why
  // no lane can be made now; kLimit for more than kMaxLanes.
  Status TakePlace();
  void GiveBack() { lanes_->fetch_sub(1, std::memory_order_relaxed); }
  // Returns what gives the place back, for a lane that may end behind this object.
  std::function<void()> GiveBackLater() const {
    return [lanes = lanes_] { lanes->fetch_sub(1, std::memory_order_relaxed); };
  }
  verbs::Fabric& fabric() { return fabric_; }
  // Counts the payload of a step that has ended.
  void CountMoved(bool received, std::uint64_t bytes) {
    (received ? received_bytes_ : sent_bytes_).fetch_add(bytes, std::memory_order_relaxed);
  }
  LaneCounts counts() const;
  // Ends a lane. While its device touches the pieces of `served`, both others live, and Stop()
  // waits; they end by the reaper's thread then, else within this call.
  void End(std::unique_ptr<verbs::OwnerEnd> lane, std::unique_ptr<Served> served,
           std::unique_ptr<Visit> visit);

 private:
  void RegisterAll();
  // Waits until `busy_` is 0. False: it is not, by then.
  bool AwaitIdle(std::chrono::nanoseconds most);
  void EndRegistrations();
  void NameDevice();
  Status Ready() const;

  verbs::Fabric& fabric_;
  const std::vector<std::span<std::byte>> memory_;
  // Places that are taken. Shared with idle lanes, which may end behind this object.
  const std::shared_ptr<std::atomic<std::size_t>> lanes_ =
      std::make_shared<std::atomic<std::size_t>>(0);
  std::atomic<std::uint64_t> sent_bytes_{0};
  std::atomic<std::uint64_t> received_bytes_{0};
  std::atomic<std::uint64_t> pinned_bytes_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> registered_{false};  // stored (release) behind `registrations_`
  mutable Mutex mutex_;
  CondVar changed_;
  std::size_t busy_ KVCOVE_GUARDED_BY(mutex_) = 0;  // RegisterAll, and lanes that end in mid-move
  bool registering_ KVCOVE_GUARDED_BY(mutex_) = false;  // of these, RegisterAll
  Status failure_ KVCOVE_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Registered>> registrations_;  // of RegisterAll, then of Stop
};

// Returns the exchange that answers a kLane: it makes a lane on a worker of the fabric, since a
// device may wait for the network, and stores it in `into`, which outlives the exchange. Null: the
// request is garbage. `lanes` null: there is no RDMA here.
std::unique_ptr<Served> OpenLane(LaneSide* lanes, std::span<const std::byte> head, Visit::Wake wake,
                                 std::unique_ptr<verbs::OwnerEnd>& into);

}  // namespace kvcove::transport::tcp
