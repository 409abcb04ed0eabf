// SPDX-License-Identifier: Apache-2.0
// Asks the pool for the generations of versions: in the engine's thread where the answer is in
// memory, and on the binder's otherwise (bindings.h).
#include <algorithm>
#include <exception>

#include "kvcove/base/log.h"
#include "kvcove/connector/scheduler/scheduler.h"

namespace kvcove::connector {
namespace {

constexpr std::chrono::milliseconds kPause{50};  // the binder's, after a try that failed
// An announcement that takes longer is late: the save has probably ended.
constexpr std::chrono::milliseconds kAnnounceTimeout{100};
constexpr std::size_t kMostNotices = 256;
constexpr std::size_t kMostNoticedChunks = 32'768;  // of all of them
constexpr std::size_t kKeysOfACall = 8192;

}  // namespace

SchedulerRole::~SchedulerRole() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    bind_wanted_.NotifyAll();
  }
  if (binder_.joinable()) binder_.join();
}

void SchedulerRole::WakeBinder() {
  if (bindings_.TakeQueued()) bind_wanted_.NotifyOne();
}

void SchedulerRole::Learn(const Bindings::Answer& answer, LinesAfterLock& lines) {
  WakeBinder();
  if (answer.ends_waits) bound_.NotifyAll();
  if (!answer.moved) return;
  // The pool was reset by another engine. The call that takes the answer begins the epoch in the
  // same hold of the lock: a request between the two would store old KV under the new token.
  events_.Clear(lines);
  NewEpoch(/*blocks=*/true);
}

bool SchedulerRole::Binds(const std::string& version) {
  if (without_pool_) return false;
  const bool binds = bindings_.Awaits(version, clock_.NowNs());
  WakeBinder();
  return binds;
}

void SchedulerRole::AwaitBinding(std::string_view salt) {
  const MutexLock lock(mutex_);
  const std::int64_t wait_ns = budget_.ForBinding();
  if (!weights_.known() || wait_ns <= 0 || !Binds(weights_.VersionOf(salt))) return;
  const std::int64_t start = clock_.NowNs();
  // One wait, without a loop: an early end costs the request one more call of Matched, and all
  // requests of the step share the time.
  (void)bound_.WaitFor(mutex_, std::chrono::nanoseconds(wait_ns));
  budget_.AddLookup(clock_.NowNs() - start);
}

Result<Token> SchedulerRole::AskFor(const std::string& version, std::chrono::milliseconds timeout) {
  try {
    return store_.Capture(version, timeout);
  } catch (const std::exception& error) {
    // Uncaught on the binder's thread, it would end the engine's process.
    return Fail(Code::kInternal, error.what());
  }
}

std::optional<Token> SchedulerRole::Capture(const std::string& version) {
  Bindings::Question question;
  {
    const MutexLock lock(mutex_);
    question = bindings_.BeginCapture(version, budget_.ForCapture(), clock_.NowNs());
    WakeBinder();
  }
  if (!question.ask) return question.token;
  const std::int64_t start = clock_.NowNs();
  const Result<Token> token = AskFor(version, question.timeout);
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  const std::int64_t now = clock_.NowNs();
  budget_.AddCapture(now - start);
  const Bindings::Answer answer = bindings_.EndCapture(version, token, now, lines);
  Learn(answer, lines);
  return answer.token;
}

bool SchedulerRole::BindOne(std::chrono::milliseconds timeout) {
  std::optional<std::string> version;
  {
    const MutexLock lock(mutex_);
    version = bindings_.Next();
  }
  if (!version) return false;
  const Result<Token> token = AskFor(*version, timeout);
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  Learn(bindings_.Answered(*version, token, lines), lines);
  return token.has_value();
}

void SchedulerRole::QueueNotice(SaveNotice notice, const SaveOrder& order,
                                std::span<const ChunkPlace> chunks) {
  const bool joins = !notices_.empty() && notices_.back().notice == notice &&
                     notices_.back().token == order.token &&
                     notices_.back().adapter == order.adapter.digest;
  if ((!joins && notices_.size() >= kMostNotices) ||
      noticed_chunks_ + chunks.size() > kMostNoticedChunks) {
    ++stats_.notices_dropped;
    return;
  }
  if (!joins) {
    notices_.push_back(
        {.notice = notice, .token = order.token, .adapter = order.adapter.digest, .chunks = {}});
  }
  std::vector<ChunkPlace>& all = notices_.back().chunks;
  all.insert(all.end(), chunks.begin(), chunks.end());
  noticed_chunks_ += chunks.size();
  bind_wanted_.NotifyOne();
}

bool SchedulerRole::Announce() {
  Announcement next;
  {
    const MutexLock lock(mutex_);
    if (notices_.empty()) return false;
    next = std::move(notices_.front());
    notices_.pop_front();
    noticed_chunks_ -= next.chunks.size();
  }
  std::vector<std::string> texts;
  for (const ChunkPlace& place : next.chunks) {
    if (place.block == kNullBlock) continue;  // not saved (SavableChunks)
    for (const std::string& tag : keys_.Tags(place.group)) {
      AppendKey(tag, place.hash, texts.emplace_back(), next.adapter);
    }
  }
  const std::vector<std::string_view> keys(texts.begin(), texts.end());
  try {
    for (std::size_t from = 0; from < keys.size(); from += kKeysOfACall) {
      const std::size_t count = std::min(kKeysOfACall, keys.size() - from);
      // A pool that does not take it, or is late: then nobody waits for the rest.
      if (!store_.Announce(next.token, std::span(keys).subspan(from, count), next.notice,
                           {.timeout = kAnnounceTimeout})) {
        break;
      }
    }
  } catch (const std::exception& error) {
    // Uncaught on the binder's thread, it would end the engine's process.
    LogWarn("saves that begin are not announced, so no look-up waits for them: {}", error.what());
  }
  return true;
}

void SchedulerRole::BindInThread() {
  while (true) {
    bool announces = false;
    bool idle = true;
    bool binds = false;
    {
      const MutexLock lock(mutex_);
      while (!stopping_ && bindings_.idle() && notices_.empty()) bind_wanted_.Wait(mutex_);
      if (stopping_) return;
      announces = !notices_.empty();
      idle = bindings_.idle();
      binds = !idle && bindings_.BindsNext();
    }
    // One announcement first, as it is worth nothing later, and then the rest: requests wait for
    // bindings, too, and a busy engine always has another announcement.
    if (announces) (void)Announce();
    if (idle) continue;
    if (!binds) NameVersions();
    if (!binds || BindOne(options_.bind_timeout)) continue;
    const MutexLock lock(mutex_);
    if (!stopping_) (void)bind_wanted_.WaitFor(mutex_, kPause);
  }
}

}  // namespace kvcove::connector
