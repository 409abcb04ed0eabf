// SPDX-License-Identifier: Apache-2.0
#include "kvcove/top/sampler.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>

namespace kvcove::top {

std::int64_t PauseNs(std::int64_t interval_ns, std::int64_t cost_ns) {
  return std::max(interval_ns, 100 * cost_ns);
}

std::int64_t ThreadCostNs() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * kSecond + time.tv_nsec;
}

Result<std::unique_ptr<Sampler>> Sampler::Start(Source& source, std::int64_t interval_ns) {
  std::unique_ptr<Sampler> sampler(new Sampler(source));
  sampler->event_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!sampler->event_.valid()) return FailErrno(Code::kInternal, "creating an eventfd");
  sampler->SetInterval(interval_ns);
  KVCOVE_ASSIGN(sampler->thread_,
                StartThread("kvcove-sampler", [raw = sampler.get()] { raw->Run(); }));
  return sampler;
}

Sampler::~Sampler() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  JoinIfStarted(thread_);
}

std::optional<Sampler::News> Sampler::Take() {
  std::uint64_t count = 0;
  (void)!read(event_.get(), &count, sizeof(count));
  const MutexLock lock(mutex_);
  return std::exchange(news_, std::nullopt);
}

void Sampler::SetInterval(std::int64_t interval_ns) {
  const MutexLock lock(mutex_);
  interval_ns_ = interval_ns;
  changed_.NotifyAll();
}

void Sampler::AddCost(std::int64_t cost_ns) {
  const MutexLock lock(mutex_);
  cost_ns_ += cost_ns;
}

void Sampler::Run() {
  const Clock& clock = SystemClock::Instance();
  while (true) {
    const std::int64_t began_ns = clock.NowNs();
    const std::int64_t spent_ns = ThreadCostNs();
    Result<Taken> taken = source_.Take();
    News news{.at_ns = clock.NowNs()};
    if (taken) {
      news.taken = std::move(*taken);
    } else {
      news.error = taken.error().detail;
    }
    const std::uint64_t one = 1;
    {
      const MutexLock lock(mutex_);
      news_ = std::move(news);
      cost_ns_ = ThreadCostNs() - spent_ns;
    }
    (void)!write(event_.get(), &one, sizeof(one));
    const MutexLock lock(mutex_);
    while (!stopping_) {
      const std::int64_t left_ns = began_ns + PauseNs(interval_ns_, cost_ns_) - clock.NowNs();
      if (left_ns <= 0) break;
      changed_.WaitFor(mutex_, std::chrono::nanoseconds(left_ns));
    }
    if (stopping_) return;
  }
}

}  // namespace kvcove::top
