// SPDX-License-Identifier: Apache-2.0
// Of tests: RDMA devices within one process, all in one subnet. They move bytes between real
// memory, check keys and ranges as a device does, and fail when a test says so.
//
//   FakeVerbs verbs;
//   auto context = verbs.Open("fake0");
//   verbs.HoldAfter(100);       // the device stops in the middle of each write and read
//   ... a lane posts 1 MiB, and is killed ...
//   verbs.Land();               // the device moves the rest, into whatever that memory is by then
//
// A device works when it is posted to and when it is polled. What it has begun when its queue pair,
// or that of the peer, is stopped, it moves with Land() all the same, unless the queue pair has
// been destroyed by then. So code that takes ERR for the end of all movement is caught.
#pragma once

#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "kvcove/base/mutex.h"
#include "kvcove/base/posix.h"
#include "kvcove/transport/verbs/verbs_api.h"

namespace kvcove::transport::verbs {

struct FakeVerbsCounts {
  std::size_t regions = 0;  // that live
  std::size_t queues = 0;
  std::size_t pairs = 0;
  std::uint64_t works = 0;      // posted
  std::uint64_t most_work = 0;  // bytes of the largest
  // Completions for which their queue had no room; objects that outlived their context.
  std::uint64_t mistakes = 0;
};

// Thread-safe. Outlives all contexts.
class FakeVerbs final : public Verbs {
 public:
  static constexpr std::uint64_t kAll = ~0ULL;

  Result<std::vector<std::string>> Devices() override {
    const MutexLock lock(mutex_);
    std::vector<std::string> names;
    for (const auto& [name, port] : ports_) {
      if (!port.removed) names.push_back(name);
    }
    return names;
  }
  Result<std::shared_ptr<Context>> Open(const std::string& device) override {
    const MutexLock lock(mutex_);
    KVCOVE_TRY(Fault("the opening of " + device));
    const auto at = ports_.find(device);
    if (at == ports_.end() || at->second.removed) {
      return Fail(Code::kUnavailable, "no RDMA device " + device);
    }
    auto context = std::make_shared<FakeContext>(*this, device);
    contexts_.insert(context.get());
    return context;
  }

