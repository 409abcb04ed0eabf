// SPDX-License-Identifier: Apache-2.0
// Epochs: resets, generations of the pool, and versions of the weights.
#include <algorithm>
#include <exception>
#include <utility>

#include "kvcove/connector/scheduler/fingerprints.h"
#include "kvcove/connector/scheduler/scheduler.h"

namespace kvcove::connector {
namespace {

constexpr std::size_t kMostPolled = 16;  // versions a step
constexpr std::chrono::milliseconds kNamingTimeout{20};
constexpr std::int64_t kNamingEveryNs = kSecond;

}  // namespace

void SchedulerRole::TakeWeights(const Report& report, LinesAfterLock& lines) {
  const bool changed = report.weight_changes > changes_[report.rank];
  if (changed) {
    changes_[report.rank] = report.weight_changes;
    weights_moved_ = true;
  }
  if (options_.versions != VersionSource::kFingerprint) return;
  if (changed && weights_ != Weights::kChanging) {
    NewEpoch(/*blocks=*/false);
    AwaitFingerprints();
  }
  if (weights_ == Weights::kAwaited && report.fingerprint_asked == fingerprint_asked_) {
    if (report.fingerprint_changes == changes_[report.rank]) {
      fingerprints_[report.rank] = report.fingerprint;
      AdoptFingerprints(lines);
    } else {
      AwaitFingerprints();  // it has changed since
    }
  }
}

void SchedulerRole::NewEpoch(bool blocks) {
  ++epoch_;
  ++stats_.epochs;
  if (blocks) ++block_epoch_;
  for (auto& [id, request] : requests_) {
    DropLookup(request);
    request.tiers = {};
  }
}

void SchedulerRole::Notice(std::string_view version, const Token& token, LinesAfterLock& lines) {
  auto at = tokens_.find(version);
  if (at == tokens_.end()) {
    if (tokens_.size() > 64) tokens_.clear();
    tokens_.emplace(std::string(version), token);
    return;
  }
  if (at->second == token) return;
  at->second = token;
  lines.Info("{}: the pool was reset; what was computed before is not stored", options_.engine);
  events_.Clear(lines);
  NewEpoch(/*blocks=*/true);
}

void SchedulerRole::PollGenerations() {
  std::vector<std::string> versions;
  {
    const MutexLock lock(mutex_);
    const auto add = [&](const std::string& version) {
      // Mostly they are one.
      if (std::ranges::find(versions, version) == versions.end()) versions.push_back(version);
    };
    // Only what something depends on: asking makes a generation used.
    for (const auto& [job, load] : loads_) {
      if (load.epoch == epoch_) add(load.order.version);
    }
    for (const auto& [id, request] : requests_) {
      if (request.may_store && request.epoch == block_epoch_) add(request.version);
      if (versions.size() >= kMostPolled) break;
    }
  }
  for (const std::string& version : versions) (void)Capture(version);
}

bool SchedulerRole::NamesDue() const {
  const bool salts = options_.versions == VersionSource::kSalt && !requests_.empty();
  return (names_changed_ || salts) && clock_.NowNs() - named_ns_ >= kNamingEveryNs;
}

void SchedulerRole::NameVersions() {
  std::set<std::string> names;
  {
    const MutexLock lock(mutex_);
    if (!NamesDue()) return;
    const bool salts = options_.versions == VersionSource::kSalt;
    named_ns_ = clock_.NowNs();
    names_changed_ = false;
    if (!version_.empty()) names.insert(version_);
    for (const auto& [id, request] : requests_) {
      if (salts && !request.version.empty()) names.insert(request.version);
    }
  }
  const std::vector<std::string> list(names.begin(), names.end());
  // A hint for what is reclaimed first; it may be lost.
  try {
    (void)store_.NameVersions(list, kNamingTimeout);
  } catch (const std::exception& error) {
    // In the binder it would end the engine's process.
    LogWarn("{}: the pool was not told which versions are in use: {}", options_.engine,
            error.what());
  }
}

bool SchedulerRole::Reset() {
  ResetOptions options{.timeout = options_.reset_timeout};
  std::size_t loads = 0;
  std::size_t saves = 0;
  {
    LinesAfterLock lines;
    const MutexLock lock(mutex_);
    loads = loads_.size();
    saves = saves_.size();
    stats_.reset_voided_jobs += loads + saves;
    NewEpoch(/*blocks=*/true);
    tokens_.clear();
    events_.Clear(lines);
    const bool versioned = options_.versions == VersionSource::kFingerprint ||
                           options_.versions == VersionSource::kEngine;
    if (versioned && !version_.empty()) options.version = version_;
  }
  const std::int64_t start = clock_.NowNs();
  const Status status = store_.Reset(options);
  if (status) UseUnlessWeightsMoved();
  const std::int64_t took_ns = clock_.NowNs() - start;
  const double ms = static_cast<double>(took_ns) / 1e6;
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  stats_.reset_ns += static_cast<std::uint64_t>(took_ns);
  ++(status ? stats_.resets_proven : stats_.resets_failed);
  if (status) {
    reset_refused_ = false;
    ForgetBindings();
    stats_.reset_time.Add(took_ns);
    lines.Info("{}: reset in {:.1f} ms (number {}); {} loads and {} saves were under way, and void",
               options_.engine, ms, stats_.resets_proven, loads, saves);
    return true;
  }
  if (closed_since_ns_ == 0) closed_since_ns_ = start;
  if (status.error().code == Code::kNotProven) {
    lines.Error(
        "{}: the reset could not be proven in {:.0f} ms ({}); nothing is looked up or stored until "
        "it is; it is repeated in the background",
        options_.engine, ms, status.error().detail);
    return options_.closed_on_reset_failure;
  }
  // A trainer that resets again and again finds one line, not one for each reset.
  if (!std::exchange(reset_refused_, true)) {
    const bool denied = status.error().code == Code::kDenied;
    lines.Error(
        "{}: the pool refuses the reset ({}){}; nothing was voided, so nothing is looked up or "
        "stored until a later reset is proven",
        options_.engine, status.error().ToString(),
        denied ? ": this engine's token may not reset; give it the scope 'reset', then reset again"
               : "");
  }
  return false;
}

void SchedulerRole::UseUnlessWeightsMoved() {
  {
    const MutexLock lock(mutex_);
    const bool moved = std::exchange(weights_moved_, false);
    if (moved || options_.versions != VersionSource::kNone) return;
  }
  // Without versions, engines that reset after one update share the generation until one of them
  // uses it. This reset followed no update, so an engine that resets for newer weights must not
  // share it.
  (void)store_.Capture({}, kCaptureTimeout);
}

void SchedulerRole::WeightsChanging() {
  const MutexLock lock(mutex_);
  weights_moved_ = true;
  if (options_.versions != VersionSource::kFingerprint &&
      options_.versions != VersionSource::kEngine) {
    return;
  }
  weights_ = Weights::kChanging;
  NewEpoch(/*blocks=*/false);
}

void SchedulerRole::WeightsChanged() {
  const MutexLock lock(mutex_);
  // With kEngine the version says that they are the new ones.
  if (options_.versions == VersionSource::kFingerprint) AwaitFingerprints();
}

void SchedulerRole::AwaitFingerprints() {
  weights_ = Weights::kAwaited;
  ++fingerprint_asked_;
  fingerprint_told_ = false;
  awaited_since_ns_ = clock_.NowNs();
  fingerprints_.clear();
  own_weights_.reset();
  peers_.clear();
  alone_ = false;
}

void SchedulerRole::StartWith(const std::vector<std::string>& fingerprints) {
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  if (options_.versions != VersionSource::kFingerprint || weights_ != Weights::kAwaited ||
      fingerprints.size() != changes_.size()) {
    return;
  }
  for (std::uint32_t rank = 0; rank < fingerprints.size(); ++rank) {
    fingerprints_[rank] = fingerprints[rank];
  }
  AdoptFingerprints(lines);
}

void SchedulerRole::AdoptFingerprints(LinesAfterLock& lines) {
  if (weights_ != Weights::kAwaited || fingerprints_.size() != changes_.size()) return;
  std::vector<std::string> ranks;
  for (const auto& [rank, fingerprint] : fingerprints_) ranks.push_back(fingerprint);
  Result<WeightsPrint> own = Joined(ranks);
  if (!own) {
    lines.Error("{}: a rank's fingerprint cannot be read ({}): nothing is found or stored",
                options_.engine, own.error().detail);
    return;
  }
  own_weights_ = std::move(*own);
  has_peers_ = !own_weights_->complete();
  AdoptWithPeers(lines);
}

void SchedulerRole::AdoptWithPeers(LinesAfterLock& lines) {
  const std::optional<std::string> version =
      alone_ ? VersionAlone(*own_weights_) : VersionWith(*own_weights_, peers_);
  if (version) return Adopt(*version, lines);
  if (weights_ != Weights::kKnown) return;
  // A peer's weights are changing. The ranks of this engine need not be asked again for that.
  weights_ = Weights::kAwaited;
  awaited_since_ns_ = clock_.NowNs();
  NewEpoch(/*blocks=*/false);
}

std::optional<SchedulerRole::OwnWeights> SchedulerRole::TakesPeers() const {
  const MutexLock lock(mutex_);
  if (weights_ == Weights::kChanging || !own_weights_ || own_weights_->complete()) {
    return std::nullopt;
  }
  return OwnWeights{.number = fingerprint_asked_, .text = TextOf(*own_weights_)};
}

void SchedulerRole::SetPeers(std::uint64_t number, const std::vector<std::string>& peers,
                             bool alone) {
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  if (number != fingerprint_asked_ || weights_ == Weights::kChanging || !own_weights_) return;
  peers_ = peers;
  alone_ = alone;
  AdoptWithPeers(lines);
}

void SchedulerRole::Adopt(const std::string& version, LinesAfterLock& lines) {
  weights_ = Weights::kKnown;
  if (version == version_) return;
  if (!version_.empty()) {
    lines.Info("{}: other weights: {} (was {})", options_.engine, version, version_);
    events_.Clear(lines);  // what was told is not found under these
  }
  version_ = version;
  names_changed_ = true;
  if (options_.bind_in_thread) (void)BindingOf(version);
  NewEpoch(/*blocks=*/true);
}

void SchedulerRole::SetVersion(std::string_view version) {
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  if (options_.versions == VersionSource::kEngine) {
    Adopt(std::string(version), lines);
  } else if (options_.versions == VersionSource::kSalt) {
    version_ = version;
    names_changed_ = true;
    StopStoring([&](const Request& request) { return request.version != version; });
  }
}

std::string SchedulerRole::version() const {
  const MutexLock lock(mutex_);
  return version_;
}

}  // namespace kvcove::connector
