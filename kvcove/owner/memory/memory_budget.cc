// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/memory/memory_budget.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "kvcove/base/log.h"
#include "kvcove/base/size.h"

namespace kvcove::owner {
namespace {

constexpr std::int64_t kBudgetLookNs = 50 * kMillisecond;
// Growth by less does not count: another process may have freed it.
constexpr std::uint64_t kGrowthBytes = kMiB;

void Rest(const MemoryBudget& budget, std::int64_t ns) {
  if (budget.rest) return budget.rest(ns);
  std::this_thread::sleep_for(std::chrono::nanoseconds(ns));
}

}  // namespace

Status AwaitMemory(std::uint64_t bytes, const MemoryBudget& budget) {
  std::string held;
  bool said = false;
  MemoryRoom room;
  std::uint64_t largest_room = 0;
  std::int64_t grew_ns = 0;
  for (std::int64_t waited_ns = 0;; waited_ns += kBudgetLookNs) {
    room = budget.available();
    if (bytes <= room.bytes) break;
    held.clear();
    for (const segment::Leftover& leftover : budget.leftovers()) {
      held += "; " + leftover.Describe();
    }
    if (waited_ns == 0 || room.bytes >= largest_room + kGrowthBytes) {
      largest_room = room.bytes;
      grew_ns = waited_ns;
    }
    // Two waits: while the kernel frees an ended owner's memory, the room grows. While an engine
    // still maps that memory, the room does not grow, and only `patience_ns` bounds the wait.
    std::int64_t until_ns = std::min(grew_ns + budget.settle_ns, budget.most_ns);
    if (!held.empty()) until_ns = std::max(until_ns, budget.patience_ns);
    if (bytes > room.most_bytes || waited_ns >= until_ns) {
      return Fail(Code::kInvalid,
                  fmt::format("a memory budget of {}, but {} can give {} now; ask for less, or "
                              "raise that limit{}",
                              FormatSize(bytes), room.limit, FormatSize(room.bytes), held));
    }
    if (!std::exchange(said, true)) {
      LogWarn(
          "{} do not fit yet, {} can give {} now{}: waiting for {} s, and longer while the room "
          "grows, for the kernel may still free the memory of an owner that has ended",
          FormatSize(bytes), room.limit, FormatSize(room.bytes), held, until_ns / kSecond);
    }
    Rest(budget, kBudgetLookNs);
  }
  if (bytes > room.bytes / 10 * 9) {
    LogWarn(
        "{} of memory are more than nine tenths of the {} that {} can give: the index, engines "
        "and the kernel need some, too",
        FormatSize(bytes), FormatSize(room.bytes), room.limit);
  }
  if (room.throttles) {
    LogWarn(
        "{}: beyond memory.high the kernel slows every thread that needs memory, also those that "
        "renew leases; set memory.max alone, or leave room below memory.high",
        room.limit);
  }
  return {};
}

}  // namespace kvcove::owner
