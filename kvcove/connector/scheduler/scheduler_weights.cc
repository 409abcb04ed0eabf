// SPDX-License-Identifier: Apache-2.0
// Epochs: resets, generations of the pool, versions of the weights, and LoRA adapters.
#include <algorithm>
#include <exception>
#include <utility>

#include "kvcove/connector/scheduler/scheduler.h"

namespace kvcove::connector {
namespace {

constexpr std::size_t kMostPolled = 16;  // versions a step
constexpr std::chrono::milliseconds kNamingTimeout{20};

}  // namespace

void SchedulerRole::TakeWeights(const Report& report, LinesAfterLock& lines) {
  const std::int64_t now = clock_.NowNs();
  Apply(weights_.TakeChanges(report, now), lines);
  Apply(weights_.TakeFingerprint(report, now, lines), lines);
}

void SchedulerRole::Apply(WeightsState::Change change, LinesAfterLock& lines) {
  switch (change) {
    case WeightsState::Change::kNone:
      return;
    case WeightsState::Change::kUnsettled:
      return NewEpoch(/*blocks=*/false);
    case WeightsState::Change::kOther:
      events_.Clear(lines);  // reported blocks are not found under the new version
      break;
    case WeightsState::Change::kFirst:
      break;
  }
  bindings_.NamesChanged();
  if (options_.bind_in_thread) bindings_.Add(weights_.version(), clock_.NowNs());
  WakeBinder();
  NewEpoch(/*blocks=*/true);
}

bool SchedulerRole::BindAdapter(Request& request, AdapterId adapter) const {
  request.adapter = {.id = adapter, .digest = {}};
  request.adapter_tag = 0;
  if (adapter == 0) return true;
  const Adapters::Known* const known = adapters_.Find(adapter);
  if (known == nullptr) return false;
  request.adapter.digest = known->digest;
  request.adapter_tag = known->tag;
  return true;
}

void SchedulerRole::TakeAdapters(const Report& report, LinesAfterLock& lines) {
  const Adapters::Change change = adapters_.Take(report, lines);
  for (const AdapterId adapter : change.voided) VoidAdapter(adapter);
  // Block hashes have the adapter's name alone, so it is unknown which reported blocks depend on
  // its former tensors: all are reported as removed.
  if (change.other) events_.Clear(lines);
}

void SchedulerRole::VoidAdapter(AdapterId adapter) {
  for (auto& [id, request] : requests_) {
    if (request.adapter.id != adapter) continue;
    request.may_store = false;
    DropLookup(request);
    request.tiers = {};
  }
  for (auto& [job, load] : loads_) {
    if (load.order.adapter.id == adapter) load.epoch = 0;
  }
}

bool SchedulerRole::HasAdapter(AdapterId adapter) const {
  const MutexLock lock(mutex_);
  return adapters_.Find(adapter) != nullptr;
}

void SchedulerRole::NewEpoch(bool blocks) {
  ++epoch_;
  ++stats_.epochs;
  if (blocks) marks_.BeginEpoch();
  for (auto& [id, request] : requests_) {
    DropLookup(request);
    request.tiers = {};
  }
}

void SchedulerRole::PollGenerations() {
  std::vector<std::string> versions;
  {
    const MutexLock lock(mutex_);
    const auto add = [&](const std::string& version) {
      // Linear: mostly there is one version.
      if (std::ranges::find(versions, version) == versions.end()) versions.push_back(version);
    };
    // Asks only for versions on which a load or a request depends: a question makes a generation
    // used, and engines share a reset only until then.
    for (const auto& [job, load] : loads_) {
      if (load.epoch == epoch_) add(load.order.version);
    }
    for (const auto& [id, request] : requests_) {
      if (request.may_store && request.epoch == marks_.epoch()) add(request.version);
      if (versions.size() >= kMostPolled) break;
    }
  }
  for (const std::string& version : versions) (void)Capture(version);
}

bool SchedulerRole::HaveSalts() const {
  return options_.versions == VersionSource::kSalt && !requests_.empty();
}

void SchedulerRole::NameVersions() {
  std::set<std::string> names;
  {
    const MutexLock lock(mutex_);
    const bool salts = HaveSalts();
    if (!bindings_.NamesDue(salts, clock_.NowNs())) return;
    bindings_.BeginNaming(clock_.NowNs());
    if (!weights_.version().empty()) names.insert(weights_.version());
    for (const auto& [id, request] : requests_) {
      if (salts && !request.version.empty()) names.insert(request.version);
    }
  }
  const std::vector<std::string> list(names.begin(), names.end());
  // A hint for the pool's eviction, which may be lost.
  try {
    (void)store_.NameVersions(list, kNamingTimeout);
  } catch (const std::exception& error) {
    // Uncaught on the binder's thread, it would end the engine's process.
    LogWarn("{}: the names of the versions in use did not reach the pool: {}", options_.engine,
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
    // Before the pool is asked: KV of before must not be used from now on, even if the proof fails.
    NewEpoch(/*blocks=*/true);
    bindings_.ForgetTokens();
    events_.Clear(lines);
    options.version = weights_.ResetVersion();
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
    bindings_.Forget();
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
  // Logs one line, not one for each reset of a trainer that repeats them.
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
    const bool moved = weights_.TakeMoved();
    if (moved || options_.versions != VersionSource::kNone) return;
  }
  // Without versions, engines that reset after one update share the generation until one of them
  // uses it. This reset followed no update, so an engine that resets for newer weights must not
  // share it.
  (void)store_.Capture({}, StepBudget::kCaptureTimeout);
}

void SchedulerRole::WeightsChanging() {
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  Apply(weights_.Changing(), lines);
}

void SchedulerRole::WeightsChanged() {
  const MutexLock lock(mutex_);
  weights_.Changed(clock_.NowNs());
}

void SchedulerRole::StartWith(const std::vector<std::string>& fingerprints) {
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  Apply(weights_.StartWith(fingerprints, clock_.NowNs(), lines), lines);
}

std::optional<SchedulerRole::OwnWeights> SchedulerRole::TakesPeers() const {
  const MutexLock lock(mutex_);
  return weights_.TakesPeers();
}

void SchedulerRole::SetPeers(std::uint64_t number, const std::vector<std::string>& peers,
                             bool alone) {
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  Apply(weights_.SetPeers(number, peers, alone, clock_.NowNs(), lines), lines);
}

void SchedulerRole::SetVersion(std::string_view version) {
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  Apply(weights_.SetVersion(version, lines), lines);
  if (options_.versions != VersionSource::kSalt) return;
  bindings_.NamesChanged();
  StopStoring([&](const Request& request) { return request.version != version; });
}

std::string SchedulerRole::version() const {
  const MutexLock lock(mutex_);
  return weights_.version();
}

}  // namespace kvcove::connector
