// SPDX-License-Identifier: Apache-2.0
// The blocks that an owner has, and the events that their changes make. No I/O. Belongs to one
// thread.
//
// A block is what routers know: a group and a hash. Its value is in one part for each rank that
// holds other bytes, and there may be one value for each slot (namespace and weight version) and
// LoRA adapter. The events say that a block is
//
//   on kMemory while a shown slot has all parts of a value in memory,
//   on kDisk   while a shown slot has all parts of a value in memory or on a disk, and one on a
//   disk
//
// so a block that a reset or a version of other weights leaves without a usable value is removed,
// and one that another slot still has is not. About 150 bytes a block, and as much for each part
// that is on a disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kvcove/kvevents/events.h"
#include "kvcove/model/ids.h"

namespace kvcove::kvevents {

class Catalogue {
 public:
  // Most values of one block, of different slots and adapters; further ones are left out. There are
  // few, as vLLM's hashes depend on the adapter.
  static constexpr std::size_t kMostValues = 64;
  // `most_blocks`: further blocks are left out until others go.
  explicit Catalogue(std::size_t most_blocks) : most_blocks_(most_blocks), slots_(kMaxSlots) {}

  // Sets a slot's generation, 0 if it is free, and whether its blocks can be read. The blocks of
  // another generation are gone. O(1): the next TakeEvents looks at all blocks once, however many
  // slots have changed. A prune may change thousands.
  void SetSlot(SlotId slot, Generation generation, bool shown);
  Generation GenerationOf(SlotId slot) const {
    return slot < slots_.size() ? slots_[slot].generation : 0;
  }
  // The key of a slot with a generation is in memory from now on, or not any more. O(1), like the
  // next two.
  void PutMemory(SlotId slot, std::string_view key);
  void DropMemory(SlotId slot, std::string_view key);
  // The key is on a disk, where `tag` names it, or not any more.
  void PutDisk(SlotId slot, std::string_view key, std::uint64_t tag);
  void DropDisk(std::uint64_t tag);
  // Drops each disk part whose tag `holds` denies. O(parts on disks).
  void VerifyDisks(const std::function<bool(std::uint64_t tag)>& holds);
  // Forgets all blocks and slots: each block is removed, then all are cleared.
  void Clear();

  // Returns the events since the last call, in their order. O(blocks) if SetSlot has changed a slot
  // that has any.
  std::vector<Event> TakeEvents();
  // Returns events that make the index of a router what it should be now: kCleared, then each
  // block.
  std::vector<Event> Snapshot() const;

  // After TakeEvents.
  std::size_t blocks() const { return entries_.size(); }
  // Returns how many blocks were looked at because slots had changed.
  std::uint64_t swept() const { return swept_; }
  // Returns how many stored values were left out: beyond `most_blocks` and kMostValues, and keys of
  // other forms.
  std::uint64_t left_out() const { return left_out_; }
  std::uint64_t foreign() const { return foreign_; }

 private:
  struct Slot {
    Generation generation = 0;
    bool shown = false;
    std::uint32_t life = 0;  // changes with the generation; a value of another one is gone
    std::size_t values = 0;  // of this life
  };
  // The value of a block in one slot, for one adapter.
  struct Value {
    std::uint64_t adapter = 0;  // hash of its digest
    std::uint64_t memory = 0;   // parts, as bits
    std::uint64_t disk = 0;
    SlotId slot = 0;
    std::uint8_t parts = 1;
    std::uint32_t life = 0;
    bool empty() const { return memory == 0 && disk == 0; }
  };
  struct Entry {
    std::vector<Value> values;  // not empty between calls
    bool in_memory = false;     // as routers were told
    bool on_disk = false;
  };
  // An engine could choose hashes that all fall into one bucket, but for the seed.
  struct HashId {
    HashId();
    std::size_t operator()(const BlockId& id) const;
    std::uint64_t seed;
  };
  struct DiskPart {
    BlockId block;
    std::uint64_t adapter = 0;
    SlotId slot = 0;
    std::uint8_t part = 0;
    std::uint8_t parts = 1;
    std::uint32_t life = 0;
  };
  using Entries = std::unordered_map<BlockId, Entry, HashId>;

  Value* Find(SlotId slot, const BlockPart& part, bool add);
  void DropPart(const DiskPart& part);
  // Settles all blocks if slots have changed, and forgets what is of another life.
  void Sweep();
  // Of a value or a part.
  template <typename Of>
  bool Gone(const Of& of) const {
    return of.life != slots_[of.slot].life;
  }
  // Tells routers what has changed, and erases what is empty.
  void Settle(Entries::iterator at);
  void Tell(Event::Kind kind, Medium medium, const BlockId& block);
  static void Append(Event::Kind kind, Medium medium, const BlockId& block,
                     std::vector<Event>& events);

  const std::size_t most_blocks_;
  std::vector<Slot> slots_;
  Entries entries_;
  std::unordered_map<std::uint64_t, DiskPart> disk_parts_;  // by tag
  std::vector<Event> events_;
  bool changed_ = false;  // slots that have values, since the last sweep
  std::uint64_t swept_ = 0;
  std::uint64_t left_out_ = 0;
  std::uint64_t foreign_ = 0;
};

}  // namespace kvcove::kvevents
