// SPDX-License-Identifier: Apache-2.0
// A device for tests whose memory is the host's, moved by the processor when somebody looks at a
// ticket: the smallest backend there is. Time is an input: how far the engine's streams are, and
// whether copies go on. Thread-safe.
#pragma once

#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/transport/device.h"

namespace kvcove::transport {

class FakeDevice final : public DeviceBackend {
 public:
  // The device's addresses are the host's and `far`, so that no host can touch them.
  explicit FakeDevice(std::uintptr_t far = 0) : far_(far) {}

  // ---- for tests
  // The engine's streams do not come to marks from now on; or they have come to all, and go on.
  void HoldSteps() {
    const MutexLock lock(mutex_);
    held_from_ = marks_;
  }
  void Reach() {
    const MutexLock lock(mutex_);
    held_from_ = ~std::uint64_t{0};
  }
  // Copies of that way are held, or go on.
  void Hold(DeviceWay way, bool hold) {
    const MutexLock lock(mutex_);
    hold_[static_cast<std::size_t>(way)] = hold;
  }
  // So many tickets more go well; those behind fail late. -1: all.
  void FailAfter(int tickets) {
    const MutexLock lock(mutex_);
    good_ = tickets;
  }
  // It pins so many bytes of RegisterHost's, and refuses more.
  void Pinnable(std::uint64_t bytes) {
    const MutexLock lock(mutex_);
    pinnable_ = bytes;
  }
  std::uint64_t registered_bytes() const {
    const MutexLock lock(mutex_);
    return registered_bytes_;
  }
  // Copies whose host memory was not pinned from their submission to their end.
  std::uint64_t unpinned() const {
    const MutexLock lock(mutex_);
    return unpinned_;
  }
  // Close answers that it still works.
  void Hang() {
    const MutexLock lock(mutex_);
    hangs_ = true;
  }
  std::uint64_t waits() const {  // of the engine's streams, for tickets that were under way
    const MutexLock lock(mutex_);
    return waits_;
  }
  std::uint64_t submitted() const {
    const MutexLock lock(mutex_);
    return next_ - 1;
  }
  // The first copy of each ticket behind so many, in the order in which they were submitted.
  std::vector<DeviceCopy> FirstCopies(std::size_t from) const {
    const MutexLock lock(mutex_);
    return {first_copies_.begin() + static_cast<std::ptrdiff_t>(from), first_copies_.end()};
  }

  // ---- the backend
  std::string Describe() const override { return "a fake device"; }
  Result<std::span<std::byte>> AllocateHost(std::uint64_t bytes) override {
    const MutexLock lock(mutex_);
    auto& memory = host_.emplace_back(new std::byte[bytes]);
    pinned_[memory.get()] = bytes;
    return std::span(memory.get(), bytes);
  }
  void FreeHost(std::span<std::byte> memory) override {
    const MutexLock lock(mutex_);
    pinned_.erase(memory.data());
    std::erase_if(host_, [&](const auto& each) { return each.get() == memory.data(); });
  }
  Result<std::unique_ptr<Registered>> RegisterHost(std::span<std::byte> memory) override {
    const MutexLock lock(mutex_);
    if (registered_bytes_ + memory.size() > pinnable_) return Fail(Code::kLimit, "memlock");
    registered_bytes_ += memory.size();
    pinned_[memory.data()] = memory.size();
    return std::unique_ptr<Registered>(std::make_unique<Registration>(*this, memory));
  }
  Result<std::shared_ptr<const DeviceMark>> RecordStep(StreamHandle /*stream*/) override {
    const MutexLock lock(mutex_);
    return std::shared_ptr<const DeviceMark>(std::make_shared<Mark>(++marks_));
  }
  Result<bool> Reached(const DeviceMark& mark) override {
    const MutexLock lock(mutex_);
    return static_cast<const Mark&>(mark).number <= held_from_;
  }
  Result<DeviceTicket> Submit(const DeviceTransfer& transfer, DeviceBytes& moved) override {
    const MutexLock lock(mutex_);
    Work work{.way = transfer.way, .copies = {transfer.copies.begin(), transfer.copies.end()}};
    if (transfer.after != nullptr) work.after = static_cast<const Mark*>(transfer.after)->number;
    for (const DeviceCopy& copy : work.copies) {
      moved[0] += copy.bytes;
      unpinned_ += Pinned(copy) ? 0 : 1;
    }
    first_copies_.push_back(work.copies.empty() ? DeviceCopy{} : work.copies.front());
    work_.emplace(next_, std::move(work));
    return next_++;
  }
  Result<bool> Poll(DeviceTicket ticket) override {
    const MutexLock lock(mutex_);
    const auto at = work_.find(ticket);
    if (at == work_.end()) return Fail(Code::kInvalid, "there is no such ticket");
    const Work& work = at->second;
    if (hold_[static_cast<std::size_t>(work.way)] || work.after > held_from_) return false;
    const bool fails = good_ == 0;
    if (good_ > 0) --good_;
    for (const DeviceCopy& copy : work.copies) {
      auto* const device = reinterpret_cast<std::byte*>(copy.device - far_);  // NOLINT
      const bool load = work.way == DeviceWay::kLoad;
      unpinned_ += Pinned(copy) ? 0 : 1;
      if (!fails) std::memcpy(load ? device : copy.host, load ? copy.host : device, copy.bytes);
    }
    work_.erase(at);
    if (fails) return Fail(Code::kInternal, "the device failed late");
    return true;
  }
  Status StreamWait(StreamHandle /*stream*/, DeviceTicket ticket) override {
    const MutexLock lock(mutex_);
    waits_ += work_.contains(ticket) ? 1 : 0;
    return {};
  }
  bool Close(std::int64_t /*deadline_ns*/) override {
    const MutexLock lock(mutex_);
    return !hangs_;
  }

