// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/core/asks.h"

#include <algorithm>

#include "kvcove/base/random.h"

namespace kvcove::owner {

using policy::Access;

Asks::Record& Asks::Remember(const Object& object, ObjectId parent, std::uint64_t parent_hash) {
  objects_.Reach(object.id);
  Record& record = objects_[object.id];
  record = {.key = KeyOf(object.hash), .stored_s = now_s_};
  if (parent != kNoObject && Knows(parent)) {
    record.above = SampledUpTo(parent);
  } else if (parent_hash != 0 && Sampled(KeyOf(parent_hash))) {
    record.above = KeyOf(parent_hash);
  }
  return record;
}

void Asks::Stored(const Object& object, ObjectId parent, std::uint64_t parent_hash) {
  // A key of another generation is another value, which nobody can have had before.
  distinct_.Add(Mix64(object.hash ^ object.generation));
  Ask(object, Remember(object, parent, parent_hash), Access::Kind::kStored);
}

void Asks::CameUp(const Object& object, ObjectId parent, std::uint64_t parent_hash) {
  Remember(object, parent, parent_hash).came_up = 1;
}

void Asks::Hit(const Object& object) {
  if (!Knows(object.id)) {
    // It was stored before this process counted.
    distinct_.Add(Mix64(object.hash ^ object.generation));
    Remember(object, kNoObject, 0).stored_s = 0;
  }
  Record& record = objects_[object.id];
  Ask(object, record, record.came_up != 0 ? Access::Kind::kReadUp : Access::Kind::kRead);
  record.came_up = 0;
}

void Asks::Touched(const Object& object) {
  if (!Knows(object.id) || !Sampled(objects_[object.id].key)) return;
  Note({.key = objects_[object.id].key, .kind = Access::Kind::kTouched});
}

void Asks::Ask(const Object& object, const Record& record, Access::Kind kind) {
  if (!Sampled(record.key)) {
    ++asked_;
    return;
  }
  if (noted_.size() >= kMostNoted) {
    // What the sampled one stands for was asked, too, and is not estimated.
    asked_ -= std::min(asked_, (std::uint64_t{1} << shift_) - 1);
    return;
  }
  ++asked_;
  noted_.push_back({.key = record.key,
                    .parent = record.above,
                    .bytes = static_cast<std::uint32_t>(object.bytes),
                    .slot = object.slot,
                    .kind = kind});
}

void Asks::Note(const Access& access) {
  if (noted_.size() < kMostNoted) noted_.push_back(access);
}

void Asks::RequestEnded(ObjectId id) {
  if (!Knows(id)) return;
  const std::uint32_t last = SampledUpTo(id);
  if (last != 0) Note({.key = last, .kind = Access::Kind::kRequestEnd});
}

void Asks::Gone(const Object& object, MissReason reason, bool went_down) {
  if (!Knows(object.id)) return;
  Record& record = objects_[object.id];
  if (reason == MissReason::kEvicted && record.stored_s != 0)
    residence_.Add(now_s_ - record.stored_s);
  if (reason == MissReason::kRemoved && Sampled(record.key)) {
    Note({.key = record.key, .kind = Access::Kind::kRemoved});
  }
  if (went_down && Sampled(record.key)) {
    Note({.key = record.key,
          .bytes = static_cast<std::uint32_t>(object.bytes),
          .slot = object.slot,
          .kind = Access::Kind::kWentDown});
  }
  record.key = 0;
}

// A lost one would leave its objects in the estimate as hits to come. Beyond the bound nothing else
// is noted, so one for each slot says all.
void Asks::SlotVoided(SlotId slot) {
  const auto same = [slot](const Access& access) {
    return access.kind == Access::Kind::kVoided && access.slot == slot;
  };
  if (!noted_.empty() && same(noted_.back())) return;  // resets one after the other
  if (noted_.size() > kMostNoted && std::any_of(noted_.begin() + kMostNoted, noted_.end(), same)) {
    return;
  }
  noted_.push_back({.slot = slot, .kind = Access::Kind::kVoided});
}

std::uint64_t Asks::Take(std::vector<Access>& accesses) {
  accesses.clear();
  accesses.swap(noted_);
  return std::exchange(asked_, 0);
}

}  // namespace kvcove::owner
