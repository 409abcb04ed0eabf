// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/disk/removals.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "kvcove/base/glob.h"
#include "kvcove/base/interrupt.h"
#include "kvcove/base/log.h"

namespace kvcove::owner {
namespace {

// Removals by pattern at a disk: they outlive their callers, and each load looks at all of them.
constexpr std::size_t kMostPatterns = 64;
// Keys that TakeEndedPatterns queues as lost, at most: its lane continues with others' removals.
constexpr std::size_t kUnlistedAtOnce = 1 << 16;

std::unexpected<Error> StaleRemoval() {
  return Fail(Code::kStale, "the generation is not the current one; register again");
}

std::unexpected<Error> TooManyRemovals() {
  return Fail(Code::kLimit, fmt::format("{} removals wait for disks already; repeat this one later",
                                        RemovalWaits::kMost));
}

std::unexpected<Error> TooManyPatterns() {
  return Fail(Code::kLimit,
              fmt::format("{} removals by pattern wait for a disk already; repeat this one later",
                          kMostPatterns));
}

}  // namespace

Removals::Removals(OwnerDisks& disks, DiskOpening& opening, Memory& memory,
                   const std::atomic<bool>& link_ends, const Clock& clock)
    : disks_(disks),
      opening_(opening),
      memory_(memory),
      link_ends_(link_ends),
      clock_(clock),
      waits_(std::make_shared<RemovalWaits>(
          [this](DisksRemoval& removal) { return disks_.AwaitRemoval(removal, /*deadline_ns=*/0); },
          clock)) {
  disks_.set().common().on_proven = [waits = waits_] { waits->Settle(); };
}

// Afterwards nothing waits, so a late Settle asks for no disk.
Removals::~Removals() { waits_->Stop(); }

// ---- asked for on this host

std::vector<Code> Removals::Remove(const Token& token, std::span<const std::string_view> keys,
                                   std::int64_t deadline_ns) {
  DisksRemoval on_disk;
  std::vector<Code> codes = Begin(token, keys, on_disk);
  if (const Status proven = disks_.AwaitRemoval(on_disk, deadline_ns); !proven) {
    std::ranges::fill(codes, proven.error().code);
  }
  return codes;
}

void Removals::RemoveThen(const Token& token, std::span<const std::string_view> keys,
                          std::int64_t deadline_ns,
                          std::function<void(Result<std::vector<Code>>)> done) {
  if (waits_->Full()) return done(TooManyRemovals());
  const auto on_disk = std::make_shared<DisksRemoval>();
  std::vector<Code> codes = Begin(token, keys, *on_disk);
  if (on_disk->parts.empty()) return done(std::move(codes));
  disks_.Wake();
  waits_->Add(on_disk, deadline_ns,
              [codes = std::move(codes), done = std::move(done)](const Status& proven) mutable {
                if (!proven) std::ranges::fill(codes, proven.error().code);
                done(std::move(codes));
              });
}

// Removes the keys from memory and fences them at the disks.
std::vector<Code> Removals::Begin(const Token& token, std::span<const std::string_view> keys,
                                  DisksRemoval& on_disk) {
  std::vector<Code> codes;
  codes.reserve(keys.size());
  for (std::size_t begin = 0; begin < keys.size(); begin += Memory::kSlice) {
    const auto slice = keys.subspan(begin, std::min(Memory::kSlice, keys.size() - begin));
    const MutexLock lock(memory_.mutex);
    const Code current = memory_.core().CheckToken(token);
    for (const std::string_view key : slice) {
      codes.push_back(current != Code::kOk ? current : memory_.core().Remove(token.slot, key));
    }
    RemoveFromDisks(token, slice, std::span(codes).subspan(begin), on_disk);
  }
  return codes;
}

// Removes the keys from disks in the same hold in which memory forgot them. A miss in memory may be
// on a disk; Holds is asked before Remove, whose fence hides the key.
void Removals::RemoveFromDisks(const Token& token, std::span<const std::string_view> keys,
                               std::span<Code> codes, DisksRemoval& removal) {
  DiskSet& set = disks_.set();
  if (set.size() == 0) return;
  std::vector<std::string_view> sound;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (codes[i] != Code::kOk && codes[i] != Code::kMiss) continue;
    sound.push_back(keys[i]);
    if (set.Holds(token.slot, token.generation, keys[i])) codes[i] = Code::kOk;
  }
  if (!sound.empty()) set.Remove(token.slot, token.generation, sound, removal);
}

