// SPDX-License-Identifier: Apache-2.0
// Slices that move from one shard of the directory to another.
#include <algorithm>

#include "kvcove/base/log.h"
#include "kvcove/master/shards.h"

namespace kvcove::master {
namespace {

constexpr std::int64_t kPlanNs = 200 * kMillisecond;
constexpr std::size_t kUneven = 64;  // slices; less is not worth a move

}  // namespace

// From the shard with most beyond its share to the one that lacks most; the leader never gets any:
// what it lost to others comes back to it only when they are lost.
void Shards::PlanMove() {
  const std::int64_t now = clock_.NowNs();
  if (stage_ != Stage::kNone || now < next_plan_ns_ || members_.empty()) return;
  next_plan_ns_ = now + kPlanNs;
  // Which values went lately is known to the giver only; nobody asks for that when all is told.
  if (standings_.untold.load(std::memory_order_relaxed) != 0) return;
  std::map<wire::ShardNumber, std::size_t> have{{wire::kLeaderShard, CountOf(wire::kLeaderShard)}};
  std::size_t sharing = 1;
  for (const auto& [number, member] : members_) {
    have[number] = CountOf(number);
    sharing += member.draining ? 0 : 1;
  }
  const std::size_t share = wire::kSlices / sharing;
  wire::ShardNumber from = 0;
  wire::ShardNumber to = 0;
  std::size_t most = 0;
  std::size_t lacks = 0;
  for (const auto& [number, count] : have) {
    const auto member = members_.find(number);
    const bool draining = member != members_.end() && member->second.draining;
    const std::size_t target = draining ? 0 : share;
    if (count > target && count - target > most) {
      most = count - target;
      from = number;
    }
    if (number != wire::kLeaderShard && !draining && count < share && share - count > lacks) {
      lacks = share - count;
      to = number;
    }
  }
  const auto giver = members_.find(from);
  const bool drains = giver != members_.end() && giver->second.draining;
  if (drains && to == 0) {  // no shard has too few: the one with the fewest takes more
    for (const auto& [number, member] : members_) {
      if (!member.draining && (to == 0 || have[number] < have[to])) to = number;
    }
    lacks = wire::kSlices;
  }
  if (to == 0 || from == to || most == 0 || lacks == 0) return;
  const std::size_t less = std::min(most, lacks);
  if (!drains && less < kUneven) return;
  const std::uint64_t entries =
      from == wire::kLeaderShard ? directory_.entries() : giver->second.entries;
  const std::uint64_t a_slice = entries / std::max<std::size_t>(have[from], 1) + 1;
  const std::size_t count = std::clamp<std::size_t>(options_.move_entries / a_slice, 1, less);
  move_ = {.id = next_move_++, .from = from, .to = to, .address = {}, .slices = {}};
  if (giver != members_.end()) move_.address = giver->second.address;
  moving_.reset();
  for (std::size_t i = wire::kSlices; i-- > 0 && move_.slices.size() < count;) {
    if (now_.shards[i] != from) continue;
    moving_[i] = true;
    move_.slices.push_back(static_cast<wire::SliceNumber>(i));
  }
  stage_ = Stage::kFreezing;
  move_began_ns_ = now;
  SetOwnSlices();
}

void Shards::EndMove() {
  stage_ = Stage::kNone;
  move_ = {};
  moving_.reset();
  SetOwnSlices();
}

void Shards::CheckMove(Runs& runs) {
  if (stage_ == Stage::kNone) return;
  const Member& taker = members_[move_.to];
  const bool from_leader = move_.from == wire::kLeaderShard;
  if (stage_ == Stage::kFreezing && (from_leader || members_[move_.from].frozen >= move_.id)) {
    stage_ = Stage::kLoading;
  }
  const bool late = clock_.NowNs() > move_began_ns_ + options_.move_ns;
  if (stage_ != Stage::kEnding && (late || taker.failed >= move_.id)) {
    runs.emplace_back([id = move_.id] { LogWarn("move {} of the directory is given up", id); });
    return EndMove();
  }
  if (stage_ == Stage::kLoading && taker.loaded >= move_.id) {
    // Which values went is known to the giver only, and somebody may ask now.
    if (standings_.untold.load(std::memory_order_relaxed) != 0) return EndMove();
    for (const wire::SliceNumber slice : move_.slices) now_.shards[slice] = move_.to;
    stage_ = Stage::kEnding;
    ending_position_ = taker.position + 1;
    SetOwnSlices();
    NewMap(/*lost=*/false, runs);
    for (auto& [number, member] : members_) {
      if (member.reply) Answer(number, runs);
    }
  }
  if (stage_ == Stage::kEnding && taker.acknowledged >= ending_position_) {
    if (from_leader) forget_ |= moving_;
    EndMove();
  }
}

Result<wire::ShardPage> Shards::Pull(const wire::ShardPullRequest& request) {
  Directory::Slices slices;
  {
    const MutexLock lock(mutex_);
    if (request.term != term_ || stage_ == Stage::kNone || request.move != move_.id ||
        move_.from != wire::kLeaderShard) {
      return Fail(Code::kStale, "this move is over");
    }
    slices = moving_;
  }
  wire::ShardPage page;
  // Removals up to here have been applied to the directory before it is read.
  page.shown = control_->shown();
  page.cursor = request.cursor;
  page.entries = directory_.CopySlices(slices, page.cursor);
  page.done = page.cursor >= Directory::kShards;
  return page;
}

}  // namespace kvcove::master
