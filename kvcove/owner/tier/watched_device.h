// SPDX-License-Identifier: Apache-2.0
// Notes how long a disk's operations have been under way, by kind: reads that complete say nothing
// about writes that hang.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "kvcove/disklog/device.h"

namespace kvcove::owner {

enum class DiskOperation : std::uint8_t { kRead, kWrite, kSync };
inline constexpr std::array kDiskOperations = {DiskOperation::kRead, DiskOperation::kWrite,
                                               DiskOperation::kSync};

// The oldest operation of each kind. Time is the sum of Advance's arguments, so a pause of the
// whole process makes no operation old. Thread-safe: one thread calls Advance, the device's calls
// NoteOldest. Relaxed: each value is used alone, and one that is a tick late does no harm.
class OperationAges {
 public:
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();

  void Advance(std::int64_t by_ns) { now_ns_.fetch_add(by_ns, std::memory_order_relaxed); }
  std::int64_t now_ns() const { return now_ns_.load(std::memory_order_relaxed); }
  // Notes when the oldest operation began. kNone: no operation is under way.
  void NoteOldest(DiskOperation kind, std::int64_t begun_ns) {
    oldest_ns_[Index(kind)].store(begun_ns, std::memory_order_relaxed);
  }
  // Returns the age of the oldest operation; 0 if none is under way.
  std::int64_t AgeNs(DiskOperation kind) const {
    const std::int64_t begun_ns = oldest_ns_[Index(kind)].load(std::memory_order_relaxed);
    return begun_ns == kNone ? 0 : now_ns() - begun_ns;
  }

 private:
  static std::size_t Index(DiskOperation kind) { return static_cast<std::size_t>(kind); }
  std::atomic<std::int64_t> now_ns_{0};
  std::array<std::atomic<std::int64_t>, kDiskOperations.size()> oldest_ns_{kNone, kNone, kNone};
};

// A device that notes the ages of its operations. Belongs to one thread, like every Device.
class WatchedDevice final : public disklog::Device {
 public:
  WatchedDevice(std::unique_ptr<disklog::Device> device, std::shared_ptr<OperationAges> ages)
      : ages_(std::move(ages)), device_(std::move(device)) {}
  // Clears the ages while the file is still locked: the next device notes its own from then on.
  ~WatchedDevice() override {
    for (const DiskOperation kind : kDiskOperations) ages_->NoteOldest(kind, OperationAges::kNone);
  }
  WatchedDevice(const WatchedDevice&) = delete;
  WatchedDevice& operator=(const WatchedDevice&) = delete;

  std::uint64_t size_bytes() const override { return device_->size_bytes(); }
  std::string kind() const override { return device_->kind(); }
  void Read(std::uint64_t offset, std::span<std::byte> into, Done done) override {
    device_->Read(offset, into, Watch(DiskOperation::kRead, std::move(done)));
  }
  void Write(std::uint64_t offset, std::span<const std::byte> from, Done done) override {
    device_->Write(offset, from, Watch(DiskOperation::kWrite, std::move(done)));
  }
  void Sync(Done done) override { device_->Sync(Watch(DiskOperation::kSync, std::move(done))); }
  std::size_t Poll(std::int64_t wait_ns) override { return device_->Poll(wait_ns); }
  void Wake() override { device_->Wake(); }
  std::size_t in_flight() const override { return device_->in_flight(); }
  void Register(std::span<std::byte> memory) override { device_->Register(memory); }

 private:
  // Operations of one kind, in the order of their start; those after the first may have ended.
  struct UnderWay {
    struct One {
      std::int64_t begun_ns = 0;
      bool ended = false;
    };
    std::deque<One> all;
    std::uint64_t first = 0;  // the number of all.front()
  };

  Done Watch(DiskOperation kind, Done done) {
    UnderWay& of = under_way_[static_cast<std::size_t>(kind)];
    const std::uint64_t number = of.first + of.all.size();
    of.all.push_back({.begun_ns = ages_->now_ns()});
    if (of.all.size() == 1) ages_->NoteOldest(kind, of.all.front().begun_ns);
    return [this, kind, number, done = std::move(done)](int error) {
      End(kind, number);
      done(error);
    };
  }
  void End(DiskOperation kind, std::uint64_t number) {
    UnderWay& of = under_way_[static_cast<std::size_t>(kind)];
    of.all[number - of.first].ended = true;
    if (number != of.first) return;
    while (!of.all.empty() && of.all.front().ended) {
      of.all.pop_front();
      ++of.first;
    }
    ages_->NoteOldest(kind, of.all.empty() ? OperationAges::kNone : of.all.front().begun_ns);
  }

  const std::shared_ptr<OperationAges> ages_;
  std::array<UnderWay, kDiskOperations.size()> under_way_;
  const std::unique_ptr<disklog::Device> device_;  // destroyed first: it may run completions
};

}  // namespace kvcove::owner
