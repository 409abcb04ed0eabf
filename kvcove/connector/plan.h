// SPDX-License-Identifier: Apache-2.0
// The messages between the roles: with every step of the engine, a plan from the scheduler to all
// ranks and a report from each rank back; and requests of other processes to an engine. They are
// coded into bytes that the engine carries unread; decoding checks every length.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/model/ids.h"

namespace kvcove::connector {

using JobId = std::uint64_t;    // never reused by one engine
using BlockId = std::uint32_t;  // the engine's; 0 is its null block, which holds nothing

inline constexpr BlockId kNullBlock = 0;

// An engine's hash of a block, stored inline: a plan has one for each block, and neither the
// engine's thread nor the ranks' threads allocate for it.
class BlockHash {
 public:
  static constexpr std::size_t kMostBytes = 64;
  BlockHash() = default;
  // Copies at most kMostBytes and cuts off the rest, so callers must refuse longer hashes before.
  BlockHash(std::string_view bytes)  // NOLINT(google-explicit-constructor): it is the same
  {
    size_ = static_cast<std::uint8_t>(bytes.copy(bytes_.data(), kMostBytes));
  }
  BlockHash(const std::string& bytes) : BlockHash(std::string_view(bytes)) {}  // NOLINT
  BlockHash(const char* bytes) : BlockHash(std::string_view(bytes)) {}         // NOLINT
  operator std::string_view() const { return {bytes_.data(), size_}; }         // NOLINT
  bool operator==(const BlockHash& other) const {
    return std::string_view(*this) == std::string_view(other);
  }

