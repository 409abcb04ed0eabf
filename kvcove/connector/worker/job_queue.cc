// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/worker/job_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace kvcove::connector {

void JobQueue::Add(JobPtr job, std::int64_t now_ns) {
  job->since_ns = now_ns;
  job->number = ++last_number_;
  (job->load ? loads_ : saves_).push_back(std::move(job));
}

JobQueue::JobPtr JobQueue::Next(Share share, bool loads_blocked, bool saves_blocked) {
  for (auto* queue : {&loads_, &saves_}) {
    const bool loads = queue == &loads_;
    const bool theirs = share == Share::kAll || (share == Share::kLoads) == loads;
    if (!theirs || queue->empty() || (loads ? loads_blocked : saves_blocked)) continue;
    const auto next = loads ? queue->begin() : NextSave();
    JobPtr job = std::move(*next);
    queue->erase(next);
    running_.insert(job);
    return job;
  }
  return nullptr;
}

// The count is that of batches that were moved. Jobs that are taken for nothing, as another's bytes
// are stored first or the pinned memory is full, could be each fourth.
std::deque<JobQueue::JobPtr>::iterator JobQueue::NextSave() {
  if (save_batches_ % kOldestEvery == kOldestEvery - 1) return saves_.begin();
  auto next = std::prev(saves_.end());
  for (auto at = next; at != saves_.begin();) {
    --at;
    if ((*at)->request == (*next)->request || (*at)->id == (*next)->behind) next = at;
  }
  return next;
}

void JobQueue::PutBack(const JobPtr& job) {
  running_.erase(job);
  std::deque<JobPtr>& queue = job->load ? loads_ : saves_;
  const auto number = [](const JobPtr& one) { return one->number; };
  queue.insert(std::ranges::lower_bound(queue, job->number, {}, number), job);
}

std::vector<JobQueue::JobPtr> JobQueue::TakeLoads(const Matches& matches) {
  std::vector<JobPtr> taken;
  std::deque<JobPtr> left;
  for (JobPtr& job : loads_) {
    if (matches(*job)) {
      taken.push_back(std::move(job));
    } else {
      left.push_back(std::move(job));
    }
  }
  loads_ = std::move(left);
  return taken;
}

std::vector<JobQueue::JobPtr> JobQueue::TakeAll() {
  std::vector<JobPtr> taken;
  for (auto* queue : {&loads_, &saves_}) {
    std::ranges::move(*queue, std::back_inserter(taken));
    queue->clear();
  }
  return taken;
}

void JobQueue::CancelRunning(const Matches& matches) {
  for (const JobPtr& job : running_) {
    if (matches(*job)) job->cancelled = true;
  }
}

// `submitted_parts` counts parts, and `part` is an index: a job is behind until the count is above.
bool JobQueue::SyncBehind(std::uint32_t part) const {
  return std::ranges::any_of(sync_,
                             [part](const JobPtr& job) { return job->submitted_parts <= part; });
}

void JobQueue::CancelSync() {
  for (const JobPtr& job : sync_) job->cancelled = true;
}

void ComputedSteps::Add(ComputedStep step) {
  saves_ += step.saves.size();
  (step.mark == nullptr ? steps_ : marked_).push_back(std::move(step));
}

std::optional<ComputedStep> ComputedSteps::Take(const Ready& ready) {
  // One thread waits for these steps, in order, so a step that is not in front was taken by
  // TakeAll() while that thread called `ready` without the lock.
  if (steps_.empty() || steps_.front().ready != ready) return std::nullopt;
  ComputedStep step = std::move(steps_.front());
  steps_.pop_front();
  saves_ -= step.saves.size();
  return step;
}

std::optional<ComputedStep> ComputedSteps::Take(
    const std::shared_ptr<const transport::DeviceMark>& mark) {
  const auto at = std::ranges::find(marked_, mark, &ComputedStep::mark);
  if (at == marked_.end()) return std::nullopt;
  ComputedStep step = std::move(*at);
  marked_.erase(at);
  saves_ -= step.saves.size();
  return step;
}

std::deque<ComputedStep> ComputedSteps::TakeAll() {
  std::deque<ComputedStep> all = std::exchange(steps_, {});
  std::ranges::move(marked_, std::back_inserter(all));
  marked_.clear();
  saves_ = 0;
  return all;
}

}  // namespace kvcove::connector