Result<std::uint64_t> Removals::RemoveMatching(const Token& token, std::string_view pattern,
                                               std::int64_t deadline_ns) {
  DisksRemoval on_disk;
  KVCOVE_ASSIGN(const std::uint64_t removed, BeginMatching(token, pattern, deadline_ns, on_disk));
  KVCOVE_TRY(disks_.AwaitRemoval(on_disk, deadline_ns));
  return removed + on_disk.removed();
}

void Removals::RemoveMatchingThen(const Token& token, std::string_view pattern,
                                  std::int64_t deadline_ns,
                                  std::function<void(Result<std::uint64_t>)> done) {
  if (waits_->Full()) return done(TooManyRemovals());
  const auto on_disk = std::make_shared<DisksRemoval>();
  const auto removed = BeginMatching(token, pattern, deadline_ns, *on_disk);
  if (!removed || on_disk->parts.empty()) return done(removed);
  disks_.Wake();
  waits_->Add(on_disk, deadline_ns,
              [on_disk, removed = *removed, done = std::move(done)](const Status& proven) {
                if (!proven) return done(std::unexpected(proven.error()));
                done(removed + on_disk->removed());
              });
}

// Removes what memory has, and orders the walk over the disks. Hides matching keys of the disks
// before the walk over memory, which takes several holds: a value that is promoted behind the walk
// would survive.
Result<std::uint64_t> Removals::BeginMatching(const Token& token, std::string_view pattern,
                                              std::int64_t deadline_ns, DisksRemoval& on_disk) {
  KVCOVE_TRY(CheckPattern(pattern));
  if (disks_.set().Patterns() >= kMostPatterns) return TooManyPatterns();
  {
    const MutexLock lock(memory_.mutex);
    if (memory_.core().CheckToken(token) != Code::kOk) return StaleRemoval();
    disks_.set().BeginMatching(token.slot, pattern);
  }
  const Result<std::uint64_t> removed = Walk(token, pattern, deadline_ns);
  const MutexLock lock(memory_.mutex);
  if (removed) {
    disks_.set().RemoveMatching(token.slot, token.generation, pattern, on_disk);
  } else {
    disks_.set().EndMatching(token.slot, pattern);
  }
  return removed;
}

Result<std::uint64_t> Removals::Walk(const Token& token, std::string_view pattern,
                                     std::int64_t deadline_ns) {
  std::uint64_t removed = 0;
  Core::Walk walk;
  while (!walk.done) {
    if (LeftNs(deadline_ns, clock_) <= 0) {
      return Fail(Code::kTimeout, fmt::format("{} objects were removed, others may be left; "
                                              "repeat the call",
                                              removed));
    }
    {
      const MutexLock lock(memory_.mutex);
      if (memory_.core().CheckToken(token) != Code::kOk) return StaleRemoval();
      removed += memory_.core().RemoveMatching(token.slot, pattern, walk);
    }
    Memory::LetOthersIn();
  }
  return removed;
}

// ---- the master's

bool Removals::AwaitProven(DisksRemoval& removal) {
  bool said = false;
  while (!link_ends_) {
    const Status proven = disks_.AwaitRemoval(removal, clock_.NowNs() + kDiskLookNs);
    if (proven) return true;
    if (proven.error().code == Code::kTimeout) continue;
    if (!std::exchange(said, true)) LogError("a removal is pending: {}", proven.error().ToString());
    // The note cannot be written: tries again, not busily.
    std::this_thread::sleep_for(std::chrono::nanoseconds(kDiskLookNs));
  }
  return false;
}

// Looks at the link's end also after a proof: Apply returns early when the link ends.
bool Removals::AwaitApplied() {
  if (const auto unproven = std::exchange(unproven_, nullptr)) (void)AwaitProven(*unproven);
  return !link_ends_;
}

void Removals::Apply(const wire::Removal& removal) {
  if (!opening_.AwaitSettled()) return;
  if (unproven_ == nullptr) unproven_ = std::make_shared<DisksRemoval>();
  for (std::size_t begin = 0; begin < removal.keys.size(); begin += Memory::kSlice) {
    const MutexLock lock(memory_.mutex);
    Core& core = memory_.core();
    if (!core.Means(removal.slot, removal.generation)) return;
    const std::size_t end = std::min(begin + Memory::kSlice, removal.keys.size());
    std::vector<std::string_view> sound;
    for (std::size_t i = begin; i < end; ++i) {
      (void)core.Remove(removal.slot, removal.keys[i]);
      if (CheckKey(removal.keys[i])) sound.push_back(removal.keys[i]);
    }
    disks_.set().Remove(removal.slot, core.GenerationOf(removal.slot), sound, *unproven_);
  }
  disks_.Wake();
}

