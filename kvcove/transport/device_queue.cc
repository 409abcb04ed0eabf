// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/device_queue.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "kvcove/base/interrupt.h"
#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"
#include "kvcove/base/size.h"

namespace kvcove::transport {
namespace {

// Tickets and marks that one Advance() polls, each way: a poll is a call of the driver, and tickets
// of one way end nearly in order.
constexpr std::size_t kLooked = 16;

std::size_t Number(DeviceWay way) { return static_cast<std::size_t>(way); }

// Keeps memory that a hanging device may still read and write. The vector is never destroyed, so
// that the memory is not reused while the process's static objects end, either.
void KeepForEver(std::shared_ptr<const HostMemory> host) {
  static Mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<const HostMemory>>();
  const MutexLock lock(mutex);
  kept->push_back(std::move(host));
}

}  // namespace

class DeviceQueue::Loan final : public HostMemory {
 public:
  Loan(DeviceQueue& queue, DeviceWay way, std::span<std::byte> piece, bool own)
      : queue_(queue), way_(way), piece_(piece), own_(own) {}
  ~Loan() override { queue_.GiveBack(way_, piece_, own_); }
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;
  std::span<const std::span<std::byte>> extents() const override { return {&piece_, 1}; }

 private:
  DeviceQueue& queue_;
  const DeviceWay way_;
  const std::span<std::byte> piece_;
  const bool own_;  // pinned for this loan
};

Result<std::unique_ptr<DeviceQueue>> DeviceQueue::Open(std::unique_ptr<DeviceBackend> backend,
                                                       const DeviceQueueOptions& options,
                                                       const Clock& clock) {
  DeviceQueueOptions rounded = options;
  rounded.ring_bytes = DeviceRing::Rounded(options.ring_bytes);  // so that all of it can be lent
  std::unique_ptr<DeviceQueue> queue(new DeviceQueue(std::move(backend), rounded, clock));
  for (std::size_t way = 0; way < kDeviceWays; ++way) {
    KVCOVE_ASSIGN(queue->ring_memory_[way], queue->backend_->AllocateHost(rounded.ring_bytes));
    const MutexLock lock(queue->mutex_);
    queue->rings_[way] = DeviceRing(queue->ring_memory_[way]);
  }
  if (options.thread) {
    KVCOVE_ASSIGN(queue->thread_,
                  StartThread("kvcove-device", [raw = queue.get()] { raw->Loop(); }));
  }
  return queue;
}

DeviceQueue::~DeviceQueue() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    work_.NotifyAll();
    freed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
  const std::int64_t close_ns = std::chrono::nanoseconds(options_.close).count();
  // A backend's deadlines are the system clock's, also where tests give this queue another clock.
  if (!backend_->Close(SystemClock::Instance().NowNs() + close_ns)) {
    LogError("{}: still copies after {} ms; the memory that it uses is kept", Describe(),
             options_.close.count());
    const MutexLock lock(mutex_);
    for (const auto& way : flights_) {
      for (const auto& flight : way) KeepForEver(flight->host);
    }
    return;
  }
  decltype(flights_) left;
  {
    const MutexLock lock(mutex_);
    left.swap(flights_);
  }
  // Their loans take the lock, and must be returned before the rings' memory is freed.
  for (auto& way : left) way.clear();
  for (const std::span<std::byte> memory : ring_memory_) {
    if (!memory.empty()) backend_->FreeHost(memory);
  }
}

std::string DeviceQueue::Describe() const { return backend_->Describe(); }

