// SPDX-License-Identifier: Apache-2.0
// Measures steps with prompts, from their plan to the first report that names them.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

namespace kvcove::connector {

// Does no I/O. Needs its owner's lock.
class StepTimes {
 public:
  struct Step {
    std::uint64_t tokens = 0;   // prompt tokens computed
    double context_tokens = 0;  // sum over them of the tokens before each
    std::int64_t ns = 0;
  };

  // Adds to the next step `scheduled` tokens of a prompt behind `computed` ones.
  void AddPrompt(std::uint64_t computed, std::uint64_t scheduled);
  // Begins the next step. Returns its number for the plan; 0: it is not timed, as it has no prompt.
  std::uint64_t Begin(std::int64_t now_ns);
  // Takes a rank's report of step `number` (0: none). Returns the step at its first report.
  std::optional<Step> Reported(std::uint64_t number, std::int64_t now_ns);

 private:
  struct Timed {
    std::uint64_t number = 0;
    std::int64_t since_ns = 0;
    Step step;
  };
  Step next_;
  std::deque<Timed> steps_;  // under way
  std::uint64_t last_ = 0;
  std::int64_t reported_ns_ = 0;  // the last report
};

}  // namespace kvcove::connector
