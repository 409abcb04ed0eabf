// SPDX-License-Identifier: Apache-2.0
// Restores the index of a disk. Reads the headers and trailers of all zones first, then zones
// without a summary record by record, then the summaries of the others, without their keys.
//
//   reading headers -> zones with tombstones -> zones without a summary
//                   -> serving: the other zones -> recovered
//
// An object is found only after every tombstone is known, so no removed object is found while the
// recovery still runs. Objects of zones that are not read yet are misses. A zone without a summary
// gets one, so that the next start does not scan it.
//
// A zone of which something is not taken into the index is doomed: its header is damaged, the
// device cannot read it, `Presence` has no room for its objects, or all numbers of scopes are in
// use. At a later start the same bytes may be sound, and their keys may have been stored again by
// then. So Log::recovered waits until such zones are freed.
//
// Each tombstone lies in two zones. A needed one of which only one copy is found is written twice
// again, or the next damage would restore what it covers: its twin was lost with a zone, or a crash
// came before both were durable. If both copies of some may be lost, nobody knows what was removed,
// and the disk starts empty.
//
// Belongs to the Log's thread.
#pragma once

#include <array>
#include <unordered_map>
#include <vector>

#include "kvcove/disklog/summaries.h"
#include "kvcove/disklog/writer.h"

namespace kvcove::disklog {

struct RecoveryCounters {
  std::uint64_t zones = 0;         // zones in use
  std::uint64_t scanned = 0;       // zones that were read record by record
  std::uint64_t damaged = 0;       // zones whose summary was damaged; also in `scanned`
  std::uint64_t unreadable = 0;    // zones that the device could not read; freed
  std::uint64_t lost = 0;          // zones of which nothing is known; freed
  std::uint64_t objects = 0;       // objects that were the newest of their key when they were read
  std::uint64_t dead_objects = 0;  // objects that had ended or were replaced; also tombstones
  std::uint64_t read_bytes = 0;
};

class Recovery {
 public:
  Recovery(State& state, Writer& writer) : state_(state), writer_(writer) {}
  // Begins; the device's completions continue it until done().
  void Start();
  bool serving() const { return serving_; }
  bool done() const { return done_; }
  const RecoveryCounters& counters() const { return counters_; }

 private:
  enum Stage : std::size_t { kTombstones, kScanned, kOthers, kStages };
  // First and last block of a zone while they are being read.
  struct Ends {
    AlignedBuffer header{kBlockBytes};
    AlignedBuffer trailer{kBlockBytes};
    int waiting = 2;
    int header_error = 0;
    int trailer_error = 0;
  };
  void ReadEnds();
  void TakeEnds(std::uint32_t zone, const Ends& ends);
  // Decides the order of the zones once all ends are read.
  void Order();
  // Reads zones in that order, until each is read.
  void ReadZones();
  // Dooms a zone of which nothing is known. `stream`: of its header, if that is sound.
  void Lose(std::uint32_t zone, std::optional<std::uint8_t> stream);
  // Called once all zones with tombstones are read, and before any other zone is.
  void CheckTombstones();
  void NoteTombstone(std::uint32_t zone, ScopeId scope, const SummaryEntry& entry);
  // Has the cleaner write needed tombstones twice again that have one copy.
  void MendTombstones();
  void Begin(std::uint32_t zone);
  void TakeScan(std::uint32_t zone, ZoneContents contents);
  void TakeObject(std::uint32_t zone, IndexEntry entry);
  void Take(std::uint32_t zone, const Summary& summary);
  void End();

  State& state_;
  Writer& writer_;
  std::uint32_t next_end_ = 0;
  std::uint32_t ends_in_flight_ = 0;
  std::vector<std::uint32_t> queue_;  // zones to read, in order
  std::size_t next_ = 0;
  std::array<std::size_t, kStages> stage_ends_{};  // in the queue
  std::size_t finished_ = 0;                       // zones of the queue that have been read
  std::size_t in_flight_ = 0;                      // zones
  std::size_t scans_ = 0;  // zones in flight that are scanned, each in memory whole
  // Zones that are lost and may have had tombstones: of the first stream, of the second, of either.
  std::uint32_t lost_first_ = 0;
  std::uint32_t lost_second_ = 0;
  std::uint32_t lost_tombstones_ = 0;
  bool serving_ = false;
  bool done_ = false;
  struct Tombstone {
    std::uint64_t sequence = 0;
    std::uint64_t covers = 0;
    std::uint32_t zone = 0;  // of the copy that was read last
    ScopeId scope = 0;
    bool first = false;  // a copy in a zone of the first stream was found
    bool second = false;
  };
  // The tombstone with the highest sequence, by what it covers (State::CoveredBy).
  std::unordered_map<std::uint64_t, Tombstone> tombstones_;
  RecoveryCounters counters_;
};

}  // namespace kvcove::disklog
