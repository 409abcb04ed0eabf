// SPDX-License-Identifier: Apache-2.0
#include "kvcove/pool/async.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

namespace kvcove::pool {

QueueImpl::QueueImpl(std::size_t capacity)
    : capacity_(std::max<std::size_t>(capacity, 1)),
      event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE)) {}

bool QueueImpl::Reserve() {
  const MutexLock lock(mutex_);
  if (running_ + done_.size() >= capacity_) return false;
  ++running_;
  return true;
}

void QueueImpl::Push(Completion completion) {
  const MutexLock lock(mutex_);
  if (completion.final) --running_;
  done_.push_back(std::move(completion));
  const std::uint64_t one = 1;
  (void)!write(event_.get(), &one, sizeof(one));
  changed_.NotifyAll();
}

std::optional<Completion> QueueImpl::Next(std::chrono::milliseconds timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  const MutexLock lock(mutex_);
  while (done_.empty()) {
    if (!changed_.WaitUntil(mutex_, until) && done_.empty()) return std::nullopt;
  }
  Completion completion = std::move(done_.front());
  done_.pop_front();
  std::uint64_t value = 0;
  (void)!read(event_.get(), &value, sizeof(value));
  return completion;
}

void QueueImpl::WaitForAll() {
  const MutexLock lock(mutex_);
  while (running_ > 0) changed_.Wait(mutex_);
}

Executor::~Executor() {
  std::vector<std::thread> threads;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
}

void Executor::Post(AsyncTask task) {
  const MutexLock lock(mutex_);
  if (threads_.empty()) {
    for (int i = 0; i < kThreads; ++i) {
      threads_.push_back(StartThread("kvcove-async", [this] { Run(); }));
    }
    threads_.push_back(StartThread("kvcove-late", [this] { Watch(); }));
  }
  queue_.push_back(std::move(task));
  changed_.NotifyAll();
}

void Executor::Run() {
  while (true) {
    AsyncTask task;
    std::list<Running>::iterator mine;
    {
      const MutexLock lock(mutex_);
      while (queue_.empty() && !stopping_) changed_.Wait(mutex_);
      if (queue_.empty()) return;
      task = std::move(queue_.front());
      queue_.pop_front();
      mine = running_.insert(running_.end(), {.task = &task});
    }
    Completion completion{.tag = task.tag, .status = {}};
    const std::int64_t left_ns = task.deadline_ns - clock_.NowNs();
    if (left_ns <= 0) {
      completion.status = Fail(Code::kTimeout, "the deadline passed before the call was started");
    } else {
      // At least one millisecond, so that what just arrived is tried.
      completion.status =
          task.call(std::chrono::milliseconds(std::max<std::int64_t>(left_ns / kMillisecond, 1)),
                    completion.count);
    }
    {
      const MutexLock lock(mutex_);
      running_.erase(mine);
    }
    task.queue->Push(std::move(completion));
  }
}

void Executor::Watch() {
  const MutexLock lock(mutex_);
  while (!stopping_) {
    const std::int64_t now = clock_.NowNs();
    std::vector<std::pair<std::shared_ptr<QueueImpl>, std::uint64_t>> late;
    for (Running& running : running_) {
      // A grace, since a call looks at the clock between pieces only.
      if (running.told || now < running.task->deadline_ns + 5 * kMillisecond) continue;
      running.told = true;
      late.emplace_back(running.task->queue, running.task->tag);
    }
    if (!late.empty()) {
      mutex_.unlock();
      for (const auto& [queue, tag] : late) {
        queue->Push({.tag = tag,
                     .status = Fail(Code::kBufferBusy, "bytes may still land in the buffers"),
                     .final = false});
      }
      mutex_.lock();
      continue;
    }
    if (running_.empty()) {
      changed_.Wait(mutex_);
    } else {
      changed_.WaitFor(mutex_, std::chrono::milliseconds(5));
    }
  }
}

}  // namespace kvcove::pool
