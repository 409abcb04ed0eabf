// SPDX-License-Identifier: Apache-2.0
// Put and Reserve on a host with several owners: each value is placed in one of them.
#include <algorithm>
#include <set>

#include "kvcove/base/host/numa.h"
#include "kvcove/base/interrupt.h"
#include "kvcove/requester/local/host_session.h"

namespace kvcove::requester {
namespace {

constexpr std::size_t kFindChunk = segment::HeaderView::kFindMany;

}  // namespace

std::vector<PutCandidate> HostSession::FindStored(const Token& token, std::span<const ToPut> items,
                                                  std::span<ItemResult> results) {
  std::vector<PutCandidate> candidates;
  const std::size_t count = Owners();
  for (std::size_t owner = 0; owner < count; ++owner) {
    const auto attachment = owners_.at(owner).host->Current();
    if (attachment == nullptr || !attachment->connected()) continue;
    const segment::HeaderView& view = attachment->header();
    PutCandidate candidate{.owner = owner,
                           .node = attachment->node(),
                           .capacity_bytes = attachment->payload_bytes(),
                           .free_bytes = view.header().free_bytes.load(std::memory_order_relaxed)};
    // A hint only: the owner that is asked then checks generation and key again.
    const bool current = view.generation(token.slot) == token.generation;
    std::vector<segment::Event> hits;
    segment::Found found[kFindChunk];
    std::string_view keys[kFindChunk];
    for (std::size_t from = 0; current && view.LeaseHolds(clock_.NowNs()) && from < items.size();
         from += kFindChunk) {
      const std::size_t size = std::min(kFindChunk, items.size() - from);
      for (std::size_t k = 0; k < size; ++k) keys[k] = items[from + k].key;
      view.FindMany(token.slot, {keys, size}, found);
      for (std::size_t k = 0; k < size; ++k) {
        if (results[from + k].code == Code::kExists) continue;
        if (!found[k] || found[k].generation != token.generation) {
          // On this owner's disk. Another owner does not know that, and would store a second value.
          const bool on_disk = view.tier().Holds(token.slot, token.generation, keys[k]);
          if (on_disk) results[from + k].code = Code::kExists;
          continue;
        }
        results[from + k].code = Code::kExists;
        hits.push_back({.kind = segment::EventKind::kHit,
                        .hold_until_ms = 0,
                        .place = found[k].place,
                        .version = found[k].version});
      }
    }
    if (!items.empty()) {
      keys[0] = items[0].after;
      if (!keys[0].empty() && CheckKey(keys[0])) {
        view.FindMany(token.slot, {keys, 1}, found);
        candidate.has_predecessor = found[0] && found[0].generation == token.generation;
      }
    }
    attachment->PushEvents(hits);
    candidates.push_back(candidate);
  }
  return candidates;
}

Status HostSession::PutAmong(const Token& token, std::span<const ToPut> items,
                             std::span<ItemResult> results, const CallOptions& options,
                             const AskOwner& ask) {
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  for (std::size_t i = 0; i < items.size(); ++i) {
    results[i] = {.code = Code::kUnavailable, .bytes = items[i].bytes};
  }
  const auto candidates = FindStored(token, items, results);
  std::vector<std::size_t> todo;
  PutQuestion question{.node = NodeOfThisThread()};
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (results[i].code == Code::kExists) continue;
    if (todo.empty()) question.turn = std::hash<std::string_view>()(items[i].key) % Owners();
    todo.push_back(i);
    question.bytes += results[i].bytes;
  }
  if (todo.empty()) return {};
  // Items that an unavailable owner may have stored before it ended. If another owner then answers
  // kStale, that does not mean that no owner has the value, so these stay kUnavailable.
  std::set<std::size_t> unknown;
  Status failed = NotConnected();
  for (const std::size_t owner : OrderForPut(candidates, question)) {
    std::vector<ItemResult> answers(todo.size());
    failed = ask(At(owner), todo, answers, Left(options, deadline_ns));
    if (!failed && failed.error().code == Code::kInvalid) return failed;
    std::vector<std::size_t> again;
    for (std::size_t k = 0; k < todo.size(); ++k) {
      results[todo[k]] = answers[k];
      if (answers[k].code == Code::kStale && unknown.contains(todo[k])) {
        results[todo[k]].code = Code::kUnavailable;
      }
      // Only these two leave the item to another owner; with any other outcome it has its answer.
      if (answers[k].code == Code::kUnavailable) unknown.insert(todo[k]);
      if (answers[k].code == Code::kNoSpace || answers[k].code == Code::kUnavailable) {
        again.push_back(todo[k]);
      }
    }
    todo = std::move(again);
    if (todo.empty() || LeftNs(deadline_ns, clock_) <= 0) break;
  }
  return FailureShown(failed, results.first(items.size()));
}