  // The device moves so many bytes of each write and read, and stops there.
  void HoldAfter(std::uint64_t bytes) {
    const MutexLock lock(mutex_);
    hold_ = bytes;
  }
  // The device moves the rest of all that it has begun, and holds nothing from now on.
  void Land() {
    const MutexLock lock(mutex_);
    hold_ = kAll;
    MoveAll();
    for (auto& [number, pair] : pairs_) FinishBegun(pair);
    MoveAll();
  }
  // Completions are late: they are there after Deliver().
  void HoldCompletions() {
    const MutexLock lock(mutex_);
    deliver_ = false;
  }
  // Of the flushes from now on only so many are there before Deliver().
  void HoldFlushesAfter(std::uint64_t count) {
    const MutexLock lock(mutex_);
    flushes_ = count;
  }
  void Deliver() {
    const MutexLock lock(mutex_);
    deliver_ = true;
    flushes_ = kAll;
    for (auto& [number, queue] : queues_) {
      for (const Completion& completion : std::exchange(queue.late, {})) Show(queue, completion);
    }
  }
  // Shows the newest late completion, before the older ones.
  void DeliverLast() {
    const MutexLock lock(mutex_);
    for (auto& [number, queue] : queues_) {
      if (queue.late.empty()) continue;
      const Completion last = queue.late.back();
      queue.late.pop_back();
      return Show(queue, last);
    }
  }
  // Completions are found in a random order.
  void Shuffle(std::uint64_t seed) {
    const MutexLock lock(mutex_);
    shuffled_ = true;
    random_.seed(seed);
  }
  // A completion that belongs to nothing.
  void AddCompletion(std::uint64_t id) {
    const MutexLock lock(mutex_);
    for (auto& [number, queue] : queues_) Show(queue, {.id = id});
  }
  // The device refuses to end queue pairs.
  void RefuseDestroys(bool refuse) {
    const MutexLock lock(mutex_);
    refuse_destroys_ = refuse;
  }
  // The device refuses to end registrations.
  void RefuseDeregisters(bool refuse) {
    const MutexLock lock(mutex_);
    refuse_deregisters_ = refuse;
  }
  // The call with this number from now on finds no memory, once; 0 is the next. Calls that end
  // something are not counted.
  void FailCall(std::int64_t number) {
    const MutexLock lock(mutex_);
    fail_call_ = number;
  }
  // Whether that call has been made.
  bool failed() const {
    const MutexLock lock(mutex_);
    return fail_call_ < 0;
  }
  // All ports are down: a lane that is open notices when it moves bytes.
  void SetCable(bool plugged) {
    const MutexLock lock(mutex_);
    for (auto& [name, port] : ports_) port.active = plugged;
    Report(DeviceEvent::kPort, [](const std::string&) { return true; });
  }
  void SetPort(const std::string& device, bool active) {
    const MutexLock lock(mutex_);
    ports_.at(device).active = active;
    Report(DeviceEvent::kPort, [&](const std::string& of) { return of == device; });
  }
  void SetGids(const std::string& device, std::vector<GidEntry> table) {
    const MutexLock lock(mutex_);
    ports_.at(device).gids = std::move(table);
    Report(DeviceEvent::kPort, [&](const std::string& of) { return of == device; });
  }
  // Calls `act` once, when a GID has been read and before the reader has it.
  void BehindGid(std::function<void()> act) {
    const MutexLock lock(mutex_);
    behind_gid_ = std::move(act);
  }
  // The device begins so many reads of a queue pair at once.
  void SetReadsBegun(std::uint8_t reads) {
    const MutexLock lock(mutex_);
    reads_begun_ = reads;
  }
  void SetEthernet(const std::string& device, bool ethernet) {
    const MutexLock lock(mutex_);
    ports_.at(device).ethernet = ethernet;
  }
  // Each call to a context of the device fails, its completions never arrive, and none of its
  // objects ends: until ReturnDevice().
  void RemoveDevice(const std::string& device) {
    const MutexLock lock(mutex_);
    ports_.at(device).removed = true;
    Report(DeviceEvent::kGone, [&](const std::string& of) { return of == device; });
  }
  void ReturnDevice(const std::string& device) {
    const MutexLock lock(mutex_);
    ports_.at(device).removed = false;
  }
  // How the queue pair sends that was connected last.
  Route last_route() const {
    const MutexLock lock(mutex_);
    return last_route_;
  }
  FakeVerbsCounts counts() const {
    const MutexLock lock(mutex_);
    FakeVerbsCounts counts = counts_;
    counts.regions = regions_.size();
    counts.queues = queues_.size();
    counts.pairs = pairs_.size();
    return counts;
  }

 private:
  enum class PairState : std::uint8_t { kReset, kInit, kReceive, kSend, kError };

  class FakeContext;

  // A device, and its one port.
  struct Port {
    bool active = true;
    bool ethernet = true;
    bool removed = false;
    std::vector<GidEntry> gids;
  };
  struct Region {
    const FakeContext* context = nullptr;
    std::span<std::byte> memory;
    Access access = Access::kLocal;
  };
  struct Queue {
    const FakeContext* context = nullptr;
    std::size_t size = 0;
    std::vector<Completion> shown;
    std::vector<Completion> late;
    bool armed = false;
    UniqueFd event;
  };
  struct Begun {
    Work work;
    std::uint64_t moved = 0;
  };
  struct Receive {
    std::uint64_t id = 0;
    LocalSegment into;
  };
  struct Pair {
    const FakeContext* context = nullptr;
    std::uint32_t queue = 0;
    PairSizes sizes;
    PairState state = PairState::kReset;
    Access peer_may = Access::kLocal;
    std::uint32_t peer = 0;
    std::deque<Begun> sends;
    std::deque<Receive> receives;
  };

  class FakeRegion final : public MemoryRegion {
   public:
    FakeRegion(FakeVerbs& verbs, std::uint32_t number) : verbs_(verbs), number_(number) {}
    ~FakeRegion() override { (void)Deregister(); }
    // Not the same, so that a key in the wrong place is refused.
    std::uint32_t local_key() const override { return 2 * number_; }
    std::uint32_t remote_key() const override { return 2 * number_ + 1; }
    Status Deregister() override {
      const MutexLock lock(verbs_.mutex_);
      const auto at = verbs_.regions_.find(number_);
      if (at == verbs_.regions_.end()) return {};
      KVCOVE_TRY(verbs_.Present(*at->second.context));
      if (verbs_.refuse_deregisters_) return Fail(Code::kUnavailable, "the device is busy");
      verbs_.regions_.erase(number_);
      return {};
    }

