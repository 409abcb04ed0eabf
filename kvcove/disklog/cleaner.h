// SPDX-License-Identifier: Apache-2.0
// Takes space back, a zone at a time. A zone in which nothing is alive is freed without reading it;
// of another one the live objects that are worth it are moved to an open zone, and tombstones that
// are still needed. The copies are synced before the zone is freed on the disk, and what is left in
// it is found until that is synced, too.
//
//   idle -> reading the summary -> moving, entry by entry -> syncing the copies -> freeing -> idle
//
// What fences a move: the copy carries the sequence of its record, so a tombstone that is written
// meanwhile is newer than both; and when the copy is written, the index takes it only if the object
// still lies where it was copied from. A removal, a reset or a newer value has ended that. After a
// crash, either record or both are there, with equal sequences: recovery takes the first it meets.
//
// Moves give way to everything else. Objects are dropped instead when puts fill the write queue or
// wait for a free zone, when the bound of write amplification is reached, and while a walk over the
// zones holds them up (HoldMoves), which could miss an object that moves.
#pragma once

#include "kvcove/disklog/move_budget.h"
#include "kvcove/disklog/reader.h"
#include "kvcove/disklog/summaries.h"
#include "kvcove/disklog/writer.h"

namespace kvcove::disklog {

struct LiveObject {
  SlotId slot = 0;
  Generation generation = 0;
  std::string_view name;
  std::string_view key;
  std::uint64_t version = 0;
  std::uint32_t value_bytes = 0;
};

// What says whether an object is worth a move.
struct MoveFacts {
  // Bytes put since it was read, as a share of the disk; none: not read since it was written.
  std::optional<double> since_read;
  double budget = 0;        // the share that is left of what moves may write
  bool guaranteed = false;  // its share is within its guarantee
};

struct CleanerOptions {
  // Zones with live objects are cleaned below so many free ones; dead zones at once.
  std::uint32_t free_zones = 4;
  // Nothing is moved beyond so many bytes written for each byte put.
  double write_amplification = 1.15;
  // At most this share of a zone is moved, so that each zone gives room.
  double move_share = 0.5;
  // Null: nothing is moved. Called on the log's thread.
  std::function<bool(const LiveObject&, const MoveFacts&)> worth_moving;
  // An object was alive and is not on the disk any more.
  std::function<void(const LiveObject&)> on_dropped;
};

class Cleaner {
 public:
  Cleaner(State& state, Writer& writer, Reader& reader, CleanerOptions options);
  // A bounded amount of work. True when it should be called again without waiting.
  bool Step();
  bool active() const { return zone_.has_value(); }
  // While held, no object begins to move, and zones with live objects are freed only when puts need
  // the room. Nothing is under way any more once still().
  void HoldMoves() { ++holds_; }
  void ReleaseMoves() { --holds_; }
  bool still() const { return !reading_ && !read_ && copies_ == 0; }

 private:
  enum class Outcome { kNext, kWait, kAgain };

  bool Begin();
  bool Pressed() const;
  void TakeContents(ZoneContents contents);
  Outcome Handle(const SummaryEntry& entry, std::string_view key);
  Outcome MoveTombstone(const SummaryEntry& entry, ScopeId scope, std::string_view key);
  bool MayMove(const IndexEntry& known, const LiveObject& object);
  Outcome MoveObject(const SummaryEntry& entry, IndexEntry& known, std::string_view key);
  void AppendMoved();
  void DropLeft();
  void FreeDead();
  void End();
  void FreeZone();
  void Next();

  State& state_;
  Writer& writer_;
  Reader& reader_;
  const CleanerOptions options_;
  std::optional<std::uint32_t> zone_;
  Summary summary_;
  std::size_t entry_ = 0;
  std::size_t key_at_ = 0;
  struct Left {
    std::size_t entry = 0;
    std::size_t key_at = 0;
  };
  std::vector<Left> left_;           // alive, and not moved
  std::vector<std::uint64_t> held_;  // by share, when the zone was chosen
  MoveBudget budget_;
  std::uint64_t moved_bytes_ = 0;  // of this zone
  std::uint64_t copies_ = 0;       // that are not written yet
  std::uint64_t refused_ = 0;      // puts without a free zone, when the last zone was freed
  std::uint32_t holds_ = 0;
  bool waiting_ = false;  // for the device
  bool reading_ = false;  // an object that is to be moved
  bool failed_ = false;   // a copy could not be written: the zone stays
  AlignedBuffer buffer_;  // the record that is being moved
  std::optional<ReadResult> read_;
  Place place_;
};

}  // namespace kvcove::disklog
