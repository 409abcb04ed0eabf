// SPDX-License-Identifier: Apache-2.0
// The outcome of a rank's jobs, kept until the engine and its scheduler ask for it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kvcove/base/log.h"
#include "kvcove/connector/plan.h"
#include "kvcove/connector/worker/job.h"

namespace kvcove::connector {

// The outcome that the engine must know after a step.
struct Ended {
  std::vector<std::string> loaded;     // requests whose load has ended, well or not
  std::vector<BlockId> failed_blocks;  // of them: they hold nothing that can be used
  std::vector<std::string> failed;     // requests with such blocks
};

// Does no I/O. Needs its owner's lock.
class JobResults {
 public:
  // `tier_log`: logs a line for each load.
  explicit JobResults(bool tier_log) : tier_log_(tier_log) {}

  // Ends a job for its mover, or for the device with its last batch; the job ends when both are
  // done. Each job ends exactly once.
  void End(Job& job, std::int64_t now_ns, LinesAfterLock& lines);
  // Report an order that never became a job: a load as failed, a save as missing.
  void Fail(const LoadOrder& order, LinesAfterLock& lines);
  void Drop(const SaveOrder& order);

  Ended TakeEnded() { return std::exchange(ended_, {}); }
  // Sets the jobs that have ended since the last call, and their counters.
  void TakeInto(Report& report);

 private:
  // Reports the failed blocks of a synchronous load that are known when its mover is done: the
  // engine asks for them when it has launched the step. Errors of the device follow at its end.
  void ReportEarly(Job& job);
  void EndLoad(Job& job, LinesAfterLock& lines);

  const bool tier_log_;
  Ended ended_;
  std::vector<SaveDone> saves_;
  std::vector<LoadDone> loads_;
  Counters counters_;
};

}  // namespace kvcove::connector
