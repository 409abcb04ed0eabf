// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/tcp/lane_side.h"

#include <optional>
#include <utility>

#include "kvcove/base/clock.h"
#include "kvcove/base/log.h"

namespace kvcove::transport::tcp {
namespace {

// The longest time that a requester waits for its lane.
constexpr std::int64_t kOpenNs = 5 * kSecond;
// The end of a server that waits for a device for longer is a line of the log, and so it is with
// each longer wait behind it.
constexpr std::chrono::milliseconds kNameAfter{500};
constexpr std::chrono::milliseconds kNameAgain{30'000};

// An exchange that makes a lane, for which it has a place.
class LaneOpening final : public Served {
 public:
  LaneOpening(LaneSide& side, std::unique_ptr<verbs::OwnerEnd>& into)
      : fabric_(side.fabric()), into_(into), made_(std::make_shared<Made>(side.GiveBackLater())) {}

  bool Begin(const wire::LaneEnd& requester, Visit::Wake wake) {
    // The connection may end before the worker takes this up. Nobody needs the lane then.
    const std::weak_ptr<Made> weak = made_;
    return fabric_.workers().Post([weak, &fabric = fabric_, requester, wake = std::move(wake)] {
      const std::shared_ptr<Made> made = weak.lock();
      if (made == nullptr) return;
      auto lane = verbs::OwnerEnd::Accept(fabric, requester);
      {
        const MutexLock lock(made->mutex);
        made->lane = std::move(lane);
      }
      wake();
    });
  }
  Step Next() override {
    const MutexLock lock(made_->mutex);
    if (!made_->lane) {
      if (SystemClock::Instance().NowNs() >= until_ns_) {
        return ReplyStep(Code::kTimeout, "the device makes no lane in time");
      }
      return {.kind = Step::Kind::kWait, .until_ns = until_ns_};
    }
    auto& lane = *made_->lane;
    if (!lane) return ReplyStep(lane.error().code, lane.error().detail);
    into_ = std::move(*lane);
    made_->lane.reset();
    made_->give_back = nullptr;  // LaneSide::End() does that
    return ReplyStep(Code::kOk, wire::Encode(into_->hello()));
  }
  void Received(std::uint64_t /*bytes*/) override {}

 private:
  // Shared with the worker, which may finish after the exchange, and after the server. A lane that
  // no connection waits for any more has its place until it is gone: else connections that come and
  // go would leave a slow device with more queue pairs than there are places.
  struct Made {
    explicit Made(std::function<void()> place) : give_back(std::move(place)) {}
    ~Made() {
      if (lane && *lane && **lane != nullptr) {
        verbs::OwnerEnd::End(std::move(**lane), std::move(give_back));
      } else if (give_back) {
        give_back();
      }
    }
    Made(const Made&) = delete;
    Made& operator=(const Made&) = delete;
    Mutex mutex;
    std::optional<Result<std::unique_ptr<verbs::OwnerEnd>>> lane KVCOVE_GUARDED_BY(mutex);
    std::function<void()> give_back KVCOVE_GUARDED_BY(mutex);  // null: the lane is delivered
  };
  verbs::Fabric& fabric_;
  std::unique_ptr<verbs::OwnerEnd>& into_;
  const std::shared_ptr<Made> made_;
  const std::int64_t until_ns_ = SystemClock::Instance().NowNs() + kOpenNs;
};

}  // namespace

Status LaneSide::Start() {
  {
    const MutexLock lock(mutex_);
    ++busy_;
    registering_ = true;
  }
  if (fabric_.workers().Post([this] { RegisterAll(); })) return {};
  const MutexLock lock(mutex_);
  --busy_;
  registering_ = false;
  return Fail(Code::kLimit, "too much work waits for the RDMA device");
}

void LaneSide::RegisterAll() {
  Status status;
  for (const std::span<std::byte> memory : memory_) {
    auto registered =
        fabric_.Register(memory, verbs::Access::kLocal, [this] { return !stopping_.load(); });
    if (!registered) {
      status = std::unexpected(std::move(registered).error());
      break;
    }
    registrations_.push_back(std::move(*registered));
    pinned_bytes_.fetch_add(memory.size(), std::memory_order_relaxed);
  }
  if (!status && !stopping_.load()) {
    LogWarn("no RDMA, since the memory of this owner is not registered: {}",
            status.error().ToString());
  }
  // Pairs with Ready(): a loop that sees it makes lanes, whose moves look the registrations up.
  registered_.store(status.has_value(), std::memory_order_release);
  const MutexLock lock(mutex_);
  failure_ = std::move(status);
  registering_ = false;
  --busy_;
  changed_.NotifyAll();
}

void LaneSide::Stop() {
  stopping_.store(true);
  for (auto pause = kNameAfter; !AwaitIdle(pause); pause = kNameAgain) NameDevice();
  EndRegistrations();
}

bool LaneSide::StopWithin(std::chrono::nanoseconds most) {
  stopping_.store(true);
  if (!AwaitIdle(most)) return false;
  EndRegistrations();
  return true;
}

void LaneSide::EndRegistrations() {
  if (registrations_.empty()) return;
  const auto left =
      std::make_shared<std::vector<std::unique_ptr<Registered>>>(std::move(registrations_));
  registrations_.clear();
  pinned_bytes_.store(0, std::memory_order_relaxed);
  // Without room in the queue they end here, with the last reference.
  (void)fabric_.workers().Post([left] { left->clear(); });
}

bool LaneSide::AwaitIdle(std::chrono::nanoseconds most) {
  const auto until = std::chrono::steady_clock::now() + most;
  const MutexLock lock(mutex_);
  while (busy_ > 0) {
    if (!changed_.WaitUntil(mutex_, until) && busy_ > 0) return false;
  }
  return true;
}

void LaneSide::NameDevice() {
  const std::string device = fabric_.device().name().ToString();
  bool registering = false;
  {
    const MutexLock lock(mutex_);
    registering = registering_;
  }
  if (registering) {
    LogWarn("the end of this server waits for the RDMA device {}, which registers memory", device);
    return;
  }
  // Asked now, as no thread watches a device: its reports wait until somebody looks.
  const bool gone = fabric_.DeviceGone();
  LogWarn(
      "the end of this server waits for the RDMA device {}, which {}: it may still read or write "
      "the memory that is served. {}",
      device,
      gone ? "was removed, or has failed, in the middle of a transfer"
           : "has not reported the end of its transfers",
      gone ? "It does not come back for this process: end the process with SIGKILL, upon which the "
             "kernel ends what is left of its transfers"
           : "The server ends when it has");
}

LaneCounts LaneSide::counts() const {
  return {.lanes = lanes_->load(std::memory_order_relaxed),
          .stuck = fabric_.reaper().stats().stuck,
          .pinned_bytes = pinned_bytes_.load(std::memory_order_relaxed),
          .sent_bytes = sent_bytes_.load(std::memory_order_relaxed),
          .received_bytes = received_bytes_.load(std::memory_order_relaxed)};
}

Status LaneSide::Ready() const {
  if (registered_.load(std::memory_order_acquire)) return {};
  const MutexLock lock(mutex_);
  KVCOVE_TRY(failure_);
  return Fail(Code::kUnavailable, "the memory of this owner is being registered");
}

Status LaneSide::TakePlace() {
  KVCOVE_TRY(Ready());
  // Added first, so that two takers at once cannot both find the last place.
  if (lanes_->fetch_add(1, std::memory_order_relaxed) < kMaxLanes) return {};
  GiveBack();
  return Fail(Code::kLimit, "this owner has as many RDMA lanes as it makes");
}

void LaneSide::End(std::unique_ptr<verbs::OwnerEnd> lane, std::unique_ptr<Served> served,
                   std::unique_ptr<Visit> visit) {
  // A lane whose work has all succeeded touches no memory: a device that does not end it holds
  // nobody up. Work that has failed is no such proof, although its completion is there: the device
  // may finish what it had begun until the queue pair is destroyed (verbs_api.h, ToError).
  if (lane->settled()) {
    served.reset();
    visit.reset();
    return verbs::OwnerEnd::End(std::move(lane), GiveBackLater());
  }
  {
    const MutexLock lock(mutex_);
    ++busy_;
  }
  // A std::function is copied, and these are not.
  struct Held {
    std::unique_ptr<Visit> visit;  // ends behind the exchange
    std::unique_ptr<Served> served;
  };
  auto held = std::make_shared<Held>(Held{std::move(visit), std::move(served)});
  verbs::OwnerEnd::End(std::move(lane), [this, held = std::move(held)]() mutable {
    held.reset();
    GiveBack();
    const MutexLock lock(mutex_);
    --busy_;
    changed_.NotifyAll();
  });
}

std::unique_ptr<Served> OpenLane(LaneSide* lanes, std::span<const std::byte> head, Visit::Wake wake,
                                 std::unique_ptr<verbs::OwnerEnd>& into) {
  if (lanes == nullptr) {
    return std::make_unique<Refused>(0, Error{Code::kUnavailable, "this owner has no RDMA"});
  }
  const auto requester = wire::DecodeLaneEnd(head);
  if (!requester && requester.error().code == Code::kCorrupt) return nullptr;
  if (!requester) return std::make_unique<Refused>(0, requester.error());
  if (Status taken = lanes->TakePlace(); !taken) {
    return std::make_unique<Refused>(0, std::move(taken).error());
  }
  auto opening = std::make_unique<LaneOpening>(*lanes, into);
  if (!opening->Begin(*requester, std::move(wake))) {
    return std::make_unique<Refused>(
        0, Error{Code::kLimit, "too much work waits for the RDMA device"});
  }
  return opening;
}

}  // namespace kvcove::transport::tcp
