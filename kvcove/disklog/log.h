// SPDX-License-Identifier: Apache-2.0
// A log of objects on one disk, as an owner's tier uses it. The log knows no owner.
//
// Threads. A Log belongs to one thread, the disk's thread, which makes every call here and polls
// the log; completions run inside Poll, on that thread. An owner starts one such thread for each
// disk, passes work to it through a queue of its own, and then calls Wake, the only thread-safe
// call. No lock is held while the log runs, so readers of memory never wait for a disk.
//
// States: recovering (nothing is found) -> serving -> recovered -> stopping -> stopped.
//
// Meaning of the return and of `done`:
//
// - Put: at return the value is copied, so its memory may be reused. `done`: the object is written,
//   and Find finds it. The object survives a loss of power if a Sync that began after `done` has
//   completed.
// - Read: `done`: all bytes are verified, and the device no longer writes to the buffer.
// - Remove: at return, earlier values of the keys are not found. `done`: the tombstones are synced.
// - Sync: `done`: all earlier puts are durable.
// - Stop: `done`: every zone has its summary, so the next start scans no records. The disk has
//   another opening number, as after DrawOpening.
//
// A device that hangs completes nothing, and keeps the buffers that were passed to Read. The owner
// answers its own callers at their deadlines, and sets the disk aside while nothing completes.
//
// Bounds: Put refuses (kLimit) instead of waiting; callers bound the number of reads in flight.
//
// Forgetting is a removal. An object that is not found any more is not found at a later start
// either, whatever ended it: a removal, a reset, its zone, damage, or a table of the owner's that
// is full. Of each record on the disk the index has an entry, or a tombstone covers it, or its zone
// is `uncovered` (Zones). So a removal of a key without an entry costs no tombstone.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvcove/disklog/cleaner.h"
#include "kvcove/disklog/forgetting.h"
#include "kvcove/disklog/recovery.h"

namespace kvcove::disklog {

struct SlotGeneration {
  SlotId slot = 0;
  Generation generation = 0;  // 0: the slot is free
};

struct LogOptions {
  Id128 pool;
  Id128 incarnation;
  Id128 noted_opening;  // by which the caller knows this disk (Superblock::opening); zero: none
  // Generations that the owner knows at its start. Objects of other slots are kept, but not found,
  // until SetGeneration names their slot.
  std::vector<SlotGeneration> generations;
  WriterOptions writer;
  CleanerOptions cleaner;
  DiskShares shares;
  std::uint64_t verify_slice_bytes = 4ULL << 20;  // most bytes that one Poll hashes
  Presence* presence = nullptr;                   // null, or outlives the log
};

struct PutRequest {
  SlotId slot = 0;
  Generation generation = 0;
  std::uint64_t version = 0;
  std::string_view name;  // of the namespace, with its weight version
  std::string_view key;
  Pieces value;
  // Objects of one stream are written to the same zones: give objects that will end together the
  // same number, below WriterOptions::streams.
  std::uint8_t stream = 0;
  // The object is not worth much: it is written to zones that are freed early. Has no effect on
  // disks with less than 32 zones.
  bool brief = false;
};

struct RemoveRequest {
  SlotId slot = 0;
  Generation generation = 0;
  std::string_view name;
  std::span<const std::string_view> keys;
};

using Space = DiskSpace;

class Log {
 public:
  // Reads the superblocks and writes a new one with a new opening number, which blocks; the rest of
  // the recovery runs in Poll. `device` must outlive the log. Errors: kInvalid (not formatted, or
  // the device has shrunk), kIncompatible (another format, or another pool's), kCorrupt (both
  // superblocks damaged), kUnavailable (the device fails).
  static Result<std::unique_ptr<Log>> Open(Device& device, LogOptions options);
  // Returns the valid superblock with the highest sequence; blocks. Errors: as Open, except that
  // any pool is accepted.
  static Result<Superblock> ReadSuperblock(Device& device);
  // Completions in flight point to the log: poll until idle() before it is destroyed, or destroy
  // the device first.
  ~Log() = default;

  // ---- start
  // True once Put and Read work. Objects of zones that are not read yet are misses.
  bool serving() const { return recovery_.serving() && !state_.emptying; }
  // True once Remove works, too, and nothing that was not taken into the index can come back.
  bool recovered() const { return !state_.opening; }
  // True once a removal, or the loss of a zone, could not be made durable. Removals and syncs fail
  // from now on: open the log anew.
  bool unproven() const { return writer_.unproven(); }
  // True if the disk was of another incarnation, so that its objects do not count; or if tombstones
  // may be lost, so that the log has emptied it (State::emptying).
  bool started_empty() const { return started_empty_; }
  // Returns the disk's facts: identity, removals, generation counter.
  const Superblock& superblock() const { return state_.super; }
  const RecoveryCounters& recovery() const { return recovery_.counters(); }

  // ---- generations
  // Ends all other generations of the slot. Their objects are not found from now on, also those
  // that are being read or written; their space is freed zone by zone.
  void SetGeneration(SlotId slot, Generation generation);

