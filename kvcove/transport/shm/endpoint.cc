// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/shm/endpoint.h"

#include <algorithm>
#include <atomic>

#include "kvcove/base/mutex.h"
#include "kvcove/transport/shm/copy.h"

namespace kvcove::transport::shm {
namespace {

// What one Advance() copies at most.
constexpr std::uint64_t kSliceBytes = 1 << 20;

// All transfers sleep on it; a wake is rare, so it wakes them all.
class Bell {
 public:
  void Ring() {
    const MutexLock lock(mutex_);
    ++rings_;
    changed_.NotifyAll();
  }
  std::uint64_t rings() const {
    const MutexLock lock(mutex_);
    return rings_;
  }
  void Await(std::uint64_t seen, std::int64_t most_ns) {
    const std::int64_t until_ns = SystemClock::Instance().NowNs() + most_ns;
    const MutexLock lock(mutex_);
    while (rings_ == seen) {
      const std::int64_t left_ns = until_ns - SystemClock::Instance().NowNs();
      if (left_ns <= 0) return;
      changed_.WaitFor(mutex_, std::chrono::nanoseconds(left_ns));
    }
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  std::uint64_t rings_ KVCOVE_GUARDED_BY(mutex_) = 0;
};

Bell& TheBell() {
  static Bell bell;
  return bell;
}

class MemoryTransfer final : public Transfer {
 public:
  MemoryTransfer(Exchange& exchange, std::unique_ptr<Visit> visit, const rpc::Caller& caller)
      : exchange_(exchange), visit_(std::move(visit)) {
    const auto head = std::as_bytes(std::span(exchange.head));
    served_ = visit_->Begin(caller, exchange.method, head, [woken = woken_] {
      woken->store(true);
      TheBell().Ring();
    });
    if (served_ == nullptr) End(Fail(Code::kCorrupt, "the service does not know this call"));
  }

  bool done() const override { return done_; }
  bool Abort() override {
    Close();
    return true;
  }

  bool Advance() override {
    rings_ = TheBell().rings();
    switch (done_ ? State::kEnded : state_) {
      case State::kStep:
        return Take(served_->Next());
      case State::kWait:
        if (!woken_->exchange(false) && SystemClock::Instance().NowNs() < until_ns_) return false;
        state_ = State::kStep;
        return true;
      case State::kReceive:
        if (copy_.Advance(kSliceBytes) > 0) {
          served_->Received(copy_.copied());
        } else {
          state_ = State::kStep;
        }
        return true;
      case State::kPayload:
        if (copy_.Advance(kSliceBytes) > 0) {
          if (exchange_.on_bytes) exchange_.on_bytes(copy_.copied());
        } else {
          End({});
        }
        return true;
      case State::kEnded:
        break;
    }
    return false;
  }

  // The rings that it had heard when it last looked.
  std::uint64_t rings() const { return rings_; }
  std::int64_t until_ns() const { return until_ns_; }

 private:
  enum class State : std::uint8_t { kStep, kWait, kReceive, kPayload, kEnded };

  bool Take(Step step) {
    switch (step.kind) {
      case Step::Kind::kReceive:
        copy_ = Copy(exchange_.out, std::move(step.into));
        state_ = State::kReceive;
        return true;
      case Step::Kind::kAgain:
        return true;
      case Step::Kind::kWait:
        until_ns_ = step.until_ns;
        state_ = State::kWait;
        return true;
      case Step::Kind::kReply:
        return Reply(std::move(step));
      case Step::Kind::kEnd:
        End(Fail(Code::kCorrupt, "the service does not understand this call"));
        return true;
    }
    return false;
  }

  bool Reply(Step step) {
    if (step.code != Code::kOk) {
      End(std::unexpected(Error{.code = step.code, .detail = step.head, .answered = true}));
      return true;
    }
    auto into = exchange_.on_reply(std::as_bytes(std::span(step.head)));
    if (!into) {
      End(std::unexpected(into.error()));
      return true;
    }
    copy_ = Copy(std::move(step.out), std::move(*into));
    state_ = State::kPayload;
    return true;
  }

  void End(Status status) {
    exchange_.status = std::move(status);
    Close();
  }
  void Close() {
    done_ = true;
    served_.reset();
    visit_.reset();
  }

  Exchange& exchange_;
  std::unique_ptr<Visit> visit_;
  std::unique_ptr<Served> served_;
  State state_ = State::kStep;
  bool done_ = false;
  std::uint64_t rings_ = 0;
  std::int64_t until_ns_ = 0;
  const std::shared_ptr<std::atomic<bool>> woken_ = std::make_shared<std::atomic<bool>>(false);
  Copy copy_;
};

class MemoryTransport final : public Transport {
 public:
  Result<std::unique_ptr<Registered>> Register(std::span<std::byte> /*memory*/) override {
    return std::unique_ptr<Registered>();
  }
  // Only a service that waits is waited for.
  void Wait(std::span<Transfer* const> transfers, std::int64_t most_ns) override {
    std::uint64_t seen = ~0ULL;
    for (const Transfer* transfer : transfers) {
      const auto& one = static_cast<const MemoryTransfer&>(*transfer);
      seen = std::min(seen, one.rings());
      most_ns = std::min(most_ns, one.until_ns() - SystemClock::Instance().NowNs());
    }
    TheBell().Await(seen, most_ns);
  }
};

}  // namespace

Endpoint::Endpoint(Service& service, rpc::Caller caller)
    : service_(service), caller_(std::move(caller)) {}
Endpoint::~Endpoint() = default;

Transport& Endpoint::transport() {
  static MemoryTransport memory;
  return memory;
}

Result<std::unique_ptr<Transfer>> Endpoint::Start(Exchange& exchange, std::int64_t /*deadline_ns*/,
                                                  std::int64_t /*doubt_until_ns*/) {
  return std::make_unique<MemoryTransfer>(exchange, service_.Open(), caller_);
}

}  // namespace kvcove::transport::shm