   private:
    FakeVerbs& verbs_;
    const std::uint32_t number_;
  };

  class FakeQueue final : public CompletionQueue {
   public:
    FakeQueue(FakeVerbs& verbs, std::uint32_t number, int event)
        : verbs_(verbs), number_(number), event_(event) {}
    ~FakeQueue() override { (void)Destroy(); }
    std::uint32_t number() const { return number_; }
    Result<std::size_t> Poll(std::span<Completion> into) override {
      const MutexLock lock(verbs_.mutex_);
      KVCOVE_TRY(verbs_.Fault("a poll"));
      verbs_.MoveAll();
      Queue& queue = verbs_.queues_.at(number_);
      // As a real one: nobody writes completions any more.
      if (!verbs_.Present(*queue.context)) return std::size_t{0};
      return verbs_.TakeShown(queue, into);
    }
    Status Arm() override {
      const MutexLock lock(verbs_.mutex_);
      Queue& queue = verbs_.queues_.at(number_);
      KVCOVE_TRY(verbs_.Begin(*queue.context, "the arming of a queue"));
      queue.armed = true;
      return {};
    }
    int descriptor() const override { return event_; }
    void TakeEvents() override {
      eventfd_t count = 0;
      (void)eventfd_read(event_, &count);
    }
    Status Destroy() override {
      const MutexLock lock(verbs_.mutex_);
      verbs_.queues_.erase(number_);
      return {};
    }

   private:
    FakeVerbs& verbs_;
    const std::uint32_t number_;
    const int event_;
  };

  class FakePair final : public QueuePair {
   public:
    FakePair(FakeVerbs& verbs, std::uint32_t number) : verbs_(verbs), number_(number) {}
    ~FakePair() override { (void)Destroy(); }
    std::uint32_t number() const override { return number_; }
    Status ToInit(const Route& /*route*/, Access peer_may) override {
      const MutexLock lock(verbs_.mutex_);
      Pair& pair = verbs_.pairs_.at(number_);
      pair.peer_may = peer_may;
      return verbs_.Change(pair, PairState::kReset, PairState::kInit);
    }
    Status ToReceive(const Route& route, const PairAddress& /*own*/,
                     const PairAddress& peer) override {
      const MutexLock lock(verbs_.mutex_);
      verbs_.last_route_ = route;
      Pair& pair = verbs_.pairs_.at(number_);
      pair.peer = peer.number;
      return verbs_.Change(pair, PairState::kInit, PairState::kReceive);
    }
    Status ToSend(const Route& /*route*/, const PairAddress& /*own*/,
                  const PairAddress& /*peer*/) override {
      const MutexLock lock(verbs_.mutex_);
      return verbs_.Change(verbs_.pairs_.at(number_), PairState::kReceive, PairState::kSend);
    }
    Status ToError() override {
      const MutexLock lock(verbs_.mutex_);
      KVCOVE_TRY(verbs_.Fault("a queue pair's way to ERR"));
      Pair& pair = verbs_.pairs_.at(number_);
      KVCOVE_TRY(verbs_.Present(*pair.context));
      verbs_.Stop(pair);
      return {};
    }
    Posted Post(std::span<const Work> works) override {
      const MutexLock lock(verbs_.mutex_);
      Posted posted;
      for (const Work& work : works) {
        posted.status = verbs_.PostOne(verbs_.pairs_.at(number_), work);
        if (!posted.status) break;
        ++posted.count;
      }
      verbs_.MoveAll();
      return posted;
    }
    Status PostReceive(std::uint64_t id, const LocalSegment& into) override {
      const MutexLock lock(verbs_.mutex_);
      return verbs_.PostOneReceive(verbs_.pairs_.at(number_), {.id = id, .into = into});
    }
    Status Destroy() override {
      const MutexLock lock(verbs_.mutex_);
      const auto at = verbs_.pairs_.find(number_);
      if (at == verbs_.pairs_.end()) return {};
      KVCOVE_TRY(verbs_.Present(*at->second.context));
      if (verbs_.refuse_destroys_) return Fail(Code::kUnavailable, "the device is busy");
      verbs_.pairs_.erase(number_);
      return {};
    }

   private:
    FakeVerbs& verbs_;
    const std::uint32_t number_;
  };

