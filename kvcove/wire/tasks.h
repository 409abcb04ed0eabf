// SPDX-License-Identifier: Apache-2.0
// What an owner holds, page by page, and copies of it to another owner: what the master's tasks are
// made of.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvcove/model/ids.h"

namespace kvcove::wire {

inline constexpr std::uint32_t kInventoryDone = 0xFFFFFFFF;
// Objects. A key is at most 1 KiB, so that a page always fits a frame.
inline constexpr std::uint32_t kMaxPage = 2048;

struct InventoryRequest {
  std::uint32_t cursor = 0;  // kInventoryDone: no objects, only the slot's counts
  std::uint32_t at_most = 0;
  std::optional<SlotId> slot;  // empty: all
  std::string prefix;          // of the key
  bool with_keys = false;
  bool replicated_only = false;  // those that are meant to be on several owners
  bool disks = false;            // behind memory also what waits for disks, and lies there
  std::uint64_t within = 0;      // as an earlier reply gave it with its cursor
  std::uint64_t since = 0;       // the same; without it a key in both tiers comes twice
};

// An object, by what names it at its owner.
struct HeldObject {
  Id128 hash;
  Generation generation = 0;
  std::uint64_t version = 0;
  std::uint32_t id = 0;
  std::uint32_t size_bytes = 0;
  SlotId slot = 0;
  std::uint8_t copies = 1;
  bool hard_pinned = false;
  bool soft_pinned = false;
  bool held = false;
  Tier tier = Tier::kMemory;
  bool on_disk = false;  // it is in memory, and a disk has it, too
  std::string key;       // if asked for; always of what a disk has alone
};

struct InventoryReply {
  std::uint32_t cursor = kInventoryDone;  // where to go on
  // Of the slot, if one was named:
  Generation generation = 0;
  std::uint64_t live = 0;    // objects
  std::uint64_t voided = 0;  // objects that the beginning of this generation voided
  std::uint64_t within = 0;  // beside `cursor`
  std::uint64_t since = 0;   // beside `cursor`: what memory has since before it is not told again
  bool disks = false;        // this owner has disks, and the walk comes to them
  std::vector<HeldObject> objects;
};

struct CopyRequest {
  struct Item {
    std::uint32_t id = 0;
    std::uint64_t version = 0;
    // Of what lies on a disk only, instead of the two: it comes up to be sent.
    std::string key = {};
    SlotId slot = 0;
    Generation generation = 0;
    std::uint32_t size_bytes = 0;
  };
  std::string to;     // host:port of the other owner
  bool move = false;  // dropped here once it is there
  std::vector<Item> items;
  std::uint32_t budget_ms = 0;
};

std::string Encode(const InventoryRequest& message);
std::string Encode(const InventoryReply& message);
std::string Encode(const CopyRequest& message);

// Errors: kCorrupt.
Result<InventoryRequest> DecodeInventory(std::span<const std::byte> body);
Result<InventoryReply> DecodeInventoryReply(std::span<const std::byte> body);
Result<CopyRequest> DecodeCopy(std::span<const std::byte> body);

}  // namespace kvcove::wire
