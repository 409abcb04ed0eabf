// SPDX-License-Identifier: Apache-2.0
// Appends records to open zones, one for each stream, in large sequential writes.
//
// Records are copied into chunks of a bounded arena (the write queue). A full chunk is written;
// Flush writes partial ones, padded to a block. A put that finds no free chunk is refused, so
// callers never wait for the disk. A full zone is sealed: once its last write has completed, its
// records are synced, then its summary and trailer are written.
//
// A zone in which a write failed is sealed at once. Its summary leaves out what was not written;
// the index forgets it (State::Forget), as the bytes may be on the disk all the same.
//
// Tombstones are written twice, to zones of two streams, so that no single damage of the disk, of
// whatever size within a zone, brings a removed object back.
//
// Belongs to the Log's thread.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>

#include "kvcove/disklog/state.h"

namespace kvcove::disklog {

using Done = std::function<void(const Status&)>;
using Pieces = std::span<const std::span<const std::byte>>;

struct WriterOptions {
  std::uint64_t queue_bytes = 64ULL << 20;
  std::uint64_t chunk_bytes = 1ULL << 20;
  std::uint8_t streams = 4;          // for callers; moves, brief objects and tombstones have more
  std::uint32_t reserved_zones = 2;  // free zones that only moves and tombstones may open
};

class Writer {
 public:
  Writer(State& state, const WriterOptions& options);

  struct Append {
    RecordKind kind = RecordKind::kObject;
    SlotId slot = 0;
    Generation generation = 0;
    std::uint64_t version = 0;  // of a tombstone: the nonce of the zone whose record it covers
    std::string_view name;
    std::string_view key;
    Pieces value;
    std::uint8_t stream = 0;
    std::uint64_t sequence = 0;  // 0: the next one
    // Set for a copy of an object: the copy counts once it is written, if the index still has this
    // place.
    std::optional<Place> moved_from;
  };
  // Appends a record; its bytes are copied before the call returns. `done` runs once the record is
  // written, not synced. A put is in the index, pending, from now on, and replaces the key's
  // earlier entry. Errors: kLimit (the queue is full), kNoSpace (no free zone), kInvalid (too large
  // for a zone or the queue), kUnavailable (three writes in a row have failed). If it fails, `done`
  // never runs.
  Status Add(const Append& append, Done done);
  // Appends a tombstone to both of its streams. Errors: as Add. If a write fails, nothing is proven
  // any more (unproven).
  Status AddTombstone(Append append);
  // Checks that both copies of a tombstone have room. Errors: kLimit, kNoSpace.
  Status CheckTwins(Append append);
  // True once a tombstone could not be made durable: each Sync fails until the log is opened anew,
  // as the index does not have the object any more that a repeated removal would look for.
  bool unproven() const { return unproven_; }
  void SetUnproven() { unproven_ = true; }
  // Writes all partial chunks.
  void Flush();
  // Syncs the device, without waiting for anything; `done` gets the errno. The only way in which a
  // log syncs.
  void SyncDevice(std::function<void(int error)> done);
  // Flushes. `done` runs once all records that were added before are durable, or with the error.
  void Sync(Done done);
  // Seals every open zone. All summaries are written once idle().
  void SealAll();
  // Seals the open zones of objects, so that the cleaner can free them.
  void SealObjects();
  bool sealing() const { return sealing_ > 0; }
  bool idle() const {
    return outstanding_.empty() && open_.empty() && barriers_.empty() && sealing_ == 0;
  }
  // Writes the summary of a zone that recovery has read record by record.
  void SealRecovered(std::uint32_t zone, Summary summary);

  std::uint64_t queued_bytes() const { return (chunks_.size() - free_.size()) * chunk_bytes_; }
  // Returns the summary of an open zone so far; null if the zone is not open. Valid until the next
  // Add.
  const Summary* OpenSummary(std::uint32_t zone) const {
    const auto open = open_.find(zone);
    return open == open_.end() || open->second->sealing ? nullptr : &open->second->summary;
  }
  std::uint8_t move_stream() const { return streams_; }
  std::uint8_t brief_stream() const { return static_cast<std::uint8_t>(streams_ + 1); }
  // The two streams of tombstones.
  std::array<std::uint8_t, 2> tombstone_streams() const {
    return {static_cast<std::uint8_t>(streams_ + 2), static_cast<std::uint8_t>(streams_ + 3)};
  }
  bool half_full() const { return 2 * free_.size() < chunks_.size(); }
  // Writes and syncs a zone header with `free`. The zone is then free; after an error it is sealed,
  // as before.
  void Free(std::uint32_t zone, Done done);

