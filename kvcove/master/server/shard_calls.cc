// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/server/shard_calls.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <thread>

#include "kvcove/base/log.h"

namespace kvcove::master {
namespace {

constexpr std::int64_t kPullNs = 5 * kSecond;  // for one page, and for the giver to know the move
constexpr std::int64_t kPullPauseNs = 5 * kMillisecond;
constexpr int kAttempts = 5;               // of a look-up, because slices may move meanwhile
constexpr std::size_t kPrefixPart = 1024;  // keys of a prefix that are looked up at the same time
constexpr std::chrono::microseconds kTurn(50);  // for those who wait for the directory's lock

void Pause() { std::this_thread::sleep_for(std::chrono::nanoseconds(kPullPauseNs)); }

}  // namespace

Status PullMove(const wire::ShardMove& move, std::uint64_t term, rpc::TcpChannel& giver,
                const std::function<bool(const wire::ShardPage&)>& load, const Clock& clock) {
  wire::ShardPullRequest request{.term = term, .move = move.id, .cursor = 0};
  const std::int64_t until_ns = clock.NowNs() + kPullNs;
  while (true) {
    const auto body = giver.Call(wire::Method::kShardPull, wire::AsBytes(wire::Encode(request)),
                                 clock.NowNs() + kPullNs);
    // Only before the first page: later, kStale says that the giver has ended this move. The empty
    // page asks `load` whether the move is still wanted.
    if (!body && body.error().code == Code::kStale && request.cursor == 0 &&
        clock.NowNs() < until_ns && load({})) {
      Pause();
      continue;
    }
    if (!body) return std::unexpected(body.error());
    KVCOVE_ASSIGN(const wire::ShardPage page, wire::DecodeShardPage(wire::AsBytes(*body)));
    if (!load(page) || page.done) return {};
    // A cursor that does not advance would make this loop endless.
    if (page.cursor <= request.cursor)
      return Fail(Code::kCorrupt, "the cursor of its pages does not advance");
    request.cursor = page.cursor;
  }
}

Result<ShardCalls::ChannelPtr> ShardCalls::ChannelTo(const std::string& address) {
  KVCOVE_ASSIGN(const rpc::Address where, rpc::ParseAddress(address, 7400));
  const MutexLock lock(mutex_);
  // Each master that ever joined may have had another address. Calls under way hold their channels.
  if (channels_.size() > 2 * wire::kMaxShards) channels_.clear();
  ChannelPtr& channel = channels_[address];
  if (channel == nullptr) channel = std::make_shared<rpc::TcpChannel>(where, access_);
  return channel;
}

// ---- keys

std::map<wire::ShardNumber, std::vector<std::size_t>> ShardCalls::Split(
    std::span<const Key> keys, const std::vector<std::size_t>& which,
    const wire::ShardMap* map) const {
  std::map<wire::ShardNumber, std::vector<std::size_t>> parts;
  for (const std::size_t i : which) {
    parts[map == nullptr ? wire::kLeaderShard : map->ShardOf(keys[i].second)].push_back(i);
  }
  return parts;
}

Result<std::vector<wire::HeldKey>> ShardCalls::Ask(const std::string& address,
                                                   std::span<const Key> keys,
                                                   std::int64_t deadline_ns) {
  KVCOVE_ASSIGN(const ChannelPtr channel, ChannelTo(address));
  std::vector<wire::HeldKey> found;
  for (std::size_t begin = 0; begin < keys.size(); begin += kMaxBatch) {
    const auto part = keys.subspan(begin, std::min<std::size_t>(kMaxBatch, keys.size() - begin));
    const wire::ShardFindRequest request{.keys = {part.begin(), part.end()}};
    KVCOVE_ASSIGN(
        const std::string body,
        channel->Call(wire::Method::kShardFind, wire::AsBytes(wire::Encode(request)), deadline_ns));
    KVCOVE_ASSIGN(const wire::ShardFindReply reply,
                  wire::DecodeShardFindReply(wire::AsBytes(body), part.size()));
    found.insert(found.end(), reply.keys.begin(), reply.keys.end());
  }
  return found;
}

ShardCalls::Found ShardCalls::Find(std::span<const Key> keys, std::int64_t deadline_ns) {
  Found found;
  found.keys.resize(keys.size());
  std::vector<std::size_t> which(keys.size());
  std::iota(which.begin(), which.end(), 0);
  for (int attempt = 0; attempt < kAttempts && !which.empty(); ++attempt) {
    if (attempt > 0) Pause();
    found.away.clear();
    // A fresh map for each attempt: keys that are kShardAway may have moved to another shard.
    const auto map = master_.shards().map();
    std::vector<std::size_t> again;
    for (const auto& [shard, part] : Split(keys, which, map.get())) {
      std::vector<Key> asked;
      for (const std::size_t i : part) asked.push_back(keys[i]);
      auto answer = shard == wire::kLeaderShard
                        ? Result<std::vector<wire::HeldKey>>(master_.directory().Held(asked))
                        : Ask(map->addresses[shard], asked, deadline_ns);
      if (!answer) {
        found.away = fmt::format("the master at {} knows where they are, and does not answer: {}",
                                 map->addresses[shard], answer.error().detail);
        answer = std::vector<wire::HeldKey>(part.size(), {.reason = MissReason::kShardAway});
      }
      for (std::size_t k = 0; k < part.size(); ++k) {
        if ((*answer)[k].reason == MissReason::kShardAway) again.push_back(part[k]);
        // Also a kShardAway: the answer's remembered misses are of use in any case.
        found.keys[part[k]] = std::move((*answer)[k]);
      }
    }
    which = std::move(again);
    if (clock_.NowNs() >= deadline_ns) break;
  }
  if (!which.empty() && found.away.empty()) found.away = "slices of the directory are moving";
  // While owners still list their inventory, a key without an entry may exist all the same.
  if (master_.control().Warming()) {
    for (wire::HeldKey& key : found.keys) {
      if (key.reason == MissReason::kNeverPut) key.reason = MissReason::kWarmingUp;
    }
  }
  return found;
}

// ---- prefixes

void ShardCalls::CountPrefix(SlotId slot, std::span<const Id128> hashes, std::int64_t deadline_ns,
                             PrefixCount& count) {
  while (!hashes.empty() && !count.ended()) {
    const auto part = hashes.first(std::min(kPrefixPart, hashes.size()));
    hashes = hashes.subspan(part.size());
    if (master_.shards().map() == nullptr) {
      CountOwn(slot, part, count);
    } else {
      CountHeld(slot, part, deadline_ns, count);
    }
    // Look-ups of engines wait for the directory's lock, which is not fair. No loop of a server
    // asks for so many keys.
    if (part.size() == kPrefixPart) std::this_thread::sleep_for(kTurn);
  }
}

void ShardCalls::CountOwn(SlotId slot, std::span<const Id128> hashes, PrefixCount& count) {
  master_.directory().CountPrefix(slot, hashes, count);
  if (count.reason() == MissReason::kNeverPut && master_.control().Warming()) {
    count.End(MissReason::kWarmingUp);
  }
}

void ShardCalls::CountHeld(SlotId slot, std::span<const Id128> hashes, std::int64_t deadline_ns,
                           PrefixCount& count) {
  std::vector<Key> keys;
  for (const Id128& hash : hashes) keys.emplace_back(slot, hash);
  for (const wire::HeldKey& key : Find(keys, deadline_ns).keys) {
    if (key.holders.empty()) return count.End(key.reason);
    count.Add(key.holders);
  }
}

// ---- slices that come back

void ShardCalls::Tick() {
  // Ids of moves grow within a term, and this object serves one term, so each move begins once.
  const wire::ShardMove move = master_.shards().Wanted();
  if (move.id <= taking_) return;
  taking_ = move.id;
  (void)workers_.Post([this, move] { Take(move); });
}

void ShardCalls::Take(const wire::ShardMove& move) {
  Shards& shards = master_.shards();
  // PullMove's empty page only asks whether the move is still wanted; a last page may be empty,
  // too.
  const auto load = [&](const wire::ShardPage& page) {
    return !stopping_ && (page.entries.empty() && !page.done ? shards.Wanted().id == move.id
                                                             : shards.Load(move.id, page));
  };
  Status pulled;
  if (const auto giver = ChannelTo(move.address); giver) {
    pulled = PullMove(move, master_.term(), **giver, load, clock_);
  } else {
    pulled = std::unexpected(giver.error());
  }
  if (pulled) return;
  LogWarn("{} slices of the directory cannot be taken over from {}: {}", move.slices.size(),
          move.address, pulled.error().ToString());
  // Otherwise the giver would remain frozen for these slices: this ends the move.
  shards.LoadFailed(move.id);
}

}  // namespace kvcove::master
