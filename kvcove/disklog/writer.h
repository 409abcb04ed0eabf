// SPDX-License-Identifier: Apache-2.0
// Appends records to open zones, one a stream, in big sequential writes.
//
// The bytes of a stream go through chunks of a bounded arena (the write queue): a full chunk is
// written; Flush writes what there is, padded to a block. A put that finds no chunk is refused:
// nothing waits for a disk. A zone that is full is sealed: when its last write has completed, its
// summary and trailer are written.
//
// A zone in which a write failed is sealed at once. Recovery of a zone without a summary stops at
// the first record that is not there, so nothing that was acknowledged may lie behind a hole.
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
  std::uint8_t streams = 4;          // that callers may name
  std::uint32_t reserved_zones = 2;  // free ones that only moves and tombstones may open
};

class Writer {
 public:
  Writer(State& state, const WriterOptions& options);

  struct Append {
    RecordKind kind = RecordKind::kObject;
    SlotId slot = 0;
    Generation generation = 0;
    std::uint64_t version = 0;
    std::string_view name;
    std::string_view key;
    Pieces value;
    std::uint8_t stream = 0;
    std::uint64_t sequence = 0;  // 0: the next one
    std::optional<Place>
        moved_from;  // a copy: it counts once written, if the object still lies there
  };
  // Copies the value before it returns; `done` runs once it is written (not synced). A put is in
  // the index, pending, from now on. Errors: kLimit (the queue is full), kNoSpace (no free zone),
  // kInvalid (it can never fit), kUnavailable (the device fails).
  Status Add(const Append& append, Done done);
  // What is in chunks goes to the device now.
  void Flush();
  // `done` runs when all that was added before is on the disk for good, or could not be.
  void Sync(Done done);
  // Every open zone gets its summary. idle() tells when all is done.
  void SealAll();
  bool idle() const {
    return outstanding_.empty() && open_.empty() && barriers_.empty() && sealing_ == 0;
  }
  // A zone that recovery has read record by record: its summary is written now.
  void SealRecovered(std::uint32_t zone, Summary summary);

  std::uint64_t queued_bytes() const { return (chunks_.size() - free_.size()) * chunk_bytes_; }
  // What an open zone holds so far; null when it is not open.
  const Summary* OpenSummary(std::uint32_t zone) const {
    const auto open = open_.find(zone);
    return open == open_.end() || open->second->sealing ? nullptr : &open->second->summary;
  }
  std::uint64_t largest_record() const { return largest_record_; }
  std::uint8_t move_stream() const { return streams_; }
  std::uint8_t tombstone_stream() const { return static_cast<std::uint8_t>(streams_ + 1); }
  std::uint8_t brief_stream() const { return static_cast<std::uint8_t>(streams_ + 2); }
  bool half_full() const { return 2 * free_.size() < chunks_.size(); }
  // The zone header that says free, then a sync; the zone is free afterwards, or sealed as before.
  void Free(std::uint32_t zone, Done done);

 private:
  // A record that is being written: it may lie in several chunks.
  struct Ticket {
    std::uint32_t chunks = 0;  // not written yet
    bool whole = false;        // no further chunk comes
    int error = 0;
    std::function<void(int error)> finish;
  };
  struct Chunk {
    std::span<std::byte> memory;
    std::uint64_t filled = 0;
    // One each in every chunk of a record: the last that completes ends it.
    std::vector<std::shared_ptr<Ticket>> tickets;
  };
  struct OpenZone {
    std::uint32_t number = 0;
    std::uint64_t position = 0;  // where the next byte goes
    std::optional<std::size_t> chunk;
    std::uint32_t writes = 0;
    bool sealing = false;
    bool torn = false;  // a write failed
    Summary summary;
    std::unordered_map<ScopeId, std::uint16_t> scopes;
    std::uint64_t scope_bytes = 0;
    std::set<std::uint32_t> lost;  // offsets of records that were not written
  };
  struct Barrier {
    std::uint64_t last = 0;
    Done done;
  };

  Result<OpenZone*> Room(const Append& append, std::uint64_t bytes);
  Status CheckQueue(const OpenZone* zone, std::uint64_t bytes) const;
  bool Fits(const OpenZone& zone, const Append& append, std::uint64_t bytes) const;
  OpenZone& Open(std::uint32_t number, std::uint8_t stream);
  void Note(OpenZone& zone, ScopeId scope, const Record& record, std::uint64_t offset);
  void Land(const Append& append, const IndexEntry& entry, int error, const Done& done);
  void Copy(OpenZone& zone, std::span<const std::byte> bytes,
            const std::shared_ptr<Ticket>& ticket);
  void Pad(OpenZone& zone, std::uint64_t to);
  void Submit(OpenZone& zone);
  void Written(std::uint32_t number, std::size_t chunk, int error);
  void Write(std::uint64_t offset, std::span<const std::byte> bytes, std::function<void(int)> done);
  void Seal(OpenZone& zone);
  void FinishSeal(OpenZone& zone);
  void SealSynced(std::uint32_t number, Summary summary, bool torn);
  void Sealed(std::uint32_t number, bool torn, int error);
  void WriteSummary(std::uint32_t number, const Summary& summary, bool torn);
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
  std::uint64_t next_write_ = 0;
  std::set<std::uint64_t> outstanding_;
  std::deque<Barrier> barriers_;
  std::uint32_t sealing_ = 0;  // summaries that are not written yet
  std::uint32_t torn_ = 0;     // zones with a hole that have no summary yet
  bool unproven_ = false;      // one of them could not get it
};

}  // namespace kvcove::disklog
