// SPDX-License-Identifier: Apache-2.0
// A disk for tests. At a loss of power, unsynced writes may be lost, torn or reordered. The disk
// can also flip bits, misdirect writes, lie about syncs, fail and hang. The seed decides all of it.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "kvcove/base/random.h"
#include "kvcove/disklog/aligned.h"
#include "kvcove/disklog/device.h"
#include "kvcove/disklog/format.h"

namespace kvcove::disklog {

class FakeDevice final : public Device {
 public:
  struct Faults {
    bool lies = false;            // a sync succeeds and syncs nothing
    std::uint64_t misdirect = 0;  // one write in this many lands in another block; 0: none
    int write_error = 0;          // errno of every write and sync from now on
    int sync_error = 0;           // errno of every sync from now on
    bool lands = false;           // a write that fails has written its bytes all the same
    int read_error = 0;           // errno of every read from now on
    // Reads, or writes, that touch these bytes fail.
    std::uint64_t bad_from = 0;
    std::uint64_t bad_to = 0;
    bool bad_reads = false;
    bool bad_writes = false;
    // Not 0: bytes are counted from the beginning of each zone of this size.
    std::uint64_t bad_in_each = 0;
    bool hangs = false;            // nothing completes while true
    bool writes_hang = false;      // no write and no sync completes while true
    std::uint64_t cut_at = ~0ULL;  // power is off from this write or sync on, counted from 1
  };

  FakeDevice(std::uint64_t size_bytes, std::uint64_t seed)
      : random_(seed), seen_(size_bytes), synced_(size_bytes) {}
  // Makes a disk with these bytes, all of them synced.
  FakeDevice(std::vector<std::byte> image, std::uint64_t seed)
      : random_(seed), seen_(image), synced_(std::move(image)) {}

  Faults faults;
  std::function<void()> on_poll;  // called at the beginning of each poll

  std::uint64_t size_bytes() const override { return seen_.size(); }
  std::string kind() const override { return "fake"; }

  void Read(std::uint64_t offset, std::span<std::byte> into, Done done) override {
    ++reads_;
    Add({.read = true, .offset = offset, .into = into, .done = std::move(done)});
  }
  void Write(std::uint64_t offset, std::span<const std::byte> from, Done done) override {
    if (++changes_ >= faults.cut_at) off_ = true;
    if (faults.misdirect != 0 && random_.OneIn(faults.misdirect)) {
      offset = random_.Below((seen_.size() - from.size()) / kBlockBytes + 1) * kBlockBytes;
    }
    Add({.write = true,
         .offset = offset,
         .data = {from.begin(), from.end()},
         .done = std::move(done)});
  }
  void Sync(Done done) override {
    if (++changes_ >= faults.cut_at) off_ = true;
    Add({.sync_of = unsynced_.size(), .done = std::move(done)});
  }

  // Completes one operation in flight, chosen at random.
  std::size_t Poll(std::int64_t wait_ns) override {
    waits_ns_ = wait_ns;
    if (on_poll) on_poll();
    if (off_ || faults.hangs || operations_.empty()) return 0;
    std::size_t index = random_.Below(operations_.size());
    if (faults.writes_hang) {
      const auto read = std::ranges::find_if(operations_, &Operation::read);
      if (read == operations_.end()) return 0;
      index = static_cast<std::size_t>(read - operations_.begin());
    }
    Operation operation = std::move(operations_[index]);
    operations_.erase(operations_.begin() + static_cast<std::ptrdiff_t>(index));
    operation.done(Apply(operation));
    return 1;
  }
  void Wake() override {}
  // 0 if the power is off: nothing completes any more.
  std::size_t in_flight() const override { return off_ ? 0 : operations_.size(); }

  bool off() const { return off_; }
  std::uint64_t changes() const { return changes_; }
  std::uint64_t reads() const { return reads_; }
  // Returns the wait that the last Poll was given.
  std::int64_t waits_ns() const { return waits_ns_; }
  std::span<std::byte> bytes() { return seen_; }

