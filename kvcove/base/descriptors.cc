// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/descriptors.h"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "kvcove/base/clock.h"

namespace kvcove {
namespace {

std::int64_t Now() { return SystemClock::Instance().NowNs(); }

rlimit Limits() {
  rlimit limits{.rlim_cur = 1024, .rlim_max = 1024};
  getrlimit(RLIMIT_NOFILE, &limits);
  return limits;
}

}  // namespace

std::uint64_t DescriptorLimit() { return Limits().rlim_cur; }

std::uint64_t RaiseDescriptorLimit() {
  rlimit limits = Limits();
  // "Unlimited" would be refused, and no server needs more than a million.
  limits.rlim_cur = std::max(limits.rlim_cur, std::min<rlim_t>(limits.rlim_max, 1U << 20));
  setrlimit(RLIMIT_NOFILE, &limits);
  return DescriptorLimit();
}

std::uint64_t OpenDescriptors() {
  std::error_code error;
  std::uint64_t count = 0;
  for (auto at = std::filesystem::directory_iterator("/proc/self/fd", error);
       !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
    ++count;
  }
  return count == 0 ? 0 : count - 1;  // the directory's own
}

std::uint32_t ConnectionsWithin(std::uint32_t wanted, std::uint32_t each) {
  const std::uint64_t limit = DescriptorLimit();
  // A small limit is shared half and half.
  const std::uint64_t left = limit - std::min(kReservedDescriptors, limit / 2);
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(std::max<std::uint64_t>(left / each, 16), wanted));
}

ConnectionLimit::ConnectionLimit(std::string name, std::uint32_t max)
    : name_(std::move(name)), max_(max) {}

std::shared_ptr<void> ConnectionLimit::Take() {
  const std::uint32_t open = open_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (open > max_) {
    open_.fetch_sub(1, std::memory_order_relaxed);
    const std::uint64_t refused = refused_.fetch_add(1, std::memory_order_relaxed) + 1;
    if (full_lines_.Due(Now()) > 0) {
      LogWarn(
          "{}: all {} connections are in use, so new ones are closed at once ({} so far); close "
          "clients, or raise the limit of descriptors (ulimit -n; LimitNOFILE)",
          name_, max_, refused);
    }
    return nullptr;
  }
  if (open > max_ / 5 * 4 && near_lines_.Due(Now()) > 0) {
    LogWarn("{}: {} of {} connections are in use; beyond, new ones are closed at once", name_, open,
            max_);
  }
  return {this, [self = shared_from_this()](void*) {
            self->open_.fetch_sub(1, std::memory_order_relaxed);
          }};
}

void ConnectionLimit::AcceptFailed(int error) {
  refused_.fetch_add(1, std::memory_order_relaxed);
  if (full_lines_.Due(Now()) == 0) return;
  LogWarn(
      "{}: a connection cannot be accepted: {} ({} descriptors open, {} allowed); raise the limit "
      "(ulimit -n; LimitNOFILE)",
      name_, std::generic_category().message(error), OpenDescriptors(), DescriptorLimit());
}

}  // namespace kvcove