Result<std::shared_ptr<const HostMemory>> DeviceQueue::Lend(DeviceWay way, std::uint64_t bytes,
                                                            std::int64_t deadline_ns) {
  while (true) {
    {
      const MutexLock lock(mutex_);
      DeviceRing& ring = rings_[Number(way)];
      if (bytes > ring.size()) {
        if (own_bytes_ == 0) {
          own_bytes_ = bytes;
          break;
        }
      } else if (const auto piece = ring.Take(bytes)) {
        return std::shared_ptr<const HostMemory>(
            std::make_shared<Loan>(*this, way, *piece, /*own=*/false));
      }
      const std::int64_t left = LeftNs(deadline_ns, clock_);
      if (left <= 0 || stopping_) {
        return Fail(Code::kTimeout,
                    fmt::format("no {} of pinned memory were free in time: {} are lent",
                                FormatSize(bytes), FormatSize(ring.used())));
      }
      if (options_.thread) freed_.WaitFor(mutex_, std::chrono::nanoseconds(left));
    }
    if (!options_.thread && !Advance()) {
      return Fail(Code::kTimeout, "no pinned memory is free");
    }
  }
  return LendOwn(way, bytes);
}

Result<std::shared_ptr<const HostMemory>> DeviceQueue::LendOwn(DeviceWay way, std::uint64_t bytes) {
  auto memory = backend_->AllocateHost(bytes);
  if (memory) {
    return std::shared_ptr<const HostMemory>(
        std::make_shared<Loan>(*this, way, *memory, /*own=*/true));
  }
  const MutexLock lock(mutex_);
  own_bytes_ = 0;
  freed_.NotifyAll();
  return std::unexpected<Error>(memory.error());
}

void DeviceQueue::GiveBack(DeviceWay way, std::span<std::byte> piece, bool own) {
  if (options_.poison) std::memset(piece.data(), 0xDD, piece.size());
  if (own) backend_->FreeHost(piece);
  const MutexLock lock(mutex_);
  if (own) {
    own_bytes_ = 0;
  } else {
    rings_[Number(way)].Give(piece);
  }
  freed_.NotifyAll();
}

Result<DeviceTicket> DeviceQueue::Submit(const DeviceTransfer& transfer,
                                         std::shared_ptr<const HostMemory> host, Owner owner,
                                         OnDone done) {
  const std::size_t way = Number(transfer.way);
  {
    const MutexLock lock(mutex_);
    const std::uint64_t now = flights_[0].size() + flights_[1].size() + submitting_;
    if (now >= options_.most_tickets) {
      return Fail(Code::kLimit, fmt::format("{} transfers are under way already", now));
    }
    // Counted until the ticket is listed: calls side by side must not exceed the bound together.
    ++submitting_;
  }
  // Declared before the lock below, so that on an error it ends after the unlock: its loan takes
  // the lock when it is returned.
  auto flight = std::make_shared<Flight>();
  flight->way = transfer.way;
  flight->since_ns = clock_.NowNs();
  flight->host = std::move(host);
  flight->owner = owner;
  flight->done = std::move(done);
  const Result<DeviceTicket> ticket = backend_->Submit(transfer, flight->moved);
  const MutexLock lock(mutex_);
  --submitting_;
  if (!ticket) return ticket;
  flight->ticket = *ticket;
  if (flights_[way].empty()) busy_since_ns_[way] = flight->since_ns;
  flights_[way].push_back(std::move(flight));
  work_.NotifyOne();
  return ticket;
}

void DeviceQueue::WhenReached(std::shared_ptr<const DeviceMark> mark, Owner owner,
                              OnReached reached) {
  const MutexLock lock(mutex_);
  watches_.push_back(std::make_shared<Watch>(
      Watch{.mark = std::move(mark), .owner = owner, .reached = std::move(reached)}));
  work_.NotifyOne();
}

void DeviceQueue::Forget(Owner owner) {
  // Destroyed after the unlock: the destructor of a callback's captures may take other locks.
  std::vector<OnDone> dones;
  std::vector<std::shared_ptr<Watch>> watches;
  const MutexLock lock(mutex_);
  for (auto& way : flights_) {
    for (const auto& flight : way) {
      if (flight->owner != owner) continue;
      flight->owner = nullptr;
      dones.push_back(std::exchange(flight->done, nullptr));
    }
  }
  std::erase_if(watches_, [&](const std::shared_ptr<Watch>& watch) {
    if (watch->owner != owner) return false;
    watches.push_back(watch);
    return true;
  });
  // End() and AdvanceMarks() take a callback and set `calling_` in one hold of the lock, so each
  // callback is either dropped above or seen here.
  while (calling_ == owner && owner != nullptr) freed_.Wait(mutex_);
}

