// SPDX-License-Identifier: Apache-2.0
// The place of each object of a disk, by the keyed hash of its slot and key. 48 bytes an object, at
// most, and no key: a get compares the whole key with the record's.
//
// Linear hashing over chunks: each insertion adds one bucket, so no operation costs more than a
// chain, and a growing table never exists twice. Not thread-safe; belongs to the Log's thread.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

#include "kvcove/disklog/format.h"

namespace kvcove::disklog {

using ScopeId = std::uint16_t;

struct IndexEntry {
  std::array<std::uint32_t, 4> hash{};
  std::uint32_t sequence_low = 0;
  std::uint16_t sequence_high = 0;
  std::uint16_t use = 0;  // Zone::use when it was written; differs: freed with its zone
  std::uint32_t zone = 0;
  std::uint32_t offset_units = 0;
  std::uint32_t record_bytes = 0;
  ScopeId scope = 0;
  RecordKind kind : 4 = RecordKind::kObject;  // tombstones only until recovery has ended
  bool pending : 1 = false;                   // not written yet, and not found
  bool forgotten : 1 = false;  // not found any more; its record remains (State::Forget)
  bool unread : 1 = false;     // the device failed to read it once
  std::uint8_t read_at = 0;    // State::ReadTime of its last read; 0: not read since it was written
  std::uint32_t next = 0;

  std::uint64_t sequence() const { return (std::uint64_t{sequence_high} << 32) | sequence_low; }
  void set_sequence(std::uint64_t sequence) {
    sequence_low = static_cast<std::uint32_t>(sequence);
    sequence_high = static_cast<std::uint16_t>(sequence >> 32);
  }
  Id128 id() const {
    return {.high = (std::uint64_t{hash[3]} << 32) | hash[2],
            .low = (std::uint64_t{hash[1]} << 32) | hash[0]};
  }
  void set_id(const Id128& id) {
    hash = {static_cast<std::uint32_t>(id.low), static_cast<std::uint32_t>(id.low >> 32),
            static_cast<std::uint32_t>(id.high), static_cast<std::uint32_t>(id.high >> 32)};
  }
};
static_assert(sizeof(IndexEntry) == 44);

inline constexpr std::uint64_t kMaxSequence = (1ULL << 48) - 1;

class DiskIndex {
 public:
  DiskIndex() { AddBucket(); }

  // Returns the entry, or null. Valid until the next Insert or Erase.
  IndexEntry* Find(const Id128& hash);
  // Inserts an entry, and sets its `next`. The hash must not be in the index.
  IndexEntry& Insert(const IndexEntry& entry);
  // Erases the entry of the hash, if there is one. Its number is used again.
  void Erase(const Id128& hash);

  std::uint64_t size() const { return size_; }
  std::uint64_t memory_bytes() const;
  // Looks at up to `steps` places, continuing where the last call ended, and erases entries for
  // which `dead(entry)`. True at the end of a round.
  template <typename Dead>
  bool Sweep(std::uint64_t steps, Dead&& dead) {
    for (; steps > 0; --steps) {
      if (++sweep_ >= used_) {
        sweep_ = 0;
        return true;
      }
      IndexEntry& entry = At(sweep_);
      if (entry.record_bytes != 0 && dead(entry)) Erase(entry.id());
    }
    return false;
  }

 private:
  static constexpr std::uint32_t kChunk = 4096;  // entries, and buckets

  IndexEntry& At(std::uint32_t number) { return (*entries_[number / kChunk])[number % kChunk]; }
  std::uint32_t& Bucket(std::uint32_t number) {
    return (*buckets_[number / kChunk])[number % kChunk];
  }
  std::uint32_t BucketOf(const IndexEntry& entry) const { return BucketOf(entry.hash[0]); }
  std::uint32_t BucketOf(std::uint32_t hash) const {
    const std::uint32_t mask = std::bit_ceil(bucket_count_) - 1;
    const std::uint32_t bucket = hash & mask;
    return bucket < bucket_count_ ? bucket : bucket & (mask >> 1);
  }
  void AddBucket();
  std::uint32_t NewNumber();

  // Number 0 is no entry: it ends a chain.
  std::vector<std::unique_ptr<std::array<IndexEntry, kChunk>>> entries_;
  std::vector<std::unique_ptr<std::array<std::uint32_t, kChunk>>> buckets_;
  std::uint32_t used_ = 1;
  std::uint32_t free_ = 0;  // head of the list of free entries, linked by `next`
  std::uint32_t bucket_count_ = 0;
  std::uint32_t sweep_ = 0;
  std::uint64_t size_ = 0;
};

}  // namespace kvcove::disklog