  class FakeContext final : public Context {
   public:
    FakeContext(FakeVerbs& verbs, std::string device) : verbs_(verbs), device_(std::move(device)) {}
    ~FakeContext() override {
      const MutexLock lock(verbs_.mutex_);
      verbs_.contexts_.erase(this);
      const auto mine = [this](const auto& entry) { return entry.second.context == this; };
      verbs_.counts_.mistakes += static_cast<std::uint64_t>(
          std::ranges::count_if(verbs_.regions_, mine) +
          std::ranges::count_if(verbs_.queues_, mine) + std::ranges::count_if(verbs_.pairs_, mine));
    }
    const std::string& device() const override { return device_; }
    Result<Limits> QueryLimits() override {
      const MutexLock lock(verbs_.mutex_);
      KVCOVE_TRY(verbs_.Begin(*this, "the device's limits"));
      return Limits{
          .work_requests = 1024, .reads_answered = 16, .reads_begun = verbs_.reads_begun_};
    }
    Result<PortState> QueryPort(std::uint8_t /*port*/) override {
      const MutexLock lock(verbs_.mutex_);
      KVCOVE_TRY(verbs_.Begin(*this, "a port"));
      const Port& port = verbs_.ports_.at(device_);
      return PortState{.active = port.active,
                       .ethernet = port.ethernet,
                       .lid = static_cast<std::uint16_t>(port.ethernet ? 0 : 1),
                       .mtu = 5,
                       .gids = static_cast<std::uint32_t>(port.gids.size())};
    }
    Result<GidEntry> QueryGid(std::uint8_t /*port*/, std::uint8_t index) override {
      GidEntry entry;
      std::function<void()> act;
      {
        const MutexLock lock(verbs_.mutex_);
        KVCOVE_TRY(verbs_.Begin(*this, "a GID"));
        const std::vector<GidEntry>& table = verbs_.ports_.at(device_).gids;
        if (index < table.size()) entry = table[index];
        act = std::exchange(verbs_.behind_gid_, nullptr);
      }
      if (act) act();
      return entry;
    }
    std::optional<DeviceEvent> TakeEvent() override {
      const MutexLock lock(verbs_.mutex_);
      if (events_.empty()) return std::nullopt;
      const DeviceEvent event = events_.front();
      events_.pop_front();
      eventfd_t count = 0;
      if (events_.empty()) (void)eventfd_read(event_.get(), &count);
      return event;
    }
    int descriptor() const override { return event_.get(); }
    Result<std::unique_ptr<MemoryRegion>> Register(std::span<std::byte> memory,
                                                   Access access) override {
      const MutexLock lock(verbs_.mutex_);
      KVCOVE_TRY(verbs_.Begin(*this, "a registration"));
      const std::uint32_t number = ++verbs_.last_;
      verbs_.regions_[number] = {.context = this, .memory = memory, .access = access};
      return std::make_unique<FakeRegion>(verbs_, number);
    }
    Result<std::unique_ptr<CompletionQueue>> CreateQueue(std::uint32_t completions) override {
      const MutexLock lock(verbs_.mutex_);
      KVCOVE_TRY(verbs_.Begin(*this, "a completion queue"));
      const std::uint32_t number = ++verbs_.last_;
      Queue& queue = verbs_.queues_[number];
      queue.context = this;
      queue.size = completions;
      queue.event = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
      return std::make_unique<FakeQueue>(verbs_, number, queue.event.get());
    }
    Result<std::unique_ptr<QueuePair>> CreatePair(CompletionQueue& queue,
                                                  const PairSizes& sizes) override {
      const MutexLock lock(verbs_.mutex_);
      KVCOVE_TRY(verbs_.Begin(*this, "a queue pair"));
      const std::uint32_t number = ++verbs_.last_;
      Pair& pair = verbs_.pairs_[number];
      pair.context = this;
      pair.queue = static_cast<FakeQueue&>(queue).number();
      pair.sizes = sizes;
      return std::make_unique<FakePair>(verbs_, number);
    }

   private:
    friend class FakeVerbs;
    FakeVerbs& verbs_;
    const std::string device_;
    const UniqueFd event_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    std::deque<DeviceEvent> events_;  // guarded by verbs_.mutex_
  };

