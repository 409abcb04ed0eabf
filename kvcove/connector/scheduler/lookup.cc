// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/scheduler/lookup.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <deque>
#include <exception>
#include <limits>
#include <set>
#include <thread>

#include "kvcove/base/interrupt.h"
#include "kvcove/base/log.h"
#include "kvcove/base/mutex.h"
#include "kvcove/base/posix.h"

namespace kvcove::connector {
namespace {

constexpr std::size_t kMostKeys = 1024;     // most keys of one call
constexpr std::uint64_t kFirstChunks = 32;  // most chunks of another group in one call
constexpr std::uint64_t kWindow = 8;        // strides of the second question, and after a wait
// Pauses between questions for a chunk that is being saved. A saver stores some 16 MiB at a time,
// in milliseconds; without progress the pauses get longer, as a busy one may not have begun.
constexpr std::int64_t kFirstWaitNs = 5 * kMillisecond;
constexpr std::int64_t kMostWaitNs = 20 * kMillisecond;
// Time of a step of the engine's scheduler in which a look-up that waits may ask. Most answers are
// "not yet", and the step's other requests need the rest.
constexpr std::int64_t kPollNs = kMillisecond;
// Limit for a question of a look-up whose wait is over, and that finds more with each question.
constexpr std::int64_t kMostLateNs = 50 * kMillisecond;

// Copies in a few moves of fixed sizes, the last of which overlaps the one before. For keys this
// takes half the time of memcpy(3), and a look-up writes thousands.
char* CopyShort(std::string_view text, char* to) {
  const auto copy = [&]<std::size_t kBytes>() {
    for (std::size_t i = 0; i + kBytes < text.size(); i += kBytes) {
      std::memcpy(to + i, text.data() + i, kBytes);
    }
    std::memcpy(to + text.size() - kBytes, text.data() + text.size() - kBytes, kBytes);
  };
  if (text.size() >= 32) {
    copy.operator()<32>();
  } else if (text.size() >= 8) {
    copy.operator()<8>();
  } else {
    for (std::size_t i = 0; i < text.size(); ++i) to[i] = text[i];
  }
  return to + text.size();
}

// Returns true if the pool has no such value. A miss because an owner is away, or cannot answer
// now, is no proof of that, and must not become a KV event.
bool IsGone(const ItemResult& result) {
  if (result.code != Code::kMiss) return false;
  switch (result.reason) {
    case MissReason::kNeverPut:
    case MissReason::kEvicted:
    case MissReason::kRemoved:
    case MissReason::kReset:
    case MissReason::kDiskDamaged:
      return true;
    default:
      return false;
  }
}

}  // namespace

Lookup::Lookup(const EngineShape& shape, const Keys& keys, Question question)
    : shape_(shape), keys_(keys), question_(std::move(question)), cursor_(question_.from_tokens) {
  const std::uint64_t stride = shape_.stride_tokens();
  const std::uint64_t hashed = question_.hashes.size() * shape_.hash_tokens;
  candidate_ = std::min(question_.limit_tokens, hashed) / stride * stride;
  hit_ = question_.from_tokens;
  cursor_ = cursor_ / stride * stride;
  if (candidate_ <= question_.from_tokens) done_ = true;
}

void Lookup::WriteKeys(const std::vector<ChunkId>& chunks) {
  const auto hash_of = [&](const ChunkId& id) {
    const std::uint64_t per_chunk = shape_.groups[id.first].chunk_tokens / shape_.hash_tokens;
    return question_.hashes[(id.second + 1) * per_chunk - 1];
  };
  std::size_t bytes = 0;
  for (const ChunkId& id : chunks) {
    // Tags are numbered, so the last one is the longest: `bytes` is enough for all.
    const std::vector<std::string>& tags = keys_.Tags(id.first);
    bytes += tags.size() * KeyBytes(tags.back(), hash_of(id), question_.adapter);
  }
  std::string& text = scratch_.text;
  if (text.size() < bytes) text.resize(bytes);
  scratch_.keys.clear();
  char* to = text.data();
  for (const ChunkId& id : chunks) {
    std::string_view tail;  // "@<hash>..." of the chunk's first key, which all its keys share
    for (const std::string& tag : keys_.Tags(id.first)) {
      char* const from = to;
      if (tail.empty()) {
        to = WriteKey(tag, hash_of(id), to, question_.adapter);
        tail = {from + tag.size(), to};
      } else {
        to = CopyShort(tag, to);
        to = CopyShort(tail, to);
      }
      scratch_.keys.emplace_back(from, to);
    }
  }
}

bool Lookup::Ask(Store& store, const Clock& clock, std::int64_t deadline_ns,
                 std::chrono::milliseconds hold, const std::vector<ChunkId>& chunks,
                 std::vector<Answer>& answers) {
  WriteKeys(chunks);
  deadline_ns = std::min(deadline_ns, QuestionEnds(clock));
  std::vector<std::string_view>& views = scratch_.keys;
  std::vector<ItemResult>& results = scratch_.results;
  results.assign(views.size(), {});
  const std::int64_t left_ms =
      std::max<std::int64_t>((LeftNs(deadline_ns, clock) + kMillisecond - 1) / kMillisecond, 1);
  const std::int64_t began_ns = clock.NowNs();
  const Status status = store.Exists(views, results,
                                     {.timeout = std::chrono::milliseconds(left_ms),
                                      .version = question_.version,
                                      .after = {},
                                      .hold = hold,
                                      .under_way = MayWait(clock)});
  ask_ns_ = clock.NowNs() - began_ns;
  asked_ += views.size();
  if (!status && status.error().code == Code::kTimeout) return false;
  // An owner was late. The chunks are asked for again with the next budget: to take the value for
  // missing would end the hit here.
  const auto late = [](const ItemResult& result) {
    return result.code == Code::kTimeout || (!result.ok() && result.reason == MissReason::kTimeout);
  };
  if (std::ranges::any_of(results, late)) return false;
  scratch_.answered = status.has_value();
  scratch_.first.clear();
  std::size_t at = 0;
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    scratch_.first.push_back(at);
    Answer& answer = answers[c];
    answer = {.present = status.has_value(), .comes = true};
    for (std::size_t t = 0; t < keys_.Tags(chunks[c].first).size(); ++t, ++at) {
      answer.present = answer.present && results[at].ok();
      answer.comes = answer.comes && (results[at].ok() || results[at].under_way);
    }
    answer.comes = answer.comes && !answer.present;
  }
  return true;
}

