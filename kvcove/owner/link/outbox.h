// SPDX-License-Identifier: Apache-2.0
// Puts that an owner in a cluster has stored and the master has not listed yet, and the callers
// that wait for the listing. Thread-safe.
//
//   Add, Await, AddThen -> queued -> Take, by the link's list lane -> Listing::done, once
//                            ^---------- Return: the master did not answer
//
// A caller stops waiting at its deadline, when the master is away, or at EndWaits. Its listing
// remains queued all the same: a stored value is listed as soon as a master answers.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/owner/link/link_target.h"
#include "kvcove/owner/link/listed_waits.h"

namespace kvcove::owner {

class Outbox {
 public:
  using Done = std::function<void(std::span<const Code>)>;
  // Longest time after which a wait for the master notices that the master is away.
  static constexpr std::int64_t kMasterLookNs = 50 * kMillisecond;

  explicit Outbox(const Clock& clock) : clock_(clock) {}

  // Queues puts. `done` gets the outcomes in the order of `pending`, from the thread that completes
  // the listing.
  void Add(std::vector<Pending> pending, Done done);
  // Queues puts and waits for the outcomes; kNotListed for each if the wait ends first.
  std::vector<Code> Await(std::vector<Pending> pending, std::int64_t deadline_ns);
  // As Await, but returns at once and calls `done` once, from any thread.
  void AddThen(std::vector<Pending> pending, std::int64_t deadline_ns, ListedWaits::Done done);

  // Ends the waits whose deadline is over; all while the master is away or after EndWaits. The
  // janitor calls it.
  void EndOverdue();
  // While the master is away, no caller waits for it.
  void SetMasterReachable(bool reachable) { master_reachable_ = reachable; }
  bool MasterReachable() const { return master_reachable_; }
  // Ends all waits, and later ones at once, until ResumeWaits. For a process that stops or hands
  // its memory over.
  void EndWaits();
  void ResumeWaits() { waits_end_ = false; }

  // ---- the list lane
  // Waits up to `wait_ns` for a listing, or for Wake. Returns whether there is a listing.
  bool Wait(std::int64_t wait_ns);
  void Wake();
  // Takes whole listings, the oldest first, until they have `at_most_items` items.
  std::vector<Listing> Take(std::size_t at_most_items);
  // Puts them back to the head of the queue.
  void Return(std::vector<Listing> listings);

  // Completes, as kNoSpace, the listings whose puts were all evicted (`waits` is false for each):
  // while the master is away, puts evict older ones that are still queued here, and the queue would
  // grow with each put. Looks at the whole queue, but only when `evicted`, summed over the calls,
  // exceeds half of its length. Calls `waits` and `done` without a lock.
  void Trim(std::uint64_t evicted, const std::function<bool(const Pending&)>& waits);
  // Drops every `done` for a hand-over: EndWaits has answered the callers, and the connections of
  // the others are closed.
  void ForgetCallers();

 private:
  bool NobodyMayWait() const { return !master_reachable_ || waits_end_; }

  const Clock& clock_;
  std::atomic<bool> master_reachable_{true};
  std::atomic<bool> waits_end_{false};
  ListedWaits listed_waits_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Listing> queue_ KVCOVE_GUARDED_BY(mutex_);
  bool woken_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::uint64_t evicted_ KVCOVE_GUARDED_BY(mutex_) = 0;  // since the last trim
};

}  // namespace kvcove::owner
