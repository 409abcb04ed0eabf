// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/cluster/shard_lookup.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <set>

#include "kvcove/base/interrupt.h"
#include "kvcove/base/log.h"

namespace kvcove::requester {
namespace {

constexpr int kAttempts = 5;         // of one look-up, while slices move
constexpr std::size_t kThreads = 4;  // for the parts of all look-ups of this process
// A shard that takes slices over, or learns of a generation, does so within milliseconds.
constexpr std::int64_t kFirstPauseNs = kMillisecond;

wire::Place Away() { return {.reason = MissReason::kShardAway}; }

}  // namespace

std::shared_ptr<const wire::ShardMap> ShardLookup::map() const {
  const MutexLock lock(mutex_);
  return map_;
}

void ShardLookup::SetMap(std::shared_ptr<const wire::ShardMap> map) {
  // Threads must not start, or be joined, under the lock. Two callers may start some each; the
  // second one's end with this call.
  std::shared_ptr<rpc::Workers> workers;
  bool wants = map != nullptr && !map->alone();
  if (wants) {
    const MutexLock lock(mutex_);
    wants = workers_ == nullptr;
  }
  if (wants) {
    workers = std::make_shared<rpc::Workers>(kThreads);
    if (const Status started = workers->Start(); !started) {
      workers.reset();  // the caller asks one shard after the other
      LogWarn("shards of the directory are asked one by one: {}", started.error().detail);
    }
  }
  // Peers of masters that the map does not name any more. They end after the lock, or with the last
  // call that uses them.
  std::vector<std::shared_ptr<Peer>> old;
  const MutexLock lock(mutex_);
  // Answers of the leader may overtake each other: an older map of this term, or one of an earlier
  // term, must not replace a later one.
  if (map != nullptr && map_ != nullptr && map->term == map_->term &&
      map->revision <= map_->revision) {
    return;
  }
  if (map != nullptr && map_ != nullptr && map->term < map_->term) return;
  map_ = std::move(map);
  if (workers_ == nullptr) workers_ = workers;
  if (map_ == nullptr) return;
  const std::set<std::string> now(map_->addresses.begin(), map_->addresses.end());
  for (auto at = peers_.begin(); at != peers_.end();) {
    if (now.contains(at->first)) {
      ++at;
    } else {
      old.push_back(std::move(at->second));
      at = peers_.erase(at);
    }
  }
}

std::vector<ShardLookup::Part> ShardLookup::Split(std::span<const Id128> hashes,
                                                  const std::vector<std::size_t>& which) {
  const MutexLock lock(mutex_);
  std::vector<Part> parts(map_ == nullptr ? 1 : map_->addresses.size());
  for (const std::size_t i : which) {
    Part& part = parts[map_ == nullptr ? wire::kLeaderShard : map_->ShardOf(hashes[i])];
    part.which.push_back(i);
    part.hashes.push_back(hashes[i]);
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i].shard = static_cast<wire::ShardNumber>(i);
    if (i == wire::kLeaderShard || parts[i].which.empty()) continue;
    const std::string& address = map_->addresses[i];
    std::shared_ptr<Peer>& peer = peers_[address];
    if (peer == nullptr) {
      const auto where = rpc::ParseAddress(address, 7400);
      // Connects with its first call, so it may be made under the lock.
      if (where) peer = std::make_shared<Peer>(*where, access_, clock_);
    }
    parts[i].peer = peer;
  }
  std::erase_if(parts, [](const Part& part) { return part.which.empty(); });
  return parts;
}

Result<std::vector<wire::Place>> ShardLookup::AskPart(const Token& token, const Part& part,
                                                      std::int64_t deadline_ns) const {
  if (part.shard == wire::kLeaderShard) {
    return leader_(token, part.hashes, deadline_ns, part.notice);
  }
  if (part.peer == nullptr) {
    return Fail(Code::kUnavailable, "a shard of the directory without an address");
  }
  return part.peer->stub.Lookup(token, part.hashes, deadline_ns, part.notice);
}

// The parts that workers ask for. A worker may be busy with other look-ups until after this one's
// deadline, so this is shared with the workers and outlives the call.
struct ShardLookup::Round {
  std::vector<Part> asked;  // constant once the first worker has it
  Mutex mutex;
  CondVar changed;
  std::size_t left KVCOVE_GUARDED_BY(mutex) = 0;
  std::vector<Result<std::vector<wire::Place>>> answers KVCOVE_GUARDED_BY(mutex);
  // Set once the caller has ended, by its deadline or its Interrupt: the workers' parts end, too.
  // Relaxed: the flag carries no data, and answers are handed over by the lock.
  std::atomic<bool> ended = false;
};

