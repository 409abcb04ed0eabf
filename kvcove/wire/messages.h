// SPDX-License-Identifier: Apache-2.0
// What is asked of a host's pool and what it answers, as plain values, and the interfaces that
// answer, each as wide as its callers need: GenerationService, RemovalService, PutService and
// ObjectService. The embedded pool implements all of them in place, an owner's data server the last
// one; stubs (host_wire.h, master_stub.h) put the same calls into frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/model/hints.h"
#include "kvcove/model/ids.h"
#include "kvcove/model/stats.h"
#include "kvcove/wire/tasks.h"

namespace kvcove::wire {

using kvcove::NamespaceStat;
using kvcove::ObjectStat;
using kvcove::PinKind;
using kvcove::PoolStat;
using kvcove::SessionCounters;
using kvcove::SessionNumber;
using kvcove::SessionStat;

struct RegisterRequest {
  std::string name;     // of the namespace
  std::string version;  // of the weights; empty = none
  std::string engine;   // all processes of an engine give the same
  bool follow_always = false;
  bool assume_weights = false;
  // What this engine was bound to before it lost its connection; generation 0 = nothing.
  Id128 last_incarnation;
  Generation last_generation = 0;
  // The process that keeps the registration alive; zero: it ends with the connection.
  Id128 holder;
};

struct Registration {
  Id128 incarnation;
  SlotId slot = 0;
  Generation generation = 0;
  bool open = false;  // false: neither find nor store before this engine's next reset
};

struct ResetRequest {
  std::string name;
  std::string engine;                  // empty: an operator or trainer says that all is void
  std::optional<std::string> version;  // the version that the engine has from now on
  Id128 id;                            // the same id raises at most once
  // A repetition in the background: it shares no generation that others have raised, as they may
  // have done so for newer weights than this engine's.
  bool late = false;
  Id128 holder;  // as RegisterRequest's
  // The engine has registered for `version`: this is no change of version, whichever version the
  // engine registered for last.
  bool registered = false;
};

struct ResetOutcome {
  std::uint32_t raised = 0;  // generations; 0 when an unused one was shared
  // What the engine that asked is bound to from now on, without a version: a later master, which
  // does not know, is told so. Generation 0: nothing.
  Id128 incarnation;
  Generation generation = 0;
  // For how long, at least, no engine's reset has raised or come to share a generation of this one,
  // if that was decided before; kUnsharedMs if it was not, or if no other engine shares one now or
  // later. 0: unknown (authorities of earlier builds).
  std::uint64_t unshared_ms = 0;
  static constexpr std::uint64_t kUnsharedMs = ~std::uint64_t{0};
};

// Declares each weight version of the namespace dead that was first named earlier than `before`.
struct PruneRequest {
  std::string name;  // of the namespace
  std::string before;
};

struct PruneOutcome {
  std::uint64_t versions = 0;  // that this call has declared dead
  std::uint64_t raised = 0;    // generations of dead versions that it has ended
};

// A place in the session's staging area (segment/layout.h).
struct StagedAt {
  std::uint64_t sequence = 0;  // 0: nothing is staged
  std::uint32_t offset = 0;
};

// `value` of size_bytes, or as many bytes `staged`: stored in this call; neither: reserve.
struct PutItem {
  std::string_view key;
  std::uint32_t size_bytes = 0;
  std::span<const std::byte> value;
  std::string_view after;  // the chunk before it in its chain, or empty
  StagedAt staged;
  Hints hints;
  bool whole() const { return !value.empty() || staged.sequence != 0; }
};

struct PutResult {
  Code code = Code::kInternal;
  std::uint64_t reservation = 0;  // when reserved: to be finished
  std::vector<Extent> extents;    // where to write
};

struct FinishItem {
  std::uint64_t reservation = 0;
  bool commit = false;  // false: given up; no thread writes any more
  // Only between parts of one process:
  std::uint64_t checksum = 0;  // of the value, when it came with one
  bool has_checksum = false;
  std::uint32_t group = 0;  // of the replicas of one put; 0: it has none
  std::uint8_t copies = 1;  // on how many owners it is meant to be
  // Of a copy from another owner: the last removal that it had applied when it read the value. 0:
  // this is no copy.
  std::uint64_t copied_at = 0;
};

// Brings keys up that are on the owner's disk: they are in its memory when the answer comes, and
// held for a moment, so that the caller can read them there.
struct LoadRequest {
  Token token;
  std::span<const std::string_view> keys;
  // For how long the owner may look for them; it answers what it knows then.
  std::int64_t wait_ns = 0;
  std::int64_t hold_ns = 0;
};

struct LoadResult {
  // kOk: in memory. kMiss. kLimit: not looked for, as the other keys are much already; ask again
  // once these are read.
  Code code = Code::kMiss;
  MissReason reason = MissReason::kNone;
  std::uint64_t bytes = 0;  // where it was read just now
};

// The authority over generations. Thread-safe. Every call ends by `deadline_ns` (Clock).
class GenerationService {
 public:
  virtual ~GenerationService() = default;
  virtual Result<Registration> Register(const RegisterRequest& request,
                                        std::int64_t deadline_ns) = 0;
  virtual Result<ResetOutcome> Reset(const ResetRequest& request, std::int64_t deadline_ns) = 0;
  virtual Status NameVersions(std::string_view name, std::string_view engine,
                              std::span<const std::string> versions, std::int64_t deadline_ns) = 0;
  virtual Status EndEngine(std::string_view name, std::string_view engine,
                           std::int64_t deadline_ns) = 0;
  // Proven when it returns, as a reset is. A repetition is harmless. Errors: kInvalid (nobody has
  // named `before`), kNotProven, kIncompatible (an authority of an earlier build).
  virtual Result<PruneOutcome> Prune(const PruneRequest& request, std::int64_t deadline_ns) = 0;
};

// Removals, of every value that is stored anywhere in the pool. Thread-safe. Every call ends by
// `deadline_ns` (Clock). Both name the generation that they mean: another one than the current one
// is kStale, so that a slot that was given to another namespace meanwhile is not touched.
class RemovalService {
 public:
  virtual ~RemovalService() = default;
  // True when no owner has it any more, nor ever brings it back. Codes: kOk, kMiss.
  virtual Result<std::vector<Code>> Remove(const Token& token,
                                           std::span<const std::string_view> keys,
                                           std::int64_t deadline_ns) = 0;
  // How many were removed.
  virtual Result<std::uint64_t> RemoveMatching(const Token& token, std::string_view pattern,
                                               std::int64_t deadline_ns) = 0;

