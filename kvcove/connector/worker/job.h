// SPDX-License-Identifier: Apache-2.0
// A load or a save of one rank, as its role queues and runs it, and one batch of a job between host
// and device. Values without I/O; the roles' threads share them by the rules below.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/base/log.h"
#include "kvcove/connector/plan.h"
#include "kvcove/connector/shape.h"
#include "kvcove/connector/worker/in_place.h"
#include "kvcove/connector/worker/shards.h"
#include "kvcove/transport/device_queue.h"

namespace kvcove::connector {

// The outcome of values.
struct Tally {
  std::set<std::uint32_t> bad;      // places that failed
  std::set<std::uint32_t> on_disk;  // for a save: places that the pool has on a disk alone
  Counters counters;
  void Add(const Tally& other) {
    bad.insert(other.bad.begin(), other.bad.end());
    on_disk.insert(other.on_disk.begin(), other.on_disk.end());
    counters.Add(other.counters);
  }
};

// The mover that runs the job writes its fields, and so its own tally, without the lock; while the
// job is queued, the holder of the role's lock does. The role's lock always guards the fields at
// the end, which kvcove-device writes, too.
struct Job : Tally, std::enable_shared_from_this<Job> {
  // One object: a part of a chunk.
  struct Item {
    std::uint32_t place = 0;  // in the order's chunks
    std::string_view key;     // in the job's text
    std::string_view after;
    Hints hints;
    std::uint64_t bytes = 0;
    const Shard* shard = nullptr;     // of the job's shards
    std::span<MutableBuffer> pieces;  // while its batch runs
  };

  JobId id = 0;
  bool load = false;
  bool sync = false;
  std::string request;
  std::string version;
  std::string adapter;  // its digest
  Token token;
  std::vector<ChunkPlace> chunks;
  JobId behind = 0;  // a save: see SaveOrder
  RequestHints hints;
  bool goes_on = false;
  std::shared_ptr<const Shards> shards;
  bool prepared = false;  // it has its items
  std::vector<Item> items;
  std::string text;                    // the keys of all items
  std::vector<MutableBuffer> pieces;   // those of the batch that runs
  std::atomic<bool> cancelled{false};  // set by any thread; only stops work, and orders no memory
  std::int64_t since_ns = 0;           // when it could begin
  std::uint64_t number = 0;            // in the order in which jobs could begin
  std::size_t next = 0;                // first item that has not been moved
  std::shared_ptr<const transport::DeviceMark> after;  // for a load to a device
  std::shared_ptr<const std::atomic<std::int64_t>>
      reached_ns;  // when the stream reached `after`; 0: not yet
  // For a save from a device: items before `asked` were looked up, and `wanted` are those of the
  // last batch that are to be stored.
  std::size_t asked = 0;
  std::vector<std::size_t> wanted;

  // ---- with the role's lock
  struct Part {
    transport::DeviceTicket ticket = 0;
    std::uint32_t number = 0;  // of layer_parts
  };
  // Time in which movers or the device moved bytes; where they overlap it counts once.
  std::int64_t busy_ns = 0;
  std::int64_t busy_until_ns = 0;
  bool over = false;                  // its mover is done; it ends with its last batch
  std::uint32_t in_flight = 0;        // batches on the device, or fetched and not stored yet
  Tally landed;                       // of the batches that are over
  std::vector<Part> parts;            // for a synchronous load: tickets not waited for yet
  std::uint32_t submitted_parts = 0;  // parts whose tickets are all in `parts`, or taken
  std::set<std::uint32_t> told;       // places that were reported as failed before the job's end

  // Make the job of an order, and move its fields out of it.
  static std::shared_ptr<Job> Of(LoadOrder& order, std::shared_ptr<const Shards> shards);
  static std::shared_ptr<Job> Of(SaveOrder& order, std::shared_ptr<const Shards> shards);

