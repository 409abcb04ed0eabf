// SPDX-License-Identifier: Apache-2.0
#include "kvcove/disklog/disk_index.h"

namespace kvcove::disklog {

IndexEntry* DiskIndex::Find(const Id128& hash) {
  IndexEntry wanted;
  wanted.set_id(hash);
  for (std::uint32_t at = Bucket(BucketOf(wanted)); at != 0; at = At(at).next) {
    if (At(at).hash == wanted.hash) return &At(at);
  }
  return nullptr;
}

IndexEntry& DiskIndex::Insert(const IndexEntry& entry) {
  if (size_ >= bucket_count_) AddBucket();
  const std::uint32_t number = NewNumber();
  std::uint32_t& bucket = Bucket(BucketOf(entry));
  At(number) = entry;
  At(number).next = bucket;
  bucket = number;
  ++size_;
  return At(number);
}

void DiskIndex::Erase(const Id128& hash) {
  IndexEntry wanted;
  wanted.set_id(hash);
  for (std::uint32_t* link = &Bucket(BucketOf(wanted)); *link != 0; link = &At(*link).next) {
    const std::uint32_t number = *link;
    IndexEntry& entry = At(number);
    if (entry.hash != wanted.hash) continue;
    *link = entry.next;
    entry = IndexEntry();
    entry.next = free_;
    free_ = number;
    --size_;
    return;
  }
}

std::uint64_t DiskIndex::memory_bytes() const {
  return (entries_.size() * kChunk * sizeof(IndexEntry)) +
         (buckets_.size() * kChunk * sizeof(std::uint32_t));
}

std::uint32_t DiskIndex::NewNumber() {
  if (free_ != 0) {
    const std::uint32_t number = free_;
    free_ = At(number).next;
    return number;
  }
  while (used_ / kChunk >= entries_.size()) {
    entries_.push_back(std::make_unique<std::array<IndexEntry, kChunk>>());
  }
  return used_++;
}

// Adds a bucket, and divides the entries of its source: with one more bucket, only hashes of that
// source can fall into the new one.
void DiskIndex::AddBucket() {
  if (bucket_count_ / kChunk >= buckets_.size()) {
    buckets_.push_back(std::make_unique<std::array<std::uint32_t, kChunk>>());
  }
  const std::uint32_t added = bucket_count_++;
  if (added == 0) {
    entries_.push_back(std::make_unique<std::array<IndexEntry, kChunk>>());
    return;
  }
  // The source: the new bucket's number without its highest bit, as BucketOf has it.
  const std::uint32_t source = added & ((std::bit_ceil(bucket_count_) - 1) >> 1);
  std::uint32_t at = Bucket(source);
  Bucket(source) = 0;
  while (at != 0) {
    IndexEntry& entry = At(at);
    const std::uint32_t next = entry.next;
    std::uint32_t& bucket = Bucket(BucketOf(entry));
    entry.next = bucket;
    bucket = at;
    at = next;
  }
}

}  // namespace kvcove::disklog