  // The same for callers that must not wait for a disk. `keys` are looked at within the call;
  // `done` is called once, from any thread, by the deadline, or within the call. RemoveMatchingThen
  // walks over memory within the call. A service that asks another process waits within the call.
  using RemoveDone = std::function<void(Result<std::vector<Code>>)>;
  using MatchDone = std::function<void(Result<std::uint64_t>)>;
  virtual void RemoveThen(const Token& token, std::span<const std::string_view> keys,
                          std::int64_t deadline_ns, const RemoveDone& done) {
    done(Remove(token, keys, deadline_ns));
  }
  virtual void RemoveMatchingThen(const Token& token, std::string_view pattern,
                                  std::int64_t deadline_ns, const MatchDone& done) {
    done(RemoveMatching(token, pattern, deadline_ns));
  }
};

// Stores values in one owner's memory, for one session of it. Thread-safe. Every call ends by
// `deadline_ns` (Clock).
class PutService {
 public:
  virtual ~PutService() = default;
  virtual Result<std::vector<PutResult>> Put(const Token& token, std::span<const PutItem> items,
                                             std::int64_t deadline_ns) = 0;
  // Commits reservations, or gives them up.
  virtual Result<std::vector<Code>> Finish(std::span<const FinishItem> items,
                                           std::int64_t deadline_ns) = 0;
  // Notes what this session says of saves of these keys (DirectoryHash), and returns kInProgress
  // for each whose save was under way before, else kMiss. Does not look for values.
  virtual Result<std::vector<Code>> NoteSaves(const Token& /*token*/, std::span<const Id128> hashes,
                                              SaveNotice /*notice*/, std::int64_t /*deadline_ns*/) {
    return std::vector<Code>(hashes.size(), Code::kMiss);
  }

  // The same for callers that must not wait. `items` are looked at within the call; `done` is
  // called once, from any thread, by the deadline, or within the call.
  using PutDone = std::function<void(Result<std::vector<PutResult>>)>;
  using FinishDone = std::function<void(Result<std::vector<Code>>)>;
  virtual void PutThen(const Token& token, std::span<const PutItem> items, std::int64_t deadline_ns,
                       const PutDone& done) {
    done(Put(token, items, deadline_ns));
  }
  virtual void FinishThen(std::span<const FinishItem> items, std::int64_t deadline_ns,
                          const FinishDone& done) {
    done(Finish(items, deadline_ns));
  }
};

// What one owner holds: pins, statistics and pages of it, and what its disk brings up. Thread-safe.
// Every call ends by `deadline_ns` (Clock). Pin and StatObjects name their generation, as removals
// do.
class ObjectService {
 public:
  virtual ~ObjectService() = default;
  // `kind` empty: unpin. `duration_ns` of a hard pin: 0 (it has no end) to kLongestHardPin.
  // Errors: kIncompatible for a hard pin with an end, if the owner is of an earlier build; it has
  // pinned softly for that time.
  virtual Result<std::vector<Code>> Pin(const Token& token, std::span<const std::string_view> keys,
                                        std::optional<PinKind> kind, std::int64_t duration_ns,
                                        std::int64_t deadline_ns) = 0;
  virtual Result<std::vector<std::optional<ObjectStat>>> StatObjects(
      const Token& token, std::span<const std::string_view> keys, std::int64_t deadline_ns) = 0;
  // A page of the objects of one slot, which the request must name.
  virtual Result<InventoryReply> Page(const InventoryRequest& request,
                                      std::int64_t deadline_ns) = 0;
  virtual Result<PoolStat> Stat(std::int64_t deadline_ns) = 0;
  using Loaded = std::function<void(Result<std::vector<LoadResult>>)>;
  // `done` is called once, from any thread, or within this call; by `deadline_ns`, if the owner
  // lives.
  virtual void Load(const LoadRequest& request, std::int64_t /*deadline_ns*/, const Loaded& done) {
    done(std::vector<LoadResult>(request.keys.size()));
  }
};

// Decides for a whole pool: generations and removals. Of a cluster the master, of a host alone the
// host itself.
class ControlService : public GenerationService, public RemovalService {};

// All that a process asks of the owner whose memory it maps. Bound to one session of that owner.
class HostService : public ControlService, public PutService, public ObjectService {};

}  // namespace kvcove::wire
