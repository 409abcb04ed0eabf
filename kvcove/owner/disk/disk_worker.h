// SPDX-License-Identifier: Apache-2.0
// What the disk's thread does: it moves evicted values into the log, reads what is asked for, and
// carries out resets and removals. Belongs to one thread.
//
//   orders (generations, removals) -> walks of removals by pattern -> reads -> demotions -> Poll
//
// A read lands in a buffer of this thread, not in the segment: O_DIRECT wants whole aligned blocks
// with the record's head in them, a device that hangs keeps what it was given, and nobody may see a
// byte before all are verified. The promotion then takes room in memory, copies, and commits.
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "kvcove/disklog/device.h"
#include "kvcove/disklog/log.h"
#include "kvcove/disklog/staging.h"
#include "kvcove/owner/disk/tiering.h"

namespace kvcove::owner {

// Puts a value that was read into memory. Called on the disk's thread, without a lock.
class Promoter {
 public:
  virtual ~Promoter() = default;
  virtual wire::LoadResult Promote(const Load& load, std::span<const std::byte> value) = 0;
  // Puts are numbered as they begin: which number is next, and the least of those under way, or
  // else the next one.
  struct Puts {
    std::uint64_t next = 0;
    std::uint64_t oldest = 0;
  };
  virtual Puts PutsUnderWay() = 0;
};

struct TierDiskOptions {
  std::uint64_t read_bytes = 16ULL << 20;     // of buffers of reads in flight; one read always may
  std::uint8_t streams = 4;                   // as the log's
  std::int64_t flush_ns = 20 * kMillisecond;  // for which a written value may wait for others
};

class DiskWorker {
 public:
  // `device` is the log's. All outlive the last Step, but what is owned here.
  DiskWorker(Tiering& tiering, std::unique_ptr<disklog::Device> device,
             std::unique_ptr<disklog::Log> log, Promoter& promoter, const Clock& clock,
             const TierDiskOptions& options = {});

  // Some of the work; waits up to `wait_ns` for the disk where there is nothing else to do.
  void Step(std::int64_t wait_ns);
  // Thread-safe.
  void Wake() { log_->Wake(); }
  // Nothing is under way: its destructor need not wait for the device.
  bool idle() const { return reads_ == 0 && device_->in_flight() == 0; }
  // Writes what the next start needs to read little. Step until stopped().
  void Stop();
  bool stopped() const { return stopped_; }
  disklog::Log& log() { return *log_; }

 private:
  struct Walk {
    TierOrder order;
    std::uint32_t zone = 0;
    bool reading = false;
    bool held = false;              // no object moves to another zone meanwhile
    std::vector<std::string> keys;  // that match, and are not removed yet
    std::size_t found = 0;          // once all zones are read: how many matched
    std::shared_ptr<std::size_t>
        open;  // parts that are not synced yet, and one more until the last
  };

  void TakeOrders();
  void StepRemovals();
  void StepWalk();
  void StepListing();
  void RemoveFound(Walk& walk);
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
  // Destroyed before both, in whose memory it may still write.
  std::unique_ptr<disklog::Device> device_;
  const std::uint32_t zones_;
  std::deque<TierOrder> removals_;
  std::deque<std::shared_ptr<Walk>> walks_;
  std::uint64_t reading_bytes_ = 0;
  std::size_t reads_ = 0;
  std::uint32_t read_errors_ = 0;       // one after the other
  std::int64_t flush_at_ns_ = 0;        // 0: nothing waits for it
  std::int64_t note_at_ns_ = 0;         // when figures are told again
  std::int64_t no_space_since_ns_ = 0;  // for which a removal waits; 0: none does
  bool no_room_ = false;                // for what waits to be read, at some disk
  bool listing_ = false;                // moves are held for the inventory
  bool stopping_ = false;
  bool stopped_ = false;
};

}  // namespace kvcove::owner
