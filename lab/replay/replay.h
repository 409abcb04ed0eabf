// SPDX-License-Identifier: Apache-2.0
// Drives engines through a trace: hands out requests in the trace's order, keeps at most two under
// way an engine, updates weights in between, and adds everything up.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lab/replay/engine.h"

namespace kvcove::lab {

// One engine, in this process or in another. Belongs to the driver's thread.
class EngineLink {
 public:
  virtual ~EngineLink() = default;
  virtual Status Send(std::uint32_t request) = 0;
  virtual Status SendUpdate() = 0;
  // The next answer, in the order of what was sent. `update_ok` says how an update ended.
  virtual Result<Served> Receive(bool& update_ok) = 0;
};

struct ReplayOptions {
  std::uint32_t update_every = 0;  // requests between weight updates; 0: none
  double time_scale = 0;           // trace seconds per second; 0: as fast as possible
  std::function<void(std::size_t done, std::size_t all)> progress;
};

struct Bin {  // of the trace's time
  std::uint64_t blocks = 0;
  std::uint64_t own_hits = 0;
  std::uint64_t pool_hits = 0;
  std::uint64_t load_bytes = 0;
  std::uint64_t store_bytes = 0;
};

struct Percentiles {
  double p50_us = 0;
  double p99_us = 0;
};

struct ReplayResult {
  std::uint64_t requests = 0;
  std::uint64_t blocks = 0;
  std::uint64_t own_hits = 0;
  std::uint64_t pool_hits = 0;
  std::uint64_t stored = 0;
  std::uint64_t failed = 0;
  std::uint64_t wrong_blocks = 0;
  std::uint64_t stale_blocks = 0;
  std::uint64_t late_rejected = 0;
  std::uint64_t late_accepted = 0;
  std::uint64_t updates = 0;
  std::uint64_t load_bytes = 0;
  std::uint64_t store_bytes = 0;
  std::uint64_t tokens_saved = 0;
  std::uint64_t tokens_asked = 0;
  double seconds = 0;
  std::vector<double> lookup_us, load_us, store_us;  // sorted
  std::vector<double> update_ms;
  std::vector<Bin> bins;  // a minute each

  double hit_ratio() const {
    return blocks == 0 ? 0
                       : static_cast<double>(own_hits + pool_hits) / static_cast<double>(blocks);
  }
};

Percentiles PercentilesOf(const std::vector<double>& sorted);

// Errors: kUnavailable when an engine's process ended, or a weight update failed.
Result<ReplayResult> Replay(const std::vector<Request>& requests,
                            const std::vector<std::unique_ptr<EngineLink>>& engines,
                            const ReplayOptions& options);

// An engine in this process.
std::unique_ptr<EngineLink> LinkTo(std::unique_ptr<Engine> engine,
                                   const std::vector<Request>& requests);

// An engine in a process of its own, started as `arguments` with its end of a socket as descriptor
// kEngineSocket. It serves until the socket closes.
inline constexpr int kEngineSocket = 3;
Result<std::unique_ptr<EngineLink>> StartEngineProcess(const std::vector<std::string>& arguments);
// What that process runs.
Status ServeEngine(Engine& engine, const std::vector<Request>& requests, int socket);

}  // namespace kvcove::lab
