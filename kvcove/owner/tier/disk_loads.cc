// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/tier/disk_loads.h"

#include <algorithm>

#include "kvcove/base/glob.h"

namespace kvcove::owner {

DiskLoads::DiskLoads(const Limits& limits, std::span<const std::uint64_t> read_rates,
                     std::int64_t now_ns)
    : limits_(limits), queue_(read_rates, now_ns) {}

// ---- calls

bool DiskLoads::Refuse(LoadBatch& batch, MissReason reason) {
  if (reason == MissReason::kDiskFailed) ++counts_.failed;
  batch.results.push_back(MissFor(reason));
  return false;
}

bool DiskLoads::Add(const std::shared_ptr<LoadBatch>& batch, const Load& wanted) {
  std::shared_ptr<Load>& load = loads_[wanted.tag];
  if (load == nullptr) {
    // Each share may queue its part only: loads that wait for their rate leave room to other
    // shares.
    if (loads_.size() > limits_.loads ||
        queue_.waiting(wanted.share) > limits_.loads / queue_.shares()) {
      loads_.erase(wanted.tag);
      return Refuse(*batch, MissReason::kLimited);
    }
    load = std::make_shared<Load>(wanted);
    queue_.Push(load);
  }
  load->waiters.emplace_back(batch, batch->results.size());
  // The result at the deadline, unless Finish replaces this one.
  batch->results.push_back(MissFor(MissReason::kDiskTimeout));
  ++batch->open;
  return true;
}

void DiskLoads::Begin(const std::shared_ptr<LoadBatch>& batch) {
  if (--batch->open > 0 && !ended_) {
    batches_.push_back(batch);
  } else {
    MakeReady(batch);
  }
}

// Does nothing the second time: the last key and the deadline may both end a batch.
void DiskLoads::MakeReady(const std::shared_ptr<LoadBatch>& batch) {
  if (std::exchange(batch->answered, true)) return;
  ++answering_;
  ready_.push_back(batch);
}

void DiskLoads::Expire(std::int64_t now_ns) {
  for (auto at = batches_.begin(); at != batches_.end();) {
    LoadBatch& batch = **at;
    if (!batch.answered && batch.deadline_ns <= now_ns) {
      counts_.timeouts += batch.open;
      MakeReady(*at);
    }
    at = batch.answered ? batches_.erase(at) : std::next(at);
  }
}

void DiskLoads::End() {
  ended_ = true;
  for (const auto& batch : std::exchange(batches_, {})) MakeReady(batch);
}

// ---- fences

void DiskLoads::Fence(std::uint64_t tag) {
  if (const auto load = loads_.find(tag); load != loads_.end()) load->second->cancelled = true;
}

void DiskLoads::FenceMatching(SlotId slot, std::string_view pattern) {
  for (const auto& [tag, load] : loads_) {
    if (load->slot == slot && GlobMatches(pattern, load->key)) load->cancelled = true;
  }
}

void DiskLoads::FailAll(MissReason reason) {
  for (const auto& [tag, load] : std::exchange(loads_, {})) {
    // The disk's thread may be reading the value: its promotion must be refused.
    load->cancelled = true;
    Finish(load, MissFor(reason));
  }
  queue_.clear();
}

// ---- the disk's thread

bool DiskLoads::Waits(const Load& load) {
  return std::ranges::any_of(load.waiters,
                             [](const auto& waiter) { return !waiter.first->answered; });
}

std::shared_ptr<Load> DiskLoads::First(
    std::int64_t now_ns, const std::function<bool(const std::shared_ptr<Load>&)>& elsewhere) {
  // Looks at the first load of every share, also of those beyond their rates: loads that no call
  // waits for must not fill the table until their share's rate allows a read.
  for (std::size_t share = 0; share < queue_.shares(); ++share) {
    while (const std::shared_ptr<Load> load = queue_.First(share)) {
      const bool wanted = !load->cancelled && Waits(*load);
      if (wanted && !elsewhere(load)) break;
      queue_.Take(*load, 0);
      if (!wanted) Finish(load, MissFor(MissReason::kRaced));
    }
  }
  return queue_.Next(now_ns);
}

bool DiskLoads::Take(const std::shared_ptr<Load>& load, std::uint64_t bytes) {
  // FailAll has ended the load, because another thread set the disk aside since First.
  if (load->waiters.empty()) return false;
  // Charges the call that has waited longest; the others find the value in memory. A refused value
  // counts, too, so that smaller ones after it are refused and the call is served in order.
  std::uint64_t& used = load->waiters.front().first->bytes;
  const bool taken = used == 0 || used + bytes <= limits_.batch_bytes;
  used += bytes;
  queue_.Take(*load, taken ? bytes : 0);
  if (!taken) Finish(load, {.code = Code::kLimit});
  return taken;
}

void DiskLoads::Finish(const std::shared_ptr<Load>& load, const wire::LoadResult& result) {
  const auto known = loads_.find(load->tag);
  // After FailAll, a later load of the same key may have this place.
  if (known != loads_.end() && known->second == load) loads_.erase(known);
  if (result.code == Code::kOk) {
    ++counts_.promoted;
    counts_.promoted_bytes += result.bytes;
  }
  if (result.code == Code::kMiss) ++counts_.misses;
  if (result.reason == MissReason::kDiskFailed) ++counts_.failed;
  if (result.reason == MissReason::kNoRoom) ++counts_.no_room;
  for (const auto& [batch, index] : std::exchange(load->waiters, {})) {
    if (batch->answered) continue;
    batch->results[index] = result;
    if (--batch->open == 0) MakeReady(batch);
  }
}

std::vector<std::pair<SessionNumber, std::int64_t>> DiskLoads::HoldersOf(const Load& load) {
  std::vector<std::pair<SessionNumber, std::int64_t>> holders;
  for (const auto& [batch, index] : load.waiters) {
    if (!batch->answered) holders.emplace_back(batch->session, batch->hold_until_ns);
  }
  return holders;
}

}  // namespace kvcove::owner
