// SPDX-License-Identifier: Apache-2.0
// Reads one record straight into the caller's buffer, and lets nobody see a byte of it before key,
// generation, version and checksum are verified.
#pragma once

#include <deque>

#include "kvcove/disklog/checksum.h"
#include "kvcove/disklog/state.h"

namespace kvcove::disklog {

// Why a read gave nothing. Fixed values: counters are indexed by them.
enum class ReadMiss : std::uint8_t {
  kNone = 0,      // a hit
  kAbsent = 1,    // nothing under this hash
  kReset = 2,     // its generation is over
  kOtherKey = 3,  // another key with the same hash
  kOtherVersion = 4,
  kCorrupt = 5,  // the bytes are not those that were written; the object is dropped
  kIoError = 6,  // the device could not read
  kRaced = 7,    // it went away meanwhile: removed, replaced, or its zone was freed
};
inline constexpr std::size_t kReadMisses = 8;
std::string_view ReadMissName(ReadMiss miss);

struct Found {
  Place place;
  // What a buffer for Read must hold: the record's blocks.
  std::uint64_t buffer_bytes = 0;
};

// What the caller wants to find there; it is copied.
struct Expected {
  SlotId slot = 0;
  Generation generation = 0;
  std::string_view key;
  std::uint64_t version = 0;  // 0: any
  bool asked = true;          // by a caller: the object is worth keeping. False: by the cleaner
};

struct ReadResult {
  ReadMiss miss = ReadMiss::kNone;
  int error = 0;  // errno, for kIoError
  // The value, within the buffer.
  std::uint64_t value_offset = 0;
  std::uint32_t value_bytes = 0;
  std::uint64_t version = 0;
};

class Reader {
 public:
  using Done = std::function<void(const ReadResult&)>;

  explicit Reader(State& state) : state_(state) {}

  std::optional<Found> Find(SlotId slot, Generation generation, std::string_view key);
  // `buffer`: aligned, of at least found.buffer_bytes; it is the device's until `done` has run.
  void Read(const Found& found, const Expected& expected, std::span<std::byte> buffer, Done done);
  // Verifies up to `bytes` of what was read. True when there is more.
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
    // While it is being verified.
    std::optional<Record> record;
    std::uint64_t hashed = 0;
    Checksum sum;

    std::string_view bytes() const {
      return {reinterpret_cast<const char*>(buffer.data()) + skip, place.record_bytes};
    }
  };

  // True once the outcome is known; `budget` is spent on hashing.
  bool Step(Pending& read, std::uint64_t& budget, ReadResult& result);
  ReadMiss CheckHead(Pending& read, ReadResult& result);
  // Notes that the object was read if it still is what it was.
  ReadMiss CheckStill(const Pending& read);
  void Finish(Pending& read, ReadResult result);

  State& state_;
  std::deque<Pending> verifying_;
  std::size_t in_flight_ = 0;
};

}  // namespace kvcove::disklog
