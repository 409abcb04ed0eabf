// SPDX-License-Identifier: Apache-2.0
// Puts at an owner, by processes of its host or of others.
#include <algorithm>

#include "kvcove/base/interrupt.h"
#include "kvcove/owner/owner.h"

namespace kvcove::owner {
namespace {

// Returns `results` with the outcomes of the items that have waited, which `order` names.
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

// Returns a callback that adds the outcomes of the items that have waited, and calls `done`.
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

void Owner::AwaitGeneration(const Token& token, std::int64_t deadline_ns) {
  while (memory_->core().Awaits(token) && outbox_.MasterReachable()) {
    const std::int64_t left = LeftNs(deadline_ns, clock_);
    if (left <= 0) return;
    // SetSlots notifies `published`. The bound is for SetMasterReachable, which does not: without
    // it this thread would wait until its deadline for a master that is away.
    memory_->published.WaitFor(memory_->mutex,
                               std::chrono::nanoseconds(std::min(left, Outbox::kMasterLookNs)));
  }
}

Owner::Begun<PutResult> Owner::BeginPut(SessionNumber session, const Token& token,
                                        std::span<const PutItem> items, std::int64_t wait_ns) {
  Begun<PutResult> begun;
  if (link_side_.draining()) {
    begun.results.assign(items.size(), {.code = Code::kNoSpace, .extents = {}});
    return begun;
  }
  {
    const MutexLock lock(memory_->mutex);
    // One hold from the wait's last look on: the generation cannot change before Put checks it, and
    // TakePending returns this call's commits alone, because each call takes its own.
    AwaitGeneration(token, wait_ns);
    begun.results = memory_->core().Put(session, token, items);
    memory_->PublishRoom();
    if (options_.cluster) begun.pending = memory_->core().TakePending();
  }
  // Before the session gets the extents: its first write would charge the pages to its own group.
  memory_->EnsurePopulated(begun.results);
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
    const MutexLock lock(memory_->mutex);
    begun.results = memory_->core().Finish(session, items);
    if (options_.cluster) begun.pending = memory_->core().TakePending();
  }
  // Pending commits are in the order of the items, so one pass finds the index of each.
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
  return WithCodes(std::move(results), order, outbox_.Await(std::move(pending), deadline_ns));
}

std::vector<Code> Owner::Finish(SessionNumber session, std::span<const FinishItem> items,
                                std::int64_t deadline_ns) {
  auto [results, pending, order] = Commit(session, items);
  if (pending.empty()) return results;
  return WithCodes(std::move(results), order, outbox_.Await(std::move(pending), deadline_ns));
}

void Owner::PutThen(SessionNumber session, const Token& token, std::span<const PutItem> items,
                    std::int64_t deadline_ns, std::function<void(std::vector<PutResult>)> done) {
  auto [results, pending, order] = BeginPut(session, token, items, /*wait_ns=*/0);
  if (pending.empty()) return done(std::move(results));
  outbox_.AddThen(std::move(pending), deadline_ns,
                  Completing(std::move(results), std::move(order), std::move(done)));
}

void Owner::FinishThen(SessionNumber session, std::span<const FinishItem> items,
                       std::optional<std::int64_t> deadline_ns,
                       std::function<void(std::vector<Code>)> done) {
  auto [results, pending, order] = Commit(session, items);
  if (pending.empty()) return done(std::move(results));
  auto listed = Completing(std::move(results), std::move(order), std::move(done));
  if (!deadline_ns) return outbox_.Add(std::move(pending), std::move(listed));
  outbox_.AddThen(std::move(pending), *deadline_ns, std::move(listed));
}

// ---- saves that sessions have announced

std::vector<Code> Owner::NoteSaves(SessionNumber session, const Token& token,
                                   std::span<const Id128> hashes, SaveNotice notice) {
  if (options_.cluster) return std::vector<Code>(hashes.size(), Code::kMiss);  // the master's
  const std::int64_t now = clock_.NowNs();
  std::vector<Code> codes;
  codes.reserve(hashes.size());
  const MutexLock lock(saves_mutex_);
  for (const Id128& hash : hashes) {
    const bool under_way = saves_.Has(token.slot, token.generation, hash, now);
    codes.push_back(under_way ? Code::kInProgress : Code::kMiss);
    if (notice == SaveNotice::kEnd) saves_.End(token.slot, token.generation, hash);
  }
  if (notice != SaveNotice::kBegin) return codes;
  saves_.Begin(session, token.slot, token.generation, hashes, now);
  // Within the hold: a later announcement must not be replaced by this one's earlier time.
  memory_->PublishSavesUntil(std::max<std::int64_t>(saves_.until_ns(), 1));
  return codes;
}

void Owner::EndSaves(SessionNumber session) {
  const MutexLock lock(saves_mutex_);
  saves_.EndWriter(session);
}

}  // namespace kvcove::owner