std::uint64_t Removals::OrderPattern(const wire::Removal& removal, DisksRemoval& on_disk) {
  std::uint64_t matched = 0;
  Generation generation = 0;
  Core::Walk walk;
  bool means = true;
  for (bool first = true; !walk.done && means; first = false) {
    {
      const MutexLock lock(memory_.mutex);
      Core& core = memory_.core();
      means = core.Means(removal.slot, removal.generation);
      if (first && !means) return 0;
      if (first) {
        generation = core.GenerationOf(removal.slot);
        disks_.set().BeginMatching(removal.slot, removal.pattern);
      }
      if (means) matched += core.RemoveMatching(removal.slot, removal.pattern, walk);
    }
    Memory::LetOthersIn();
  }
  on_disk.collect = true;
  const MutexLock lock(memory_.mutex);
  disks_.set().RemoveMatching(removal.slot, generation, removal.pattern, on_disk);
  return matched;
}

std::size_t Removals::PatternRoom() const {
  return kMostPatterns - std::min(kMostPatterns, patterns_.size() + drops_.size());
}

// If the link ends before the disks are settled, AwaitApplied lets nothing be acknowledged.
Removals::Begun Removals::BeginPattern(const wire::Removal& removal) {
  if (!opening_.AwaitSettled()) return {};
  if (disks_.none()) {
    DisksRemoval on_no_disk;
    return {.objects = OrderPattern(removal, on_no_disk), .open = false};
  }
  Pattern& pattern =
      patterns_.emplace_back(Pattern{.number = removal.number, .slot = removal.slot});
  const std::uint64_t matched = OrderPattern(removal, pattern.on_disk);
  disks_.Wake();
  return {.objects = matched, .open = true};
}

// Queues all keys that a pattern took before it returns the removal, which is acknowledged then:
// the master knows them only from this owner, and would list them for ever. A disk that is set
// aside adds no keys; the next inventory does not report them any more. Removals end in their
// order: an earlier one may have taken keys that a later one matches, too.
std::vector<wire::RemovalsRequest::Count> Removals::TakeEndedPatterns() {
  std::vector<wire::RemovalsRequest::Count> ended;
  for (std::size_t room = kUnlistedAtOnce; TakeEnded(patterns_, room);) {
    const Pattern& first = patterns_.front();
    ended.push_back({.number = first.number, .objects = first.on_disk.removed()});
    patterns_.pop_front();
  }
  // A page that was applied in two epochs has begun its removals twice.
  std::erase_if(ended, [&](const wire::RemovalsRequest::Count& count) {
    return std::ranges::find(patterns_, count.number, &Pattern::number) != patterns_.end();
  });
  return ended;
}

bool Removals::TakeEnded(std::deque<Pattern>& of, std::size_t& room) {
  if (of.empty() || !Ended(of.front())) return false;
  Pattern& first = of.front();
  const std::vector<std::string> keys = first.on_disk.TakeKeys(room);
  NoteGone(first.slot, keys);
  room -= keys.size();
  return room > 0;
}

// A disk that has missed the removal is struck from the note, as in AwaitProven, and no more often.
bool Removals::Ended(Pattern& pattern) {
  if (clock_.NowNs() < pattern.look_at_ns) return false;
  const Status proven = disks_.AwaitRemoval(pattern.on_disk, /*deadline_ns=*/0);
  if (proven) return true;
  if (proven.error().code == Code::kTimeout) return false;
  if (std::exchange(pattern.look_at_ns, clock_.NowNs() + kDiskLookNs) == 0) {
    LogError("a removal is pending: {}", proven.error().ToString());
  }
  return false;
}

void Removals::ForgetPatterns() {
  if (patterns_.empty() && to_drop_.empty() && drops_.empty()) return;
  patterns_.clear();
  to_drop_.clear();
  drops_.clear();
  NoteGoneUnknown();
}

// Memory forgets all slots now, and OrderDrops each once more: what a disk gives back until its
// walk is ordered must not stay. If the link ends before the disks are settled, AwaitApplied lets
// nothing be acknowledged.
bool Removals::BeginDrop(std::span<const SlotId> slots) {
  if (!opening_.AwaitSettled()) return false;
  if (disks_.none()) {
    DropSlots(slots);
    return false;
  }
  for (const SlotId slot : slots) {
    DropFromMemory(slot);
    to_drop_.push_back(slot);
  }
  OrderDrops();
  return true;
}

void Removals::OrderDrops() {
  if (to_drop_.empty() || drops_.size() >= kMostPatterns) return;
  while (!to_drop_.empty() && drops_.size() < kMostPatterns) {
    const SlotId slot = to_drop_.front();
    to_drop_.pop_front();
    auto on_disk = OrderDrop(slot);
    if (on_disk) drops_.push_back(Pattern{.slot = slot, .on_disk = std::move(*on_disk)});
  }
  disks_.Wake();
}