 private:
  struct Mark final : DeviceMark {
    explicit Mark(std::uint64_t the_number) : number(the_number) {}
    const std::uint64_t number;
  };
  struct Work {
    DeviceWay way = DeviceWay::kLoad;
    std::vector<DeviceCopy> copies;
    std::uint64_t after = 0;
  };

  class Registration final : public Registered {
   public:
    Registration(FakeDevice& device, std::span<std::byte> memory)
        : device_(device), memory_(memory) {}
    ~Registration() override {
      const MutexLock lock(device_.mutex_);
      device_.registered_bytes_ -= memory_.size();
      device_.pinned_.erase(memory_.data());
    }
    Registration(const Registration&) = delete;
    Registration& operator=(const Registration&) = delete;

   private:
    FakeDevice& device_;
    const std::span<std::byte> memory_;
  };
  // By pieces that touch.
  bool Pinned(const DeviceCopy& copy) const KVCOVE_REQUIRES(mutex_) {
    const std::byte* at = copy.host;
    const std::byte* const end = copy.host + copy.bytes;
    while (at < end) {
      const auto behind = pinned_.upper_bound(at);
      if (behind == pinned_.begin()) return false;
      const auto& [memory, bytes] = *std::prev(behind);
      if (memory + bytes <= at) return false;
      at = memory + bytes;
    }
    return true;
  }

  const std::uintptr_t far_;
  mutable Mutex mutex_;
  std::vector<std::unique_ptr<std::byte[]>> host_ KVCOVE_GUARDED_BY(mutex_);
  std::map<const std::byte*, std::uint64_t> pinned_ KVCOVE_GUARDED_BY(mutex_);  // bytes
  std::uint64_t pinnable_ KVCOVE_GUARDED_BY(mutex_) = ~std::uint64_t{0};
  std::uint64_t registered_bytes_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t unpinned_ KVCOVE_GUARDED_BY(mutex_) = 0;
  bool hangs_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::map<DeviceTicket, Work> work_ KVCOVE_GUARDED_BY(mutex_);
  DeviceTicket next_ KVCOVE_GUARDED_BY(mutex_) = 1;
  std::vector<DeviceCopy> first_copies_ KVCOVE_GUARDED_BY(mutex_);
  std::uint64_t marks_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t held_from_ KVCOVE_GUARDED_BY(mutex_) = ~std::uint64_t{0};  // mark
  std::uint64_t waits_ KVCOVE_GUARDED_BY(mutex_) = 0;
  bool hold_[kDeviceWays] KVCOVE_GUARDED_BY(mutex_) = {};
  int good_ KVCOVE_GUARDED_BY(mutex_) = -1;
};

}  // namespace kvcove::transport
