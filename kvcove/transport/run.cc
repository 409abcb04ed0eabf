// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "kvcove/base/interrupt.h"
#include "kvcove/base/mutex.h"
#include "kvcove/rpc/spin.h"
#include "kvcove/transport/endpoint.h"
#include "kvcove/transport/landing.h"

namespace kvcove::transport {
namespace {

// Limit for all doubted peers of a batch together, so that a dead rack costs no more than one dead
// owner.
constexpr std::int64_t kDoubtNs = 10 * kMillisecond;
// Longest sleep in one transport while others have transfers, too: their bytes do not wake it.
constexpr std::int64_t kTurnNs = 100 * kMicrosecond;

struct Running {
  Exchange* exchange;
  std::unique_ptr<Transfer> transfer;
};

std::vector<Running> StartAll(std::span<Exchange> exchanges, std::int64_t deadline_ns,
                              const Clock& clock) {
  std::vector<Running> running;
  running.reserve(exchanges.size());
  // Start() may connect, one peer after the other, so the limit is taken once for all of them.
  const std::int64_t doubt_until_ns = clock.NowNs() + kDoubtNs;
  for (Exchange& exchange : exchanges) {
    auto transfer = exchange.to->Start(exchange, deadline_ns, doubt_until_ns);
    if (!transfer) {
      exchange.status = std::unexpected(transfer.error());
      continue;
    }
    running.push_back({&exchange, std::move(*transfer)});
  }
  return running;
}

bool AdvanceAll(std::vector<Running>& running) {
  bool moved = false;
  for (const Running& one : running) moved = one.transfer->Advance() || moved;
  std::erase_if(running, [](const Running& one) { return one.transfer->done(); });
  return moved;
}

void Wait(const std::vector<Running>& running, std::int64_t left_ns) {
  std::map<Transport*, std::vector<Transfer*>> waiting;
  for (const Running& one : running) {
    waiting[&one.exchange->to->transport()].push_back(one.transfer.get());
  }
  const std::int64_t most_ns = waiting.size() == 1 ? left_ns : std::min(left_ns, kTurnNs);
  for (const auto& [transport, transfers] : waiting) transport->Wait(transfers, most_ns);
}

}  // namespace

void Run(std::span<Exchange> exchanges, std::int64_t deadline_ns, const Clock& clock) {
  ExpectNoLock("an exchange with an owner");
  std::vector<Running> running = StartAll(exchanges, deadline_ns, clock);
  std::size_t asked_bytes = 0;
  for (const Exchange& exchange : exchanges) asked_bytes += exchange.head.size();
  rpc::Spin spin(clock, rpc::Spin::NeededFor(asked_bytes));
  while (!running.empty()) {
    // Looks before it advances: the look may last (it runs a caller's signal handlers), and bytes
    // that arrive meanwhile are still taken before the deadline is checked.
    Interrupt::LookIfDue();
    const bool moved = AdvanceAll(running);
    if (running.empty()) return;
    const std::int64_t left_ns = LeftNs(deadline_ns, clock);
    if (left_ns <= 0) break;
    if (moved) {
      spin.Restart();
    } else if (!spin.Again()) {
      Wait(running, Interrupt::TurnNs(left_ns));
    }
  }
  for (const Running& one : running) {
    Exchange& exchange = *one.exchange;
    // Sets the status first: after an Abort() that returns false, `on_quiet` may run in another
    // thread and free the exchange at any moment, even before Abort() returns.
    exchange.status = Fail(Code::kBufferBusy, "bytes may still land in the buffers");
    // Counts before Abort() for the same reason: `on_quiet` ends what Begin() has counted. If
    // Abort() returns true, `on_quiet` is never called, and this loop ends it.
    const std::shared_ptr<Landing> landing = Landing::Current();
    if (landing != nullptr) {
      landing->Begin();
      exchange.on_quiet = [landing, told = std::move(exchange.on_quiet)] {
        if (told) told();
        landing->End();
      };
    }
    if (!one.transfer->Abort()) continue;
    exchange.status = Fail(Code::kTimeout, "the owner did not answer in time");
    if (landing != nullptr) landing->End();
  }
}

}  // namespace kvcove::transport
