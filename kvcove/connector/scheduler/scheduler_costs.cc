// SPDX-License-Identifier: Apache-2.0
// Applies the cost model: measures loads and steps, and cuts hits to the part that is worth
// loading.
#include <algorithm>

#include "kvcove/connector/scheduler/scheduler.h"

namespace kvcove::connector {

void SchedulerRole::KeepTiers(Request& request, const Lookup& lookup) {
  for (const Lookup::Seen& seen : lookup.seen()) {
    const GroupShape& group = options_.shape.groups[seen.group];
    const std::uint64_t begin = seen.chunk * group.chunk_tokens;
    if (seen.where == Lookup::Where::kNowhere || begin < request.lookup_from) continue;
    const std::size_t stride = (begin - request.lookup_from) / stride_;
    if (stride >= request.found.size()) request.found.resize(stride + 1, Tier::kMemory);
    request.found[stride] = std::max(request.found[stride], seen.tier);
  }
}

Tier SchedulerRole::TierOf(const Request& request, std::uint64_t token) const {
  if (token < request.lookup_from) return Tier::kUnknown;
  const std::size_t stride = (token - request.lookup_from) / stride_;
  return stride < request.found.size() ? request.found[stride] : Tier::kUnknown;
}

std::uint64_t SchedulerRole::LoadEnd(Request& request, std::uint64_t hit) {
  if (options_.load_when == LoadWhen::kAlways || hit <= request.computed_tokens) return hit;
  // The engine's own cache may have grown since the look-up began.
  const std::uint64_t first = (request.computed_tokens - request.lookup_from) / stride_;
  const std::uint64_t from = request.lookup_from + first * stride_;
  const std::uint64_t count = CeilDiv(hit - from, stride_);
  std::vector<Tier> strides(count, Tier::kMemory);
  for (std::size_t i = 0; i < count && first + i < request.found.size(); ++i) {
    strides[i] = request.found[first + i];
  }
  // Other groups need the chunks before the hit's end, or a state there, and a shorter hit may have
  // neither: so all or nothing is loaded.
  const bool whole = !options_.shape.all_full();
  const std::size_t worth = costs_.Worth(from, stride_, strides, whole, clock_.NowNs());
  if (worth >= count) return hit;
  const std::uint64_t end = std::max(from + worth * stride_, request.computed_tokens);
  ++(end == request.computed_tokens ? stats_.loads_declined : stats_.loads_shortened);
  stats_.declined_tokens += hit - end;
  return end;
}

std::int64_t SchedulerRole::SaveWaitNs(const Request& request) const {
  // Ends well before the look-up is given up, with what has been found by then.
  const std::int64_t wait_ns =
      std::min(options_.save_wait, options_.lookup_timeout / 2).count() * kMillisecond;
  if (options_.load_when == LoadWhen::kAlways) return wait_ns;
  const CostModel::Costs costs = costs_.costs(clock_.NowNs());
  if (costs.token_ns == 0 && costs.context_ns == 0) return wait_ns;  // not measured yet
  // A wait in vain adds to the time of computing. It adds half of it at most.
  const std::uint64_t tokens = request.lookup_limit - request.lookup_from;
  const std::uint64_t context = request.lookup_from + tokens / 2;
  const std::uint64_t computing_ns = tokens * (costs.token_ns + context * costs.context_ns / 1000);
  return std::min(wait_ns, static_cast<std::int64_t>(computing_ns / 2));
}

void SchedulerRole::TakeStep(const Report& report) {
  const auto step = steps_.Reported(report.step, clock_.NowNs());
  if (step) costs_.AddStep(step->tokens, step->context_tokens, step->ns);
}

}  // namespace kvcove::connector
