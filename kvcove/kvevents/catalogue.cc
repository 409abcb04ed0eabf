// SPDX-License-Identifier: Apache-2.0
#include "kvcove/kvevents/catalogue.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <span>

#include "kvcove/base/hash.h"
#include "kvcove/base/random.h"

namespace kvcove::kvevents {
namespace {

constexpr std::uint64_t AllParts(std::uint32_t parts) {
  return parts >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << parts) - 1;
}

std::uint64_t AdapterOf(std::string_view digest) {
  return digest.empty() ? 0 : Hash64(digest, /*seed=*/0);
}

}  // namespace

Catalogue::HashId::HashId() : seed(RandomU64()) {}

std::size_t Catalogue::HashId::operator()(const BlockId& id) const {
  return Hash64(std::span(id.hash.bytes).first(id.hash.size), seed ^ id.group);
}

void Catalogue::SetSlot(SlotId slot, Generation generation, bool shown) {
  if (slot >= slots_.size()) return;
  Slot& of = slots_[slot];
  const bool ended = of.generation != generation;
  if (!ended && of.shown == shown) return;
  of.generation = generation;
  of.shown = shown;
  if (of.values == 0) return;
  changed_ = true;
  if (!ended) return;
  ++of.life;
  of.values = 0;
}

void Catalogue::Sweep() {
  if (!std::exchange(changed_, false)) return;
  swept_ += entries_.size();
  for (auto at = entries_.begin(); at != entries_.end();) {
    const auto next = std::next(at);
    Settle(at);
    at = next;
  }
  std::erase_if(disk_parts_, [this](const auto& part) { return Gone(part.second); });
}

std::vector<Event> Catalogue::TakeEvents() {
  Sweep();
  return std::exchange(events_, {});
}

Catalogue::Value* Catalogue::Find(SlotId slot, const BlockPart& part, bool add) {
  auto at = entries_.find(part.block);
  if (at == entries_.end()) {
    if (!add) return nullptr;
    if (entries_.size() >= most_blocks_) Sweep();  // blocks that are gone must not keep others out
    if (entries_.size() >= most_blocks_) {
      ++left_out_;
      return nullptr;
    }
    at = entries_.emplace(part.block, Entry{}).first;
  }
  const std::uint64_t adapter = AdapterOf(part.adapter);
  std::vector<Value>& values = at->second.values;
  // As above. The caller settles the block.
  if (add && changed_) std::erase_if(values, [this](const Value& one) { return Gone(one); });
  const auto value = std::ranges::find_if(values, [&](const Value& one) {
    return one.slot == slot && one.adapter == adapter && one.parts == part.parts && !Gone(one);
  });
  if (value != values.end()) return &*value;
  if (!add) return nullptr;
  if (values.size() >= kMostValues) {
    ++left_out_;
    return nullptr;
  }
  ++slots_[slot].values;
  return &values.emplace_back(Value{.adapter = adapter,
                                    .slot = slot,
                                    .parts = static_cast<std::uint8_t>(part.parts),
                                    .life = slots_[slot].life});
}

void Catalogue::PutMemory(SlotId slot, std::string_view key) {
  if (GenerationOf(slot) == 0) return;
  const auto part = ParseBlockKey(key);
  if (!part) {
    ++foreign_;
    return;
  }
  Value* const value = Find(slot, *part, /*add=*/true);
  if (value == nullptr) return;
  value->memory |= std::uint64_t{1} << part->part;
  Settle(entries_.find(part->block));
}

void Catalogue::DropMemory(SlotId slot, std::string_view key) {
  const auto part = ParseBlockKey(key);
  if (!part || GenerationOf(slot) == 0) return;
  Value* const value = Find(slot, *part, /*add=*/false);
  if (value == nullptr) return;
  value->memory &= ~(std::uint64_t{1} << part->part);
  Settle(entries_.find(part->block));
}

void Catalogue::PutDisk(SlotId slot, std::string_view key, std::uint64_t tag) {
  const auto part = ParseBlockKey(key);
  if (!part || GenerationOf(slot) == 0) return;
  Value* const value = Find(slot, *part, /*add=*/true);
  if (value == nullptr) return;
  const DiskPart named{.block = part->block,
                       .adapter = value->adapter,
                       .slot = slot,
                       .part = static_cast<std::uint8_t>(part->part),
                       .parts = value->parts,
                       .life = value->life};
  // Two keys have equal tags by chance only. The table that readers see cannot tell them apart, so
  // the later one is taken.
  const auto [at, added] = disk_parts_.try_emplace(tag, named);
  if (!added && (at->second.block != named.block || at->second.slot != slot || Gone(at->second))) {
    DropPart(std::exchange(at->second, named));
  }
  Value* const now = Find(slot, *part, /*add=*/true);  // DropPart may have erased it
  if (now == nullptr) return;
  now->disk |= std::uint64_t{1} << part->part;
  Settle(entries_.find(part->block));
}

