// SPDX-License-Identifier: Apache-2.0
// A load or a save of one rank, as its role queues and runs it. Only the role's own files include
// it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kvcove/connector/worker.h"

namespace kvcove::connector {

// One object: a part of a chunk.
struct WorkerRole::Item {
  std::uint32_t place = 0;  // in the order's chunks
  std::string key;
  std::string after;
  Hints hints;
  std::uint64_t bytes = 0;
  const Shard* shard = nullptr;     // of the job's shards
  std::span<MutableBuffer> pieces;  // while its batch runs
};

// Its fields are written by the thread that runs it, and by others only while it is queued.
struct WorkerRole::Job {
  JobId id = 0;
  bool load = false;
  bool sync = false;
  std::string request;
  std::string version;
  std::string adapter;  // its digest
  Token token;
  std::vector<ChunkPlace> chunks;
  RequestHints hints;
  bool goes_on = false;
  std::shared_ptr<const Shards> shards;
  bool prepared = false;  // it has its items
  std::vector<Item> items;
  std::vector<MutableBuffer> pieces;  // of the batch that runs
  std::atomic<bool> cancelled{false};
  std::int64_t since_ns = 0;        // it could begin
  std::size_t next = 0;             // item
  std::set<std::uint32_t> bad;      // places that failed
  std::set<std::uint32_t> on_disk;  // of a save: places that were there, on a disk alone
  bool stale = false;
  Counters counters;

  std::uint64_t objects() const { return prepared ? items.size() : chunks.size(); }
  void FailAll() {
    for (std::uint32_t i = 0; i < chunks.size(); ++i) bad.insert(i);
  }
  // What has not been moved yet.
  void FailRest() {
    if (!prepared) FailAll();
    for (; next < items.size(); ++next) bad.insert(items[next].place);
  }
};

}  // namespace kvcove::connector