  // ---- objects
  // Appends an object. Errors: kStale (not the slot's current generation), kLimit (queue full),
  // kNoSpace (no free zone), kInvalid, kUnavailable (not serving, stopping, or the device fails).
  // If it fails, `done` never runs. `done` with an error: nothing of the object will be found, at a
  // later start either, unless the log is unproven().
  Status Put(const PutRequest& request, Done done);
  // Returns the place of an object that can be read; none of a zone that is about to be freed.
  // Another key with the same hash may be there: Read compares the whole key.
  std::optional<Found> Find(SlotId slot, Generation generation, std::string_view key);
  // Reads an object into the buffer; see Reader::Read.
  void Read(const Found& found, const Expected& expected, std::span<std::byte> buffer,
            Reader::Done done);
  // Removes keys of one generation. Errors: as Put, without kStale; kUnavailable before
  // recovered(). After kLimit and kNoSpace, repeat the call: keys that it reached are removed, and
  // remain so.
  Status Remove(const RemoveRequest& request, Done done);
  // Holds the cleaner's moves up until ReleaseMoves; calls nest. A walk over all zones calls this
  // first, and begins once MovesStill(): it could miss objects that move from zone to zone.
  void HoldMoves();
  void ReleaseMoves() { cleaner_.ReleaseMoves(); }
  // Returns the live bytes of each share, in the order of DiskShares::limits.
  std::vector<std::uint64_t> HeldByShare() const { return state_.zones.HeldByShare(); }
  bool MovesStill() const { return cleaner_.still(); }
  // Calls `each` for every live object of a zone, for inventories and removals by pattern. `done`:
  // kInProgress while the zone's summary is being written, the zone is being freed, or tombstones
  // of forgotten objects wait for room; then walk the zone again. If the summary is damaged, the
  // records are read, and it is written anew. A zone of which some objects can be listed no more is
  // freed.
  void Walk(std::uint32_t zone, std::function<void(const LiveObject&)> each, Done done);

  // ---- durability
  // Writes chunks that are not full. Call it when no more work is pending: otherwise the last puts
  // never complete, because only full chunks are written.
  void Flush() { writer_.Flush(); }
  void Sync(Done done) { writer_.Sync(std::move(done)); }
  void SaveIdentity(const Id128& identity, Done done);
  // Draws another opening number, so that a copy of this disk that was taken until now is another
  // disk. Once `done`, superblock().opening is to be noted. Until the last number is noted, none is
  // drawn: the note may have that one or the one before, and a superblock names two.
  void DrawOpening(Done done);
  // Returns true if something was written to the disk since the last number was drawn, or if that
  // one is not noted yet. Else a copy that has this number equals the disk, and needs no other one.
  bool OpeningDue() const;
  // Returns how many writes have changed the disk since it was opened, apart from its numbers.
  std::uint64_t changes() const { return state_.changes; }
  // Call it once `opening` is noted durably: from `done` on, no earlier number stands for this
  // disk. Both superblocks have the number then, so damage of one does not make the disk look like
  // a copy. Does nothing if another number was drawn meanwhile: the disk must have both.
  void OpeningNoted(const Id128& opening, Done done);
  // Seals every zone and marks the superblock clean. Puts and removals fail from now on.
  void Stop(Done done);

  // ---- running
  // Runs completions and a slice of verification, cleaning and sweeping. Waits up to `wait_ns` if
  // there is nothing else to do. True: there is more to do now.
  bool Poll(std::int64_t wait_ns);
  void Wake() { state_.device.Wake(); }  // thread-safe
  bool idle() const;
  const Counters& counters() const { return state_.counters; }
  Space space() const;
  const Zone& zone(std::uint32_t number) const { return state_.zones[number]; }

 private:
  Log(Device& device, LogOptions options, Superblock superblock, bool started_empty);
  // Writes a tombstone for the key's record, if it may be on the disk, and ends its object.
  // `uncovered`: the disk may have records of the request's scope that the index does not have.
  Status RemoveOne(const RemoveRequest& request, std::string_view key, bool uncovered);
  bool WaitsForForgotten(const Done& done) const;
  void TakeWalk(std::uint32_t zone, ZoneContents contents,
                const std::function<void(const LiveObject&)>& each, const Done& done);
  void StepOpening();
  // Makes the loss of zones durable (State::Lose).
  void VoidLost();
  // Empties the disk at a start that does not know what was removed.
  void Empty();
  void WriteSuperblock(Done done);
  // As WriteSuperblock, where nothing but the opening numbers has changed.
  void QueueSuperblock(Done done);
  void WriteSuperblockNow();
  void StopStep();
  void WalkSummary(const Summary& summary, std::uint32_t zone,
                   const std::function<void(const LiveObject&)>& each);

  State state_;
  const std::uint64_t verify_slice_bytes_;
  bool more_ = false;  // work that needs no completion is left: the next Poll does not wait
  const std::uint8_t streams_;
  bool started_empty_;
  Writer writer_;
  Reader reader_;
  Cleaner cleaner_;
  Forgetting forgetting_;
  Recovery recovery_;
  bool syncing_scans_ = false;
  bool saving_lost_ = false;
  bool saving_empty_ = false;
  std::size_t saved_lost_ = 0;  // of Superblock::lost_zones, those that are durable
  // Removals that wait for the sync of the last tombstones; null: all are durable.
  std::shared_ptr<std::vector<Done>> removing_;
  bool unsynced_ = false;  // tombstones of a Remove that was refused before it reached all keys
  std::vector<Done> superblock_waits_;  // callbacks of the next write
  bool superblock_writing_ = false;
  std::uint64_t drawn_changes_ = 0;  // State::changes when the last opening number was drawn
  Done stop_;
  bool stopping_ = false;
  int sweeps_ = 0;  // rounds of the sweep that are left
  std::uint64_t swept_stale_ = 0;
};

// Options of Format.
struct FormatOptions {
  Id128 pool;
  Id128 incarnation;
  Id128 identity;
  std::uint64_t zone_bytes = kDefaultZoneBytes;
  std::uint64_t hash_seed = 0;  // 0: a random one
};
inline constexpr std::uint32_t kMinZones = 8;
// Writes the superblocks of an empty log, and blocks until they are synced. All contents of the
// device are lost. Errors: kInvalid (sizes), kUnavailable or kNoSpace (the device fails).
Status Format(Device& device, const FormatOptions& options);

}  // namespace kvcove::disklog