void Catalogue::DropDisk(std::uint64_t tag) {
  const auto at = disk_parts_.find(tag);
  if (at == disk_parts_.end()) return;
  const DiskPart part = at->second;
  disk_parts_.erase(at);
  DropPart(part);
}

void Catalogue::DropPart(const DiskPart& part) {
  const auto at = entries_.find(part.block);
  if (at == entries_.end()) return;
  for (Value& value : at->second.values) {
    if (value.slot == part.slot && value.adapter == part.adapter && value.parts == part.parts &&
        value.life == part.life) {
      value.disk &= ~(std::uint64_t{1} << part.part);
    }
  }
  Settle(at);
}

void Catalogue::VerifyDisks(const std::function<bool(std::uint64_t)>& holds) {
  std::vector<std::uint64_t> lost;
  for (const auto& [tag, part] : disk_parts_) {
    if (!holds(tag)) lost.push_back(tag);
  }
  for (const std::uint64_t tag : lost) DropDisk(tag);
}

void Catalogue::Clear() {
  // By name, too: routers do not agree on what kCleared means (connector/scheduler/events.h).
  for (const auto& [block, entry] : entries_) {
    if (entry.in_memory) Tell(Event::Kind::kRemoved, Medium::kMemory, block);
    if (entry.on_disk) Tell(Event::Kind::kRemoved, Medium::kDisk, block);
  }
  events_.push_back({.kind = Event::Kind::kCleared});
  slots_.assign(kMaxSlots, {});
  entries_.clear();
  disk_parts_.clear();
  changed_ = false;
}

void Catalogue::Settle(Entries::iterator at) {
  Entry& entry = at->second;
  bool memory = false;
  bool disk = false;
  for (const Value& value : entry.values) {
    if (!slots_[value.slot].shown || Gone(value)) continue;
    const std::uint64_t all = AllParts(value.parts);
    memory = memory || value.memory == all;
    disk = disk || (value.disk != 0 && (value.memory | value.disk) == all);
  }
  // What comes is told first: a block that moves down is always somewhere.
  const bool was_in_memory = std::exchange(entry.in_memory, memory);
  const bool was_on_disk = std::exchange(entry.on_disk, disk);
  const BlockId& block = at->first;
  if (memory && !was_in_memory) Tell(Event::Kind::kStored, Medium::kMemory, block);
  if (disk && !was_on_disk) Tell(Event::Kind::kStored, Medium::kDisk, block);
  if (!memory && was_in_memory) Tell(Event::Kind::kRemoved, Medium::kMemory, block);
  if (!disk && was_on_disk) Tell(Event::Kind::kRemoved, Medium::kDisk, block);
  std::erase_if(entry.values, [this](const Value& value) {
    if (Gone(value)) return true;
    if (value.empty()) --slots_[value.slot].values;
    return value.empty();
  });
  if (entry.values.empty()) entries_.erase(at);
}

void Catalogue::Tell(Event::Kind kind, Medium medium, const BlockId& block) {
  Append(kind, medium, block, events_);
}

void Catalogue::Append(Event::Kind kind, Medium medium, const BlockId& block,
                       std::vector<Event>& events) {
  const bool same = !events.empty() && events.back().kind == kind &&
                    events.back().medium == medium && events.back().group == block.group &&
                    events.back().hashes.size() < Event::kMostHashes;
  if (!same) events.push_back({.kind = kind, .medium = medium, .group = block.group});
  events.back().hashes.push_back(block.hash);
}

std::vector<Event> Catalogue::Snapshot() const {
  std::vector<Event> events{{.kind = Event::Kind::kCleared}};
  for (const Medium medium : {Medium::kMemory, Medium::kDisk}) {
    std::map<std::uint32_t, std::vector<Event>> by_group;  // long events, whatever the order is
    for (const auto& [block, entry] : entries_) {
      const bool there = medium == Medium::kMemory ? entry.in_memory : entry.on_disk;
      if (there) Append(Event::Kind::kStored, medium, block, by_group[block.group]);
    }
    for (auto& [group, some] : by_group) {
      std::move(some.begin(), some.end(), std::back_inserter(events));
    }
  }
  return events;
}

}  // namespace kvcove::kvevents
