// SPDX-License-Identifier: Apache-2.0
// The weights that the engine computes with: the fingerprints of its ranks and of its data-parallel
// peers, and the version that these make.
//
//   known --Changing--> changing --Changed, or (by an engine's own version) SetVersion-->
//   known --a rank saw a change--> awaited --all ranks' fingerprints, and the peers'--> known
//   known --a peer's weights change--> awaited
//
// Nothing is found or stored unless they are known. Each question to the ranks has a number, so
// that an answer to an earlier question, or one from before a change, does not count.
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
    kOther,      // another version: computed blocks are void, and so is what was reported of them
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
  // Says whether requests should still wait for the ranks' answers, while those are awaited.
  bool MayWait(std::int64_t now_ns) const;
  const std::string& version() const { return version_; }
  // The version of what a request with this salt computes.
  std::string VersionOf(std::string_view salt) const;
  // Whether the loaded weights are others than those that a request's salt names.
  bool DifferFrom(std::string_view salted_version) const;
  // The version that a reset is for, as far as the pool separates versions.
  std::optional<std::string> ResetVersion() const;

  Change Changing();
  void Changed(std::int64_t now_ns);
  // Both take a rank's report, TakeChanges first: a fingerprint counts only when it was made after
  // every change that the rank has seen.
  Change TakeChanges(const Report& report, std::int64_t now_ns);
  Change TakeFingerprint(const Report& report, std::int64_t now_ns, LinesAfterLock& lines);
  // All ranks' fingerprints at start.
  Change StartWith(const std::vector<std::string>& fingerprints, std::int64_t now_ns,
                   LinesAfterLock& lines);
  Change SetVersion(std::string_view version, LinesAfterLock& lines);
  // SchedulerRole::TakesPeers, SetPeers.
  std::optional<OwnWeights> TakesPeers() const;
  Change SetPeers(std::uint64_t number, const std::vector<std::string>& peers, bool alone,
                  std::int64_t now_ns, LinesAfterLock& lines);

  // The number of a question that the ranks were not asked yet, once each; 0 for none.
  std::uint64_t TakeQuestion();
  // Whether a step without requests should ask the ranks. At its start an engine has none, and the
  // first request need not wait then; one whose peers wait for its experts asks after each update.
  bool AsksAtOnce() const;
  // Whether a change was seen since the last call.
  bool TakeMoved() { return std::exchange(moved_, false); }

 private:
  enum class State : std::uint8_t { kKnown, kChanging, kAwaited };
  void Await(std::int64_t now_ns);
  // Once all ranks have answered: their version.
  Change AdoptFingerprints(std::int64_t now_ns, LinesAfterLock& lines);
  // The same, once the ranks' are there: with what the peers have.
  Change AdoptWithPeers(std::int64_t now_ns, LinesAfterLock& lines);
  Change Adopt(const std::string& version, LinesAfterLock& lines);

  const SchedulerOptions& options_;
  State state_ = State::kKnown;
  std::string version_;
  std::uint64_t asked_ = 0;  // number of the last question
  bool told_ = false;        // the question is in a plan
  std::int64_t awaited_since_ns_ = 0;
  std::vector<std::uint64_t> changes_;  // by rank
  std::map<std::uint32_t, std::string> fingerprints_;
  std::optional<WeightsPrint> own_;  // all ranks'
  std::vector<std::string> peers_;
  bool alone_ = false;
  bool has_peers_ = false;  // some experts are theirs
  bool moved_ = false;
};

}  // namespace kvcove::connector