 private:
  std::uint8_t size_ = 0;
  std::array<char, kMostBytes> bytes_;  // the first size_ are set
};

// One chunk of one group, in the engine's memory.
struct ChunkPlace {
  std::uint32_t group = 0;
  std::uint64_t chunk = 0;
  BlockId block = 0;
  Tier tier = Tier::kUnknown;  // for a load: the tier in which the look-up found it
  BlockHash hash;
  bool operator==(const ChunkPlace&) const = default;
};

using AdapterId = std::uint64_t;  // the engine's number of a LoRA adapter; 0: none

// A LoRA adapter that a rank has, and a digest of its tensors there.
struct AdapterPrint {
  AdapterId id = 0;
  std::string digest;
  bool operator==(const AdapterPrint&) const = default;
};

struct LoadOrder {
  JobId job = 0;
  std::string request;
  std::string version;
  AdapterPrint adapter;  // on which the KV depends; the digest covers all ranks' tensors
  bool sync = false;     // to be loaded before this step's forward pass
  std::vector<ChunkPlace> chunks;
  bool operator==(const LoadOrder&) const = default;
};

// Hints of a request's caller, for eviction: optional, and harmless when wrong.
struct RequestHints {
  std::uint32_t output_tokens = 0;  // expected length of the answer; 0: unknown
  // Chunks that begin at this token or behind it are rarely requested again.
  std::uint64_t ephemeral_from = ~std::uint64_t{0};
  bool session_ends = false;  // no request will continue this one
  bool operator==(const RequestHints&) const = default;
};

struct SaveOrder {
  JobId job = 0;
  std::string request;
  Token token;  // of the oldest KV on which these chunks depend
  std::string version;
  AdapterPrint adapter;
  std::vector<ChunkPlace> chunks;
  JobId behind = 0;  // saves the chunk before the first one, and has not ended; 0: none
  RequestHints hints;
  bool goes_on = false;  // more of its request is to be saved
  bool operator==(const SaveOrder&) const = default;
};

struct Plan {
  // Asks each rank to report its weights' fingerprint under this number. 0: does not ask.
  std::uint64_t fingerprint = 0;
  std::string pool;    // the pool's address
  std::string engine;  // the path of the engine's own socket; empty: none
  std::vector<LoadOrder> loads;
  std::vector<SaveOrder> saves;
  std::vector<JobId> cancelled;  // jobs whose result is unwanted; they still end
  // Loads that became void: every rank ends them as failed, also those that it has ended before.
  std::vector<LoadOrder> refused;
  // By rank: the number of the adapters that the orders' digests were made of (Report::adapters).
  std::vector<std::uint64_t> adapters;
  std::uint64_t step = 0;  // number of a timed step, which its reports name; 0: not timed
  bool empty() const {
    return fingerprint == 0 && loads.empty() && saves.empty() && cancelled.empty() &&
           refused.empty();
  }
  bool operator==(const Plan&) const = default;
};

struct SaveDone {
  JobId job = 0;
  std::vector<std::uint32_t> missing;  // places in the order's chunks that are not in the pool
  std::vector<std::uint32_t> on_disk;  // places that are in the pool, on a disk and not in memory
  bool operator==(const SaveDone&) const = default;
};

struct LoadDone {
  JobId job = 0;
  std::vector<BlockId> failed;
  std::uint64_t ns = 0;                       // time in which movers or the device moved its bytes
  std::array<std::uint64_t, kTiers> bytes{};  // loaded bytes, by Tier
  bool operator==(const LoadDone&) const = default;
};

// A histogram of durations, in seconds.
struct Latency {
  static constexpr std::array<double, 11> kBounds{1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2,
                                                  0.1,  0.3,  1,    3,    10};
  static constexpr std::size_t kBuckets = kBounds.size() + 1;
  std::array<std::uint64_t, kBuckets> counts{};
  void Add(std::int64_t ns);
  void Add(const Latency& other);
  bool operator==(const Latency&) const = default;
};

// Counters of one rank since its last report, and some present values.
struct Counters {
  std::uint64_t loaded_keys = 0;
  std::uint64_t loaded_bytes = 0;
  std::uint64_t failed_keys = 0;
  // Failed keys that the pool was asked for and did not deliver, or not to the end, by tier: that
  // of the pool's answer, else that of the look-up.
  std::array<std::uint64_t, kTiers> failed_by_tier{};
  std::uint64_t saved_keys = 0;
  std::uint64_t saved_bytes = 0;
  std::uint64_t existing_keys = 0;  // not stored again
  std::uint64_t stale_keys = 0;     // refused: computed before a reset
  std::uint64_t refused_keys = 0;   // no room, or the pool did not answer
  std::uint64_t dropped_keys = 0;   // not tried: pressure, or the weights were changing
  std::uint64_t misfit_keys = 0;    // removed: their value had another size than this engine's
  std::uint64_t copy_errors = 0;    // the device's driver refused to copy a value
  std::uint64_t load_ns = 0;
  std::uint64_t save_ns = 0;
  std::uint64_t load_jobs = 0;
  std::uint64_t save_jobs = 0;
  std::uint64_t queued_jobs = 0;  // now
  std::array<std::uint64_t, kTiers> keys_by_tier{};
  std::array<std::uint64_t, kTiers> bytes_by_tier{};
  Latency load_time, save_time;  // of jobs, from when they could begin
  // For a device's memory: bytes by path (transport::DevicePath), time with any ticket under way in
  // ns, durations of tickets from their submission to their end; present tickets and pinned memory.
  std::array<std::uint64_t, 3> device_load_bytes{}, device_save_bytes{};
  // The part of these bytes that was copied straight out of the pool's memory and into it; the
  // bytes of it that transfers hold now, and that are pinned now.
  std::uint64_t device_load_in_place_bytes = 0, device_save_in_place_bytes = 0;
  std::uint64_t device_in_place_bytes = 0;
  std::uint64_t device_segment_pinned_bytes = 0;
  std::uint64_t device_load_ns = 0;
  std::uint64_t device_save_ns = 0;
  Latency device_load_time, device_save_time;
  std::uint64_t device_tickets = 0;
  std::uint64_t device_lent_bytes = 0;
  std::uint64_t device_pinned_bytes = 0;
  std::array<std::uint64_t, kMissReasons> missed{};  // values that were found, when loaded
  void Add(const Counters& other);
  bool operator==(const Counters&) const = default;
};

struct Report {
  std::uint32_t rank = 0;  // in the engine's world
  // Grows with every change of this rank's weights that was seen.
  std::uint64_t weight_changes = 0;
  std::uint64_t fingerprint_asked = 0;  // the plan's number; 0: nothing new
  std::string fingerprint;              // and how many changes it has seen:
  std::uint64_t fingerprint_changes = 0;
  // The adapters that this rank has now, if they are others than in the report before. The number
  // grows with every change; 0: nothing new.
  std::uint64_t adapters_number = 0;
  std::vector<AdapterPrint> adapters;
  std::vector<SaveDone> saves;
  std::vector<LoadDone> loads;
  Counters counters;
  std::uint64_t step = 0;     // Plan::step of the step that has ended
  bool without_pool = false;  // from now on: this rank can never open it
  bool empty() const {
    Counters news = counters;
    news.device_pinned_bytes = news.device_segment_pinned_bytes = 0;  // always there
    return step == 0 && fingerprint_asked == 0 && adapters_number == 0 && saves.empty() &&
           loads.empty() && !without_pool && news == Counters{};
  }
  bool operator==(const Report&) const = default;
};

// The kinds of news about weights that an engine's socket takes (engine_server.h).
enum class WeightsNews : std::uint8_t { kChanging = 0, kChanged = 1, kVersion = 2 };

// A request to an engine: one form for all methods, each of which uses some of the fields.
struct EngineQuestion {
  std::uint64_t budget_ms = 1000;   // limit for the answer
  std::string salt;                 // look-up
  std::vector<std::string> hashes;  // look-up: of the prefix's blocks
  std::uint8_t news = 0;            // weights
  std::string version;              // weights: kVersion
};
std::string Encode(const EngineQuestion& question);
Result<EngineQuestion> DecodeQuestion(std::string_view bytes);

std::string Encode(const Plan& plan);
std::string Encode(const Report& report);
// Errors: kCorrupt.
Result<Plan> DecodePlan(std::string_view bytes);
Result<Report> DecodeReport(std::string_view bytes);

}  // namespace kvcove::connector