  template <typename F>
  void Report(DeviceEvent event, F&& about) KVCOVE_REQUIRES(mutex_) {
    for (FakeContext* const context : contexts_) {
      if (!about(context->device_)) continue;
      context->events_.push_back(event);
      (void)eventfd_write(context->event_.get(), 1);
    }
  }
  Status Present(const FakeContext& context) const KVCOVE_REQUIRES(mutex_) {
    if (!ports_.at(context.device_).removed) return {};
    return Fail(Code::kUnavailable, context.device_ + " was removed (a test's)");
  }
  Status Begin(const FakeContext& context, const std::string& what) KVCOVE_REQUIRES(mutex_) {
    KVCOVE_TRY(Present(context));
    return Fault(what);
  }

  Status Fault(const std::string& what) KVCOVE_REQUIRES(mutex_) {
    if (fail_call_ < 0 || fail_call_-- > 0) return {};
    return Fail(Code::kLimit, what + ": no memory (a test's)");
  }
  Status Change(Pair& pair, PairState from, PairState to) KVCOVE_REQUIRES(mutex_) {
    KVCOVE_TRY(Begin(*pair.context, "a queue pair's next state"));
    if (pair.state != from) return Fail(Code::kInvalid, "not the state before");
    pair.state = to;
    return {};
  }
  Status PostOne(Pair& pair, const Work& work) KVCOVE_REQUIRES(mutex_) {
    KVCOVE_TRY(Begin(*pair.context, "a work request"));
    if (pair.state != PairState::kSend && pair.state != PairState::kError) {
      return Fail(Code::kInvalid, "a work request before RTS");
    }
    if (pair.sends.size() >= pair.sizes.sends) return Fail(Code::kLimit, "the queue is full");
    ++counts_.works;
    counts_.most_work = std::max<std::uint64_t>(counts_.most_work, work.local.bytes);
    if (pair.state == PairState::kError) {
      Complete(pair, {.id = work.id, .status = CompletionStatus::kFlushed});
    } else {
      pair.sends.push_back({.work = work});
    }
    return {};
  }
  Status PostOneReceive(Pair& pair, const Receive& receive) KVCOVE_REQUIRES(mutex_) {
    KVCOVE_TRY(Begin(*pair.context, "a receive"));
    if (pair.state == PairState::kReset) return Fail(Code::kInvalid, "a receive before INIT");
    if (pair.receives.size() >= pair.sizes.receives) return Fail(Code::kLimit, "no room");
    if (pair.state == PairState::kError) {
      Complete(pair, {.id = receive.id, .status = CompletionStatus::kFlushed});
    } else {
      pair.receives.push_back(receive);
    }
    return {};
  }

  // Flushes what the device has not begun. What it has begun, it finishes with Land().
  void Stop(Pair& pair) KVCOVE_REQUIRES(mutex_) {
    pair.state = PairState::kError;
    const bool begun = !pair.sends.empty() && pair.sends.front().moved > 0;
    while (pair.sends.size() > (begun ? 1U : 0U)) {
      const std::uint64_t id = pair.sends[begun ? 1 : 0].work.id;
      pair.sends.erase(pair.sends.begin() + (begun ? 1 : 0));
      Complete(pair, {.id = id, .status = CompletionStatus::kFlushed});
    }
    while (!pair.receives.empty()) {
      const std::uint64_t id = pair.receives.front().id;
      pair.receives.pop_front();
      Complete(pair, {.id = id, .status = CompletionStatus::kFlushed});
    }
  }
  void Complete(Pair& pair, const Completion& completion) KVCOVE_REQUIRES(mutex_) {
    const auto at = queues_.find(pair.queue);
    if (at == queues_.end()) return;
    Queue& queue = at->second;
    bool now = deliver_;
    if (completion.status == CompletionStatus::kFlushed && flushes_ != kAll) {
      now = now && flushes_ > 0;
      if (flushes_ > 0) --flushes_;
    }
    if (now) {
      Show(queue, completion);
    } else {
      queue.late.push_back(completion);
    }
  }
  void Show(Queue& queue, const Completion& completion) KVCOVE_REQUIRES(mutex_) {
    if (queue.shown.size() >= queue.size) ++counts_.mistakes;
    queue.shown.push_back(completion);
    if (std::exchange(queue.armed, false)) (void)eventfd_write(queue.event.get(), 1);
  }
  std::size_t TakeShown(Queue& queue, std::span<Completion> into) KVCOVE_REQUIRES(mutex_) {
    const std::size_t count = std::min(into.size(), queue.shown.size());
    if (shuffled_) std::shuffle(queue.shown.begin(), queue.shown.end(), random_);
    const auto end = queue.shown.begin() + static_cast<std::ptrdiff_t>(count);
    std::copy(queue.shown.begin(), end, into.begin());
    queue.shown.erase(queue.shown.begin(), end);
    return count;
  }

