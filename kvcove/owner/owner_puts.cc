// SPDX-License-Identifier: Apache-2.0
// Puts at an owner, loans of what it has, and the outbox in which puts wait for the master.
#include <algorithm>

#include "kvcove/base/interrupt.h"
#include "kvcove/owner/owner.h"

namespace kvcove::owner {
namespace {

// How often a put that waits for the master looks whether that is still there.
constexpr std::int64_t kMasterLookNs = 50 * kMillisecond;

std::vector<PutResult> Full(std::size_t count) {
  return std::vector<PutResult>(count, PutResult{.code = Code::kNoSpace, .extents = {}});
}

// The outcomes of what has waited: which of the results these are, `order` says.
std::vector<PutResult> WithCodes(std::vector<PutResult> results, std::span<const std::size_t> order,
                                 std::span<const Code> codes) {
  for (std::size_t k = 0; k < codes.size(); ++k) {
    results[order[k]] = {.code = codes[k], .extents = {}};
  }
  return results;
}
std::vector<Code> WithCodes(std::vector<Code> results, std::span<const std::size_t> order,
                            std::span<const Code> codes) {
  for (std::size_t k = 0; k < codes.size(); ++k) results[order[k]] = codes[k];
  return results;
}

// Passes the results on once the outcomes of what has waited are known.
template <typename T>
auto Completing(std::vector<T> results, std::vector<std::size_t> order,
                std::function<void(std::vector<T>)> done) {
  return [results = std::move(results), order = std::move(order),
          done = std::move(done)](std::span<const Code> codes) mutable {
    done(WithCodes(std::move(results), order, codes));
  };
}

}  // namespace

// ---- puts

void Owner::Enqueue(std::vector<Pending> pending, std::function<void(std::span<const Code>)> done) {
  const MutexLock lock(outbox_mutex_);
  outbox_.push_back({.pending = std::move(pending), .done = std::move(done)});
  outbox_changed_.NotifyOne();
}

std::vector<Code> Owner::AwaitListed(std::vector<Pending> pending, std::int64_t deadline_ns) {
  struct Wait {
    Mutex mutex;
    CondVar changed;
    bool done KVCOVE_GUARDED_BY(mutex) = false;
    std::vector<Code> codes KVCOVE_GUARDED_BY(mutex);
  };
  const auto wait = std::make_shared<Wait>();
  const std::size_t count = pending.size();
  Enqueue(std::move(pending), [wait](std::span<const Code> codes) {
    const MutexLock lock(wait->mutex);
    wait->codes.assign(codes.begin(), codes.end());
    wait->done = true;
    wait->changed.NotifyAll();
  });
  const MutexLock lock(wait->mutex);
  while (!wait->done) {
    const std::int64_t left = LeftNs(deadline_ns, clock_);
    if (left <= 0 || !master_reachable_ || waits_end_)
      return std::vector<Code>(count, Code::kNotListed);
    wait->changed.WaitFor(wait->mutex, std::chrono::nanoseconds(std::min(left, kMasterLookNs)));
  }
  return wait->codes;
}

void Owner::ListThen(std::vector<Pending> pending, std::int64_t deadline_ns,
                     ListedWaits::Done done) {
  const std::size_t count = pending.size();
  Enqueue(std::move(pending), listed_waits_.Add(count, deadline_ns, std::move(done)));
  // The janitor ends all waits when it sees that the master is away or that waits end. A wait that
  // is added after its look ends here.
  if (!master_reachable_ || waits_end_) listed_waits_.End(0, /*all=*/true);
}

bool Owner::Awaits(const Token& token) {
  const MutexLock lock(mutex_);
  return core_->Awaits(token);
}

void Owner::AwaitGeneration(const Token& token, std::int64_t deadline_ns) {
  while (core_->Awaits(token) && master_reachable_) {
    const std::int64_t left = LeftNs(deadline_ns, clock_);
    if (left <= 0) return;
    // No longer than this, so that a master that goes away meanwhile is noticed.
    published_.WaitFor(mutex_, std::chrono::nanoseconds(std::min(left, kMasterLookNs)));
  }
}

std::vector<PutResult> Owner::Reserve(SessionNumber session, const Token& token,
                                      std::span<const PutItem> items, bool evict) {
  if (draining_) return Full(items.size());
  // This process itself writes into what is reserved: it pays for the pages.
  const MutexLock lock(mutex_);
  std::vector<PutResult> results = core_->Put(session, token, items, evict);
  PublishRoom();
  return results;
}

void Owner::PublishRoom() {
  header_.header().free_bytes.store(core_->free_bytes(), std::memory_order_relaxed);
}

void Owner::EnsurePopulated(std::span<const PutResult> results) {
  const segment::Granule granule = header_.granule();
  for (const PutResult& result : results) {
    for (const Extent& extent : result.extents) {
      const Status ensured =
          populator_->Ensure(granule.BytesOf(extent.start), granule.BytesOf(extent.count));
      if (ensured) continue;
      // The writer meets the page faults, and its control group pays for the pages.
      if (const auto lines = unpopulated_.Due(clock_.NowNs()); lines > 0) {
        LogWarn("memory for a put could not be populated: {} ({} times)",
                ensured.error().ToString(), lines);
      }
      return;
    }
  }
}

Owner::Begun<PutResult> Owner::BeginPut(SessionNumber session, const Token& token,
                                        std::span<const PutItem> items, std::int64_t wait_ns) {
  Begun<PutResult> begun;
  if (draining_) {
    begun.results = Full(items.size());
    return begun;
  }
  {
    const MutexLock lock(mutex_);
    AwaitGeneration(token, wait_ns);
    begun.results = core_->Put(session, token, items);
    PublishRoom();
    if (options_.cluster) begun.pending = core_->TakePending();
  }
  EnsurePopulated(begun.results);
  if (begun.pending.empty()) return begun;
  std::unordered_map<std::uint64_t, std::size_t> where;
  for (std::size_t i = 0; i < begun.results.size(); ++i) {
    if (begun.results[i].reservation != 0) where.emplace(begun.results[i].reservation, i);
  }
  for (const Pending& one : begun.pending) begun.order.push_back(where.at(one.reservation));
  return begun;
}

Owner::Begun<Code> Owner::Commit(SessionNumber session, std::span<const FinishItem> items) {
  Begun<Code> begun;
  {
    const MutexLock lock(mutex_);
    begun.results = core_->Finish(session, items);
    if (options_.cluster) begun.pending = core_->TakePending();
  }
  // Both are in the order of the items.
  for (std::size_t i = 0; i < items.size() && begun.order.size() < begun.pending.size(); ++i) {
    if (items[i].reservation == begun.pending[begun.order.size()].reservation) {
      begun.order.push_back(i);
    }
  }
  return begun;
}

std::vector<PutResult> Owner::Put(SessionNumber session, const Token& token,
                                  std::span<const PutItem> items, std::int64_t deadline_ns) {
  auto [results, pending, order] = BeginPut(session, token, items, deadline_ns);
  if (pending.empty()) return results;
  return WithCodes(std::move(results), order, AwaitListed(std::move(pending), deadline_ns));
}

std::vector<Code> Owner::Finish(SessionNumber session, std::span<const FinishItem> items,
                                std::int64_t deadline_ns) {
  auto [results, pending, order] = Commit(session, items);
  if (pending.empty()) return results;
  return WithCodes(std::move(results), order, AwaitListed(std::move(pending), deadline_ns));
}

void Owner::PutThen(SessionNumber session, const Token& token, std::span<const PutItem> items,
                    std::int64_t deadline_ns, std::function<void(std::vector<PutResult>)> done) {
  auto [results, pending, order] = BeginPut(session, token, items, /*wait_ns=*/0);
  if (pending.empty()) return done(std::move(results));
  ListThen(std::move(pending), deadline_ns,
           Completing(std::move(results), std::move(order), std::move(done)));
}

void Owner::FinishThen(SessionNumber session, std::span<const FinishItem> items,
                       std::int64_t deadline_ns, std::function<void(std::vector<Code>)> done) {
  auto [results, pending, order] = Commit(session, items);
  if (pending.empty()) return done(std::move(results));
  ListThen(std::move(pending), deadline_ns,
           Completing(std::move(results), std::move(order), std::move(done)));
}

void Owner::FinishThen(SessionNumber session, std::span<const FinishItem> items,
                       std::function<void(std::vector<Code>)> done) {
  auto [results, pending, order] = Commit(session, items);
  if (pending.empty()) return done(std::move(results));
  Enqueue(std::move(pending), Completing(std::move(results), std::move(order), std::move(done)));
}

std::vector<Loan> Owner::Lend(const Token& token, std::span<const std::string_view> keys) {
  const MutexLock lock(mutex_);
  return core_->Lend(token, keys);
}

std::vector<std::optional<CopyLoan>> Owner::LendForCopy(
    std::span<const wire::CopyRequest::Item> items) {
  std::vector<std::optional<CopyLoan>> loans;
  const MutexLock lock(mutex_);
  for (const auto& item : items) {
    loans.push_back(item.key.empty() ? core_->LendForCopy(item.id, item.version)
                                     : core_->LendForCopy(item.slot, item.generation, item.key));
  }
  return loans;
}

Token Owner::TokenOf(SlotId slot, Generation generation) {
  const MutexLock lock(mutex_);
  return {.incarnation = core_->incarnation(), .generation = generation, .slot = slot};
}

void Owner::Return(std::span<const Loan> loans) {
  const MutexLock lock(mutex_);
  core_->Return(loans);
}

void Owner::SetChecksum(const Loan& loan, std::uint64_t checksum) {
  const MutexLock lock(mutex_);
  core_->SetChecksum(loan, checksum);
}

// ---- for the link to the master

void Owner::SetLease(std::int64_t deadline_ns) {
  header_.header().lease_deadline_ns.store(deadline_ns, std::memory_order_release);
}

std::int64_t Owner::LeaseUntilNs() const {
  return header_.header().lease_deadline_ns.load(std::memory_order_acquire);
}

bool Owner::WaitOutbox(std::int64_t wait_ns) {
  const MutexLock lock(outbox_mutex_);
  if (outbox_.empty() && !outbox_woken_) {
    outbox_changed_.WaitFor(outbox_mutex_, std::chrono::nanoseconds(wait_ns));
  }
  outbox_woken_ = false;
  return !outbox_.empty();
}

void Owner::WakeOutbox() {
  const MutexLock lock(outbox_mutex_);
  outbox_woken_ = true;
  outbox_changed_.NotifyAll();
}

std::vector<Listing> Owner::TakeListings(std::size_t at_most_items) {
  std::vector<Listing> listings;
  std::size_t items = 0;
  const MutexLock lock(outbox_mutex_);
  while (!outbox_.empty() && items < at_most_items) {
    items += outbox_.front().pending.size();
    listings.push_back(std::move(outbox_.front()));
    outbox_.pop_front();
  }
  return listings;
}

void Owner::ReturnListings(std::vector<Listing> listings) {
  const MutexLock lock(outbox_mutex_);
  for (auto at = listings.rbegin(); at != listings.rend(); ++at) {
    outbox_.push_front(std::move(*at));
  }
}

void Owner::CompleteListing(Listing listing, std::span<const Code> codes) {
  std::vector<Code> outcomes;
  {
    for (std::size_t begin = 0; begin < codes.size(); begin += kSlice) {
      const MutexLock lock(mutex_);
      for (std::size_t i = begin; i < std::min(begin + kSlice, codes.size()); ++i) {
        outcomes.push_back(core_->FinishListing(listing.pending[i], codes[i]));
      }
    }
  }
  listing.done(outcomes);
}

void Owner::SetHidden(const std::vector<SlotId>& slots) {
  const MutexLock lock(mutex_);
  core_->SetHidden(slots);
}

wire::RenewRequest Owner::Report() {
  wire::RenewRequest report;
  {
    const MutexLock lock(report_mutex_);
    report = report_;
  }
  // As of now: the epoch that begins when a disk is set aside must not be told without it.
  report.disk_away = DiskAway();
  return report;
}

void Owner::SetApplied(std::uint64_t number) {
  const MutexLock lock(mutex_);
  core_->SetApplied(number);
  applied_ = number;
}

}  // namespace kvcove::owner