void DeviceQueue::EndCall() {
  const MutexLock lock(mutex_);
  calling_ = nullptr;
  freed_.NotifyAll();
}

void DeviceQueue::End(Flight& flight, const Status& status) {
  OnDone done;
  {
    const MutexLock lock(mutex_);
    auto& way = flights_[Number(flight.way)];
    std::erase_if(way, [&](const std::shared_ptr<Flight>& each) { return each.get() == &flight; });
    const std::int64_t now = clock_.NowNs();
    // Counts from the last end of this way on, so that overlapping tickets count once.
    std::int64_t& since = busy_since_ns_[Number(flight.way)];
    busy_ns_[Number(flight.way)] +=
        static_cast<std::uint64_t>(std::max<std::int64_t>(now - since, 0));
    since = now;
    done = std::exchange(flight.done, nullptr);
    if (done) calling_ = flight.owner;
  }
  DeviceDone over{
      .status = status, .moved = flight.moved, .ns = clock_.NowNs() - flight.since_ns, .host = {}};
  // A load's bytes are on the device. Its piece is returned before the callback runs, so a callback
  // that starts the next load finds room for it.
  if (flight.way == DeviceWay::kSave) over.host = std::move(flight.host);
  flight.host.reset();
  if (!done) return;
  ExpectNoLock("a callback of a transfer");
  done(over);
  // Destroyed before EndCall(): captures may refer to the owner, which Forget() lets end.
  done = nullptr;
  EndCall();
}

bool DeviceQueue::AdvanceTickets() {
  std::vector<std::shared_ptr<Flight>> looked;
  {
    const MutexLock lock(mutex_);
    for (const auto& way : flights_) {
      looked.insert(looked.end(), way.begin(),
                    way.begin() + static_cast<std::ptrdiff_t>(std::min(way.size(), kLooked)));
    }
  }
  bool ended = false;
  // Polled without the lock, as it is a call of the driver. Only Advance() removes flights, so
  // these remain listed; Forget() may take their callbacks meanwhile.
  for (const std::shared_ptr<Flight>& flight : looked) {
    const Result<bool> over = backend_->Poll(flight->ticket);
    if (over && !*over) continue;
    ended = true;
    End(*flight, over ? Status() : Status(std::unexpected<Error>(over.error())));
  }
  return ended;
}

bool DeviceQueue::AdvanceMarks() {
  bool ended = false;
  for (std::size_t i = 0; i < kLooked; ++i) {
    std::shared_ptr<Watch> watch;
    {
      const MutexLock lock(mutex_);
      if (watches_.empty()) return ended;
      watch = watches_.front();
    }
    const Result<bool> reached = backend_->Reached(*watch->mark);
    if (reached && !*reached) return ended;
    ended = true;
    {
      const MutexLock lock(mutex_);
      // Forget() may have dropped it while the backend was asked without the lock.
      if (watches_.empty() || watches_.front() != watch) continue;
      watches_.pop_front();
      calling_ = watch->owner;
    }
    ExpectNoLock("a callback of a mark");
    watch->reached(reached ? Status() : Status(std::unexpected<Error>(reached.error())));
    watch->reached = nullptr;
    EndCall();
  }
  return ended;
}

bool DeviceQueue::Advance() {
  // Marks first: saves that wait for them are submitted before tickets are polled.
  const bool reached = AdvanceMarks();
  return AdvanceTickets() || reached;
}

