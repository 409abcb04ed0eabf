// SPDX-License-Identifier: Apache-2.0
// Reads records straight into the buffers of callers. A read reports a value only after key, slot,
// generation, version and checksum are verified. Belongs to the Log's thread.
#pragma once

#include <deque>

#include "kvcove/disklog/checksum.h"
#include "kvcove/disklog/state.h"

namespace kvcove::disklog {

// Why a read returned no value. Fixed values: counters are indexed by them.
enum class ReadMiss : std::uint8_t {
  kNone = 0,      // a hit
  kAbsent = 1,    // no object has this hash
  kReset = 2,     // its generation has ended
  kOtherKey = 3,  // another key has the same hash
  kOtherVersion = 4,
  kCorrupt = 5,  // the bytes are not those that were written; the object is forgotten
  kIoError = 6,  // the device could not read; after the second time the object is forgotten
  kRaced = 7,    // it ended meanwhile: removed, replaced, or its zone was freed
};
inline constexpr std::size_t kReadMisses = 8;
std::string_view ReadMissName(ReadMiss miss);

struct Found {
  Place place;
  // Size of the record's blocks, which a buffer for Read needs at least.
  std::uint64_t buffer_bytes = 0;
};

// The object that the caller expects at a place. Read copies it.
struct Expected {
  SlotId slot = 0;
  Generation generation = 0;
  std::string_view key;
  std::uint64_t version = 0;  // 0: any
  bool asked = true;          // counts as a use of the object; false for the cleaner's reads
};

struct ReadResult {
  ReadMiss miss = ReadMiss::kNone;
  int error = 0;  // errno, for kIoError
  // Place of the value within the buffer.
  std::uint64_t value_offset = 0;
  std::uint32_t value_bytes = 0;
  std::uint64_t version = 0;
};

class Reader {
 public:
  using Done = std::function<void(const ReadResult&)>;

  explicit Reader(State& state) : state_(state) {}

  // Returns the place of a written object of the current generation. Compares hashes only.
  std::optional<Found> Find(SlotId slot, Generation generation, std::string_view key);
  // Begins a read. `buffer` is aligned, has at least found.buffer_bytes, and must stay untouched
  // until `done` has run. `done` runs in Verify; or in this call, with kRaced, if the zone was
  // freed or the buffer is too small.
  void Read(const Found& found, const Expected& expected, std::span<std::byte> buffer, Done done);
  // Verifies up to `bytes` of the records that the device has read. True: there is more.
  bool Verify(std::uint64_t bytes);
  std::size_t in_flight() const { return in_flight_; }

 private:
  struct Pending {
    Place place;
    SlotId slot = 0;
    Generation generation = 0;
    std::uint64_t version = 0;
    bool asked = true;
    std::string key;
    std::span<std::byte> buffer;
    std::uint64_t skip = 0;  // bytes of the buffer before the record
    Done done;
    int error = 0;
    // State of the verification.
    std::optional<Record> record;
    std::uint64_t hashed = 0;
    Checksum sum;

    std::string_view bytes() const {
      return {reinterpret_cast<const char*>(buffer.data()) + skip, place.record_bytes};
    }
  };

  // Verifies a slice, and subtracts the hashed bytes from `budget`. True: `result` is final.
  bool Step(Pending& read, std::uint64_t& budget, ReadResult& result);
  ReadMiss CheckHead(Pending& read, ReadResult& result);
  // Checks that the object has not ended meanwhile, and notes the time of the read.
  ReadMiss CheckStill(const Pending& read);
  void Finish(Pending& read, ReadResult result);

  State& state_;
  std::deque<Pending> verifying_;
  std::size_t in_flight_ = 0;
};

}  // namespace kvcove::disklog
