// SPDX-License-Identifier: Apache-2.0
// The state of the engine's weights: the fingerprints of its ranks and of its data-parallel peers,
// and the version that these make.
//
//   known --Changing--> changing --Changed, or (by an engine's own version) SetVersion-->
//   known --a rank saw a change--> awaited --all ranks' fingerprints, and the peers'--> known
//   known --a peer's weights change--> awaited
//
// KV is found or stored only while the weights are known. Each question to the ranks has a number,
// so that an answer to an earlier question does not count, and each answer has the rank's number of
// changes, so that a fingerprint from before a change does not count, either.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcove/base/log.h"
#include "kvcove/connector/plan.h"
#include "kvcove/connector/scheduler/fingerprints.h"
#include "kvcove/connector/scheduler/scheduler_types.h"

namespace kvcove::connector {

// Does no I/O. Needs its owner's lock.
class WeightsState {
 public:
  // The effect of a call on requests and blocks.
  enum class Change : std::uint8_t {
    kNone,
    kUnsettled,  // look-ups and loads are void; computed blocks may turn out to be right
    kFirst,      // the first version: nothing was computed with another one
    kOther,      // another version: computed blocks are void, and so are their KV events
  };
  // This engine's own weights, under the number of the question to its ranks.
  struct OwnWeights {
    std::uint64_t number = 0;
    std::string text;
  };

  // The options outlive it.
  WeightsState(const SchedulerOptions& options, std::int64_t now_ns);

  bool known() const { return state_ == State::kKnown; }
  bool changing() const { return state_ == State::kChanging; }
  bool awaited() const { return state_ == State::kAwaited; }
  // Returns whether requests should still wait for the ranks' answers, while those are awaited.
  bool MayWait(std::int64_t now_ns) const;
  const std::string& version() const { return version_; }
  // Returns the version of the KV that a request with this salt computes.
  std::string VersionOf(std::string_view salt) const;
  // Returns whether the loaded weights are known to be others than those that a salt names.
  bool DifferFrom(std::string_view salted_version) const;
  // Returns the version that a reset voids. Nothing: the pool does not separate versions.
  std::optional<std::string> ResetVersion() const;

  Change Changing();
  void Changed(std::int64_t now_ns);
  // Take a rank's report. TakeChanges must precede: a fingerprint counts only if it was made after
  // every change that the rank has seen.
  Change TakeChanges(const Report& report, std::int64_t now_ns);
  Change TakeFingerprint(const Report& report, std::int64_t now_ns, LinesAfterLock& lines);
  // Sets all ranks' fingerprints at start.
  Change StartWith(const std::vector<std::string>& fingerprints, std::int64_t now_ns,
                   LinesAfterLock& lines);
  Change SetVersion(std::string_view version, LinesAfterLock& lines);
  // As SchedulerRole::TakesPeers and SetPeers.
  std::optional<OwnWeights> TakesPeers() const;
  Change SetPeers(std::uint64_t number, const std::vector<std::string>& peers, bool alone,
                  std::int64_t now_ns, LinesAfterLock& lines);

  // Returns the number of a question that is not in a plan yet, once each; 0 for none.
  std::uint64_t TakeQuestion();
  // Returns whether a step without requests should ask the ranks: at the start, so that the first
  // request need not wait, and after each update if peers wait for this engine's experts.
  bool AsksAtOnce() const;
  // Returns whether a change was seen since the last call.
  bool TakeMoved() { return std::exchange(moved_, false); }

 private:
  enum class State : std::uint8_t { kKnown, kChanging, kAwaited };
  void Await(std::int64_t now_ns);
  // Adopts the version of the ranks, once all have answered.
  Change AdoptFingerprints(std::int64_t now_ns, LinesAfterLock& lines);
  // Adopts the version of the ranks and the peers, once both are known.
  Change AdoptWithPeers(std::int64_t now_ns, LinesAfterLock& lines);
  Change Adopt(const std::string& version, LinesAfterLock& lines);

  const SchedulerOptions& options_;
  State state_ = State::kKnown;
  std::string version_;
  std::uint64_t asked_ = 0;  // number of the last question
  bool told_ = false;        // the question was put into a plan
  std::int64_t awaited_since_ns_ = 0;
  std::vector<std::uint64_t> changes_;  // by rank
  std::map<std::uint32_t, std::string> fingerprints_;
  std::optional<WeightsPrint> own_;  // of all ranks together
  std::vector<std::string> peers_;
  bool alone_ = false;
  bool has_peers_ = false;  // some experts are the peers'
  bool moved_ = false;
};

}  // namespace kvcove::connector
