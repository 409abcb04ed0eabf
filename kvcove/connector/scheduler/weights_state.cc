// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/scheduler/weights_state.h"

#include "kvcove/base/clock.h"

namespace kvcove::connector {

WeightsState::WeightsState(const SchedulerOptions& options, std::int64_t now_ns)
    : options_(options), changes_(options.shape.world(), 0) {
  if (options_.versions == VersionSource::kFingerprint) Await(now_ns);
}

bool WeightsState::MayWait(std::int64_t now_ns) const {
  return now_ns - awaited_since_ns_ < options_.fingerprint_timeout.count() * kMillisecond;
}

std::string WeightsState::VersionOf(std::string_view salt) const {
  switch (options_.versions) {
    case VersionSource::kSalt:
      return std::string(salt);
    case VersionSource::kNone:
      return {};
    default:
      return version_;
  }
}

bool WeightsState::DifferFrom(std::string_view salted_version) const {
  return options_.versions == VersionSource::kSalt && !version_.empty() &&
         version_ != salted_version;
}

std::optional<std::string> WeightsState::ResetVersion() const {
  const bool versioned = options_.versions == VersionSource::kFingerprint ||
                         options_.versions == VersionSource::kEngine;
  return versioned && !version_.empty() ? std::optional(version_) : std::nullopt;
}

WeightsState::Change WeightsState::Changing() {
  moved_ = true;
  if (options_.versions != VersionSource::kFingerprint &&
      options_.versions != VersionSource::kEngine) {
    return Change::kNone;
  }
  state_ = State::kChanging;
  return Change::kUnsettled;
}

void WeightsState::Changed(std::int64_t now_ns) {
  // With kEngine the change ends with SetVersion.
  if (options_.versions == VersionSource::kFingerprint) Await(now_ns);
}

WeightsState::Change WeightsState::TakeChanges(const Report& report, std::int64_t now_ns) {
  // A rank's number grows with each change, so a report that was overtaken changes nothing.
  if (report.weight_changes <= changes_[report.rank]) return Change::kNone;
  changes_[report.rank] = report.weight_changes;
  moved_ = true;
  if (options_.versions != VersionSource::kFingerprint || changing()) return Change::kNone;
  Await(now_ns);
  return Change::kUnsettled;
}

WeightsState::Change WeightsState::TakeFingerprint(const Report& report, std::int64_t now_ns,
                                                   LinesAfterLock& lines) {
  if (options_.versions != VersionSource::kFingerprint || !awaited() ||
      report.fingerprint_asked != asked_) {
    return Change::kNone;
  }
  if (report.fingerprint_changes != changes_[report.rank]) {
    // The weights have changed since the rank made it, so the ranks are asked again.
    Await(now_ns);
    return Change::kNone;
  }
  fingerprints_[report.rank] = report.fingerprint;
  return AdoptFingerprints(now_ns, lines);
}

WeightsState::Change WeightsState::StartWith(const std::vector<std::string>& fingerprints,
                                             std::int64_t now_ns, LinesAfterLock& lines) {
  if (options_.versions != VersionSource::kFingerprint || !awaited() ||
      fingerprints.size() != changes_.size()) {
    return Change::kNone;
  }
  for (std::uint32_t rank = 0; rank < fingerprints.size(); ++rank) {
    fingerprints_[rank] = fingerprints[rank];
  }
  return AdoptFingerprints(now_ns, lines);
}

WeightsState::Change WeightsState::SetVersion(std::string_view version, LinesAfterLock& lines) {
  if (options_.versions == VersionSource::kEngine) return Adopt(std::string(version), lines);
  if (options_.versions == VersionSource::kSalt) version_ = version;
  return Change::kNone;
}

std::optional<WeightsState::OwnWeights> WeightsState::TakesPeers() const {
  if (changing() || !own_ || own_->complete()) return std::nullopt;
  return OwnWeights{.number = asked_, .text = TextOf(*own_)};
}

WeightsState::Change WeightsState::SetPeers(std::uint64_t number,
                                            const std::vector<std::string>& peers, bool alone,
                                            std::int64_t now_ns, LinesAfterLock& lines) {
  // Another number: the peers' answer belongs to weights that have changed since.
  if (number != asked_ || changing() || !own_) return Change::kNone;
  peers_ = peers;
  alone_ = alone;
  return AdoptWithPeers(now_ns, lines);
}

std::uint64_t WeightsState::TakeQuestion() {
  if (!awaited() || std::exchange(told_, true)) return 0;
  return asked_;
}

bool WeightsState::AsksAtOnce() const { return awaited() && !told_ && (asked_ == 1 || has_peers_); }

void WeightsState::Await(std::int64_t now_ns) {
  state_ = State::kAwaited;
  ++asked_;
  told_ = false;
  awaited_since_ns_ = now_ns;
  fingerprints_.clear();
  own_.reset();
  peers_.clear();
  alone_ = false;
}

WeightsState::Change WeightsState::AdoptFingerprints(std::int64_t now_ns, LinesAfterLock& lines) {
  if (fingerprints_.size() != changes_.size()) return Change::kNone;
  std::vector<std::string> ranks;
  for (const auto& [rank, fingerprint] : fingerprints_) ranks.push_back(fingerprint);
  Result<WeightsPrint> own = Joined(ranks);
  // The state remains kAwaited, and the ranks are asked again only after their next change.
  if (!own) {
    lines.Error("{}: a rank's fingerprint cannot be read ({}): nothing is found or stored",
                options_.engine, own.error().detail);
    return Change::kNone;
  }
  own_ = std::move(*own);
  has_peers_ = !own_->complete();
  return AdoptWithPeers(now_ns, lines);
}

WeightsState::Change WeightsState::AdoptWithPeers(std::int64_t now_ns, LinesAfterLock& lines) {
  const std::optional<std::string> version =
      alone_ ? VersionAlone(*own_) : VersionWith(*own_, peers_);
  if (version) return Adopt(*version, lines);
  if (!known()) return Change::kNone;
  // A peer's weights are changing. The state is set here and not by Await(), which would ask this
  // engine's ranks again and change the number under which the peers answer.
  state_ = State::kAwaited;
  awaited_since_ns_ = now_ns;
  return Change::kUnsettled;
}

WeightsState::Change WeightsState::Adopt(const std::string& version, LinesAfterLock& lines) {
  state_ = State::kKnown;
  if (version == version_) return Change::kNone;
  const bool first = version_.empty();
  if (!first) {
    lines.Info("{}: other weights: {} (was {})", options_.engine, version, version_);
  }
  version_ = version;
  return first ? Change::kFirst : Change::kOther;
}

}  // namespace kvcove::connector
