// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/busy.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "kvcove/base/interrupt.h"

namespace kvcove::rpc {
namespace {

constexpr std::string_view kBusy = "busy, ask again after ";
constexpr std::string_view kUnit = " ms";

}  // namespace

Error BusyError(const CallLimits::Verdict& verdict) {
  return {.code = Code::kLimit,
          .detail = fmt::format("{}{}{}: a limit is reached ({})", kBusy, verdict.retry_after_ms,
                                kUnit, RefusalName(verdict.refusal))};
}

std::optional<std::uint32_t> BusyIn(const Error& error) {
  if (error.code != Code::kLimit) return std::nullopt;
  const std::size_t at = error.detail.find(kBusy);
  if (at == std::string::npos) return std::nullopt;
  const std::string_view rest = std::string_view(error.detail).substr(at + kBusy.size());
  std::uint32_t retry_after_ms = 0;
  const auto [end, bad] = std::from_chars(rest.data(), rest.data() + rest.size(), retry_after_ms);
  if (bad != std::errc() ||
      !rest.substr(static_cast<std::size_t>(end - rest.data())).starts_with(kUnit)) {
    return std::nullopt;
  }
  // Bounded, because the number comes from outside: a wrong one must not stop a client for long.
  return std::min(retry_after_ms, static_cast<std::uint32_t>(CallLimits::kMostRetryMs));
}

std::int64_t RetryNs(std::uint32_t retry_after_ms, std::uint64_t random) {
  const std::int64_t least_ns = retry_after_ms * kMillisecond;
  return least_ns +
         static_cast<std::int64_t>(random % static_cast<std::uint64_t>(least_ns / 2 + 1));
}

std::int64_t Backoff::NextNs() {
  const std::int64_t half_ns = next_ns_ / 2;
  const std::int64_t wait_ns =
      next_ns_ - static_cast<std::int64_t>(random_.Below(static_cast<std::uint64_t>(half_ns) + 1));
  next_ns_ = std::min(2 * next_ns_, most_ns_);
  return wait_ns;
}

bool WaitWhileBusy(std::uint32_t retry_after_ms, std::int64_t deadline_ns, const Clock& clock) {
  const std::int64_t wait_ns = RetryNs(retry_after_ms, RandomU64());
  if (wait_ns >= LeftNs(deadline_ns, clock)) return false;
  ExpectNoLock("a wait for a busy server");
  SleepNs(wait_ns);
  return !Interrupt::Ended();
}

void BusyUntil::Note(std::uint32_t retry_after_ms, std::int64_t now_ns) {
  const std::int64_t until_ns = now_ns + (retry_after_ms * kMillisecond);
  std::int64_t known_ns = until_ns_.load(std::memory_order_relaxed);
  while (known_ns < until_ns &&
         !until_ns_.compare_exchange_weak(known_ns, until_ns, std::memory_order_relaxed)) {
  }
}

std::optional<Error> BusyUntil::Now(std::int64_t now_ns) const {
  const std::int64_t left_ns = until_ns_.load(std::memory_order_relaxed) - now_ns;
  if (left_ns <= 0) return std::nullopt;
  return Error{.code = Code::kLimit,
               .detail = fmt::format("{}{}{}: as it has said", kBusy,
                                     (left_ns + kMillisecond - 1) / kMillisecond, kUnit),
               .answered = true};
}

}  // namespace kvcove::rpc
