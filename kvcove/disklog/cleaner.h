// SPDX-License-Identifier: Apache-2.0
// Frees space, one zone at a time. A zone without live objects or needed tombstones is freed
// unread. From any other zone the cleaner copies needed tombstones, and live objects that are worth
// a move, to an open zone. The copies are synced before the zone is freed on the disk. Objects that
// are not moved are found until the freeing is synced, too; then they are dropped. A doomed zone is
// freed whether or not space is short, and so is an uncovered one (Zones) that removals pay for:
// its objects are moved or dropped as in any other zone.
//
//   idle -> reading the summary -> moving, entry by entry -> syncing the copies -> freeing -> idle
//
// Two rules fence a move. The copy has the sequence of its original, so a tombstone that is written
// meanwhile is newer than both. And Writer::Land points the index at the copy only if the index
// still has the place that was copied: a removal, a reset or a newer value has changed or erased
// that entry. After a crash one record or both are on the disk, with equal sequences; recovery
// takes the first that it reads.
//
// Moves have the lowest priority. Objects are dropped instead of moved while puts fill the write
// queue or find no free zone, when the bound of write amplification is reached, and while a walk
// over the zones holds moves up (HoldMoves): the walk could miss an object that moves.
//
// Not thread-safe: belongs to the Log's thread.
#pragma once

#include "kvcove/disklog/move_budget.h"
#include "kvcove/disklog/reader.h"
#include "kvcove/disklog/summaries.h"
#include "kvcove/disklog/writer.h"

namespace kvcove::disklog {

// An object that the index has. The views are valid during the call that passes it.
struct LiveObject {
  SlotId slot = 0;
  Generation generation = 0;
  std::string_view name;
  std::string_view key;
  std::uint64_t version = 0;
  std::uint32_t value_bytes = 0;
};

// Facts for the decision whether an object is worth a move.
struct MoveFacts {
  // Bytes put since the object was last read, as a fraction of the disk; none: not read since its
  // record was written.
  std::optional<double> since_read;
  double budget = 0;        // unused fraction of the budget for moves, 0 to 1
  bool guaranteed = false;  // the object's share is within its guarantee
};

struct CleanerOptions {
  // Zones with live objects are cleaned while fewer zones are free; dead zones at once.
  std::uint32_t free_zones = 4;
  // Upper bound of bytes written for each byte put; moves stop there.
  double write_amplification = 1.15;
  // Largest fraction of a zone that is moved, so that each cleaned zone frees space.
  double move_share = 0.5;
  // Null: nothing is moved. Called on the log's thread.
  std::function<bool(const LiveObject&, const MoveFacts&)> worth_moving;
  // Called on the log's thread for each live object that is dropped with its zone, and for each
  // that is forgotten because it is damaged (then without version and size).
  std::function<void(const LiveObject&)> on_dropped;
};

class Cleaner {
 public:
  Cleaner(State& state, Writer& writer, Reader& reader, CleanerOptions options);
  // Does a bounded amount of work. True: call it again without waiting.
  bool Step();
  bool active() const { return zone_.has_value(); }
  // Holds moves up. Until ReleaseMoves no object begins to move, and zones with live objects are
  // freed only when puts need the space. Moves that had begun have ended once still() is true.
  void HoldMoves() { ++holds_; }
  void ReleaseMoves() { --holds_; }
  bool still() const { return !reading_ && !read_ && copies_ == 0; }

 private:
  enum class Outcome { kNext, kWait, kAgain };

  bool Rests();
  bool Begin();
  std::optional<std::uint32_t> Costly();
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
  std::vector<Left> left_;           // live objects of the zone that are not moved
  std::vector<std::uint64_t> held_;  // bytes by share, when the zone was chosen
  MoveBudget budget_;
  std::uint64_t moved_bytes_ = 0;  // from this zone
  std::uint64_t copies_ = 0;       // appended, and not written yet
  std::uint64_t refused_ = 0;      // Counters::refused_space when the last zone was freed
  std::uint32_t holds_ = 0;        // calls of HoldMoves that are not released
  bool waiting_ = false;           // an operation of the device is pending
  bool reading_ = false;           // the pending operation reads an object to move
  bool failed_ = false;            // a copy was not written, so the zone is not freed
  std::uint32_t rests_ = 0;        // calls of Step that do not look for a zone
  AlignedBuffer buffer_;           // record that is being moved
  std::optional<ReadResult> read_;
  Place place_;
};

}  // namespace kvcove::disklog