bool Removals::DropEnded() {
  for (std::size_t room = kUnlistedAtOnce; TakeEnded(drops_, room);) drops_.pop_front();
  OrderDrops();
  return drops_.empty() && to_drop_.empty();
}

// All slots are ordered before the first is awaited: one walk over a disk serves all that wait when
// it begins. As many at a time as there may be patterns, because each load looks at all of them.
void Removals::DropSlots(std::span<const SlotId> slots) {
  if (!opening_.AwaitSettled()) return;
  for (; !slots.empty() && !link_ends_;
       slots = slots.subspan(std::min(kMostPatterns, slots.size()))) {
    std::vector<std::pair<SlotId, DisksRemoval>> drops;
    for (const SlotId slot : slots.first(std::min(kMostPatterns, slots.size()))) {
      if (auto on_disk = OrderDrop(slot)) drops.emplace_back(slot, std::move(*on_disk));
    }
    for (auto& [slot, on_disk] : drops) {
      if (AwaitProven(on_disk)) {
        NoteGone(slot, on_disk.TakeKeys());
      } else {
        NoteGoneUnknown();
      }
    }
  }
}

// Hides the keys on disks while memory is walked, as RemoveMatching does.
std::optional<DisksRemoval> Removals::OrderDrop(SlotId slot) {
  Generation generation = 0;
  {
    const MutexLock lock(memory_.mutex);
    generation = memory_.core().GenerationOf(slot);
    disks_.set().BeginMatching(slot, "*");
  }
  DropFromMemory(slot);
  DisksRemoval on_disk;
  on_disk.collect = true;
  const MutexLock lock(memory_.mutex);
  // No key of a slot without a generation is found again, so only the fence has to end.
  if (generation == 0) {
    disks_.set().EndMatching(slot, "*");
    return std::nullopt;
  }
  disks_.set().RemoveMatching(slot, generation, "*", on_disk);
  return on_disk;
}

void Removals::DropFromMemory(SlotId slot) {
  Core::Walk walk;
  while (!walk.done) {
    {
      const MutexLock lock(memory_.mutex);
      memory_.core().DropSlot(slot, walk);
    }
    Memory::LetOthersIn();
  }
}

// Has the whole inventory reported again: the link ends (an upgrade) before the removed keys are
// noted. When the removal is applied again, the disk no longer has them, so no later report would
// name them.
void Removals::NoteGoneUnknown() {
  if (disks_.set().size() > 0) disks_.set()[0].inventory().LoseAll();
}

void Removals::NoteGone(SlotId slot, std::span<const std::string> keys) {
  for (std::size_t begin = 0; begin < keys.size(); begin += Memory::kSlice) {
    const MutexLock lock(memory_.mutex);
    for (const std::string& key :
         keys.subspan(begin, std::min(Memory::kSlice, keys.size() - begin))) {
      memory_.core().NoteLost(slot, key);
    }
  }
}

void Removals::Drop(std::span<const InventoryItem> items) {
  DisksRemoval on_disk;
  for (std::size_t begin = 0; begin < items.size(); begin += Memory::kSlice) {
    const MutexLock lock(memory_.mutex);
    Core& core = memory_.core();
    for (const InventoryItem& item :
         items.subspan(begin, std::min(Memory::kSlice, items.size() - begin))) {
      const SlotId slot = item.item.slot;
      if (item.key.empty()) {
        core.DropObject(item.id, item.version);
        continue;
      }
      const Generation generation = core.GenerationOf(slot);
      if (generation != item.item.generation) continue;
      // The object may have been demoted or promoted since it was reported, so both tiers drop it.
      (void)core.Remove(slot, item.key);
      const std::string_view one = item.key;
      disks_.set().Remove(slot, generation, {&one, 1}, on_disk);
    }
  }
  // Limits how many unproven removals a disk that answers nothing gathers before it is set aside.
  // One that misses the removal is struck from the note before the next epoch (TakeGoneOverflow).
  (void)disks_.AwaitRemoval(on_disk, clock_.NowNs() + kDiskLookNs);
}

void Removals::Drop(std::span<const wire::CopyRequest::Item> items) {
  DisksRemoval on_disk;
  const MutexLock lock(memory_.mutex);
  Core& core = memory_.core();
  for (const auto& item : items) {
    const std::string key = core.KeyOf(item.id, item.version);
    const SlotId slot = core.SlotOf(item.id, item.version);
    core.DropObject(item.id, item.version);
    if (key.empty()) continue;
    const std::string_view one = key;
    disks_.set().Remove(slot, core.GenerationOf(slot), {&one, 1}, on_disk);
  }
}

}  // namespace kvcove::owner