  // Every device moves what it can.
  void MoveAll() KVCOVE_REQUIRES(mutex_) {
    for (auto& [number, pair] : pairs_) {
      while (pair.state == PairState::kSend && !pair.sends.empty() && Present(*pair.context) &&
             MoveFirst(number, pair)) {
      }
    }
  }
  // What has been begun before ERR. Its bytes land; its completion says that nobody knows.
  void FinishBegun(Pair& pair) KVCOVE_REQUIRES(mutex_) {
    if (pair.state != PairState::kError || pair.sends.empty()) return;
    Begun begun = pair.sends.front();
    pair.sends.pop_front();
    const auto peer = pairs_.find(pair.peer);
    if (peer != pairs_.end() && Permitted(pair, peer->second, begun.work)) (void)MoveRest(begun);
    Complete(pair, {.id = begun.work.id, .status = CompletionStatus::kFlushed});
  }
  // Moves the first work request, or a part. False: it is held.
  bool MoveFirst(std::uint32_t number, Pair& pair) KVCOVE_REQUIRES(mutex_) {
    Begun& begun = pair.sends.front();
    const Work& work = begun.work;
    const auto at = pairs_.find(pair.peer);
    if (at == pairs_.end() || at->second.peer != number) {
      return FailFirst(pair, CompletionStatus::kUnreachable);
    }
    Pair& peer = at->second;
    if (!Reachable(pair) || !Reachable(peer)) {
      return FailFirst(pair, CompletionStatus::kUnreachable);
    }
    if (peer.state != PairState::kReceive && peer.state != PairState::kSend) {
      return MoveToStopped(pair, peer);
    }
    if (!Own(pair, work.local)) return FailFirst(pair, CompletionStatus::kFailed);
    if (!Permitted(pair, peer, work)) {
      Stop(peer);
      return FailFirst(pair, CompletionStatus::kRefused);
    }
    const bool takes =
        work.operation == Operation::kSend || work.operation == Operation::kWriteWithImmediate;
    if (takes && peer.receives.empty()) return FailFirst(pair, CompletionStatus::kUnreachable);
    if (work.operation == Operation::kSend) return Send(pair, peer);
    if (!MoveRest(begun)) return false;
    if (takes) Take(peer, work.local.bytes, work.immediate);
    return FinishFirst(pair);
  }
  bool Reachable(const Pair& pair) const KVCOVE_REQUIRES(mutex_) {
    const Port& port = ports_.at(pair.context->device_);
    return port.active && !port.removed;
  }
  // The peer was stopped: what the device has begun lands with Land(), and nothing else does.
  bool MoveToStopped(Pair& pair, const Pair& peer) KVCOVE_REQUIRES(mutex_) {
    Begun& begun = pair.sends.front();
    if (begun.moved > 0 && hold_ != kAll) return false;
    if (begun.moved > 0 && Permitted(pair, peer, begun.work)) (void)MoveRest(begun);
    return FailFirst(pair, CompletionStatus::kUnreachable);
  }
  bool Send(Pair& pair, Pair& peer) KVCOVE_REQUIRES(mutex_) {
    const Work& work = pair.sends.front().work;
    const LocalSegment& into = peer.receives.front().into;
    if (into.bytes < work.local.bytes || !Own(peer, into)) {
      Stop(peer);
      return FailFirst(pair, CompletionStatus::kRefused);
    }
    if (work.local.bytes > 0) std::memcpy(into.data, work.local.data, work.local.bytes);
    Take(peer, work.local.bytes, std::nullopt);
    return FinishFirst(pair);
  }
  void Take(Pair& peer, std::uint32_t bytes, std::optional<std::uint32_t> immediate)
      KVCOVE_REQUIRES(mutex_) {
    const std::uint64_t id = peer.receives.front().id;
    peer.receives.pop_front();
    Complete(peer, {.id = id, .bytes = bytes, .immediate = immediate});
  }
  bool FinishFirst(Pair& pair) KVCOVE_REQUIRES(mutex_) {
    const std::uint64_t id = pair.sends.front().work.id;
    pair.sends.pop_front();
    Complete(pair, {.id = id});
    return true;
  }
  bool FailFirst(Pair& pair, CompletionStatus status) KVCOVE_REQUIRES(mutex_) {
    const std::uint64_t id = pair.sends.front().work.id;
    pair.sends.pop_front();
    Complete(pair, {.id = id, .status = status});
    Stop(pair);
    return true;
  }
  // Moves as far as the device is not held. True: all of it.
  bool MoveRest(Begun& begun) KVCOVE_REQUIRES(mutex_) {
    const Work& work = begun.work;
    const std::uint64_t to = std::min<std::uint64_t>(work.local.bytes, hold_);
    if (to > begun.moved) {
      std::byte* const here = work.local.data + begun.moved;
      std::byte* const there = reinterpret_cast<std::byte*>(work.remote) + begun.moved;  // NOLINT
      const bool read = work.operation == Operation::kRead;
      std::memcpy(read ? here : there, read ? there : here, to - begun.moved);
      begun.moved = to;
    }
    return begun.moved == work.local.bytes;
  }