void Lookup::Count(std::size_t i, const ChunkId& chunk, bool present) {
  bool known = scratch_.answered;
  Where where = Where::kMemory;
  Tier slowest = Tier::kUnknown;
  const std::size_t first = scratch_.first[i];
  for (std::size_t t = 0; t < keys_.Tags(chunk.first).size(); ++t) {
    const ItemResult& result = scratch_.results[first + t];
    if (result.ok()) {
      ++tiers_[static_cast<std::size_t>(result.tier)];
      if (result.tier == Tier::kDisk) where = Where::kDisk;
      slowest = std::max(slowest, result.tier);
    } else {
      if (missed_ == MissReason::kNone) missed_ = result.reason;
      known = known && IsGone(result);
    }
  }
  if (!known) return;
  seen_.push_back({.group = chunk.first,
                   .chunk = chunk.second,
                   .where = present ? where : Where::kNowhere,
                   .tier = present ? slowest : Tier::kUnknown});
}

bool Lookup::Wait(const Clock& clock, std::uint64_t tokens) {
  const std::int64_t now = clock.NowNs();
  // The last question begins early enough to be answered in time, with as much time again to spare.
  const std::int64_t last_ns = question_.wait_until_ns - 2 * ask_ns_;
  wait_over_ = now >= last_ns;
  if (wait_over_) return false;
  if (waits_from_ns_ == 0) {
    waits_from_ns_ = now;
    waits_from_tokens_ = tokens;
  }
  pause_ns_ = pause_ns_ == 0 ? kFirstWaitNs : std::min(2 * pause_ns_, kMostWaitNs);
  // At the end of its time it asks a last time, and takes what is missing then for missing.
  again_ns_ = std::min(now + pause_ns_, last_ns);
  return true;
}

void Lookup::WaitUnanswered(const Clock& clock, std::uint64_t tokens) {
  unanswered_ = true;
  if (waits()) (void)Wait(clock, tokens);
}

