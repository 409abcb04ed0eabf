// SPDX-License-Identifier: Apache-2.0
// The work of a disk's thread: it writes evicted values to the log, reads values that calls ask
// for, and applies resets and removals. Belongs to one thread.
//
//   orders (generations, removals) -> walks of removals by pattern -> reads -> demotions -> Poll
//
// A read fills a buffer of this thread, not the segment: O_DIRECT needs whole aligned blocks, with
// the record's head in them; a device that hangs keeps the buffer; and no reader may see a byte
// before all are verified. The promotion then reserves memory, copies, and commits.
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "kvcove/disklog/device.h"
#include "kvcove/disklog/log.h"
#include "kvcove/disklog/staging.h"
#include "kvcove/owner/tier/tiering.h"

namespace kvcove::owner {

// Stores in memory a value that was read from the disk. Called on the disk's thread, without a
// lock.
class Promoter {
 public:
  virtual ~Promoter() = default;
  virtual wire::LoadResult Promote(const Load& load, std::span<const std::byte> value) = 0;
  // Puts are numbered as they begin. `next`: the next number. `oldest`: the least number of the
  // puts under way, or `next`.
  struct Puts {
    std::uint64_t next = 0;
    std::uint64_t oldest = 0;
  };
  virtual Puts PutsUnderWay() = 0;
};

struct TierDiskOptions {
  std::uint64_t read_bytes = 16ULL << 20;     // of buffers in flight; a single read always may
  std::uint8_t streams = 4;                   // as the log's
  std::int64_t flush_ns = 20 * kMillisecond;  // how long a written value waits for others
};

class DiskWorker {
 public:
  // `device`: the log's. The arguments outlive the last Step, except those that the worker owns.
  DiskWorker(Tiering& tiering, std::unique_ptr<disklog::Device> device,
             std::unique_ptr<disklog::Log> log, Promoter& promoter, const Clock& clock,
             const TierDiskOptions& options = {});

  // Does a part of the work. Waits up to `wait_ns` for the disk if there is nothing else to do.
  void Step(std::int64_t wait_ns);
  // Thread-safe.
  void Wake() { log_->Wake(); }
  // Returns true if no operation is under way, so the destructor need not wait for the device.
  bool idle() const { return reads_ == 0 && device_->in_flight() == 0; }
  // Seals the log, so that the next start reads little. Call Step until stopped().
  void Stop();
  bool stopped() const { return stopped_; }
  // Returns true if the log has ended cleanly.
  bool sealed() const { return sealed_; }
  disklog::Log& log() { return *log_; }

 private:
  // A removal by pattern.
  struct Pattern {
    TierOrder order;
    std::vector<std::string> keys;      // that the walk has found and that are not removed yet
    std::size_t found = 0;              // number of matches, once all zones are read
    std::shared_ptr<std::size_t> open;  // parts that are not synced; one more until the last
    bool Matches(const disklog::LiveObject& object) const;
  };
  // A walk over all zones, for the removals by pattern that were ordered before it began.
  struct Walk {
    std::deque<Pattern> patterns;
    std::uint32_t zone = 0;
    bool reading = false;
  };

  void TakeOrders();
  void StepRemovals();
  void StepWalk();
  void StepListing();
  void EndWalk(Walk& walk);
  bool RemoveFound(Pattern& pattern);
  void StartReads();
  void StartRead(const std::shared_ptr<Load>& load, const disklog::Found& found);
  void Ended(const std::shared_ptr<Load>& load, std::span<const std::byte> buffer,
             const disklog::ReadResult& result);
  void Lost(const Load& load);
  void Demote();
  std::uint8_t StreamOf(const HandedDemotion& handed) const;
  std::optional<bool> DemoteOne(const HandedDemotion& handed);
  void SetAside(const std::string& why);
  void Postpone(const Error& refused);

  Tiering& tiering_;
  const TierDiskOptions options_;
  Promoter& promoter_;
  const Clock& clock_;
  disklog::Staging staging_;
  std::unique_ptr<disklog::Log> log_;
  // Destroyed before the log and the buffers, into which it may still write.
  std::unique_ptr<disklog::Device> device_;
  const std::uint32_t zones_;
  std::deque<TierOrder> removals_;
  std::deque<Pattern> patterns_;  // wait for the next walk
  std::shared_ptr<Walk> walk_;    // null: none is under way
  std::uint64_t reading_bytes_ = 0;
  std::size_t reads_ = 0;
  std::uint32_t read_errors_ = 0;       // in a row
  std::int64_t flush_at_ns_ = 0;        // 0: no value waits for a flush
  std::int64_t note_at_ns_ = 0;         // when the log's figures are noted again
  std::int64_t no_space_since_ns_ = 0;  // since when a removal waits for a zone; 0: none waits
  bool no_room_ = false;                // a load waits for room in the queue of some disk
  bool listing_ = false;                // moves are held for the inventory
  bool stopping_ = false;
  bool stopped_ = false;
  bool sealed_ = false;
};

}  // namespace kvcove::owner