Status HostSession::Put(const Token& token, std::span<const PutItem> items,
                        std::span<ItemResult> results, const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(items.size(), results.size()));
  if (closed()) {
    std::fill_n(results.begin(), items.size(), ItemResult{.code = Code::kClosed});
    return {};
  }
  // A single owner's client also reports an invalid token.
  if (Owners() == 1 || token.slot >= kMaxSlots) return At(0).Put(token, items, results, options);
  std::vector<ToPut> to_put(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    to_put[i] = {
        .key = items[i].key, .after = AfterOf(items, i, options), .bytes = SizeOf(items[i].value)};
  }
  return PutAmong(token, to_put, results, options,
                  [&](OwnerClient& session, std::span<const std::size_t> which,
                      std::span<ItemResult> answers, const CallOptions& left) {
                    std::vector<PutItem> part;
                    part.reserve(which.size());
                    for (const std::size_t i : which) {
                      part.push_back(items[i]);
                      part.back().after = to_put[i].after;
                    }
                    return session.Put(token, part, answers, left);
                  });
}

Status HostSession::PutOn(std::size_t owner, const Token& token, std::span<const PutItem> items,
                          std::span<ItemResult> results, const CallOptions& options) {
  (void)Owners();
  return At(owner).Put(token, items, results, options);
}

// ---- where the caller copies

Result<Reserved> HostSession::Reserve(const Token& token, std::span<const ReserveItem> items,
                                      const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(items.size(), items.size()));
  auto reservation =
      std::make_unique<Reservation>(items.size(), clock_, keep_, resets_.closed_flag());
  return ReserveBy(
      std::move(reservation), items, options,
      [&](Reservation& made, std::span<const ReserveKey> wanted, std::span<ItemResult> results) {
        return ReserveInto(made, token, wanted, results, options);
      });
}

Status HostSession::ReserveInto(Reservation& reservation, const Token& token,
                                std::span<const ReserveKey> items, std::span<ItemResult> results,
                                const CallOptions& options) {
  if (closed()) {
    std::ranges::fill(results, ItemResult{.code = Code::kClosed});
    return {};
  }
  if (Owners() == 1 || token.slot >= kMaxSlots) {
    return At(0).ReserveInto(reservation, token, items, results, options);
  }
  std::vector<ToPut> to_put(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const ReserveItem& item = items[i].item;
    to_put[i] = {.key = item.key, .after = item.after, .bytes = item.size_bytes};
  }
  return PutAmong(token, to_put, results, options,
                  [&](OwnerClient& session, std::span<const std::size_t> which,
                      std::span<ItemResult> answers, const CallOptions& left) {
                    std::vector<ReserveKey> part;
                    part.reserve(which.size());
                    for (const std::size_t i : which) part.push_back(items[i]);
                    return session.ReserveInto(reservation, token, part, answers, left);
                  });
}

Status HostSession::ReserveOn(std::size_t owner, Reservation& reservation, const Token& token,
                              std::span<const ReserveKey> items, std::span<ItemResult> results,
                              const CallOptions& options) {
  (void)Owners();
  return At(owner).ReserveInto(reservation, token, items, results, options);
}

}  // namespace kvcove::requester