void DeviceQueue::Loop() {
  while (true) {
    {
      const MutexLock lock(mutex_);
      const auto idle = [this]() KVCOVE_REQUIRES(mutex_) {
        return flights_[0].empty() && flights_[1].empty() && watches_.empty();
      };
      while (!stopping_ && idle()) work_.Wait(mutex_);
      if (stopping_) return;
    }
    if (Advance()) continue;
    // Polls, as a driver waits for one event at a time only, and any of them may be the next to
    // end.
    const MutexLock lock(mutex_);
    if (!stopping_) work_.WaitFor(mutex_, options_.look);
  }
}

Status DeviceQueue::Move(DeviceWay way, std::byte* host, std::uintptr_t device, std::uint64_t bytes,
                         std::int64_t deadline_ns) {
  // Moves a quarter of the ring at a time, so that other callers find room.
  const std::uint64_t most = std::max<std::uint64_t>(options_.ring_bytes / 4, 4096);
  for (std::uint64_t at = 0; at < bytes; at += most) {
    if (Interrupt::Ended()) return Fail(Code::kTimeout, "the call was interrupted");
    KVCOVE_TRY(MoveSome(way, host + at, device + at, std::min(most, bytes - at), deadline_ns));
  }
  return {};
}

Status DeviceQueue::MoveSome(DeviceWay way, std::byte* host, std::uintptr_t device,
                             std::uint64_t bytes, std::int64_t deadline_ns) {
  struct Ending {
    Mutex mutex;
    CondVar changed;
    bool over KVCOVE_GUARDED_BY(mutex) = false;
    DeviceDone how KVCOVE_GUARDED_BY(mutex);
  };
  KVCOVE_ASSIGN(std::shared_ptr<const HostMemory> loan, Lend(way, bytes, deadline_ns));
  std::byte* const pinned = loan->extents()[0].data();
  if (way == DeviceWay::kLoad) std::memcpy(pinned, host, bytes);
  KVCOVE_ASSIGN(const auto mark, RecordStep(0));
  const auto ending = std::make_shared<Ending>();  // shared: the callback may outlast this call
  const DeviceCopy copy{.host = pinned, .device = device, .bytes = bytes};
  KVCOVE_TRY(Submit({.way = way, .copies = {&copy, 1}, .after = mark.get()}, std::move(loan),
                    nullptr, [ending](DeviceDone& done) {
                      const MutexLock lock(ending->mutex);
                      ending->how = std::move(done);
                      ending->over = true;
                      ending->changed.NotifyAll();
                    }));
  const MutexLock lock(ending->mutex);
  while (!ending->over) {
    // Ignores Interrupt, unlike LeftNs(): the caller of an interrupted call takes its buffers for
    // free, so the call waits until the device has stopped writing.
    const std::int64_t left = deadline_ns - clock_.NowNs();
    if (left <= 0) {
      return Fail(way == DeviceWay::kLoad ? Code::kBufferBusy : Code::kTimeout,
                  fmt::format("the device did not copy {} in time", FormatSize(bytes)));
    }
    if (options_.thread) ending->changed.WaitFor(ending->mutex, std::chrono::nanoseconds(left));
    if (options_.thread) continue;
    ending->mutex.unlock();
    const bool moved = Advance();
    ending->mutex.lock();
    if (!moved && !ending->over) return Fail(Code::kTimeout, "the device makes no progress");
  }
  KVCOVE_TRY(ending->how.status);
  if (way == DeviceWay::kSave) std::memcpy(host, pinned, bytes);
  ending->how.host.reset();
  return {};
}

DeviceQueueStats DeviceQueue::stats() const {
  const MutexLock lock(mutex_);
  DeviceQueueStats stats{.busy_ns = busy_ns_,
                         .tickets = flights_[0].size() + flights_[1].size(),
                         .lent_bytes = rings_[0].used() + rings_[1].used() + own_bytes_,
                         .pinned_bytes = kDeviceWays * options_.ring_bytes + own_bytes_};
  return stats;
}

}  // namespace kvcove::transport
