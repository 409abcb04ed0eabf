// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/link/outbox.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

namespace kvcove::owner {
namespace {

constexpr std::uint64_t kTrimAfter = 64;  // evicted puts

}  // namespace

void Outbox::Add(std::vector<Pending> pending, Done done) {
  const MutexLock lock(mutex_);
  queue_.push_back({.pending = std::move(pending), .done = std::move(done)});
  changed_.NotifyOne();
}

std::vector<Code> Outbox::Await(std::vector<Pending> pending, std::int64_t deadline_ns) {
  // Shared, because the listing may be completed after this call has returned.
  struct State {
    Mutex mutex;
    CondVar changed;
    bool done KVCOVE_GUARDED_BY(mutex) = false;
    std::vector<Code> codes KVCOVE_GUARDED_BY(mutex);
  };
  const auto state = std::make_shared<State>();
  const std::size_t count = pending.size();
  Add(std::move(pending), [state](std::span<const Code> codes) {
    const MutexLock lock(state->mutex);
    state->codes.assign(codes.begin(), codes.end());
    state->done = true;
    state->changed.NotifyAll();
  });
  const MutexLock lock(state->mutex);
  while (!state->done) {
    const std::int64_t left = LeftNs(deadline_ns, clock_);
    if (left <= 0 || NobodyMayWait()) return std::vector<Code>(count, Code::kNotListed);
    state->changed.WaitFor(state->mutex, std::chrono::nanoseconds(std::min(left, kMasterLookNs)));
  }
  return state->codes;
}

void Outbox::AddThen(std::vector<Pending> pending, std::int64_t deadline_ns,
                     ListedWaits::Done done) {
  const std::size_t count = pending.size();
  Add(std::move(pending), listed_waits_.Add(count, deadline_ns, std::move(done)));
  // Looks again after the Add. EndWaits sets its flag and then ends all waits, so it may have
  // missed this one; the flag is set then.
  if (NobodyMayWait()) listed_waits_.End(0, /*all=*/true);
}

void Outbox::EndOverdue() { listed_waits_.End(clock_.NowNs(), /*all=*/NobodyMayWait()); }

void Outbox::EndWaits() {
  waits_end_ = true;
  listed_waits_.End(0, /*all=*/true);
}

bool Outbox::Wait(std::int64_t wait_ns) {
  const MutexLock lock(mutex_);
  if (queue_.empty() && !woken_) changed_.WaitFor(mutex_, std::chrono::nanoseconds(wait_ns));
  woken_ = false;
  return !queue_.empty();
}

void Outbox::Wake() {
  const MutexLock lock(mutex_);
  woken_ = true;
  changed_.NotifyAll();
}

std::vector<Listing> Outbox::Take(std::size_t at_most_items) {
  std::vector<Listing> listings;
  std::size_t items = 0;
  const MutexLock lock(mutex_);
  while (!queue_.empty() && items < at_most_items) {
    items += queue_.front().pending.size();
    listings.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  return listings;
}

void Outbox::Return(std::vector<Listing> listings) {
  const MutexLock lock(mutex_);
  for (auto at = listings.rbegin(); at != listings.rend(); ++at) queue_.push_front(std::move(*at));
}

void Outbox::Trim(std::uint64_t evicted, const std::function<bool(const Pending&)>& waits) {
  {
    const MutexLock lock(mutex_);
    // A scan costs the queue's length, so it waits for as many evictions: O(1) each. An empty queue
    // ends no count: the list lane may have taken all listings, and put them back.
    evicted_ += evicted;
    if (queue_.empty() || evicted_ <= kTrimAfter + (queue_.size() / 2)) return;
    evicted_ = 0;
  }
  // Taken out, because `waits` takes the owner's lock. Listings that are added meanwhile are queued
  // behind those that Return puts back, so the order remains.
  std::vector<Listing> remain;
  std::vector<Listing> over;
  for (Listing& listing : Take(~std::size_t{0})) {
    (std::ranges::any_of(listing.pending, waits) ? remain : over).push_back(std::move(listing));
  }
  Return(std::move(remain));
  for (const Listing& listing : over) {
    listing.done(std::vector<Code>(listing.pending.size(), Code::kNoSpace));
  }
}

void Outbox::ForgetCallers() {
  const MutexLock lock(mutex_);
  for (Listing& listing : queue_) listing.done = [](std::span<const Code>) {};
}

}  // namespace kvcove::owner
