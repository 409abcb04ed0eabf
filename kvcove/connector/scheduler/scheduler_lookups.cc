// SPDX-License-Identifier: Apache-2.0
// Looks requests up in the pool, in parts and within the step's budget.
#include <algorithm>

#include "kvcove/base/hash.h"
#include "kvcove/base/interrupt.h"
#include "kvcove/connector/scheduler/scheduler.h"

namespace kvcove::connector {
namespace {

constexpr std::uint64_t kFirstStrides = 64;
constexpr std::int64_t kMemoNs = 30 * kSecond;  // an answer's age: half of a hold's length

}  // namespace

void SchedulerRole::DropLookup(Request& request) {
  request.lookup.reset();
  request.lookup_epoch = 0;
}

SchedulerRole::Request* SchedulerRole::BeginLookup(const RequestView& view,
                                                   std::uint64_t computed_tokens, Match& match) {
  const std::int64_t now = clock_.NowNs();
  Request& request = Find(view);
  request.computed_tokens = computed_tokens;
  request.known_tokens = computed_tokens;
  request.known_epoch = marks_.epoch();
  request.version = weights_.VersionOf(view.salt);
  if (!BindAdapter(request, view.adapter)) return nullptr;
  if ((!options_.lookup && !options_.save) || without_pool_) return nullptr;
  if (request.lookup_over || weights_.changing()) return nullptr;
  if (weights_.awaited()) {
    // The ranks answer with the next step's report.
    match.ask_again = weights_.MayWait(now);
    if (match.ask_again) ++stats_.asked_again;
    return nullptr;
  }
  if (Binds(request.version)) {  // KV that it computes now could not be stored
    match.ask_again = true;
    ++stats_.asked_again;
    return nullptr;
  }
  if (!options_.lookup) return nullptr;
  // With full attention only, the last token is computed on blocks that were all loaded. Other
  // groups have what a hit needs at chunk ends alone, so the hit ends before the last token.
  const std::uint64_t limit =
      (options_.shape.all_full() ? view.tokens : std::max<std::uint64_t>(view.tokens, 1) - 1) /
      stride_ * stride_;
  if (limit <= computed_tokens) return nullptr;
  const bool fresh = request.lookup_epoch == epoch_ && request.lookup_from <= computed_tokens &&
                     request.lookup_limit == limit && now - request.lookup_since_ns < kMemoNs;
  if (!fresh) {
    request.lookup.reset();
    request.lookup_epoch = epoch_;
    request.lookup_limit = limit;
    request.lookup_from = computed_tokens / stride_ * stride_;
    request.lookup_begin = request.lookup_from;
    request.lookup_since_ns = now;
    request.tiers = {};
    request.lookup_counted = false;
    request.found.clear();
    ++stats_.lookups;
    stats_.asked_tokens += limit - computed_tokens;
  }
  return &request;
}

std::uint64_t SchedulerRole::LookupEnd(const Request& request) const {
  // A short first part: the hashes of a long request are read only once its beginning is found.
  const bool short_first =
      options_.shape.all_full() && request.lookup_begin == 0 && !options_.drop_last_stride;
  return short_first ? std::min(request.lookup_limit, kFirstStrides * stride_)
                     : request.lookup_limit;
}

std::shared_ptr<Lookup> SchedulerRole::LookupFor(const RequestView& view,
                                                 std::uint64_t computed_tokens, Match& match) {
  std::size_t known = 0;
  std::uint64_t to = 0;
  {
    const MutexLock lock(mutex_);
    Request* const request = BeginLookup(view, computed_tokens, match);
    if (request == nullptr) return nullptr;
    if (request->lookup != nullptr) return request->lookup;
    known = request->hashes.size();
    to = LookupEnd(*request);
  }
  const NewHashes read = ReadHashes(view, known, to);
  const MutexLock lock(mutex_);
  Request& request = Find(view);
  if (!Keep(request, read)) {
    match.ask_again = true;
    return nullptr;
  }
  const std::uint64_t drop = options_.drop_last_stride ? stride_ : 0;
  // An epoch that has begun since BeginLookup() needs no check here: it has set lookup_epoch to 0,
  // and MatchOnce() refuses the answer.
  const std::int64_t wait_ns = view.waits_for_saves ? SaveWaitNs(request) : 0;
  request.lookup = std::make_shared<Lookup>(
      options_.shape, keys_,
      Lookup::Question{.hashes = request.hashes,
                       .from_tokens = request.lookup_begin,
                       .limit_tokens = to,
                       .drop_tokens = drop,
                       .version = request.version,
                       .adapter = request.adapter.digest,
                       .wait_until_ns = wait_ns > 0 ? request.lookup_since_ns + wait_ns : 0});
  return request.lookup;
}

Match SchedulerRole::Matched(const RequestView& view, std::uint64_t computed_tokens) {
  AwaitBinding(view.salt);
  bool again = true;
  Match match;
  while (again) match = MatchOnce(view, computed_tokens, again);
  return match;
}

Match SchedulerRole::MatchOnce(const RequestView& view, std::uint64_t computed_tokens,
                               bool& again) {
  again = false;
  Match match;
  const std::shared_ptr<Lookup> lookup = LookupFor(view, computed_tokens, match);
  if (lookup == nullptr) return match;
  std::int64_t budget_ns = 0;
  {
    const MutexLock lock(mutex_);
    budget_ns = budget_.ForLookups();
  }
  const std::int64_t start = clock_.NowNs();
  // Rounded up, so that a budget of less than a millisecond still lets the look-up advance.
  const bool ended =
      runner_.Run(lookup, std::chrono::milliseconds(CeilDiv(budget_ns, kMillisecond)));
  const std::int64_t now = clock_.NowNs();

  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  budget_.AddLookup(now - start);
  stats_.lookup_ns += static_cast<std::uint64_t>(now - start);
  const auto at = requests_.find(view.id);
  if (at == requests_.end()) return {};
  Request& request = at->second;
  const bool late = now - request.lookup_since_ns > options_.lookup_timeout.count() * kMillisecond;
  // Asks again if there is no answer yet, or if an epoch began while it ran: the answer is of the
  // former version or generation.
  if (ended ? request.lookup_epoch != epoch_ : !late) {
    ++stats_.asked_again;
    return {.ask_again = true};
  }
  // Late, or given up by its runner: the request is computed, and is not looked up again.
  if (!ended || !lookup->done()) {
    DropLookup(request);
    request.lookup_over = true;
    ++stats_.lookup_timeouts;
    return {};
  }
  return TakeAnswer(view, computed_tokens, *lookup, again, lines);
}

Match SchedulerRole::TakeAnswer(const RequestView& view, std::uint64_t computed_tokens,
                                const Lookup& lookup, bool& again, LinesAfterLock& lines) {
  Request& request = requests_.find(view.id)->second;
  std::uint64_t hit = lookup.hit_tokens();
  stats_.lookup_keys += lookup.asked();
  if (hit == lookup.limit_tokens() && hit < request.lookup_limit) {
    CountWait(lookup);
    for (std::size_t i = 0; i < kTiers; ++i) request.tiers[i] += lookup.tiers()[i];
    KeepTiers(request, lookup);
    TellFound(view.id, request, lookup, lines);
    request.lookup.reset();
    request.lookup_begin = hit;
    again = true;
    return {};
  }
  if (hit >= view.tokens) hit = view.tokens - 1;  // the last token is always computed
  if (!request.lookup_counted) {
    CountWait(lookup);
    for (std::size_t i = 0; i < kTiers; ++i) request.tiers[i] += lookup.tiers()[i];
    TellFound(view.id, request, lookup, lines);
    KeepTiers(request, lookup);
    request.load_end = LoadEnd(request, hit);
    request.lookup_counted = true;
    stats_.lookup_time.Add(clock_.NowNs() - request.lookup_since_ns);
    ++stats_.missed[static_cast<std::size_t>(lookup.missed())];
  }
  hit = std::min(hit, request.load_end);
  if (hit <= computed_tokens) return {};
  return {.tokens = hit - computed_tokens, .async = options_.load_async};
}

void SchedulerRole::CountWait(const Lookup& lookup) {
  const Lookup::Waited waited = lookup.waited();
  if (waited.ns == 0) return;
  ++stats_.save_waits;
  if (waited.tokens == 0) ++stats_.save_waits_in_vain;
  stats_.save_wait_tokens += waited.tokens;
  stats_.save_wait_ns += static_cast<std::uint64_t>(waited.ns);
}

Result<std::uint64_t> SchedulerRole::Ask(const std::vector<std::string>& hashes,
                                         std::string_view salt, std::chrono::milliseconds timeout) {
  Lookup::Question question{.limit_tokens = hashes.size() * options_.shape.hash_tokens};
  for (const std::string& hash : hashes) question.hashes.Add(hash);
  {
    const MutexLock lock(mutex_);
    if (!weights_.known()) return Fail(Code::kClosed, "the weights are changing");
    question.version = weights_.VersionOf(salt);
  }
  Lookup lookup(options_.shape, keys_, std::move(question));
  const std::int64_t deadline_ns = clock_.NowNs() + timeout.count() * kMillisecond;
  while (!lookup.Step(store_, clock_, deadline_ns, std::chrono::milliseconds(0))) {
    if (LeftNs(deadline_ns, clock_) <= 0) return Fail(Code::kTimeout, "the pool did not answer");
  }
  return lookup.hit_tokens();
}

std::array<std::uint64_t, kTiers> SchedulerRole::TiersOf(std::string_view id) const {
  const MutexLock lock(mutex_);
  const auto at = requests_.find(id);
  return at == requests_.end() ? std::array<std::uint64_t, kTiers>{} : at->second.tiers;
}

}  // namespace kvcove::connector
