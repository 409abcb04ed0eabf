// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/link/shard_lanes.h"

#include <algorithm>

namespace kvcove::owner {

void ShardLanes::SetMap(MapPtr map) {
  std::vector<Lane> before = std::exchange(lanes_, {});
  map_ = std::move(map);
  ++restarts_;
  lanes_.resize(map_->addresses.size());
  for (Lane& lane : lanes_) lane.session = next_session_++;
  for (std::size_t i = 0; i < before.size() && i < lanes_.size(); ++i) {
    lanes_[i].credit = before[i].credit;
  }
  // A key's entries are in one lane, in their order, and must be again. Answered items are older
  // than all entries that have no answer, so they are added first.
  for (auto& [hash, part] : std::exchange(answered_, {})) {
    ++part.split->missing;
    Ask(part.split, part.index);
  }
  for (Lane& lane : before) {
    if (lane.batch) {
      for (Entry& entry : *lane.batch) Add(std::move(entry));
    }
    for (Entry& entry : lane.queue) Add(std::move(entry));
  }
}

void ShardLanes::Ask(const std::shared_ptr<Split>& split, std::size_t index) {
  Add({.kind = Kind::kPut,
       .reported = {.item = split->listing.pending[index].item},
       .split = split,
       .index = index,
       .applied = split->applied});
}

void ShardLanes::Add(Entry entry) {
  // Forgets an answered put of the key: asked again after this later entry, it would replace that
  // at the shard.
  answered_.erase(entry.reported.item.hash);
  Lane& lane = lanes_[map_->ShardOf(entry.reported.item.hash)];
  lane.queue.push_back(std::move(entry));
  ++lane.enqueued;
}

void ShardLanes::AddListing(Listing listing, std::uint64_t applied) {
  auto split = std::make_shared<Split>();
  split->listing = std::move(listing);
  split->applied = applied;
  split->missing = split->listing.pending.size();
  split->codes.resize(split->missing, Code::kOk);
  // Keeps the list short; Clear skips complete puts behind one that still waits.
  while (!splits_.empty() && splits_.front().expired()) splits_.pop_front();
  splits_.push_back(split);
  for (std::size_t i = 0; i < split->codes.size(); ++i) Ask(split, i);
}

std::vector<ShardLanes::Entry>& ShardLanes::Take(Lane& lane, std::size_t at_most) {
  const auto count = static_cast<std::ptrdiff_t>(std::min(at_most, lane.queue.size()));
  lane.batch.emplace(std::make_move_iterator(lane.queue.begin()),
                     std::make_move_iterator(lane.queue.begin() + count));
  lane.queue.erase(lane.queue.begin(), lane.queue.begin() + count);
  return *lane.batch;
}

ShardLanes::Answered ShardLanes::Answer(Lane& lane, const std::vector<Code>& codes) {
  Answered answered{.batch = std::move(*lane.batch), .complete = {}};
  lane.batch.reset();
  lane.delivered += answered.batch.size();
  for (std::size_t i = 0; i < answered.batch.size(); ++i) {
    Entry& entry = answered.batch[i];
    if (entry.kind != Kind::kPut) continue;
    entry.split->codes[entry.index] = codes[i];
    if (--entry.split->missing == 0) answered.complete.push_back(entry.split);
  }
  // After all answers, so that no put that this batch completes is added. An answer is the key's
  // latest: an earlier put of the key that still waits must not be asked again behind it (Add).
  for (const Entry& entry : answered.batch) {
    answered_.erase(entry.reported.item.hash);
    if (entry.kind != Kind::kPut || entry.split->missing == 0) continue;
    answered_[entry.reported.item.hash] = {.split = entry.split, .index = entry.index};
  }
  for (const auto& split : answered.complete) {
    if (answered_.empty()) break;
    for (const Pending& pending : split->listing.pending) {
      const auto at = answered_.find(pending.item.hash);
      if (at != answered_.end() && at->second.split == split) answered_.erase(at);
    }
  }
  return answered;
}

bool ShardLanes::Empty() const { return queued() == 0; }

std::size_t ShardLanes::queued() const {
  std::size_t count = 0;
  for (const Lane& lane : lanes_) count += lane.queue.size();
  return count;
}

std::vector<std::uint64_t> ShardLanes::Marks() const {
  std::vector<std::uint64_t> marks;
  for (const Lane& lane : lanes_) marks.push_back(lane.enqueued);
  return marks;
}

bool ShardLanes::Reached(const std::vector<std::uint64_t>& marks) const {
  for (std::size_t i = 0; i < lanes_.size() && i < marks.size(); ++i) {
    if (lanes_[i].delivered < marks[i]) return false;
  }
  return true;
}

std::vector<Listing> ShardLanes::Clear() {
  std::vector<Listing> listings;
  for (const std::weak_ptr<Split>& one : splits_) {
    const auto split = one.lock();
    if (split != nullptr && split->missing > 0) listings.push_back(std::move(split->listing));
  }
  splits_.clear();
  answered_.clear();
  lanes_.clear();
  map_ = nullptr;
  ++restarts_;
  return listings;
}

}  // namespace kvcove::owner
