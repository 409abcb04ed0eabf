// SPDX-License-Identifier: Apache-2.0
// Brings a disk's objects back: headers and trailers of all zones first, then zones without a
// summary record by record, then summaries. Values are not read.
//
//   reading headers -> zones that may hold tombstones -> serving: the other zones -> recovered
//
// While it serves, what is found is right: every tombstone is known. Objects of zones that were not
// read yet are misses. A zone that had no summary gets it, so that the next start does not scan it.
#pragma once

#include <vector>

#include "kvcove/disklog/summaries.h"
#include "kvcove/disklog/writer.h"

namespace kvcove::disklog {

struct RecoveryCounters {
  std::uint64_t zones = 0;         // that held something
  std::uint64_t scanned = 0;       // of these: record by record
  std::uint64_t damaged = 0;       // zones whose summary was damaged; scanned, too
  std::uint64_t unreadable = 0;    // zones that the device could not read; set aside
  std::uint64_t objects = 0;       // found under a generation that is not over
  std::uint64_t dead_objects = 0;  // under one that is, removed, or replaced
  std::uint64_t read_bytes = 0;
};

class Recovery {
 public:
  Recovery(State& state, Writer& writer) : state_(state), writer_(writer) {}
  // Reads until all is done; the device's completions drive it.
  void Start();
  bool serving() const { return serving_; }
  bool done() const { return done_; }
  const RecoveryCounters& counters() const { return counters_; }

 private:
  struct Ends {
    AlignedBuffer header{kBlockBytes};
    AlignedBuffer trailer{kBlockBytes};
    int waiting = 2;
    int error = 0;
  };
  void ReadEnds();
  void TakeEnds(std::uint32_t zone, const Ends& ends);
  void Order();
  void ReadZones();
  void Begin(std::uint32_t zone);
  void TakeScan(std::uint32_t zone, ZoneContents contents);
  void Take(std::uint32_t zone, const Summary& summary);
  void End();

  State& state_;
  Writer& writer_;
  std::uint32_t next_end_ = 0;
  std::uint32_t ends_in_flight_ = 0;
  std::vector<std::uint32_t> queue_;  // zones to read, in order
  std::size_t next_ = 0;
  std::size_t before_serving_ = 0;  // so many of the queue come before `serving`
  std::size_t finished_of_these_ = 0;
  std::size_t in_flight_ = 0;
  std::size_t scans_ = 0;  // of these in flight: they hold a zone's memory
  bool serving_ = false;
  bool done_ = false;
  RecoveryCounters counters_;
};

}  // namespace kvcove::disklog
