// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/memory_budget.h"

#include <fmt/core.h>

#include <chrono>
#include <string>
#include <thread>

#include "kvcove/base/log.h"
#include "kvcove/base/size.h"

namespace kvcove::owner {
namespace {

constexpr std::int64_t kBudgetLookNs = 50 * kMillisecond;

void Rest(const MemoryBudget& budget, std::int64_t ns) {
  if (budget.rest) return budget.rest(ns);
  std::this_thread::sleep_for(std::chrono::nanoseconds(ns));
}

}  // namespace

Status AwaitMemory(std::uint64_t bytes, const MemoryBudget& budget) {
  std::string held;
  bool said = false;
  MemoryRoom room;
  for (std::int64_t waited_ns = 0;; waited_ns += kBudgetLookNs) {
    room = budget.available();
    if (bytes <= room.bytes) break;
    held.clear();
    for (const segment::Leftover& leftover : budget.leftovers()) {
      held += "; " + leftover.Describe();
    }
    if (held.empty() || waited_ns >= budget.patience_ns) {
      return Fail(Code::kInvalid,
                  fmt::format("a memory budget of {}, but {} can give {} now; ask for less, or "
                              "raise that limit{}",
                              FormatSize(bytes), room.limit, FormatSize(room.bytes), held));
    }
    if (!std::exchange(said, true)) {
      LogWarn("{} do not fit yet{}: waiting up to {} s for it", FormatSize(bytes), held,
              budget.patience_ns / kSecond);
    }
    Rest(budget, kBudgetLookNs);
  }
  if (bytes > room.bytes / 10 * 9) {
    LogWarn(
        "{} of memory are more than nine tenths of the {} that {} can give: the index, engines "
        "and the kernel need some, too",
        FormatSize(bytes), FormatSize(room.bytes), room.limit);
  }
  return {};
}

}  // namespace kvcove::owner
