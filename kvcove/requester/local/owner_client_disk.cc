// SPDX-License-Identifier: Apache-2.0
// Keys on the owner's disk. Look-ups make no call: the header has a table of these keys. A get asks
// the owner to promote them, and reads them in memory.
#include <algorithm>

#include "kvcove/base/interrupt.h"
#include "kvcove/base/size.h"
#include "kvcove/requester/local/owner_client.h"

namespace kvcove::requester {
namespace {

constexpr std::size_t kKeysAtOnce = 1024;
// Part of the caller's time that the owner does not get: the answer must arrive, and the promoted
// values must be copied.
constexpr std::int64_t kMostMarginNs = 20 * kMillisecond;
constexpr std::int64_t kLeastHoldNs = 50 * kMillisecond;  // hold until the caller has read a value
constexpr std::chrono::milliseconds kAhead{500};          // hold until the caller asks for it

// The answer of one call of Load. Shared with its callback, which may run after the caller has
// stopped waiting.
class Waiting {
 public:
  void Set(Result<std::vector<wire::LoadResult>> results) {
    const MutexLock lock(mutex_);
    results_ = std::move(results);
    changed_.NotifyAll();
  }
  Result<std::vector<wire::LoadResult>> Take(const Clock& clock, std::int64_t deadline_ns) {
    const MutexLock lock(mutex_);
    while (!results_) {
      const std::int64_t left = LeftNs(deadline_ns, clock);
      if (left <= 0) return Fail(Code::kTimeout, "the disk did not answer in time");
      changed_.WaitFor(mutex_, std::chrono::nanoseconds(left));
    }
    return *std::move(results_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::optional<Result<std::vector<wire::LoadResult>>> results_ KVCOVE_GUARDED_BY(mutex_);
};

// Divides a get from disk into parts: while one is copied out, the disk reads the next ones, and a
// part is copied soon after it was read, while caches still have it. Sizes are those of the
// caller's buffers.
class DiskParts {
 public:
  DiskParts(std::span<const GetItem> items, std::span<const std::size_t> which,
            std::uint64_t memory_bytes)
      : items_(items) {
    for (const std::size_t i : which) bytes_ += SizeOf(items[i].into);
    // Values that are promoted and not copied yet must fit into the memory that the owner holds for
    // one session.
    window_ = std::min(memory_bytes / 16, kMostWindow);
    part_ = std::min(std::clamp(bytes_ / kParts, kLeastPart, kMostPart), window_ / 2);
  }
  std::uint64_t bytes() const { return bytes_; }
  // Returns the end of the part that begins at `at`.
  std::size_t End(std::span<const std::size_t> which, std::size_t at) const {
    return Reach(which, at, part_, kKeysAtOnce);
  }
  // Returns the end of the keys that the disk should be asked to read while the part at `at` is
  // pending, if it has been asked up to `told`. Asks for half a window a call, and for no more keys
  // if the rest is one part.
  std::size_t Window(std::span<const std::size_t> which, std::size_t at, std::size_t told) const {
    if (End(which, at) == which.size()) return told;
    if (told > at && Reach(which, at, window_ / 2, kKeysAtOnce) < told) return told;
    return Reach(which, at, window_, 2 * kKeysAtOnce);
  }

 private:
  static constexpr std::uint64_t kParts = 8;
  static constexpr std::uint64_t kLeastPart = kMiB;
  static constexpr std::uint64_t kMostPart = 4 * kMiB;
  static constexpr std::uint64_t kMostWindow = 32 * kMiB;

  std::size_t Reach(std::span<const std::size_t> which, std::size_t at, std::uint64_t bytes,
                    std::size_t keys) const {
    const std::size_t last = std::min(which.size(), at + keys);
    std::size_t end = at + 1;
    for (std::uint64_t sum = SizeOf(items_[which[at]].into); end < last; ++end) {
      sum += SizeOf(items_[which[end]].into);
      if (sum > bytes) break;
    }
    return end;
  }

  const std::span<const GetItem> items_;
  std::uint64_t bytes_ = 0;
  std::uint64_t part_ = 0;
  std::uint64_t window_ = 0;
};

}  // namespace

Token OwnerClient::TokenOf(const Scope& scope) const {
  return {.incarnation = scope.incarnation,
          .generation = scope.read.generation,
          .slot = scope.read.slot};
}

bool OwnerClient::OnDisk(const Scope& scope, std::string_view key) {
  return scope.attachment->header().tier().Holds(scope.read.slot, scope.read.generation, key);
}

void OwnerClient::Prefetch(const Scope& scope, std::span<const std::string_view> keys,
                           std::chrono::milliseconds hold, std::int64_t deadline_ns) const {
  for (std::size_t from = 0; from < keys.size(); from += kKeysAtOnce) {
    scope.attachment->service().Load(
        {.token = TokenOf(scope),
         .keys = keys.subspan(from, std::min(kKeysAtOnce, keys.size() - from)),
         .wait_ns = 0,
         .hold_ns = hold.count() * kMillisecond},
        deadline_ns, [](const Result<std::vector<wire::LoadResult>>&) {});
  }
}

void OwnerClient::GetFromDisk(const Scope& scope, std::span<const GetItem> items,
                              std::span<ItemResult> results, const CallOptions& options,
                              std::int64_t deadline_ns) {
  std::vector<std::size_t> which;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (results[i].code == Code::kMiss && OnDisk(scope, items[i].key)) which.push_back(i);
  }
  const DiskParts parts(items, which, scope.attachment->payload_bytes());
  const Window window{.hold = options.hold, .deadline_ns = deadline_ns, .bytes = parts.bytes()};
  std::vector<GetItem> wanted;
  std::vector<std::string_view> keys;
  std::vector<ItemResult> answers;
  std::vector<std::size_t> again;
  std::size_t at = 0;
  std::size_t ahead = 0;  // end of the keys that the owner has been asked to read ahead
  while (at < which.size() && LeftNs(deadline_ns, clock_) > 0) {
    const std::size_t end = parts.End(which, at);
    if (const std::size_t told = parts.Window(which, at, ahead); told > ahead) {
      keys.clear();
      ahead = std::max(ahead, at);
      for (; ahead < told; ++ahead) keys.push_back(items[which[ahead]].key);
      Prefetch(scope, keys, kAhead, deadline_ns);
    }
    wanted.clear();
    keys.clear();
    for (std::size_t k = at; k < end; ++k) wanted.push_back(items[which[k]]);
    for (const GetItem& item : wanted) keys.push_back(item.key);
    answers.assign(wanted.size(), Miss(MissReason::kDiskTimeout));
    const bool goes_on = LoadSome(
        scope, keys, answers, window,
        [&](std::span<const std::size_t> there, std::span<ItemResult> read) {
          std::vector<GetItem> readable;
          for (const std::size_t i : there) readable.push_back(wanted[i]);
          for (std::size_t from = 0; from < there.size(); from += segment::kLaneSlots) {
            const std::size_t count =
                std::min<std::size_t>(segment::kLaneSlots, there.size() - from);
            GetWindow(scope, std::span<const GetItem>(readable).subspan(from, count),
                      read.subspan(from, count), window);
          }
        },
        again);
    // The owner did not read these in this call, or has evicted them before they were copied.
    for (const std::size_t k : again) which.push_back(which[at + k]);
    for (const ItemResult& answer : answers) results[which[at++]] = answer;
    if (!goes_on) break;
  }
  for (; at < which.size(); ++at) results[which[at]] = Miss(MissReason::kDiskTimeout);
}

bool OwnerClient::LoadSome(const Scope& scope, std::span<const std::string_view> keys,
                           std::span<ItemResult> results, const Window& window,
                           const ReadLoaded& read, std::vector<std::size_t>& again) {
  again.clear();
  const std::int64_t left = LeftNs(window.deadline_ns, clock_);
  const auto waiting = std::make_shared<Waiting>();
  scope.attachment->service().Load(
      {.token = TokenOf(scope),
       .keys = keys,
       .wait_ns = std::max<std::int64_t>(left - std::min(left / 4, kMostMarginNs), 1),
       .hold_ns = std::max(window.hold.count() * kMillisecond, kLeastHoldNs)},
      window.deadline_ns,
      [waiting](Result<std::vector<wire::LoadResult>> loaded) { waiting->Set(std::move(loaded)); });
  const auto loaded = waiting->Take(clock_, window.deadline_ns);
  if (!loaded || loaded->size() != keys.size()) {
    const MissReason reason = loaded ? MissReason::kUnavailable : UnansweredReason(loaded.error());
    std::ranges::fill(results, Miss(reason));
    return false;
  }
  std::vector<std::size_t> there;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const wire::LoadResult& one = (*loaded)[i];
    results[i] = {.code = one.code, .reason = one.reason};
    if (results[i].ok()) there.push_back(i);
    if (one.code == Code::kLimit) again.push_back(i);
  }
  std::vector<ItemResult> answers(there.size());
  read(there, answers);
  for (std::size_t k = 0; k < there.size(); ++k) {
    results[there[k]] = answers[k];
    if (answers[k].ok()) results[there[k]].tier = Tier::kDisk;
    // Evicted to the disk again, before it was read.
    if (answers[k].reason == MissReason::kEvicted && OnDisk(scope, keys[there[k]])) {
      again.push_back(there[k]);
    }
  }
  for (const std::size_t i : again) results[i] = Miss(MissReason::kDiskTimeout);
  return again.size() < keys.size();
}

}  // namespace kvcove::requester