// A pool that is slow, because of saves perhaps, does not make the wait longer. What is there is
// found to its end, also after the wait.
std::int64_t Lookup::QuestionEnds(const Clock& clock) const {
  if (!waits()) return std::numeric_limits<std::int64_t>::max();
  const std::int64_t late_ns = std::clamp(2 * ask_ns_, kPollNs, kMostLateNs);
  return std::max(question_.wait_until_ns, clock.NowNs() + late_ns);
}

void Lookup::EndWait() {
  if (!full_done_) {
    candidate_ = std::min(candidate_, cursor_);
    Shorten();
  }
  // Nothing ends where chunks of the other groups are not known to be there.
  End(shape_.all_full() ? candidate_ : question_.from_tokens);
}

Lookup::Waited Lookup::waited() const {
  if (waits_from_ns_ == 0) return {};
  return {.ns = std::max<std::int64_t>(ended_ns_ - waits_from_ns_, 1),
          .tokens = hit_ - std::min(hit_, waits_from_tokens_)};
}

void Lookup::End(std::uint64_t tokens) {
  hit_ = std::max(tokens, question_.from_tokens);
  done_ = true;
}

void Lookup::Shorten() {
  full_done_ = true;
  // Shortened before StepOthers(): the chunks that other groups need depend on the hit's end.
  candidate_ -= std::min(candidate_, question_.drop_tokens);
}

bool Lookup::StepFull(Store& store, const Clock& clock, std::int64_t deadline_ns,
                      std::chrono::milliseconds hold) {
  const std::uint64_t stride = shape_.stride_tokens();
  std::uint64_t keys_a_stride = 0;
  for (std::uint32_t g = 0; g < shape_.groups.size(); ++g) {
    if (shape_.groups[g].kind != GroupKind::kFull) continue;
    keys_a_stride += stride / shape_.groups[g].chunk_tokens * keys_.Tags(g).size();
  }
  if (keys_a_stride == 0) {  // no group attends to everything
    Shorten();
    return true;
  }
  while (cursor_ < candidate_) {
    if (LeftNs(deadline_ns, clock) <= 0) return false;
    const std::uint64_t most = std::max<std::uint64_t>(kMostKeys / keys_a_stride, 1);
    const std::uint64_t strides =
        std::min({window_ == 0 ? 1 : window_, most, (candidate_ - cursor_) / stride});
    std::vector<ChunkId> chunks;
    for (std::uint64_t s = 0; s < strides; ++s) {
      for (std::uint32_t g = 0; g < shape_.groups.size(); ++g) {
        const GroupShape& group = shape_.groups[g];
        if (group.kind != GroupKind::kFull) continue;
        const std::uint64_t begin = cursor_ + s * stride;
        for (std::uint64_t t = begin; t < begin + stride; t += group.chunk_tokens) {
          chunks.emplace_back(g, t / group.chunk_tokens);
        }
      }
    }
    std::vector<Answer> answers(chunks.size());
    if (!Ask(store, clock, deadline_ns, hold, chunks, answers)) {
      WaitUnanswered(clock, cursor_);
      return false;
    }
    const std::size_t per_stride = chunks.size() / std::max<std::uint64_t>(strides, 1);
    const auto of_stride = [&](std::uint64_t s) {
      return std::span(answers).subspan(s * per_stride, per_stride);
    };
    std::uint64_t found = 0;
    while (found < strides && std::ranges::all_of(of_stride(found), &Answer::present)) ++found;
    cursor_ += found * stride;
    if (found > 0) pause_ns_ = 0;
    const bool comes =
        found < strides &&
        std::ranges::all_of(
            of_stride(found), [](const Answer& answer) { return answer.present || answer.comes; });
    const bool waits = comes && Wait(clock, cursor_);
    // The chunks behind the missing one are asked for again, and counted then.
    const std::size_t counted = waits ? found * per_stride : chunks.size();
    for (std::size_t i = 0; i < counted; ++i) Count(i, chunks[i], answers[i].present);
    if (waits) {
      window_ = kWindow;
      return false;
    }
    if (found < strides) break;
    window_ = window_ == 0 ? kWindow : window_ * 4;
  }
  candidate_ = std::min(candidate_, cursor_);
  Shorten();
  return true;
}

