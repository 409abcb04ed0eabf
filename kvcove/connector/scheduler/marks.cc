// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/scheduler/marks.h"

#include <algorithm>

namespace kvcove::connector {

Marks::Mark& Marks::At(BlockId block) {
  if (block >= marks_.size()) {
    marks_.resize(std::max<std::size_t>({blocks_, block + 1ULL, marks_.size() * 2}));
  }
  return marks_[block];
}

void Marks::Computed(BlockId block, bool storable, std::uint64_t adapter_tag, JobId awaits) {
  At(block) = {.epoch = storable ? epoch_ : 0, .adapter_tag = adapter_tag, .awaits = awaits};
}

void Marks::Loaded(BlockId block, std::uint64_t adapter_tag) {
  At(block) = {.epoch = epoch_, .stored = epoch_, .adapter_tag = adapter_tag};
}

void Marks::Settle(BlockId block, JobId job, bool loaded, std::uint64_t adapter_tag) {
  Mark& mark = At(block);
  if (mark.awaits != job) return;  // another request has the block now
  mark = {.epoch = epoch_, .stored = loaded ? epoch_ : 0, .adapter_tag = adapter_tag};
}

JobId Marks::Copy(BlockId from, BlockId to) {
  Mark mark = At(from);
  mark.stored = 0;
  At(to) = mark;
  return mark.awaits;
}

bool Marks::MayBeginOn(BlockId block, std::uint64_t adapter_tag, JobId own_load) {
  const Mark& mark = At(block);
  if (own_load != 0 && mark.awaits == own_load) return true;
  return mark.epoch == epoch_ && mark.adapter_tag == adapter_tag;
}

bool Marks::BeginSave(BlockId block) {
  Mark& mark = At(block);
  if (mark.epoch != epoch_ || mark.stored == epoch_) return false;
  mark.stored = epoch_;
  return true;
}

void Marks::Unstored(BlockId block) {
  Mark& mark = At(block);
  // A mark of an older epoch is void anyway.
  if (mark.stored == epoch_) mark.stored = 0;
}

}  // namespace kvcove::connector
