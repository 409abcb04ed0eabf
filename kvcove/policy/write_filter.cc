// SPDX-License-Identifier: Apache-2.0
#include "kvcove/policy/write_filter.h"

#include <algorithm>
#include <bit>

#include "kvcove/base/random.h"

namespace kvcove::policy {
namespace {

constexpr std::uint16_t kDeepest = 0xFFFF;
constexpr std::uint8_t kMostUses = 4;

enum Kind : std::uint8_t { kTail, kNewLater, kNewFirst, kUsedOnce };

}  // namespace

WriteFilter::WriteFilter(const WriteFilterOptions& options) : options_(options) {}

std::uint8_t WriteFilter::ClassOf(const Block& block) {
  const auto length = std::max<unsigned>(block.depth, block.reach) + 1;
  const std::size_t bucket = std::min<std::size_t>(std::bit_width(length - 1), kLengths);
  std::size_t kind = kTail;
  if (block.uses > 0) {
    kind = kUsedOnce + block.uses - 1;
  } else if (block.has_child) {
    kind = block.later_turn ? kNewLater : kNewFirst;
  }
  return static_cast<std::uint8_t>((kind * kLengths) + (bucket == 0 ? 0 : bucket - 1));
}

// ---- what memory does

void WriteFilter::OnPut(const PutEvent& event, bool returned) {
  if (event.id >= blocks_.size()) blocks_.resize(event.id + std::size_t{1});
  Block block{.parent = event.parent};
  block.known = true;
  block.returned = returned;
  if (event.parent < blocks_.size() && blocks_[event.parent].known) {
    Block& parent = blocks_[event.parent];
    parent.has_child = true;
    block.depth = static_cast<std::uint16_t>(std::min<unsigned>(parent.depth + 1U, kDeepest));
    // The first block of all chains may be a prompt that they share: it makes no later turn.
    block.later_turn =
        parent.later_turn || (parent.uses > 0 && (parent.depth > 0 || parent.returned));
  }
  // What is not followed and comes from elsewhere is taken for new.
  if (Returned(event.key) || returned) block.uses = 1;
  blocks_[event.id] = block;
}

void WriteFilter::OnHit(ObjectId id) {
  if (id >= blocks_.size() || blocks_[id].uses == kMostUses) return;
  ++blocks_[id].uses;
}

void WriteFilter::OnRemove(ObjectId id) {
  if (id < blocks_.size()) blocks_[id] = {};
}

std::uint8_t WriteFilter::Give(ObjectId id, std::uint64_t key) {
  const Block block = id < blocks_.size() ? blocks_[id] : Block();
  OnRemove(id);
  const std::uint8_t cls = ClassOf(block);
  if (block.parent < blocks_.size() && blocks_[block.parent].known) {
    // Memory gives up chains from their ends, so each block learns how far its chain went.
    std::uint16_t& reach = blocks_[block.parent].reach;
    reach = std::max({reach, block.reach, block.depth});
  }
  Follow(key, cls);
  Age();
  if (given_++ % kGivenAWeighing == 0) Weigh();
  return cls;
}

Verdict WriteFilter::Judge(ObjectId id, std::uint64_t key) {
  const std::uint8_t cls = Give(id, key);
  const bool worth = chances_[cls] >= options_.least_share * average_;
  return {.worth = worth, .brief = !worth && cls / kLengths == kTail};
}

// ---- what is followed

bool WriteFilter::Sampled(std::uint64_t key) const {
  return sample_shift_ == 0 || Mix64(key) >> (64 - sample_shift_) == 0;
}

void WriteFilter::Follow(std::uint64_t key, std::uint8_t cls) {
  if (!Sampled(key)) return;
  const std::uint64_t number = first_ + followed_.size();
  if (const auto known = numbers_.find(key); known != numbers_.end()) {
    followed_[known->second - first_].done = true;
  }
  numbers_[key] = number;
  followed_.push_back({.key = key, .at = written_, .cls = cls});
  if (followed_.size() > options_.most_followed) HalveSample();
}

// Half of the keys is followed from here on. The others count neither as returned nor as lost.
void WriteFilter::HalveSample() {
  ++sample_shift_;
  std::erase_if(followed_, [&](const Followed& one) { return one.done || !Sampled(one.key); });
  first_ = 0;
  numbers_.clear();
  for (std::size_t i = 0; i < followed_.size(); ++i) numbers_[followed_[i].key] = i;
  for (std::size_t age = 0; age < kAges; ++age) {
    const auto young = std::ranges::find_if(
        followed_, [&](const Followed& one) { return written_ - one.at <= EndOf(age); });
    aged_[age] = static_cast<std::uint64_t>(young - followed_.begin());
  }
}

bool WriteFilter::Returned(std::uint64_t key) {
  Age();
  const auto known = numbers_.find(key);
  if (known == numbers_.end()) return false;
  Followed& one = followed_[known->second - first_];
  numbers_.erase(known);
  one.done = true;
  std::size_t bucket = 0;
  while (written_ - one.at > EndOf(bucket)) ++bucket;  // Age() has dropped what is older than all
  for (Counts* counts : {&all_, &classes_[one.cls]}) {
    counts->returned[bucket] += 1;
    counts->known[bucket] += 1;
  }
  return true;
}

// What has outlived a bucket of ages counts there; what the tier would have forgotten is forgotten.
void WriteFilter::Age() {
  const std::uint64_t end = first_ + followed_.size();
  for (std::size_t age = 0; age < kAges; ++age) {
    std::uint64_t& at = aged_[age];
    for (; at < end; ++at) {
      const Followed& one = followed_[at - first_];
      if (written_ - one.at <= EndOf(age)) break;
      if (one.done) continue;
      all_.known[age] += 1;
      classes_[one.cls].known[age] += 1;
    }
  }
  while (first_ < aged_[kAges - 1]) {
    const Followed& oldest = followed_.front();
    if (!oldest.done) numbers_.erase(oldest.key);
    followed_.pop_front();
    ++first_;
  }
}

void WriteFilter::Weigh() {
  if (all_.known[0] > options_.limit) {
    const auto halve = [](Counts& counts) {
      for (std::size_t i = 0; i < kAges; ++i) {
        counts.returned[i] /= 2;
        counts.known[i] /= 2;
      }
    };
    halve(all_);
    std::ranges::for_each(classes_, halve);
  }
  std::array<double, kAges> hazard{};
  double away = 1;
  for (std::size_t i = 0; i < kAges; ++i) {
    if (all_.known[i] > 0) hazard[i] = all_.returned[i] / all_.known[i];
    away *= 1 - hazard[i];
  }
  average_ = 1 - away;
  for (std::size_t cls = 0; cls < kClasses; ++cls) {
    const Counts& counts = classes_[cls];
    away = 1;
    for (std::size_t i = 0; i < kAges; ++i) {
      away *= 1 - (counts.returned[i] + options_.class_weight * hazard[i]) /
                      (counts.known[i] + options_.class_weight);
    }
    chances_[cls] = 1 - away;
  }
}

}  // namespace kvcove::policy
