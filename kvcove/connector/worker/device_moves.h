// SPDX-License-Identifier: Apache-2.0
// Batches that a device moves between its memory and the host, and saves' batches whose bytes are
// on the host and wait for a mover.
//
//   load   Begin --PartDone of its last part--> End
//   save   Begin --PartDone of its last part--> Fetched --TakeFetched: a mover stores it--> End
//
// A way is blocked while its jobs wait for memory that batches of the way will return, so each End
// unblocks it.
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

  // Begins a batch, before its first part is submitted: its job does not end before the batch.
  void Begin(Batch& batch, std::int64_t now_ns);
  // Notes the ticket of a part of a synchronous load's batch, for the engine's stream to wait for.
  static void Submitted(Job& job, transport::DeviceTicket ticket, std::uint32_t part) {
    job.parts.push_back({.ticket = ticket, .number = part});
  }
  // Ends one part. True: all are over, and the device touches no memory of the batch any more.
  bool PartDone(Batch& batch, const transport::DeviceDone& done, std::int64_t now_ns);
  void Fetched(BatchPtr batch) { fetched_.push_back(std::move(batch)); }
  BatchPtr TakeFetched();
  bool has_fetched() const { return !fetched_.empty(); }
  // Ends the batch, well or not. True: its job is over, too, as its mover was done before.
  bool End(Batch& batch);

  bool empty() const { return flying_.empty(); }
  std::size_t jobs() const { return flying_.size(); }
  void Cancel(const std::function<bool(const Job&)>& matches);
  // Takes the tickets of the parts up to `part`, each once; the caller makes the stream wait for
  // them.
  std::vector<transport::DeviceTicket> TakeTickets(std::uint32_t part);

  // Returns the number of batches of one way that hold memory.
  std::size_t batches(bool load) const { return FlowOf(load).batches; }
  // Returns whether the way's jobs wait until one of its batches is over.
  bool blocked(bool load) const { return FlowOf(load).blocked; }
  // Blocks the way. Does nothing if it has no batch: the last one may have ended between the
  // mover's attempt and this call, and no End would unblock the way again.
  void Block(bool load) {
    if (batches(load) > 0) FlowOf(load).blocked = true;
  }

  // Counts the work of the device's queue since the last call, and its present state.
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
  // The end of the last ticket of each way, at which the device begins the next one.
  std::array<std::int64_t, transport::kDeviceWays> done_ns_{};
  transport::DeviceQueueStats counted_;
};

}  // namespace kvcove::connector
