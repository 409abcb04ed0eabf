// SPDX-License-Identifier: Apache-2.0
// Slices that move from one shard of the directory to another.
#include <algorithm>

#include "kvcove/base/log.h"
#include "kvcove/master/shards/shards.h"

namespace kvcove::master {
namespace {

constexpr std::int64_t kMoveNs = 60 * kSecond;  // after which a move is given up
// Entries that move at a time: listings of their keys wait until they have moved.
constexpr std::uint64_t kMoveEntries = 400'000;
constexpr std::int64_t kPlanNs = 200 * kMillisecond;
constexpr std::size_t kUneven = 64;    // slices; less is not worth a move
constexpr std::size_t kLoaded = 1024;  // entries under one hold of the lock

}  // namespace

// Plans a move from the shard with most slices beyond its share to the one that lacks most. The
// leader takes slices of a drained shard if there is no other taker; else it gets only lost ones.
void Shards::PlanMove() {
  const std::int64_t now = clock_.NowNs();
  if (stage_ != Stage::kNone || now < next_plan_ns_ || members_.empty()) return;
  if (gathers_until_ns_ != 0) return;
  next_plan_ns_ = now + kPlanNs;
  // Only the giver knows which values were unlisted lately (DirectoryService, `went_`). While an
  // inventory is incomplete, that knowledge is needed and must not be left behind.
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
  if (from == to || most == 0 || lacks == 0) return;
  // The leader must not have old entries of these slices when it loads them.
  if (to == wire::kLeaderShard && forget_.any()) return;
  const std::size_t less = std::min(most, lacks);
  if (!drains && less < kUneven) return;
  const std::uint64_t entries =
      from == wire::kLeaderShard ? directory_.entries() : giver->second.entries;
  const std::uint64_t a_slice = entries / std::max<std::size_t>(have[from], 1) + 1;
  const std::size_t count = std::clamp<std::size_t>(kMoveEntries / a_slice, 1, less);
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
  const bool gave = move_.from == wire::kLeaderShard && stage_ == Stage::kEnding;
  const bool missed = move_.to == wire::kLeaderShard && stage_ != Stage::kEnding;
  if (gave || missed) forget_ |= moving_;
  stage_ = Stage::kNone;
  move_ = {};
  moving_.reset();
  SetOwnSlices();
}

void Shards::CheckMove(Runs& runs) {
  if (stage_ == Stage::kNone) return;
  const bool from_leader = move_.from == wire::kLeaderShard;
  const bool to_leader = move_.to == wire::kLeaderShard;
  const Member* const giver = from_leader ? nullptr : &members_[move_.from];
  const Member* const taker = to_leader ? nullptr : &members_[move_.to];
  if (stage_ == Stage::kFreezing && (from_leader || giver->frozen >= move_.id)) {
    stage_ = Stage::kLoading;
  }
  const bool loading = stage_ == Stage::kFreezing || stage_ == Stage::kLoading;
  const bool late = clock_.NowNs() > move_began_ns_ + kMoveNs;
  const bool failed = (to_leader ? own_failed_ : taker->failed) >= move_.id;
  if (loading && (late || failed)) {
    runs.emplace_back([id = move_.id] { LogWarn("move {} of the directory is given up", id); });
    return EndMove();
  }
  if (stage_ == Stage::kLoading && (to_leader ? own_loaded_ : taker->loaded) >= move_.id) {
    // The giver must know that the taker may list these keys before the taker does (kLeft).
    // Otherwise it could call a key unknown that the taker has just listed.
    stage_ = Stage::kClosing;
    SetOwnSlices();
    if (!from_leader) {
      closing_position_ = giver->position + 1;
      if (giver->reply) Answer(move_.from, runs);
    }
  }
  if (stage_ == Stage::kClosing && (from_leader || giver->acknowledged >= closing_position_)) {
    // An inventory is incomplete since: as in PlanMove, only the giver knows the values that were
    // unlisted.
    if (standings_.untold.load(std::memory_order_relaxed) != 0) return EndMove();
    HandOver(runs);
    if (to_leader) return EndMove();
  }
  if (stage_ == Stage::kEnding && taker->acknowledged >= ending_position_) EndMove();
}

void Shards::HandOver(Runs& runs) {
  for (const wire::SliceNumber slice : move_.slices) now_.shards[slice] = move_.to;
  stage_ = Stage::kEnding;
  if (move_.to != wire::kLeaderShard) ending_position_ = members_[move_.to].position + 1;
  SetOwnSlices();
  NewMap(/*lost=*/false, runs);
  for (auto& [number, member] : members_) {
    if (member.reply) Answer(number, runs);
  }
}

// ---- entries

bool Shards::IsLoading(std::uint64_t move) const {
  return (stage_ == Stage::kFreezing || stage_ == Stage::kLoading) && move_.id == move &&
         move_.to == wire::kLeaderShard && own_loaded_ < move && own_failed_ < move;
}

wire::ShardMove Shards::Wanted() const {
  const MutexLock lock(mutex_);
  return IsLoading(move_.id) ? move_ : wire::ShardMove{};
}

// Loads only under the lock: the move may end at any time, and EndMove then lets Tick forget the
// entries. An entry that was loaded later would stay.
bool Shards::Load(std::uint64_t move, const wire::ShardPage& page) {
  const std::span<const wire::ShardEntry> entries = page.entries;
  for (std::size_t begin = 0; begin < entries.size(); begin += kLoaded) {
    const MutexLock lock(mutex_);
    if (!IsLoading(move)) return false;
    directory_.LoadEntries(entries.subspan(begin, std::min(kLoaded, entries.size() - begin)),
                           page.shown);
  }
  const MutexLock lock(mutex_);
  if (!IsLoading(move)) return false;
  if (page.done) own_loaded_ = move;
  return true;
}

void Shards::LoadFailed(std::uint64_t move) {
  const MutexLock lock(mutex_);
  if (IsLoading(move)) own_failed_ = move;
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
  // Read before the entries: removals up to this number have been applied to the directory then.
  page.shown = control_->shown();
  page.cursor = request.cursor;
  page.entries = directory_.CopySlices(slices, page.cursor);
  page.done = page.cursor >= Directory::kShards;
  return page;
}

}  // namespace kvcove::master