  bool Own(const Pair& pair, const LocalSegment& local) const KVCOVE_REQUIRES(mutex_) {
    if (local.bytes == 0) return true;
    const Region* const region = Find(pair, local.key, /*remote=*/0);
    return region != nullptr && Within(*region, local.data, local.bytes);
  }
  bool Permitted(const Pair& pair, const Pair& peer, const Work& work) const
      KVCOVE_REQUIRES(mutex_) {
    if (!Own(pair, work.local)) return false;
    if (work.operation == Operation::kSend || work.local.bytes == 0) return true;
    const Region* const region = Find(peer, work.remote_key, /*remote=*/1);
    return region != nullptr && region->access == Access::kRemote &&
           peer.peer_may == Access::kRemote &&
           Within(*region, reinterpret_cast<const std::byte*>(work.remote),  // NOLINT
                  work.local.bytes);
  }
  const Region* Find(const Pair& pair, std::uint32_t key, std::uint32_t remote) const
      KVCOVE_REQUIRES(mutex_) {
    const auto at = regions_.find(key / 2);
    const bool found =
        at != regions_.end() && key % 2 == remote && at->second.context == pair.context;
    return found ? &at->second : nullptr;
  }
  static bool Within(const Region& region, const std::byte* data, std::uint64_t bytes) {
    return data >= region.memory.data() && bytes <= region.memory.size() &&
           static_cast<std::uint64_t>(data - region.memory.data()) <= region.memory.size() - bytes;
  }

  // RoCE v1 of a link-local address, and v2 of 192.0.2.<last>.
  static Port MakePort(std::uint8_t last) {
    Port port;
    port.gids = {{.gid = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last}},
                 {.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, last}, .v2 = true}};
    return port;
  }

  mutable Mutex mutex_;
  std::map<std::string, Port> ports_ KVCOVE_GUARDED_BY(mutex_) = {{"fake0", MakePort(1)},
                                                                  {"fake1", MakePort(2)}};
  std::set<FakeContext*> contexts_ KVCOVE_GUARDED_BY(mutex_);
  std::uint32_t last_ KVCOVE_GUARDED_BY(mutex_) = 0;  // number of any object
  std::map<std::uint32_t, Region> regions_ KVCOVE_GUARDED_BY(mutex_);
  std::map<std::uint32_t, Queue> queues_ KVCOVE_GUARDED_BY(mutex_);
  std::map<std::uint32_t, Pair> pairs_ KVCOVE_GUARDED_BY(mutex_);
  FakeVerbsCounts counts_ KVCOVE_GUARDED_BY(mutex_);
  Route last_route_ KVCOVE_GUARDED_BY(mutex_);
  std::uint64_t hold_ KVCOVE_GUARDED_BY(mutex_) = kAll;
  bool deliver_ KVCOVE_GUARDED_BY(mutex_) = true;
  std::uint64_t flushes_ KVCOVE_GUARDED_BY(mutex_) = kAll;
  bool shuffled_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::mt19937_64 random_ KVCOVE_GUARDED_BY(mutex_);
  bool refuse_destroys_ KVCOVE_GUARDED_BY(mutex_) = false;
  bool refuse_deregisters_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::uint8_t reads_begun_ KVCOVE_GUARDED_BY(mutex_) = 16;
  std::int64_t fail_call_ KVCOVE_GUARDED_BY(mutex_) = -1;
  std::function<void()> behind_gid_ KVCOVE_GUARDED_BY(mutex_);
};

}  // namespace kvcove::transport::verbs
