// SPDX-License-Identifier: Apache-2.0
// A model of an inference engine, as far as its KV cache goes: a block pool with a hash table and
// reference counts, a scheduler with chunked prefill, preemption, abort and waiting for remote KV,
// tensor-parallel ranks with memory of their own, and the cascade of resets. It runs the
// connector's two roles as an adapter does (kvcove/connector).
//
// KV is real bytes: what a token leaves in a rank's memory follows from the token, the weights, the
// rank, the layer, and what the token before it left there. So KV that was computed on top of other
// weights' KV is seen as such, wherever it turns up.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/connector/scheduler/scheduler.h"
#include "kvcove/connector/worker/worker.h"
#include "lab/replay/model_memory.h"

namespace kvcove::lab {

using Weights = std::uint64_t;

struct ModelRequest {
  std::string id;
  std::vector<std::uint32_t> tokens;  // the prompt; generated ones are appended
  std::uint32_t generate = 1;
  std::string salt;
};

struct ModelCounts {
  std::uint64_t finished = 0;
  std::uint64_t aborted = 0;
  std::uint64_t preempted = 0;
  std::uint64_t own_hit_blocks = 0;
  std::uint64_t loaded_blocks = 0;  // verified, each on every rank
  std::uint64_t failed_blocks = 0;  // reported as such, and computed
  std::uint64_t stale_blocks = 0;   // of other weights
  std::uint64_t wrong_blocks = 0;
  std::uint64_t computed_tokens = 0;
  std::uint64_t steps = 0;
};

struct ModelOptions {
  ModelShape shape;
  std::string name = "engine-0";
  connector::VersionSource versions = connector::VersionSource::kFingerprint;
  std::uint32_t batch_tokens = 64;  // a step computes at most
  std::uint32_t most_running = 8;
  bool keeps_cache = true;  // its own prefix cache
  // The version that a request's KV must have, where it is not that of the loaded weights (salt).
  std::function<Weights(const std::string& salt)> weights_of_salt;
  // Gets each coded plan that orders saves.
  std::function<void(const std::string& plan)> saves_ordered;
};

// Both roles of one connector. They outlive the engine.
struct ModelConnector {
  connector::SchedulerRole* scheduler = nullptr;
  std::vector<connector::WorkerRole*> workers;  // one a rank
};

// Belongs to one thread; the ranks' movers are the worker roles'.
class ModelEngine {
 public:
  // With several connectors it does what a multi-connector does: it loads from the first one that
  // has something, saves to all, and a reset asks every one. With none, a reset is a success.
  ModelEngine(const ModelOptions& options, std::vector<ModelConnector> connectors);
  // The ranks register their memory. Errors: kInvalid.
  Status Start(Weights weights);

  void Add(ModelRequest request);
  bool Abort(const std::string& id);
  void AbortAllRequests();
  bool has_requests() const { return !requests_.empty(); }
  // Also saves and loads that are still under way.
  bool has_work() const;

  // One step: schedule, plan, compute. Its outcome waits for Finish.
  void Step();
  bool stepping() const { return outcome_.has_value(); }
  // Takes what the step's ranks report.
  void Finish();

  // ---- what a trainer or operator calls, as in EngineCore
  // Preempts what runs if told to; then the own cache; then the connector if told to. False when a
  // part of it failed; every part is tried.
  bool ResetPrefixCache(bool reset_running_requests, bool reset_connector);
  // All caches. The caller sees a failure.
  bool ResetCaches(bool reset_running_requests = true, bool reset_connector = true);
  enum class PauseMode { kAbort, kWait, kKeep };
  // kWait: the caller steps until there is no work, then calls it again.
  bool PauseGeneration(PauseMode mode, bool clear_cache);
  void ResumeGeneration() { paused_ = false; }
  bool WakeUp() { return ClearKvCache(); }
  bool ClearKvCache();
  // The ranks' weights, one after the other; `told`: the scheduler is told as well.
  void ChangeWeights(Weights weights, bool told);
  Weights weights() const { return weights_; }

  const ModelCounts& counts() const { return counts_; }
  // What is not as it must be when no request is left: a block that leaked. Empty: nothing.
  std::string Leaks() const;
  // The requests that are there, for "nothing is stuck".
  std::vector<std::string> Unfinished() const;

 private:
  enum class State { kWaiting, kRemote, kRunning };
  struct Running {
    ModelRequest request;
    std::uint64_t prompt_tokens = 0;
    State state = State::kWaiting;
    std::uint64_t computed = 0;
    std::vector<BlockId> blocks;
    std::vector<std::string> hashes;
    std::uint64_t own_tokens = 0;
    std::uint64_t scheduled = 0;  // in this step
    bool started = false;         // its first step since it waited
    bool aborted = false;         // its blocks wait for a load to end
    bool load_failed = false;
  };
  struct Outcome {
    std::vector<std::string> loaded;  // by all ranks
    std::vector<BlockId> failed_blocks;
    std::vector<std::vector<std::string>> reports;  // of each connector
    Weights weights = 0;                            // when the ranks ended what they loaded
  };

  connector::RequestView ViewOf(Running& request);
  void Hash(Running& request);
  void ScheduleRunning(std::uint64_t& budget);
  void ScheduleWaiting(std::uint64_t& budget);
  bool StartWaiting(Running& request, std::uint64_t& budget, bool& blocked);
  bool Grow(Running& request, std::uint64_t tokens);
  // The blocks that `next`, and all that wait with blocks, lack until their prompts are computed.
  std::uint64_t Promised(const Running& next) const;
  void Preempt(Running& request);
  // What the connectors have, and whose it is.
  connector::Match MatchAll(Running& request, std::uint64_t computed, std::size_t& whose);
  void RunConnector(std::size_t index, Outcome& outcome);
  void FinishConnector(std::size_t index, Outcome& outcome);
  void Compute(Running& request);
  void Verify(const Running& request, Weights weights);
  void HandleFailed(const std::vector<BlockId>& blocks);
  void HandleLoaded(const Outcome& outcome);
  void Free(Running& request);
  bool ResetOwnCache();
  void Erase(const std::string& id);
  std::string FingerprintOf(std::uint32_t rank) const;

  const ModelOptions options_;
  const std::vector<ModelConnector> connectors_;
  std::vector<RankMemory> memory_;
  BlockPool pool_;
  Weights weights_ = 0;
  bool paused_ = false;
  std::map<std::string, Running> requests_;
  std::deque<std::string> waiting_;
  std::vector<std::string> running_;
  struct LoadLeft {
    std::size_t connector = 0;
    std::uint32_t ranks = 0;  // that have not ended it
  };
  std::map<std::string, LoadLeft> loads_left_;
  std::map<BlockId, std::uint32_t> pinned_;
  std::optional<Outcome> outcome_;
  ModelCounts counts_;
};

// The hash of a block, of the one before it and its tokens.
std::string NextHash(std::string_view before, std::span<const std::uint32_t> tokens);
// Chain of what tokens leave behind: for the first one `before` is 0.
std::uint64_t NextState(std::uint64_t before, std::uint32_t token, Weights weights);

}  // namespace kvcove::lab
