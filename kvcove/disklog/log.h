// SPDX-License-Identifier: Apache-2.0
// A log of objects on one disk: what an owner's tier puts, reads and removes. It knows no owner.
//
// Threads. A Log belongs to one thread, the disk's, which calls everything here and polls it; every
// completion runs inside Poll, on that thread. An owner starts one such thread a disk, hands it
// work through a queue of its own, and calls Wake (the only thread-safe call) after it has put work
// there. No lock is held while the log runs, so memory's readers never wait for a disk.
//
// What completes when:
//
// - Put: the value is copied when the call returns, so its memory may be reused. `done`: it is
//   written, and Find finds it. It is there after a loss of power if a Sync was begun after `done`
//   and answered.
// - Read: all bytes are verified, and nothing can land in the buffer any more.
// - Remove: nothing of before is found once the call returns. `done`: the tombstones are synced.
// - Sync: all that was put before is on the disk for good.
// - Stop: every zone has its summary, so that the next start reads nothing else.
//
// A device that hangs completes nothing, and keeps the buffers that were given to Read. The owner
// answers its own callers at their deadlines, and sets the disk aside when nothing completes.
//
// Bounds: Put refuses (kLimit) instead of waiting; the number of reads in flight is the caller's.
// An object that was evicted or dropped may come back after a loss of power, for its record may
// still be there; one that a removal or a reset ended never does.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvcove/disklog/cleaner.h"
#include "kvcove/disklog/recovery.h"

namespace kvcove::disklog {

struct SlotGeneration {
  SlotId slot = 0;
  Generation generation = 0;  // 0: the slot is free
};

struct LogOptions {
  Id128 pool;
  Id128 incarnation;
  // What the owner knows when it starts. Objects of slots that are not named here are kept, and
  // not found, until SetGeneration names them.
  std::vector<SlotGeneration> generations;
  WriterOptions writer;
  CleanerOptions cleaner;
  DiskShares shares;
  std::uint64_t verify_slice_bytes = 4ULL << 20;  // hashed in one Poll
  Presence* presence = nullptr;                   // outlives the log
};

struct PutRequest {
  SlotId slot = 0;
  Generation generation = 0;
  std::uint64_t version = 0;
  std::string_view name;  // of the namespace, with its weight version
  std::string_view key;
  Pieces value;
  // Objects of one stream lie in the same zones: give those one number that will die together.
  std::uint8_t stream = 0;
  // It is not worth much: it lies apart, in zones that are freed early. Needs a disk of 32 zones.
  bool brief = false;
};

struct RemoveRequest {
  SlotId slot = 0;
  Generation generation = 0;
  std::string_view name;
  std::span<const std::string_view> keys;
};

struct Space {
  std::uint64_t total_bytes = 0;
  std::uint64_t live_bytes = 0;
  std::uint64_t objects = 0;
  std::uint32_t zones = 0;
  std::uint32_t free_zones = 0;
  std::uint32_t lost_zones = 0;  // set aside after an error, until the next start
  std::uint64_t index_bytes = 0;
  std::uint64_t queued_bytes = 0;
};

class Log {
 public:
  // Reads the superblocks, waiting for them; the rest of the recovery runs in Poll. `device` must
  // outlive the log. Errors: kInvalid (not formatted; resized), kIncompatible (another format, or
  // of another pool), kCorrupt (both superblocks damaged), kUnavailable (the device fails).
  static Result<std::unique_ptr<Log>> Open(Device& device, LogOptions options);
  // The superblock that counts. Errors: as Open, but for the pool.
  static Result<Superblock> ReadSuperblock(Device& device);
  // The completions of what is in flight are lost with the log: poll until idle() first, unless the
  // device is destroyed before anything else of the log is.
  ~Log() = default;

  // ---- start
  // Put, Read and Remove work; objects of zones not read yet are misses.
  bool serving() const { return recovery_.serving(); }
  bool recovered() const { return recovery_.done(); }
  // The disk was of an older incarnation, and is empty now.
  bool started_empty() const { return started_empty_; }
  // What the disk says of itself: identity, removals, generation counter.
  const Superblock& superblock() const { return state_.super; }
  const RecoveryCounters& recovery() const { return recovery_.counters(); }

