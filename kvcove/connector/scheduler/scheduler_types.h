// SPDX-License-Identifier: Apache-2.0
// The values that the engine's scheduler and the scheduler's role exchange: options, requests,
// steps, statistics.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/connector/plan.h"
#include "kvcove/connector/scheduler/cost_model.h"
#include "kvcove/connector/scheduler/lookup.h"
#include "kvcove/connector/shape.h"

namespace kvcove::connector {

inline std::uint64_t CeilDiv(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

// The source of the version of the weights with which KV is computed.
enum class VersionSource : std::uint8_t {
  kFingerprint = 0,  // the loaded weights themselves
  kEngine = 1,       // SetVersion
  kSalt = 2,         // each request's cache salt
  kNone = 3,         // generations alone
};
// Parses "fingerprint", "engine", "salt" or "none". Errors: kInvalid.
Result<VersionSource> ParseVersionSource(std::string_view name);

// The part of the found KV that is loaded.
enum class LoadWhen : std::uint8_t {
  kAlways = 0,
  kFaster = 1,  // as far as loading it is faster than computing it (cost_model.h)
};
// Parses "always" or "faster". Errors: kInvalid.
Result<LoadWhen> ParseLoadWhen(std::string_view name);

struct SchedulerOptions {
  EngineShape shape;
  std::string engine;         // names the engine in logs
  std::string pool;           // the pool's address, for the ranks
  std::string engine_socket;  // EngineServer's, for the ranks; may be empty
  VersionSource versions = VersionSource::kFingerprint;
  std::chrono::milliseconds lookup_budget{5};      // a step of the scheduler, all requests together
  std::chrono::milliseconds lookup_timeout{1000};  // then it is a miss
  // For so long, from its first question on, a request's look-up waits for blocks that are missing
  // and that an engine is saving; at most half of lookup_timeout. 0: it does not wait.
  std::chrono::milliseconds save_wait{0};
  std::chrono::milliseconds fingerprint_timeout{30'000};  // then look-ups miss until it is known
  std::chrono::milliseconds reset_timeout{2500};
  bool load_async = true;
  LoadWhen load_when = LoadWhen::kAlways;
  CostModel::Options costs;
  bool lookup = true;
  bool save = true;
  bool save_decoded = false;  // else only prompts
  // Computes the last stride of a hit instead of loading it: a draft model that looks ahead has
  // written KV there of tokens that do not follow.
  bool drop_last_stride = false;
  // KV that another connector of this engine loaded is of this engine's version: requests that
  // begin on it may store. False: they store nothing.
  bool trust_siblings = false;
  bool events = false;
  // Reset returns true also when it is not proven in time, with look-ups and stores closed until it
  // is. A reset that the pool refuses returns false.
  bool closed_on_reset_failure = false;
  std::uint64_t blocks = 0;             // number of the engine's blocks; 0: unknown
  std::uint32_t most_save_jobs = 1024;  // under way; more wait
  // Binds versions to their generation on a thread of the role; a version's first requests wait for
  // that. False: binds in the calls that need the generation, for simulations.
  bool bind_in_thread = false;
  std::chrono::milliseconds bind_timeout{500};  // of one try of the thread
  std::chrono::milliseconds bind_wait{2000};    // of the first requests of a version, together
};

// A request as the engine sees it. Valid during the call.
struct RequestView {
  std::string_view id;
  std::uint64_t tokens = 0;  // prompt and generated tokens
  std::uint64_t prompt_tokens = 0;
  std::string_view salt;
  AdapterId adapter = 0;
  bool waits_for_saves = true;  // false: another connector has the KV that an engine is saving
  std::size_t hashes = 0;       // number of hashes that the engine knows by now
  // Adds the hashes [from, to) to `into`. The role reads each hash once, when a call first needs
  // it, in the caller's thread and without a lock of the role. May throw.
  std::function<void(std::size_t from, std::size_t to, HashList& into)> read_hashes;
};

struct Match {
  bool ask_again = false;
  std::uint64_t tokens = 0;  // beyond the engine's computed tokens
  bool async = false;
};

using BlockTables = std::vector<std::vector<BlockId>>;  // by group, then by chunk

// The part of one request that one step computes.
struct ScheduledPart {
  RequestView request;
  std::uint64_t computed_tokens = 0;    // before the step
  std::uint64_t scheduled_tokens = 0;   // by it
  bool started = false;                 // the first step, or the first one after a preemption
  std::function<BlockTables()> blocks;  // asked for only when needed; as RequestView::read_hashes
};

struct SchedulerStats {
  std::uint64_t lookups = 0;
  std::uint64_t lookup_keys = 0;
  std::uint64_t lookup_ns = 0;
  std::uint64_t asked_again = 0;
  std::uint64_t lookup_timeouts = 0;
  std::uint64_t save_waits = 0;          // look-ups that waited for a save
  std::uint64_t save_waits_in_vain = 0;  // and found nothing more by it
  std::uint64_t save_wait_tokens = 0;    // found by waiting
  std::uint64_t save_wait_ns = 0;
  std::uint64_t notices_dropped = 0;  // saves that were not announced: too many at once
  std::uint64_t hit_tokens = 0;
  std::uint64_t asked_tokens = 0;
  std::array<std::uint64_t, kTiers> hit_keys{};
  std::uint64_t loads = 0;
  std::uint64_t loads_failed = 0;
  std::uint64_t loads_declined = 0;   // requests whose found KV is faster to compute
  std::uint64_t loads_shortened = 0;  // requests whose found KV is faster to compute at its end
  std::uint64_t declined_tokens = 0;  // of both
  std::uint64_t loads_void = 0;       // ended as failed: a reset or other weights came
  std::uint64_t saves = 0;
  std::uint64_t saves_postponed = 0;
  std::uint64_t unstored_requests = 0;    // begun on KV of an older epoch, or an unknown adapter
  std::uint64_t uncaptured_requests = 0;  // begun when the pool, or the weights, were not known
  std::uint64_t sibling_requests = 0;     // begun on KV that another connector loaded
  std::uint64_t resets_proven = 0;
  std::uint64_t resets_failed = 0;
  std::uint64_t reset_ns = 0;           // of all resets, proven or not
  std::uint64_t reset_voided_jobs = 0;  // loads and saves that were under way
  std::uint64_t epochs = 0;
  std::uint64_t events_dropped = 0;
  std::uint64_t closed = 0;         // now: 1 while nothing is looked up or stored
  std::uint64_t pinned_blocks = 0;  // now
  CostModel::Costs costs;           // now
  Latency lookup_time;              // from a request's first question to its answer
  Latency reset_time;               // of a proven one
  std::array<std::uint64_t, kMissReasons> missed{};  // keys at which look-ups ended
  Counters ranks;                                    // of all ranks, summed
  bool operator==(const SchedulerStats&) const = default;
};

// Returns whether a step begins a chunk or fills one. `chunk_tokens`: the common divisor of all
// groups' chunks.
inline bool TouchesChunks(std::uint64_t computed_tokens, std::uint64_t scheduled_tokens,
                          std::uint64_t chunk_tokens) {
  const std::uint64_t begun = computed_tokens % chunk_tokens;
  return begun == 0 || begun + scheduled_tokens >= chunk_tokens;
}

}  // namespace kvcove::connector
