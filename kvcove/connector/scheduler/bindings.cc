// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/scheduler/bindings.h"

#include <utility>

#include "kvcove/base/clock.h"

namespace kvcove::connector {
namespace {

constexpr std::size_t kMostBindings = 256;  // salts may be many
constexpr std::int64_t kNamingEveryNs = kSecond;

bool IsSilent(const Result<Token>& token) {
  return !token &&
         (token.error().code == Code::kTimeout || token.error().code == Code::kUnavailable);
}

}  // namespace

Bindings::Binding& Bindings::Of(const std::string& version, std::int64_t now_ns) {
  auto at = bindings_.find(version);
  if (at == bindings_.end()) {
    // Forgets all, as a forgotten version only has to be bound again. Answered() ignores the answer
    // for one that is being asked for.
    if (bindings_.size() >= kMostBindings) {
      bindings_.clear();
      queue_.clear();
    }
    at = bindings_.emplace(version, Binding{.since_ns = now_ns}).first;
    if (options_.bind_in_thread) Want(version, at->second);
  }
  return at->second;
}

void Bindings::Want(const std::string& version, Binding& binding) {
  if (binding.bound || binding.queued || binding.refused || !options_.save) return;
  binding.queued = true;
  queue_.push_back(version);
  queued_ = true;
}

bool Bindings::Awaits(const std::string& version, std::int64_t now_ns) {
  if (!options_.save || !options_.bind_in_thread) return false;
  const Binding& binding = Of(version, now_ns);
  return !binding.was_bound && !binding.refused &&
         now_ns - binding.since_ns < options_.bind_wait.count() * kMillisecond;
}

std::optional<Token> Bindings::LastToken(std::string_view version) const {
  const auto at = tokens_.find(version);
  return at == tokens_.end() ? std::nullopt : std::optional(at->second);
}

Bindings::Question Bindings::BeginCapture(const std::string& version,
                                          std::chrono::milliseconds left, std::int64_t now_ns) {
  Binding& binding = Of(version, now_ns);
  // Without a binder's thread the engine's thread asks for a new version at once. After a failure
  // it leaves the version to BindOne(), as it does with a binder.
  const bool first = !binding.was_bound && !options_.bind_in_thread;
  if (!binding.bound && !first) {
    Want(version, binding);
    return {.token = binding.late ? LastToken(version) : std::nullopt};
  }
  if (left.count() <= 0) return {.token = LastToken(version)};
  binding.was_bound = true;
  return {.ask = true, .timeout = left, .token = {}};
}

Bindings::Answer Bindings::EndCapture(const std::string& version, const Result<Token>& token,
                                      std::int64_t now_ns, LinesAfterLock& lines) {
  Binding& binding = Of(version, now_ns);
  binding.bound = token.has_value();
  binding.late = IsSilent(token);
  if (!token) {
    const bool refused = Refuse(version, binding, token.error(), lines);
    Want(version, binding);
    return {.token = binding.late ? LastToken(version) : std::nullopt, .ends_waits = refused};
  }
  return {.token = *token, .moved = Notice(version, *token, lines)};
}

std::optional<std::string> Bindings::Next() {
  if (queue_.empty()) return std::nullopt;
  std::string version = std::move(queue_.front());
  queue_.pop_front();
  return version;
}

Bindings::Answer Bindings::Answered(const std::string& version, const Result<Token>& token,
                                    LinesAfterLock& lines) {
  const auto at = bindings_.find(version);
  // Forget() came while the pool was asked. After a reset the answer may be of the generation
  // before, which must not count as the new one.
  if (at == bindings_.end()) return {};
  Binding& binding = at->second;
  binding.queued = false;
  binding.late = IsSilent(token);
  if (!token) {
    const bool refused = Refuse(version, binding, token.error(), lines);
    Want(version, binding);
    return {.token = {}, .ends_waits = refused};
  }
  binding.bound = true;
  binding.was_bound = true;
  return {.token = *token, .ends_waits = true, .moved = Notice(version, *token, lines)};
}

bool Bindings::Refuse(std::string_view version, Binding& binding, const Error& error,
                      LinesAfterLock& lines) {
  // The pool would answer these two in the same way again, and each retry is a call of the pool.
  binding.refused = error.code == Code::kInvalid || error.code == Code::kDenied;
  if (!binding.refused && error.code != Code::kInternal) return false;
  if (std::exchange(refusal_logged_, true)) return true;
  lines.Error(
      "{}: the pool gives no generation of the version '{}' ({}); KV that is computed under it is "
      "not stored{}",
      options_.engine, version, error.ToString(),
      binding.refused ? ", and it is not asked for again before a reset" : " until it does");
  return true;
}

bool Bindings::Notice(std::string_view version, const Token& token, LinesAfterLock& lines) {
  auto at = tokens_.find(version);
  if (at == tokens_.end()) {
    const bool full = tokens_.size() >= kMostTokens;
    if (full) tokens_.clear();
    tokens_.emplace(std::string(version), token);
    // A reset of a forgotten version would not be noticed, and KV that was computed before it would
    // be stored under the next token. So all KV of now counts as of before.
    if (full) {
      lines.Info(
          "{}: more than {} weight versions have been used; KV that was computed before is "
          "not stored, as a reset of one of them might pass unnoticed",
          options_.engine, kMostTokens);
    }
    return full;
  }
  if (at->second == token) return false;
  at->second = token;
  lines.Info("{}: the pool was reset; KV that was computed before is not stored", options_.engine);
  return true;
}

bool Bindings::BindsNext() {
  if (!queue_.empty()) return true;
  names_queued_ = false;
  return false;
}

bool Bindings::NamesDue(bool salts, std::int64_t now_ns) const {
  return (names_changed_ || salts) && now_ns - named_ns_ >= kNamingEveryNs;
}

void Bindings::QueueNames(bool salts, std::int64_t now_ns) {
  if (names_queued_ || !NamesDue(salts, now_ns)) return;
  names_queued_ = true;
  queued_ = true;
}

void Bindings::BeginNaming(std::int64_t now_ns) {
  named_ns_ = now_ns;
  names_changed_ = false;
}

void Bindings::Forget() {
  bindings_.clear();
  queue_.clear();
  refusal_logged_ = false;
}

}  // namespace kvcove::connector
