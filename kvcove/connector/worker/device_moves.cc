// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/worker/device_moves.h"

#include <algorithm>
#include <utility>

namespace kvcove::connector {

using transport::DeviceWay;

void DeviceMoves::Begin(Batch& batch, std::int64_t now_ns) {
  batch.submitted_ns = now_ns;
  batch.parts_left = static_cast<std::uint32_t>(batch.copies.size());
  ++batch.job->in_flight;
  ++FlowOf(batch.job->load).batches;
  flying_.insert(batch.job);
}

bool DeviceMoves::PartDone(Batch& batch, const transport::DeviceDone& done, std::int64_t now_ns) {
  const bool load = batch.job->load;
  Counters& counters = batch.tally.counters;
  auto& moved = load ? counters.device_load_bytes : counters.device_save_bytes;
  auto& in_place = load ? counters.device_load_in_place_bytes : counters.device_save_in_place_bytes;
  if (done.status) {
    for (std::size_t path = 0; path < moved.size(); ++path) {
      moved[path] += done.moved[path];
      if (batch.in_place != nullptr) in_place += done.moved[path];
    }
    (load ? counters.device_load_time : counters.device_save_time).Add(done.ns);
  }
  CountTime(batch, now_ns);
  if (!done.status && batch.status) batch.status = done.status;
  return --batch.parts_left == 0;
}

void DeviceMoves::CountTime(const Batch& batch, std::int64_t now_ns) {
  // The device begins a batch behind the step's mark and behind earlier batches. The cost model
  // wants the time that the bytes took, so those waits do not count.
  Job& job = *batch.job;
  const DeviceWay way = job.load ? DeviceWay::kLoad : DeviceWay::kSave;
  std::int64_t& before_ns = done_ns_[static_cast<std::size_t>(way)];
  const std::int64_t reached_ns =
      job.reached_ns == nullptr ? 0 : job.reached_ns->load(std::memory_order_relaxed);
  job.AddBusy(std::max({batch.submitted_ns, before_ns, reached_ns}), now_ns);
  before_ns = now_ns;
}

DeviceMoves::BatchPtr DeviceMoves::TakeFetched() {
  if (fetched_.empty()) return nullptr;
  BatchPtr batch = std::move(fetched_.front());
  fetched_.pop_front();
  return batch;
}

bool DeviceMoves::End(Batch& batch) {
  const JobPtr& job = batch.job;
  for (const Batch::Value& value : batch.values) {
    const Job::Item& item = job->items[value.item];
    if (!batch.status || value.voided) {
      batch.tally.bad.insert(item.place);
      ++(job->load ? batch.tally.counters.failed_keys : batch.tally.counters.refused_keys);
      // If it is not voided, the device failed, which says nothing about the tier.
      if (value.voided) {
        ++batch.tally.counters.failed_by_tier[static_cast<std::size_t>(value.tier)];
      }
    } else if (job->load) {
      Job::CountLoaded(batch.tally, item, value.tier);
    }
  }
  job->landed.Add(batch.tally);
  Flow& flow = FlowOf(job->load);
  --flow.batches;
  flow.blocked = false;
  if (--job->in_flight > 0) return false;
  flying_.erase(job);
  return job->over;
}

void DeviceMoves::Cancel(const std::function<bool(const Job&)>& matches) {
  for (const JobPtr& job : flying_) {
    if (matches(*job)) job->cancelled = true;
  }
}

std::vector<transport::DeviceTicket> DeviceMoves::TakeTickets(std::uint32_t part) {
  std::vector<transport::DeviceTicket> tickets;
  for (const JobPtr& job : flying_) {
    std::erase_if(job->parts, [&](const Job::Part& each) {
      if (each.number > part) return false;
      tickets.push_back(each.ticket);
      return true;
    });
  }
  return tickets;
}

void DeviceMoves::Count(Counters& counters, const transport::DeviceQueueStats& now) {
  counters.device_load_ns += now.busy_ns[0] - counted_.busy_ns[0];
  counters.device_save_ns += now.busy_ns[1] - counted_.busy_ns[1];
  counters.device_tickets = now.tickets;
  counters.device_lent_bytes = now.lent_bytes;
  counters.device_pinned_bytes = now.pinned_bytes;
  counted_ = now;
}

}  // namespace kvcove::connector