  // Returns the disk's contents if power is lost now: for each write since the last sync, completed
  // or not, all, none, or some of its blocks.
  std::vector<std::byte> CutPower() {
    std::vector<std::byte> image = synced_;
    for (const Operation& operation : unsynced_) Tear(image, operation);
    for (const Operation& operation : operations_) {
      if (operation.write) Tear(image, operation);
    }
    return image;
  }
  // Returns the disk's contents if the process is killed now: all completed writes, and for each
  // write in flight all, none, or some of its blocks.
  std::vector<std::byte> Abandon() {
    std::vector<std::byte> image = seen_;
    for (const Operation& operation : operations_) {
      if (operation.write) Tear(image, operation);
    }
    return image;
  }
  void FlipBit(std::uint64_t byte, unsigned bit) {
    seen_[byte] ^= std::byte{1} << (bit % 8);
    synced_[byte] = seen_[byte];
  }

 private:
  struct Operation {
    bool read = false;
    bool write = false;
    std::uint64_t offset = 0;
    std::span<std::byte> into;
    std::vector<std::byte> data;
    std::size_t sync_of = 0;  // number of completed writes that a sync covers
    Done done;
  };

  void Add(Operation operation) {
    // The caller keeps the memory alive, also of a lost operation, which never completes.
    operations_.push_back(std::move(operation));
  }

  bool Bad(const Operation& operation, std::size_t size) const {
    std::uint64_t at = operation.offset;
    if (faults.bad_in_each != 0) {
      if (at < kZonesStart) return false;
      at = (at - kZonesStart) % faults.bad_in_each;
    }
    return at < faults.bad_to && at + size > faults.bad_from;
  }

  int Apply(Operation& operation) {
    if (operation.read && faults.bad_reads && Bad(operation, operation.into.size())) return EIO;
    if (operation.write && faults.bad_writes && Bad(operation, operation.data.size())) return EIO;
    if (operation.read) {
      if (faults.read_error != 0) return faults.read_error;
      std::memcpy(operation.into.data(), seen_.data() + operation.offset, operation.into.size());
      return 0;
    }
    if (faults.write_error != 0) {
      if (operation.write && faults.lands) {
        Copy(seen_, operation.offset, operation.data);
        Copy(synced_, operation.offset, operation.data);
      }
      return faults.write_error;
    }
    if (!operation.write && faults.sync_error != 0) return faults.sync_error;
    if (operation.write) {
      Copy(seen_, operation.offset, operation.data);
      unsynced_.push_back({.write = true,
                           .offset = operation.offset,
                           .data = std::move(operation.data),
                           .done = {}});
      return 0;
    }
    if (faults.lies) return 0;
    const std::size_t covered = std::min(operation.sync_of, unsynced_.size());
    for (std::size_t i = 0; i < covered; ++i) {
      Copy(synced_, unsynced_[i].offset, unsynced_[i].data);
    }
    unsynced_.erase(unsynced_.begin(), unsynced_.begin() + static_cast<std::ptrdiff_t>(covered));
    // Other syncs in flight also covered these, and their counts follow the shorter list.
    for (Operation& other : operations_) other.sync_of -= std::min(other.sync_of, covered);
    return 0;
  }

  static void Copy(std::vector<std::byte>& image, std::uint64_t offset,
                   std::span<const std::byte> data) {
    std::memcpy(image.data() + offset, data.data(), data.size());
  }

  void Tear(std::vector<std::byte>& image, const Operation& operation) {
    const std::uint64_t fate = random_.Below(3);
    for (std::size_t at = 0; at < operation.data.size(); at += kBlockBytes) {
      if (fate == 0 || (fate == 1 && random_.OneIn(2))) continue;
      std::memcpy(image.data() + operation.offset + at, operation.data.data() + at,
                  std::min<std::size_t>(kBlockBytes, operation.data.size() - at));
    }
  }

  Random random_;
  std::vector<std::byte> seen_;    // contents that a read returns
  std::vector<std::byte> synced_;  // contents that survive any loss of power
  std::vector<Operation> unsynced_;
  std::vector<Operation> operations_;
  std::uint64_t changes_ = 0;
  std::uint64_t reads_ = 0;
  std::int64_t waits_ns_ = 0;
  bool off_ = false;
};

}  // namespace kvcove::disklog