  // ---- generations. What lies under another generation of the slot is never found from now on,
  // also what is being read or written; its space comes back zone by zone.
  void SetGeneration(SlotId slot, Generation generation);

  // ---- objects
  // Errors: kStale, kLimit (queue full), kNoSpace (no free zone), kInvalid, kUnavailable.
  Status Put(const PutRequest& request, Done done);
  std::optional<Found> Find(SlotId slot, Generation generation, std::string_view key);
  void Read(const Found& found, const Expected& expected, std::span<std::byte> buffer,
            Reader::Done done);
  // Errors: as Put. Repeat it after kLimit: keys that it came to are removed, and stay so.
  Status Remove(const RemoveRequest& request, Done done);
  // Forgets an object (eviction). False when there was none.
  bool Drop(SlotId slot, std::string_view key);
  // Every live object of a zone, for inventories and removals by pattern. `done`: kCorrupt when
  // the zone's summary is damaged, kInProgress while it is being written. A walk over all zones
  // holds moves from zone to zone first, and begins when they are still; else it may miss objects.
  void HoldMoves();
  void ReleaseMoves() { cleaner_.ReleaseMoves(); }
  // Live bytes, by DiskShares::limits.
  std::vector<std::uint64_t> HeldByShare() const { return state_.zones.HeldByShare(); }
  bool MovesStill() const { return cleaner_.still(); }
  void Walk(std::uint32_t zone, std::function<void(const LiveObject&)> each, Done done);

  // ---- durability
  // Puts fill chunks, and a chunk that is full is written. Call Flush when no more work is waiting,
  // or the last puts never complete.
  void Flush() { writer_.Flush(); }
  void Sync(Done done) { writer_.Sync(std::move(done)); }
  // Into the superblock. Removals that a mark covers must have completed before.
  void SaveFacts(std::uint64_t generation_counter, std::vector<RemovalMark> removals, Done done);
  void SaveIdentity(const Id128& identity, Done done);
  // Seals every zone and says so in the superblock. Nothing may be put afterwards.
  void Stop(Done done);

  // ---- running
  // Runs completions and a slice of verification, cleaning and sweeping; waits up to `wait_ns` when
  // there is nothing else to do. True when there is more to do now.
  bool Poll(std::int64_t wait_ns);
  void Wake() { state_.device.Wake(); }  // thread-safe
  bool idle() const;
  const Counters& counters() const { return state_.counters; }
  Space space() const;
  const Zone& zone(std::uint32_t number) const { return state_.zones[number]; }

 private:
  Log(Device& device, LogOptions options, Superblock superblock, bool started_empty);
  void WriteSuperblock(Done done);
  void WriteSuperblockNow();
  void StopStep();
  void WalkSummary(const Summary& summary, std::uint32_t zone,
                   const std::function<void(const LiveObject&)>& each);

  State state_;
  const std::uint64_t verify_slice_bytes_;
  bool more_ = false;  // to do without an answer of the device: the next Poll does not wait
  const std::uint8_t streams_;
  const bool started_empty_;
  Writer writer_;
  Reader reader_;
  Cleaner cleaner_;
  Recovery recovery_;
  std::vector<Done> superblock_waits_;  // for the next write
  bool superblock_writing_ = false;
  Done stop_;
  bool stopping_ = false;
  int sweeps_ = 0;  // rounds since something became stale
  std::uint64_t swept_stale_ = 0;
};

// Writes superblocks of an empty log. Whatever is on the device is lost. Waits for the device.
struct FormatOptions {
  Id128 pool;
  Id128 incarnation;
  Id128 identity;
  std::uint64_t zone_bytes = kDefaultZoneBytes;
  std::uint64_t hash_seed = 0;  // 0: a new one
};
inline constexpr std::uint32_t kMinZones = 8;
Status Format(Device& device, const FormatOptions& options);

}  // namespace kvcove::disklog