  // Makes the job's items. The mover of its first batch calls it, and not Begin or FinishStep: the
  // engine's thread waits for those. Each save names the `priority`.
  void Prepare(const EngineShape& shape, const Keys& keys, const Rank& rank,
               NamespacePriority priority);
  // Sets the pieces of items [from, to): the memory of their blocks.
  void Place(std::size_t from, std::size_t to);
  // Returns the end of the batch that begins at `next`; it has one item at least.
  std::size_t BatchEnd(std::uint64_t batch_bytes) const;
  // Logs from which tiers the job was loaded, in the words of the drop-in's log.
  void SayTiers(LinesAfterLock& lines) const;

  // Counts a time in which bytes were moved. Times are added in the order of their ends.
  void AddBusy(std::int64_t from_ns, std::int64_t to_ns) {
    busy_ns += std::max<std::int64_t>(to_ns - std::max(from_ns, busy_until_ns), 0);
    busy_until_ns = std::max(busy_until_ns, to_ns);
  }
  std::uint64_t objects() const { return prepared ? items.size() : chunks.size(); }
  bool device() const { return shards->device(); }
  static std::vector<std::size_t> Range(std::size_t from, std::size_t to) {
    std::vector<std::size_t> items(to - from);
    std::iota(items.begin(), items.end(), from);
    return items;
  }
  std::uint64_t BytesOf(std::span<const std::size_t> which) const {
    std::uint64_t bytes = 0;
    for (const std::size_t i : which) bytes += items[i].bytes;
    return bytes;
  }
  // Counts a value that was loaded.
  static void CountLoaded(Tally& tally, const Item& item, Tier tier);
  // Drops values of a save that is cancelled: they are not stored, and are reported as missing.
  void DropItems(Tally& tally, std::span<const std::size_t> which) const;
  void FailAll() {
    for (std::uint32_t i = 0; i < chunks.size(); ++i) bad.insert(i);
  }
  // Returns whether the rest of a load is not worth moving: with full attention, chunks are of use
  // only up to the first that failed.
  bool Hopeless(const EngineShape& shape) const { return load && !bad.empty() && shape.all_full(); }
  // Fails the items that have not been moved yet.
  void FailRest() {
    if (!prepared) FailAll();
    for (; next < items.size(); ++next) bad.insert(items[next].place);
  }

 private:
  void AddItems(std::uint32_t place, const Hints& chunk_hints);
};

// A batch between host and device: its values, in order, and how far each has been moved.
struct Batch {
  std::shared_ptr<Job> job;
  struct Value {
    std::size_t item = 0;
    Tier tier = Tier::kUnknown;              // for a load
    std::vector<std::span<std::byte>> host;  // its pieces of pinned memory
    std::size_t number = 0;                  // in place: index in the loan, or the reservation
    bool voided = false;                     // for a load: the loan was not valid to the end
  };
  std::vector<Value> values;
  std::vector<std::size_t> Items() const {
    std::vector<std::size_t> items;
    for (const Value& value : values) items.push_back(value.item);
    return items;
  }
  // Makes the copies, by part. Only loads for which the stream waits have several parts.
  void PlanCopies(std::uint32_t layer_parts);

  std::int64_t submitted_ns = 0;
  std::shared_ptr<const transport::HostMemory> host;
  std::shared_ptr<InPlaceMemory> in_place;  // `host`, where that is memory of the pool
  std::vector<std::vector<transport::DeviceCopy>> copies;  // by part
  // With the role's lock.
  std::uint32_t parts_left = 0;
  Status status;
  Tally tally;
};

// Cuts pinned memory into values, whatever extents it has.
class HostCursor {
 public:
  explicit HostCursor(std::span<const std::span<std::byte>> extents) : extents_(extents) {}
  std::vector<std::span<std::byte>> Take(std::uint64_t bytes) {
    std::vector<std::span<std::byte>> pieces;
    while (bytes > 0) {
      const std::span<std::byte> extent = extents_[at_].subspan(offset_);
      const std::uint64_t count = std::min<std::uint64_t>(bytes, extent.size());
      pieces.push_back(extent.subspan(0, count));
      bytes -= count;
      offset_ += count;
      if (offset_ < extents_[at_].size()) continue;
      ++at_;
      offset_ = 0;
    }
    return pieces;
  }

 private:
  std::span<const std::span<std::byte>> extents_;
  std::size_t at_ = 0;
  std::uint64_t offset_ = 0;
};

}  // namespace kvcove::connector
