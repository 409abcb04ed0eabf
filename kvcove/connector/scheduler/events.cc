// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/scheduler/events.h"

#include <iterator>
#include <utility>

namespace kvcove::connector {
namespace {

constexpr std::size_t kMostHashes = 1024;  // most hashes of one event

}  // namespace

bool Events::Remember(const Block& block, Medium medium) {
  const auto at = told_.find(Id(block.group, block.hash));
  if (at != told_.end()) {
    at->second.media |= Bit(medium);
    at->second.cleared = cleared_;
    return true;
  }
  if (told_.size() >= options_.most_blocks) return false;
  told_.emplace(Id(block.group, block.hash), Told{.media = Bit(medium), .cleared = cleared_});
  return true;
}

void Events::Saved(const Block& block, LinesAfterLock& lines) {
  if (!options_.enabled) return;
  forgot_ = !Remember(block, Medium::kMemory) || forgot_;
  Add(PoolEvent::Kind::kStored, block, Medium::kMemory, lines);
}

void Events::Found(const Block& block, Medium where, LinesAfterLock& lines) {
  if (!options_.enabled) return;
  const auto at = told_.find(Id(block.group, block.hash));
  const Told told = at == told_.end() ? Told{} : at->second;
  // Found on a disk means that memory has it no more, so that report is withdrawn first.
  if (where == Medium::kDisk && (told.media & Bit(Medium::kMemory)) != 0) {
    at->second.media = static_cast<std::uint8_t>(told.media & ~Bit(Medium::kMemory));
    Add(PoolEvent::Kind::kRemoved, block, Medium::kMemory, lines);
  }
  if (Knows(told, where) || !Remember(block, where)) return;
  Add(PoolEvent::Kind::kStored, block, where, lines);
}

void Events::Loaded(const Block& block, LinesAfterLock& lines) {
  if (!options_.enabled) return;
  const auto at = told_.find(Id(block.group, block.hash));
  if (at == told_.end() || (at->second.media & Bit(Medium::kMemory)) != 0) return;
  at->second.media |= Bit(Medium::kMemory);
  Add(PoolEvent::Kind::kStored, block, Medium::kMemory, lines);
}

void Events::Gone(const Block& block, LinesAfterLock& lines) {
  if (!options_.enabled) return;
  const auto at = told_.find(Id(block.group, block.hash));
  if (at == told_.end()) return;
  const std::uint8_t told = at->second.media;
  told_.erase(at);
  for (const Medium medium : {Medium::kMemory, Medium::kDisk}) {
    if ((told & Bit(medium)) != 0) Add(PoolEvent::Kind::kRemoved, block, medium, lines);
  }
}

void Events::Clear(LinesAfterLock& lines) {
  if (!options_.enabled) return;
  // Pending removals remain: `told_` has these no more on that medium, so nothing else reports
  // them.
  std::erase_if(events_,
                [](const PoolEvent& event) { return event.kind == PoolEvent::Kind::kStored; });
  // Blocks that `told_` could not hold cannot be named: kAllCleared is the only event for them.
  if (std::exchange(forgot_, false)) {
    PoolEvent cleared;
    cleared.kind = PoolEvent::Kind::kAllCleared;
    Push(std::move(cleared), lines);
  }
  for (const Medium medium : {Medium::kMemory, Medium::kDisk}) {
    PoolEvent removed{.kind = PoolEvent::Kind::kRemoved, .medium = medium};
    const auto push = [&] {
      if (removed.hashes.empty()) return;
      Push(removed, lines);
      removed.hashes.clear();
    };
    for (const auto& [id, told] : told_) {
      if ((told.media & Bit(medium)) == 0) continue;
      if (removed.group != id.first || removed.hashes.size() >= kMostHashes) push();
      removed.group = id.first;
      removed.hashes.push_back(id.second);
    }
    push();
  }
  told_.clear();
}

void Events::Add(PoolEvent::Kind kind, const Block& block, Medium medium, LinesAfterLock& lines) {
  if (!events_.empty()) {
    PoolEvent& last = events_.back();
    const bool follows = last.kind == kind && last.medium == medium && last.group == block.group &&
                         last.request == block.request &&
                         last.first_chunk + last.hashes.size() == block.chunk &&
                         last.hashes.size() < kMostHashes;
    if (follows) {
      last.hashes.emplace_back(block.hash);
      return;
    }
  }
  const bool stored = kind == PoolEvent::Kind::kStored;
  Push({.kind = kind,
        .request = std::string(block.request),
        .group = block.group,
        .first_chunk = block.chunk,
        .hashes = {std::string(block.hash)},
        .parent = stored ? std::string(block.parent) : std::string(),
        .medium = medium},
       lines);
}

void Events::Push(PoolEvent event, LinesAfterLock& lines) {
  if (events_.size() >= options_.most_events) {
    events_.pop_front();
    if (dropped_++ == 0) {
      lines.Warn("{}: the engine does not take its KV events; the oldest are dropped",
                 options_.engine);
    }
  }
  events_.push_back(std::move(event));
}

std::vector<PoolEvent> Events::Take() {
  std::vector<PoolEvent> events(std::make_move_iterator(events_.begin()),
                                std::make_move_iterator(events_.end()));
  events_.clear();
  return events;
}

}  // namespace kvcove::connector