bool Lookup::StepOthers(Store& store, const Clock& clock, std::int64_t deadline_ns,
                        std::chrono::milliseconds hold) {
  const std::uint64_t stride = shape_.stride_tokens();
  bool again = true;
  while (again && candidate_ > question_.from_tokens) {
    again = false;
    for (std::uint32_t g = 0; g < shape_.groups.size() && !again; ++g) {
      const GroupShape& group = shape_.groups[g];
      if (group.kind == GroupKind::kFull) continue;
      const auto [first, end] = shape_.Needed(g, candidate_);
      // From the end backwards, so that the longest hit is found: a missing chunk rules out only
      // the ends that need it. The engine's own chunks need no key.
      const std::uint64_t own = question_.from_tokens / group.chunk_tokens;
      for (std::uint64_t chunk = end; chunk > std::max(first, own); --chunk) {
        if (!known_.contains({g, chunk - 1})) {
          if (LeftNs(deadline_ns, clock) <= 0) return false;
          std::vector<ChunkId> chunks;
          for (std::uint64_t c = chunk; c > own && chunks.size() < kFirstChunks; --c) {
            if (!known_.contains({g, c - 1})) chunks.emplace_back(g, c - 1);
          }
          std::vector<Answer> answers(chunks.size());
          if (!Ask(store, clock, deadline_ns, hold, chunks, answers)) {
            WaitUnanswered(clock, question_.from_tokens);
            return false;
          }
          if (answers[0].comes && Wait(clock, question_.from_tokens)) return false;
          for (std::size_t i = 0; i < chunks.size(); ++i) {
            // A chunk that comes may be there when the end has moved to it.
            if (answers[i].comes && i > 0) continue;
            Count(i, chunks[i], answers[i].present);
            known_[chunks[i]] = answers[i].present;
          }
        }
        if (known_[{g, chunk - 1}]) continue;
        // Nothing may end behind a chunk that is missing until the window has passed it; the
        // nearest end that does not need it is its own beginning.
        candidate_ = std::min((chunk - 1) * group.chunk_tokens, candidate_ - 1) / stride * stride;
        again = true;
        break;
      }
    }
  }
  return true;
}

bool Lookup::Step(Store& store, const Clock& clock, std::int64_t deadline_ns,
                  std::chrono::milliseconds hold) {
  if (done_) return true;
  if (clock.NowNs() < again_ns_) return false;
  again_ns_ = 0;
  try {
    unanswered_ = false;
    if (!TryStep(store, clock, deadline_ns, hold)) {
      if (!unanswered_ || !waits() || MayWait(clock)) return false;
      EndWait();
    }
    ended_ns_ = clock.NowNs();
    return true;
  } catch (const std::exception& error) {
    // Uncaught on kvcove-lookup, it would end the engine's process.
    static std::atomic<std::uint64_t> failed{0};
    if (const std::uint64_t count = ++failed; std::has_single_bit(count)) {
      LogError("look-ups failed and are misses ({} so far): {}", count, error.what());
    }
    End(question_.from_tokens);
    return true;
  }
}

bool Lookup::TryStep(Store& store, const Clock& clock, std::int64_t deadline_ns,
                     std::chrono::milliseconds hold) {
  if (!full_done_ && !StepFull(store, clock, deadline_ns, hold)) return false;
  if (!StepOthers(store, clock, deadline_ns, hold)) return false;
  End(candidate_);
  return true;
}

namespace {

class Here final : public LookupRunner {
 public:
  Here(Store& store, const Clock& clock, std::chrono::milliseconds hold)
      : store_(store), clock_(clock), hold_(hold) {}
  bool Run(const std::shared_ptr<Lookup>& lookup, std::chrono::milliseconds budget) override {
    // A call of the pool is not cut short by the budget, so no call begins in its last fifth.
    std::int64_t budget_ns = budget.count() * kMillisecond * 8 / 10;
    if (lookup->waits()) budget_ns = std::min(budget_ns, kPollNs);
    return lookup->Step(store_, clock_, clock_.NowNs() + budget_ns, hold_);
  }

