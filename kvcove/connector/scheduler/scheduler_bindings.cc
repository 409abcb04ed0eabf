// SPDX-License-Identifier: Apache-2.0
// Which generation a version's KV belongs to. A session that has bound a version answers from
// memory. Its first answer, and one after a reset of others, crosses to the pool, which may be
// slow: that is not for the engine's thread.
#include <exception>
#include <utility>

#include "kvcove/base/posix.h"
#include "kvcove/connector/scheduler/scheduler.h"

namespace kvcove::connector {
namespace {

constexpr std::size_t kMostBindings = 256;       // salts may be many
constexpr std::chrono::milliseconds kPause{50};  // after a try that failed
// Of a step's budget, at most so much is waited for a binding, all requests together: a pool that
// is well answers in a tenth of it.
constexpr double kBindShare = 0.2;

bool IsSilent(const Result<Token>& token) {
  return !token &&
         (token.error().code == Code::kTimeout || token.error().code == Code::kUnavailable);
}

}  // namespace

SchedulerRole::~SchedulerRole() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    bind_wanted_.NotifyAll();
  }
  if (binder_.joinable()) binder_.join();
}

SchedulerRole::Binding& SchedulerRole::BindingOf(const std::string& version) {
  auto at = bindings_.find(version);
  if (at == bindings_.end()) {
    if (bindings_.size() >= kMostBindings) {
      bindings_.clear();
      to_bind_.clear();
    }
    at = bindings_.emplace(version, Binding{.since_ns = clock_.NowNs()}).first;
    if (options_.bind_in_thread) Want(version, at->second);
  }
  return at->second;
}

void SchedulerRole::Want(const std::string& version, Binding& binding) {
  if (binding.bound || binding.queued || binding.refused || !options_.save) return;
  binding.queued = true;
  to_bind_.push_back(version);
  bind_wanted_.NotifyOne();
}

void SchedulerRole::Refuse(std::string_view version, Binding& binding, const Error& error,
                           LinesAfterLock& lines) {
  binding.refused = error.code == Code::kInvalid || error.code == Code::kDenied;
  if (!binding.refused && error.code != Code::kInternal) return;
  bound_.NotifyAll();
  if (std::exchange(refusal_told_, true)) return;
  lines.Error(
      "{}: the pool gives no generation of the version '{}' ({}); what is computed under it is "
      "not stored{}",
      options_.engine, version, error.ToString(),
      binding.refused ? ", and it is not asked for again before a reset" : " until it does");
}

void SchedulerRole::ForgetBindings() {
  bindings_.clear();
  to_bind_.clear();
  refusal_told_ = false;
}

bool SchedulerRole::Binds(const std::string& version) {
  if (!options_.save || !options_.bind_in_thread || without_pool_) return false;
  const Binding& binding = BindingOf(version);
  return !binding.was_bound && !binding.refused &&
         clock_.NowNs() - binding.since_ns < options_.bind_wait.count() * kMillisecond;
}

void SchedulerRole::AwaitBinding(std::string_view salt) {
  const MutexLock lock(mutex_);
  const auto whole_ns = static_cast<double>(options_.lookup_budget.count() * kMillisecond);
  const std::int64_t wait_ns = budget_ns_ - static_cast<std::int64_t>((1 - kBindShare) * whole_ns);
  if (weights_ != Weights::kKnown || wait_ns <= 0 || !Binds(VersionOf(salt))) return;
  const std::int64_t start = clock_.NowNs();
  (void)bound_.WaitFor(mutex_, std::chrono::nanoseconds(wait_ns));
  budget_ns_ -= clock_.NowNs() - start;
}

std::optional<Token> SchedulerRole::LastToken(std::string_view version) const {
  const auto at = tokens_.find(version);
  return at == tokens_.end() ? std::nullopt : std::optional(at->second);
}

std::chrono::milliseconds SchedulerRole::LeftForCapture() const {
  const std::int64_t lookups_ns = options_.lookup_budget.count() * kMillisecond - budget_ns_;
  const auto spent = std::chrono::milliseconds((capture_ns_ + lookups_ns) / kMillisecond);
  if (spent < kCaptureTimeout) return kCaptureTimeout - spent;
  return std::chrono::milliseconds(capture_ns_ < kMillisecond ? 1 : 0);  // look-ups starve none
}

Result<Token> SchedulerRole::AskFor(const std::string& version, std::chrono::milliseconds timeout) {
  try {
    return store_.Capture(version, timeout);
  } catch (const std::exception& error) {
    // In the binder it would end the engine's process.
    return Fail(Code::kInternal, error.what());
  }
}

std::optional<Token> SchedulerRole::Capture(const std::string& version) {
  std::chrono::milliseconds timeout{};
  {
    const MutexLock lock(mutex_);
    Binding& binding = BindingOf(version);
    const bool first = !binding.was_bound && !options_.bind_in_thread;
    if (!binding.bound && !first) {
      Want(version, binding);
      return binding.late ? LastToken(version) : std::nullopt;
    }
    const auto left = LeftForCapture();
    if (left.count() <= 0) return LastToken(version);
    timeout = left;
    binding.was_bound = true;
  }
  const std::int64_t start = clock_.NowNs();
  const Result<Token> token = AskFor(version, timeout);
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  capture_ns_ += clock_.NowNs() - start;
  Binding& binding = BindingOf(version);
  binding.bound = token.has_value();
  binding.late = IsSilent(token);
  if (!token) {
    Refuse(version, binding, token.error(), lines);
    Want(version, binding);
    return binding.late ? LastToken(version) : std::nullopt;
  }
  Notice(version, *token, lines);
  return *token;
}

bool SchedulerRole::BindOne(std::chrono::milliseconds timeout) {
  std::string version;
  {
    const MutexLock lock(mutex_);
    if (to_bind_.empty()) return false;
    version = std::move(to_bind_.front());
    to_bind_.pop_front();
  }
  const Result<Token> token = AskFor(version, timeout);
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  const auto at = bindings_.find(version);
  if (at == bindings_.end()) return token.has_value();
  at->second.queued = false;
  at->second.late = IsSilent(token);
  if (!token) {
    Refuse(version, at->second, token.error(), lines);
    Want(version, at->second);
    return false;
  }
  at->second.bound = true;
  at->second.was_bound = true;
  bound_.NotifyAll();
  Notice(version, *token, lines);
  return true;
}

void SchedulerRole::BindInThread() {
  while (true) {
    bool binds = false;
    {
      const MutexLock lock(mutex_);
      while (!stopping_ && to_bind_.empty() && !names_due_) bind_wanted_.Wait(mutex_);
      if (stopping_) return;
      binds = !to_bind_.empty();
      if (!binds) names_due_ = false;
    }
    // What requests wait for goes first.
    if (!binds) NameVersions();
    if (!binds || BindOne(options_.bind_timeout)) continue;
    const MutexLock lock(mutex_);
    if (!stopping_) (void)bind_wanted_.WaitFor(mutex_, kPause);
  }
}

}  // namespace kvcove::connector
