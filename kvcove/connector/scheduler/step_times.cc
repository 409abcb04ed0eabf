// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/scheduler/step_times.h"

#include <algorithm>
#include <utility>

namespace kvcove::connector {
namespace {

constexpr std::size_t kMostSteps = 64;  // steps under way; one that no rank reports is forgotten

}  // namespace

void StepTimes::AddPrompt(std::uint64_t computed, std::uint64_t scheduled) {
  next_.tokens += scheduled;
  next_.context_tokens += static_cast<double>(scheduled) *
                          (static_cast<double>(computed) + static_cast<double>(scheduled) / 2);
}

std::uint64_t StepTimes::Begin(std::int64_t now_ns) {
  const Step step = std::exchange(next_, {});
  if (step.tokens == 0) return 0;
  steps_.push_back({.number = ++last_, .since_ns = now_ns, .step = step});
  if (steps_.size() > kMostSteps) steps_.pop_front();
  return last_;
}

std::optional<StepTimes::Step> StepTimes::Reported(std::uint64_t number, std::int64_t now_ns) {
  std::optional<Step> reported;
  while (!steps_.empty() && number != 0 && steps_.front().number <= number) {
    const Timed& timed = steps_.front();
    if (timed.number == number) {
      reported = timed.step;
      // An engine may plan a step while the one before still runs: the step then begins when that
      // one has ended.
      reported->ns = now_ns - std::max(timed.since_ns, reported_ns_);
    }
    steps_.pop_front();
  }
  reported_ns_ = now_ns;
  return reported;
}

}  // namespace kvcove::connector
