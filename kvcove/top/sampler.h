// SPDX-License-Identifier: Apache-2.0
// Takes samples on a thread of its own (kvcove-sampler), so that keys work while no endpoint
// answers. The mutex is taken alone.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/base/posix.h"
#include "kvcove/top/source.h"

namespace kvcove::top {

// Returns how long to wait after a sample: the interval, or longer where that is needed for the
// processor to spend no more than a hundredth of its time on `cost_ns` a sample. A pool with
// thousands of owners answers with megabytes.
std::int64_t PauseNs(std::int64_t interval_ns, std::int64_t cost_ns);
// Returns the processor's time that the calling thread has used.
std::int64_t ThreadCostNs();

// Thread-safe.
class Sampler {
 public:
  // `source` belongs to the sampler's thread from here on. Errors: as StartThread.
  static Result<std::unique_ptr<Sampler>> Start(Source& source, std::int64_t interval_ns);
  // Waits for the sample that is being taken.
  ~Sampler();

  struct News {
    std::optional<Taken> taken;
    std::string error;  // where there is no sample
    std::int64_t at_ns = 0;
  };
  // Returns the news since the last call, the latest of several.
  std::optional<News> Take();
  // Readable while there is something to take.
  int fd() const { return event_.get(); }
  void SetInterval(std::int64_t interval_ns);
  // Adds the processor's time that showing the sample has cost; the next one waits for it, too.
  void AddCost(std::int64_t cost_ns);

 private:
  explicit Sampler(Source& source) : source_(source) {}
  void Run();

  Source& source_;
  UniqueFd event_;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::int64_t interval_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::int64_t cost_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;  // of the latest sample
  std::optional<News> news_ KVCOVE_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace kvcove::top
