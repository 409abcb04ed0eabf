// SPDX-License-Identifier: Apache-2.0
// One engine of a replay: the model of an engine (model.h) with its connector on a real pool, fed
// with a trace's requests. Belongs to one thread; its ranks move KV on threads of their own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvcove/pool/pool.h"
#include "lab/replay/model.h"
#include "lab/replay/trace.h"

namespace kvcove::lab {

// How a trainer updates weights.
enum class Flow : std::uint8_t {
  kVerl = 0,     // abort and reset, sync, wake up and reset
  kPrimeRl = 1,  // no pause and no reset: requests name the version by their salt
};
// "verl", "prime-rl". Errors: kInvalid.
Result<Flow> ParseFlow(std::string_view name);

struct EngineOptions {
  std::string engine = "engine-0";
  std::uint32_t tp = 1;
  // Of its own memory, cache included; at least what its longest request needs. 0: no cache.
  std::uint64_t own_blocks = 1000;
  std::uint64_t longest_request = 1;  // in blocks
  std::uint64_t block_bytes = 65536;  // of all ranks together: a multiple of 64 for each
  Flow flow = Flow::kVerl;
  // Save once more, after each update, what the last request before it had saved: as a slow saver.
  bool late_stores = false;
};

// What one request did. A plain record: engines in other processes send it through a pipe.
struct Served {
  std::uint32_t request = 0;
  std::uint32_t blocks = 0;
  std::uint32_t own_hits = 0;
  std::uint32_t pool_hits = 0;
  std::uint32_t stored = 0;
  std::uint32_t failed = 0;  // puts and gets that ended with an error
  std::uint32_t wrong_blocks = 0;
  std::uint32_t stale_blocks = 0;
  std::uint32_t late_rejected = 0;  // stores that came after a reset and were refused
  std::uint32_t late_accepted = 0;
  std::uint64_t lookup_ns = 0;  // 0: no call was made
  std::uint64_t load_ns = 0;    // the ranks' mean
  std::uint64_t store_ns = 0;
  std::uint64_t load_bytes = 0;
  std::uint64_t store_bytes = 0;
};

class Engine {
 public:
  // Errors: kInvalid for sizes that do not fit.
  static Result<std::unique_ptr<Engine>> Open(const EngineOptions& options,
                                              std::unique_ptr<Pool> pool);

  Served Serve(std::uint32_t number, const Request& request);
  // New weights, in the flow of the options. Counts are added to `served`.
  Status UpdateWeights(Served& served);

 private:
  Engine(const EngineOptions& options, std::unique_ptr<Pool> pool)
      : options_(options), pool_(std::move(pool)) {}
  // Until nothing is left to do. Errors: kTimeout.
  Status Drain();
  void SaveLate(Served& served);

  const EngineOptions options_;
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<connector::Store> store_;
  std::unique_ptr<connector::LookupRunner> runner_;
  std::unique_ptr<connector::SchedulerRole> scheduler_;
  std::vector<std::unique_ptr<connector::WorkerRole>> workers_;
  std::unique_ptr<ModelEngine> model_;
  Weights weights_ = 1;
  std::string last_saves_;  // the plan that ordered them
};

}  // namespace kvcove::lab
