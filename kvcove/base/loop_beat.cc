// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/loop_beat.h"

#include <algorithm>
#include <utility>

#include "kvcove/base/mutex.h"

namespace kvcove {
namespace {

struct LoopBeats {
  Mutex mutex;
  std::vector<const LoopBeat*> all KVCOVE_GUARDED_BY(mutex);
};

// Never destroyed: a loop's thread may outlive the static objects of a process that exits.
LoopBeats& AllBeats() {
  static LoopBeats* const beats = new LoopBeats;
  return *beats;
}

std::atomic<std::uint64_t> last_beat{0};

}  // namespace

LoopBeat::LoopBeat(std::string_view name) : name_(name), number_(++last_beat) {
  LoopBeats& beats = AllBeats();
  const MutexLock lock(beats.mutex);
  beats.all.push_back(this);
}

LoopBeat::~LoopBeat() {
  LoopBeats& beats = AllBeats();
  const MutexLock lock(beats.mutex);
  std::erase(beats.all, this);
}

std::vector<std::string> LoopWatch::Look() {
  std::vector<std::string> hanging;
  std::map<std::uint64_t, Seen> now;
  LoopBeats& beats = AllBeats();
  const MutexLock lock(beats.mutex);
  for (const LoopBeat* beat : beats.all) {
    Seen seen{.turns = beat->turns_.load(std::memory_order_relaxed), .looks = 0};
    const auto before = seen_.find(beat->number_);
    if (before != seen_.end() && before->second.turns == seen.turns) {
      seen.looks = std::min(before->second.looks + 1, patience_);
    }
    if (seen.looks >= patience_) hanging.push_back(beat->name_);
    now.emplace(beat->number_, seen);
  }
  seen_ = std::move(now);
  return hanging;
}

}  // namespace kvcove
