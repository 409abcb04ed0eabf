// SPDX-License-Identifier: Apache-2.0
// What became of keys in memory and of slots, for KV events (docs/kv-events.md). The core appends,
// under its lock, the bytes of a key and 16 more; another thread takes all of them at once. No I/O.
// Not thread-safe: needs the core's lock.
//
// Bounded: when they are not taken in time, the changes are dropped, and the next Take says so; its
// caller then reads the whole inventory.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "kvcove/model/ids.h"

namespace kvcove::owner {

class KeyChanges {
 public:
  enum class Kind : std::uint8_t {
    kStored,     // readers of this host find the key's value
    kWithdrawn,  // not any more: evicted, removed, or moved to a disk
    kSlot,       // the slot is so from now on; values of another generation are void
  };
  // Whether the blocks of a slot can be read, and of which generation they are.
  struct Slot {
    Generation generation = 0;  // 0: free
    bool named = true;          // an engine uses the version, or it has none
    bool hidden = false;        // this owner may have missed removals from it
    std::string name;           // of the namespace
    bool operator==(const Slot&) const = default;
    bool shown() const { return generation != 0 && named && !hidden; }
  };
  struct Change {
    Kind kind = Kind::kStored;
    SlotId slot = 0;
    bool shown = false;         // with kSlot
    Generation generation = 0;  // with kSlot
    std::string_view text;      // a key; with kSlot, the name of the namespace
  };
  // Changes in their order. Reused, so that no memory is allocated once it is large enough.
  class Batch {
   public:
    // True if changes were lost, or all slots were asked for: `slots` has each slot that is in use.
    bool whole = false;
    std::map<SlotId, Slot> slots;
    template <typename F>
    void Each(F&& each) const {
      for (std::size_t at = 0; at < bytes_.size();) {
        Head head;
        std::memcpy(&head, bytes_.data() + at, sizeof(head));
        at += sizeof(head);
        each(Change{.kind = head.kind,
                    .slot = head.slot,
                    .shown = head.shown,
                    .generation = head.generation,
                    .text = std::string_view(bytes_).substr(at, head.text_bytes)});
        at += head.text_bytes;
      }
    }
    bool empty() const { return bytes_.empty() && !whole; }

   private:
    friend class KeyChanges;
    std::string bytes_;
  };

  explicit KeyChanges(std::uint64_t most_bytes) : most_bytes_(most_bytes) {}

  void Add(Kind kind, SlotId slot, std::string_view key) {
    Append({.generation = 0, .text_bytes = 0, .slot = slot, .kind = kind, .shown = false}, key);
  }
  // Change what is known of a slot.
  void SetSlot(const SlotUpdate& update) {
    Slot& slot = slots_[update.slot];
    const Slot before = slot;
    slot.generation = update.generation;
    slot.named = update.named;
    slot.name = update.name;
    if (slot != before) AddSlot(update.slot);
    if (slot == Slot()) slots_.erase(update.slot);
  }
  void SetHidden(SlotId slot, bool hidden) {
    slots_[slot].hidden = hidden;
    AddSlot(slot);
    if (slots_[slot] == Slot()) slots_.erase(slot);
  }
  // Takes the changes since the last call, in O(1), or in O(slots in use) when `all` or when some
  // were lost. `into` is emptied first.
  void Take(Batch& into, bool all) {
    into.bytes_.clear();
    into.slots.clear();
    into.whole = std::exchange(lost_, false) || all;
    std::swap(into.bytes_, bytes_);
    if (!into.whole) return;
    into.bytes_.clear();  // `slots` has what they led to
    into.slots = slots_;
  }

 private:
  struct Head {
    Generation generation = 0;
    std::uint32_t text_bytes = 0;
    SlotId slot = 0;
    Kind kind = Kind::kStored;
    bool shown = false;
  };
  static_assert(sizeof(Head) == 16);

  void AddSlot(SlotId number) {
    const Slot& slot = slots_[number];
    Append({.generation = slot.generation,
            .text_bytes = 0,
            .slot = number,
            .kind = Kind::kSlot,
            .shown = slot.shown()},
           slot.name);
  }
  void Append(Head head, std::string_view text) {
    if (lost_) return;
    if (bytes_.size() + sizeof(head) + text.size() > most_bytes_) {
      lost_ = true;
      bytes_.clear();
      return;
    }
    head.text_bytes = static_cast<std::uint32_t>(text.size());
    bytes_.append(reinterpret_cast<const char*>(&head), sizeof(head));  // NOLINT
    bytes_.append(text);
  }

  const std::uint64_t most_bytes_;
  std::string bytes_;
  bool lost_ = false;
  std::map<SlotId, Slot> slots_;
};

}  // namespace kvcove::owner
