// SPDX-License-Identifier: Apache-2.0
// Puts that an owner in a cluster has stored and the master has not listed yet, and the callers
// that wait for it. Thread-safe.
//
//   Add, Await, AddThen -> queued -> Take, by the link's list lane -> Listing::done, once
//                            ^---------- Return: the master did not answer
//
// A caller stops waiting at its deadline, when the master is away, or at EndWaits. Its listing
// stays queued all the same: what is stored is listed as soon as a master answers.
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
  // How often a wait for the master looks whether it went away meanwhile.
  static constexpr std::int64_t kMasterLookNs = 50 * kMillisecond;

  explicit Outbox(const Clock& clock) : clock_(clock) {}

  // `done` gets the outcomes in the order of `pending`, from the thread that completes the listing.
  void Add(std::vector<Pending> pending, Done done);
  // Waits for the outcomes. kNotListed for each of them where the wait ended first.
  std::vector<Code> Await(std::vector<Pending> pending, std::int64_t deadline_ns);
  // The same without a thread that waits: calls `done` once, from any thread.
  void AddThen(std::vector<Pending> pending, std::int64_t deadline_ns, ListedWaits::Done done);

  // Ends the waits whose deadline is over, or all while nobody may wait. The janitor calls it.
  void EndOverdue();
  // While the master is away nobody waits for it.
  void SetMasterReachable(bool reachable) { master_reachable_ = reachable; }
  bool MasterReachable() const { return master_reachable_; }
  // Until ResumeWaits nobody waits, as while the master is away. For a process that stops or hands
  // its memory over.
  void EndWaits();
  void ResumeWaits() { waits_end_ = false; }

  // ---- the list lane
  // Waits up to `wait_ns` for a listing, or for Wake. True if there is one.
  bool Wait(std::int64_t wait_ns);
  void Wake();
  // Whole listings, the oldest first, until they have `at_most_items` items.
  std::vector<Listing> Take(std::size_t at_most_items);
  // Puts them back to the head of the queue.
  void Return(std::vector<Listing> listings);

  // While the master is away puts evict older ones that are still queued here. Completes, as
  // kNoSpace, the listings of which no put `waits` any more, so that the queue cannot grow with
  // each put. Looks at the whole queue, but only once `evicted`, summed over the calls, makes up
  // for that. Calls `waits` without a lock.
  void Trim(std::uint64_t evicted, const std::function<bool(const Pending&)>& waits);
  // Drops every `done`: the callers were another process's.
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
