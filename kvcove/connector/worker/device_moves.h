// SPDX-License-Identifier: Apache-2.0
// Batches that are on their way between host and device, and saves' batches whose bytes are on the
// host and wait for a mover.
//
//   load   Begin --PartDone of its last part--> End
//   save   Begin --PartDone of its last part--> Fetched --TakeFetched: a mover stores it--> End
//
// A way is blocked when its jobs wait for memory that batches of the way will give back: so each
// End unblocks it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "kvcove/connector/plan.h"
#include "kvcove/connector/worker/job.h"
#include "kvcove/transport/device_queue.h"

namespace kvcove::connector {

// Does no I/O. Needs its owner's lock.
class DeviceMoves {
 public:
  using JobPtr = std::shared_ptr<Job>;
  using BatchPtr = std::shared_ptr<Batch>;

  // All of the batch's parts are about to be submitted: its job does not end before the batch.
  void Begin(Batch& batch, std::int64_t now_ns);
  // A part of a synchronous load's batch has a ticket, which the engine's stream may wait for.
  static void Submitted(Job& job, transport::DeviceTicket ticket, std::uint32_t part) {
    job.parts.push_back({.ticket = ticket, .number = part});
  }
  // One part is over. True: all are, and the device touches nothing of the batch any more.
  bool PartDone(Batch& batch, const transport::DeviceDone& done, std::int64_t now_ns);
  void Fetched(BatchPtr batch) { fetched_.push_back(std::move(batch)); }
  BatchPtr TakeFetched();
  bool has_fetched() const { return !fetched_.empty(); }
  // The batch is over, well or not. True: so is its job, whose mover was done before.
  bool End(Batch& batch);

  bool empty() const { return flying_.empty(); }
  std::size_t jobs() const { return flying_.size(); }
  void Cancel(const std::function<bool(const Job&)>& matches);
  // Takes the tickets of the parts up to `part`, each once: from then on the stream waits for them.
  std::vector<transport::DeviceTicket> TakeTickets(std::uint32_t part);

  // Batches of one way that hold memory, and whether its jobs wait until one of them is over.
  std::size_t batches(bool load) const { return FlowOf(load).batches; }
  bool blocked(bool load) const { return FlowOf(load).blocked; }
  // Does nothing while the way has no batch: nobody would unblock it.
  void Block(bool load) {
    if (batches(load) > 0) FlowOf(load).blocked = true;
  }

  // Counts what the device's queue has done since the last call, and what is under way.
  void Count(Counters& counters, const transport::DeviceQueueStats& now);

 private:
  struct Flow {
    std::size_t batches = 0;
    bool blocked = false;
  };
  const Flow& FlowOf(bool load) const { return load ? load_flow_ : save_flow_; }
  Flow& FlowOf(bool load) { return load ? load_flow_ : save_flow_; }
  void CountTime(const Batch& batch, std::int64_t now_ns);

  std::set<JobPtr> flying_;
  std::deque<BatchPtr> fetched_;
  Flow load_flow_;
  Flow save_flow_;
  // When the last ticket of each way ended: the device begins the next one then.
  std::array<std::int64_t, transport::kDeviceWays> done_ns_{};
  transport::DeviceQueueStats counted_;
};

}  // namespace kvcove::connector