// The caller's thread asks for the first part, the leader's if there is one; workers ask for the
// others.
void ShardLookup::AskAll(const Token& token, std::vector<Part>& parts, std::int64_t deadline_ns) {
  std::shared_ptr<rpc::Workers> workers;
  {
    const MutexLock lock(mutex_);
    workers = workers_;
  }
  const auto round = std::make_shared<Round>();
  for (std::size_t i = 1; i < parts.size(); ++i) {
    round->asked.push_back({.shard = parts[i].shard,
                            .peer = parts[i].peer,
                            .which = {},
                            .hashes = std::move(parts[i].hashes),
                            .notice = parts[i].notice});
  }
  {
    const MutexLock lock(round->mutex);
    round->left = round->asked.size();
    round->answers.assign(round->left, Fail(Code::kTimeout, "a shard of the directory is late"));
  }
  const auto end = [round](std::size_t i, Result<std::vector<wire::Place>> answer) {
    const MutexLock lock(round->mutex);
    round->answers[i] = std::move(answer);
    if (--round->left == 0) round->changed.NotifyAll();
  };
  for (std::size_t i = 0; i < round->asked.size(); ++i) {
    const auto aside = [this, round, end, token, i, deadline_ns] {
      InterruptBy interrupt(round->ended);
      end(i, AskPart(token, round->asked[i], deadline_ns));
    };
    if (workers != nullptr && workers->Post(aside)) continue;
    end(i, AskPart(token, round->asked[i], deadline_ns));
  }
  parts.front().answer = AskPart(token, parts.front(), deadline_ns);
  const MutexLock lock(round->mutex);
  // In a thread with an Interrupt the wait returns every 100 ms.
  while (round->left > 0) {
    const std::int64_t left_ns = LeftNs(deadline_ns, clock_);
    if (left_ns <= 0) break;
    round->changed.WaitFor(round->mutex, std::chrono::nanoseconds(left_ns));
  }
  round->ended.store(true, std::memory_order_relaxed);
  for (std::size_t i = 1; i < parts.size(); ++i) {
    parts[i].answer = std::move(round->answers[i - 1]);
  }
}

Result<std::vector<wire::Place>> ShardLookup::Lookup(const Token& token,
                                                     std::span<const Id128> hashes,
                                                     std::int64_t deadline_ns, SaveNotice notice) {
  // No map: a pool with one master, at the cost of one call. An answer kShardAway shows that there
  // is a map by now.
  if (hashes.empty() || map() == nullptr) {
    auto places = leader_(token, hashes, deadline_ns, notice);
    const bool away = places && std::ranges::find(*places, MissReason::kShardAway,
                                                  &wire::Place::reason) != places->end();
    if (!away) return places;
    refresh_(deadline_ns);
  }
  std::vector<wire::Place> places(hashes.size(), Away());
  std::vector<std::size_t> which(hashes.size());
  std::iota(which.begin(), which.end(), 0);
  bool answered = false;
  std::optional<Error> failed;
  std::int64_t pause_ns = kFirstPauseNs;
  for (int attempt = 0; attempt < kAttempts && !which.empty(); ++attempt) {
    const auto before = map();
    std::vector<Part> parts = Split(hashes, which);
    for (Part& part : parts) part.notice = notice;
    AskAll(token, parts, deadline_ns);
    std::vector<std::size_t> again;
    bool moved = false;
    for (Part& part : parts) {
      if (!part.answer) {
        const Error& error = part.answer.error();
        // The session's generation is old, so no part of the answer counts.
        if (error.code == Code::kStale) return std::unexpected(error);
        if (!failed) failed = error;
        // The shard does not serve yet or any more, or it is lost: a newer map names another one. A
        // leader that is silent has no newer map.
        moved = moved || error.answered || part.shard != wire::kLeaderShard;
        again.insert(again.end(), part.which.begin(), part.which.end());
        continue;
      }
      answered = true;
      for (std::size_t k = 0; k < part.which.size(); ++k) {
        const wire::Place& place = (*part.answer)[k];
        places[part.which[k]] = place;
        if (place.reason != MissReason::kShardAway) continue;
        again.push_back(part.which[k]);
        moved = true;
      }
    }
    which = std::move(again);
    if (which.empty() || !moved || LeftNs(deadline_ns, clock_) <= 0) break;
    refresh_(deadline_ns);
    // The same map: the move is not over yet, so wait, for 1, 2, 4 and 8 ms.
    if (map() == before) {
      const std::int64_t left_ns = LeftNs(deadline_ns, clock_);
      if (left_ns <= pause_ns || attempt + 1 == kAttempts) break;
      SleepNs(pause_ns);
      pause_ns *= 2;
    }
  }
  // With one answer the call has succeeded, and the other keys are kShardAway.
  if (!answered && failed) return std::unexpected(*failed);
  return places;
}

}  // namespace kvcove::requester
