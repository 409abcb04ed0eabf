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
  // `tier_log`: a line a load.
  explicit JobResults(bool tier_log) : tier_log_(tier_log) {}

  // The job's mover is done with it, or the device with its last batch: the job ends when both are.
  // Each job ends exactly once.
  void End(Job& job, std::int64_t now_ns, LinesAfterLock& lines);
  // An order that never became a job.
  void Fail(const LoadOrder& order, LinesAfterLock& lines);
  void Drop(const SaveOrder& order);

  Ended TakeEnded() { return std::exchange(ended_, {}); }
  // Sets the jobs that have ended since the last call, and their counters.
  void TakeInto(Report& report);

 private:
  // The engine looks for failed blocks when it has launched the step, so those of a synchronous
  // load that are known are reported now; errors of the device follow at its end.
  void ReportEarly(Job& job);
  void EndLoad(Job& job, LinesAfterLock& lines);

  const bool tier_log_;
  Ended ended_;
  std::vector<SaveDone> saves_;
  std::vector<LoadDone> loads_;
  Counters counters_;
};

}  // namespace kvcove::connector