 private:
  // A record that is being written. It may span several chunks.
  struct Ticket {
    std::uint32_t chunks = 0;  // chunks that are not written yet
    bool whole = false;        // all of the record is copied into chunks
    int error = 0;             // errno of one of its writes
    std::function<void(int error)> finish;
  };
  struct Chunk {
    std::span<std::byte> memory;
    std::uint64_t filled = 0;
    // Records with bytes in this chunk. The last chunk of a record that completes ends its ticket.
    std::vector<std::shared_ptr<Ticket>> tickets;
  };
  struct OpenZone {
    std::uint32_t number = 0;
    std::uint64_t position = 0;        // offset of the next byte in the zone
    std::optional<std::size_t> chunk;  // partial chunk at `position`
    std::uint32_t writes = 0;          // in flight
    bool sealing = false;
    Summary summary;
    std::unordered_map<ScopeId, std::uint16_t> scopes;  // index in summary.scopes
    std::uint64_t scope_bytes = 0;
    std::set<std::uint32_t> lost;  // units; offsets of records that were not written
  };
  // What a record needs beside its stream's open zone and the rest of that zone's partial chunk.
  struct Need {
    std::uint64_t chunks = 0;
    bool zone = false;
  };
  // A pending Sync: it waits for all writes below `last`.
  struct Barrier {
    std::uint64_t last = 0;
    Done done;
  };

  // Returns the zone for a record, or opens one. Errors: kLimit, kNoSpace.
  Result<OpenZone*> Room(const Append& append, std::uint64_t bytes);
  // Errors: kLimit. Counts the refusal.
  Status CheckQueue(std::uint64_t chunks);
  // Counts a record for which no zone may be opened. Returns kNoSpace.
  std::unexpected<Error> RefuseZone();
  Need NeedOf(const Append& append, std::uint64_t bytes) const;
  // True if the zone has room for the record, and then still for its summary and trailer.
  bool Fits(const OpenZone& zone, const Append& append, std::uint64_t bytes) const;
  OpenZone& Open(std::uint32_t number, std::uint8_t stream);
  void Note(OpenZone& zone, ScopeId scope, const Record& record, std::uint64_t offset);
  void Land(const Append& append, const IndexEntry& entry, int error, const Done& done);
  void EndCopy(const Append& append, const IndexEntry& entry, int error);
  // Returns the key of a record that is being written.
  std::string KeyOf(const IndexEntry& entry) const;
  void Copy(OpenZone& zone, std::span<const std::byte> bytes,
            const std::shared_ptr<Ticket>& ticket);
  void Pad(OpenZone& zone, std::uint64_t to);
  void Submit(OpenZone& zone);
  void Written(std::uint32_t number, std::size_t chunk, int error);
  void Write(std::uint64_t offset, std::span<const std::byte> bytes, std::function<void(int)> done);
  // Seal writes the rest of a zone; then FinishSeal (all writes have completed), SealSynced (the
  // records are durable), WriteSummary, and Sealed follow. Seal may end `zone` before it returns.
  void Seal(OpenZone& zone);
  void FinishSeal(OpenZone& zone);
  void SealSynced(std::uint32_t number, Summary summary);
  void Sealed(std::uint32_t number, int error);
  void WriteSummary(std::uint32_t number, const Summary& summary);
  void CheckBarriers();

  State& state_;
  const std::uint64_t chunk_bytes_;
  const std::uint8_t streams_;
  const std::uint32_t reserved_zones_;
  std::uint64_t largest_record_ = 0;
  AlignedBuffer arena_;
  std::vector<Chunk> chunks_;
  std::vector<std::size_t> free_;
  std::map<std::uint32_t, std::unique_ptr<OpenZone>> open_;  // by zone; also those being sealed
  std::vector<OpenZone*> streams_open_;                      // by stream
  std::uint64_t next_write_ = 0;                             // writes are numbered
  std::set<std::uint64_t> outstanding_;                      // numbers of writes in flight
  std::deque<Barrier> barriers_;
  std::uint32_t sealing_ = 0;  // summaries that are not written yet
  bool unproven_ = false;
  std::uint64_t tombstones_ = 0;         // that were added
  std::uint64_t synced_tombstones_ = 0;  // of these, those that are durable
};

}  // namespace kvcove::disklog
