// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/completion.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/interrupt.h"
#include "kvcove/base/mutex.h"
#include "kvcove/base/posix.h"
#include "kvcove/transport/landing.h"

namespace kvcove {
namespace {

constexpr int kThreads = 4;
// A call reads the clock between pieces only, so it may end a little after its deadline.
constexpr std::int64_t kGraceNs = 5 * kMillisecond;

}  // namespace

class CompletionQueue::Impl {
 public:
  explicit Impl(std::size_t capacity)
      : capacity_(std::max<std::size_t>(capacity, 1)),
        event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE)) {}

  ~Impl() {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    for (std::thread& thread : threads_) thread.join();
    // A device may still write to the buffers of a call that has returned. Its Landing then calls
    // back into this object (Run), so this waits for all of them.
    const MutexLock lock(mutex_);
    while (unfinished_ > 0) changed_.Wait(mutex_);
  }

  int event_fd() const { return event_.get(); }

  Status Start(std::uint64_t tag, std::chrono::milliseconds timeout, Call call) {
    const std::int64_t deadline_ns = clock_.NowNs() + timeout.count() * kMillisecond;
    if (!event_.valid()) {
      return Fail(Code::kLimit,
                  "the completion queue has no descriptor: raise the limit of open files (ulimit "
                  "-n), and make it anew");
    }
    KVCOVE_TRY(EnsureThreads());
    const MutexLock lock(mutex_);
    if (unfinished_ + done_.size() >= capacity_) {
      return Fail(Code::kLimit, "the completion queue is full; take completions first");
    }
    ++unfinished_;
    tasks_.push_back({.tag = tag, .deadline_ns = deadline_ns, .call = std::move(call)});
    changed_.NotifyAll();
    return {};
  }

  std::optional<Completion> Next(std::chrono::milliseconds timeout) {
    const auto until = std::chrono::steady_clock::now() + timeout;
    const MutexLock lock(mutex_);
    while (done_.empty()) {
      const bool in_time = changed_.WaitUntil(mutex_, until) && !Interrupt::Ended();
      if (!in_time && done_.empty()) return std::nullopt;
    }
    // An interrupted call returns nothing, so the completion is left for the next call.
    if (Interrupt::Ended()) return std::nullopt;
    Completion completion = std::move(done_.front());
    done_.pop_front();
    std::uint64_t value = 0;
    (void)!read(event_.get(), &value, sizeof(value));
    return completion;
  }

 private:
  struct Task {
    std::uint64_t tag = 0;
    std::int64_t deadline_ns = 0;
    Call call;
  };
  struct Running {
    std::uint64_t tag = 0;
    std::int64_t deadline_ns = 0;
    bool late_told = false;
  };

  // Starts the threads in the first call; concurrent calls wait for it. If a thread cannot be
  // started, those that run are kept, and the next call starts the others. No thread is started
  // under a lock (docs/threads.md), hence `starting_`.
  Status EnsureThreads() {
    {
      const MutexLock lock(mutex_);
      while (starting_) changed_.Wait(mutex_);
      if (started_) return {};
      starting_ = true;
    }
    const Status done = StartThreads();
    const MutexLock lock(mutex_);
    starting_ = false;
    started_ = done.has_value();
    changed_.NotifyAll();
    return done;
  }
  Status StartThreads() {
    while (threads_.size() <= static_cast<std::size_t>(kThreads)) {
      const bool watches = threads_.empty();
      KVCOVE_ASSIGN(std::thread thread, watches ? StartThread("kvcove-late", [this] { Watch(); })
                                                : StartThread("kvcove-async", [this] { Run(); }));
      threads_.push_back(std::move(thread));
    }
    return {};
  }

  Completion Finish(Task& task) const {
    Completion completion{.tag = task.tag, .status = {}};
    const std::int64_t left_ns = task.deadline_ns - clock_.NowNs();
    if (left_ns <= 0) {
      completion.status = Fail(Code::kTimeout, "the deadline passed before the call was started");
      return completion;
    }
    // At least one millisecond: a timeout of 0 would only take what needs no wait.
    completion.status =
        task.call(std::chrono::milliseconds(std::max<std::int64_t>(left_ns / kMillisecond, 1)),
                  completion.count);
    return completion;
  }

  void Run() {
    while (true) {
      Task task;
      std::list<Running>::iterator mine;
      {
        const MutexLock lock(mutex_);
        while (tasks_.empty() && !stopping_) changed_.Wait(mutex_);
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
        mine = running_.insert(running_.end(), {.tag = task.tag, .deadline_ns = task.deadline_ns});
      }
      const auto landing = std::make_shared<transport::Landing>();
      Completion completion;
      {
        const transport::Landing::Scope scope(landing);
        completion = Finish(task);
      }
      // The call has returned, but a device may still write to its buffers: the caller gets a
      // completion that is not final now, and the final one when the device has stopped.
      if (landing->busy()) {
        const MutexLock lock(mutex_);
        if (!std::exchange(mine->late_told, true)) PushLate(task.tag);
      }
      landing->Then([this, mine, completion = std::move(completion)]() mutable {
        const MutexLock lock(mutex_);
        // In one hold of the lock, so that Watch cannot push a late completion after the final one.
        running_.erase(mine);
        --unfinished_;
        Push(std::move(completion));
      });
    }
  }

  // Reports calls that run past their deadline.
  void Watch() {
    const MutexLock lock(mutex_);
    while (!stopping_) {
      const std::int64_t now = clock_.NowNs();
      for (Running& running : running_) {
        if (running.late_told || now < running.deadline_ns + kGraceNs) continue;
        running.late_told = true;
        PushLate(running.tag);
      }
      // Sleeps without a limit only if there are no tasks either: a thread that takes a task does
      // not notify `changed_`, and this thread would not see that call run late.
      if (running_.empty() && tasks_.empty()) {
        changed_.Wait(mutex_);
      } else {
        changed_.WaitFor(mutex_, std::chrono::milliseconds(5));
      }
    }
  }

  void PushLate(std::uint64_t tag) KVCOVE_REQUIRES(mutex_) {
    Push({.tag = tag,
          .status = Fail(Code::kBufferBusy, "bytes may still land in the buffers"),
          .final = false});
  }

  void Push(Completion completion) KVCOVE_REQUIRES(mutex_) {
    done_.push_back(std::move(completion));
    const std::uint64_t one = 1;
    (void)!write(event_.get(), &one, sizeof(one));
    changed_.NotifyAll();
  }

  const Clock& clock_ = SystemClock::Instance();
  const std::size_t capacity_;
  const UniqueFd event_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Task> tasks_ KVCOVE_GUARDED_BY(mutex_);
  std::list<Running> running_ KVCOVE_GUARDED_BY(mutex_);
  std::deque<Completion> done_ KVCOVE_GUARDED_BY(mutex_);
  std::size_t unfinished_ KVCOVE_GUARDED_BY(mutex_) = 0;
  bool starting_ KVCOVE_GUARDED_BY(mutex_) = false;
  bool started_ KVCOVE_GUARDED_BY(mutex_) = false;
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  // Needs no lock: used by the one call that starts them, then by the destructor, which no call may
  // overlap.
  std::vector<std::thread> threads_;
};

CompletionQueue::CompletionQueue(std::size_t capacity)
    : forks_(ForkCount()), impl_(std::make_unique<Impl>(capacity)) {}

CompletionQueue::~CompletionQueue() {
  // A forked child does not have the threads, so that joining them would never return.
  if (forks_ != ForkCount()) (void)impl_.release();
}

int CompletionQueue::event_fd() const { return impl_->event_fd(); }

std::optional<Completion> CompletionQueue::Next(std::chrono::milliseconds timeout) {
  return impl_->Next(timeout);
}

Status CompletionQueue::Start(std::uint64_t tag, std::chrono::milliseconds timeout, Call call) {
  if (forks_ != ForkCount()) {
    return Fail(Code::kUnavailable,
                "this process was forked after the queue was made; make another in the child");
  }
  return impl_->Start(tag, timeout, std::move(call));
}

}  // namespace kvcove