 private:
  Store& store_;
  const Clock& clock_;
  const std::chrono::milliseconds hold_;
};

class InThread final : public LookupRunner {
 public:
  InThread(Store& store, const Clock& clock, std::chrono::milliseconds hold,
           std::chrono::milliseconds timeout)
      : store_(store), clock_(clock), hold_(hold), timeout_(timeout) {}
  Status Start() {
    KVCOVE_ASSIGN(thread_, StartThread("kvcove-lookup", [this] { Loop(); }));
    return {};
  }
  ~InThread() override {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    JoinIfStarted(thread_);
  }

  bool Run(const std::shared_ptr<Lookup>& lookup, std::chrono::milliseconds budget) override {
    ExpectNoLock("a wait for a look-up");
    const auto until = std::chrono::steady_clock::now() + budget;
    const MutexLock lock(mutex_);
    if (ended_.erase(lookup) > 0) return lookup->again_ns() == 0;
    if (polled_.contains(lookup.get())) return false;
    if (running_ != lookup && std::find(queue_.begin(), queue_.end(), lookup) == queue_.end()) {
      if (lookup->done()) return true;
      if (queue_.size() + polls_.size() >= kMostWaiting) return false;
      if (lookup->again_ns() != 0) {
        if (clock_.NowNs() >= lookup->again_ns()) Poll(lookup);
        return false;
      }
      queue_.push_back(lookup);
      changed_.NotifyAll();
    }
    while (!ended_.contains(lookup)) {
      const bool in_time = changed_.WaitUntil(mutex_, until) && !Interrupt::Ended();
      if (!in_time && !ended_.contains(lookup)) return false;
    }
    ended_.erase(lookup);
    return lookup->again_ns() == 0;
  }

 private:
  static constexpr std::size_t kMostWaiting = 1024;

  // Queues a look-up that waits for saves behind those that do not. Most answers to it are "not
  // yet", so the scheduler takes them in a later step, and does not wait for them.
  void Poll(const std::shared_ptr<Lookup>& lookup) KVCOVE_REQUIRES(mutex_) {
    polls_.push_back(lookup);
    polled_.insert(lookup.get());
    changed_.NotifyAll();
  }

  void Loop() {
    while (true) {
      std::shared_ptr<Lookup> lookup;
      {
        const MutexLock lock(mutex_);
        running_.reset();
        // Only this set refers to these look-ups: the role has dropped them, and no Run follows.
        std::erase_if(ended_, [](const auto& ended) { return ended.use_count() == 1; });
        while (queue_.empty() && polls_.empty() && !stopping_) changed_.Wait(mutex_);
        if (stopping_) return;
        auto& next = queue_.empty() ? polls_ : queue_;
        lookup = std::move(next.front());
        next.pop_front();
        running_ = lookup;
      }
      // Two references are this thread's (`lookup`, `running_`): without a third one the role has
      // dropped the look-up while it was queued.
      if (lookup.use_count() > 2) {
        (void)lookup->Step(store_, clock_, clock_.NowNs() + timeout_.count() * kMillisecond, hold_);
      }
      const MutexLock lock(mutex_);
      polled_.erase(lookup.get());
      ended_.insert(lookup);
      changed_.NotifyAll();
    }
  }

  Store& store_;
  const Clock& clock_;
  const std::chrono::milliseconds hold_;
  const std::chrono::milliseconds timeout_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<Lookup>> queue_ KVCOVE_GUARDED_BY(mutex_);
  std::shared_ptr<Lookup> running_ KVCOVE_GUARDED_BY(mutex_);
  std::set<std::shared_ptr<Lookup>> ended_ KVCOVE_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Lookup>> polls_ KVCOVE_GUARDED_BY(mutex_);
  std::set<const Lookup*> polled_ KVCOVE_GUARDED_BY(mutex_);  // in polls_, or running from there
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<LookupRunner> RunHere(Store& store, const Clock& clock,
                                      std::chrono::milliseconds hold) {
  return std::make_unique<Here>(store, clock, hold);
}

Result<std::unique_ptr<LookupRunner>> RunInThread(Store& store, const Clock& clock,
                                                  std::chrono::milliseconds hold,
                                                  std::chrono::milliseconds timeout) {
  auto runner = std::make_unique<InThread>(store, clock, hold, timeout);
  KVCOVE_TRY(runner->Start());
  return runner;
}

}  // namespace kvcove::connector
