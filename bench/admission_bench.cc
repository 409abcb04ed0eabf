// SPDX-License-Identifier: Apache-2.0
// What the limits of a server cost a call: alone, and from several threads of one tenant. One JSON
// line a row; bench/README.md has the figures.
#include <fmt/core.h>
#include <time.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/rpc/call_limits.h"

namespace kvcove::rpc {
namespace {

constexpr int kCalls = 2'000'000;

// Of this thread, without the time that others take the processor.
std::int64_t Now() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (now.tv_sec * kSecond) + now.tv_nsec;
}

double NsPerCall(CallLimits::Account& account, int& admitted) {
  const std::int64_t began = Now();
  std::int64_t at_ns = kSecond;
  for (int i = 0; i < kCalls; ++i) {
    if (account.Begin(Traffic::kOther, 100, at_ns).admitted()) {
      account.End(100);
      ++admitted;
    }
    at_ns += 1000;
  }
  return static_cast<double>(Now() - began) / kCalls;
}

void Row(const char* what, const CallLimitsOptions& options, int tenants, int threads) {
  CallLimits all(options);
  std::vector<std::unique_ptr<CallLimits::Account>> others;
  for (int i = 0; i < tenants; ++i) others.push_back(all.Enter({.tenant = std::to_string(i)}));
  std::vector<double> ns(static_cast<std::size_t>(threads));
  std::vector<int> admitted(ns.size());
  std::vector<std::thread> running;
  for (std::size_t t = 0; t < ns.size(); ++t) {
    running.emplace_back([&, t] {
      const auto account = all.Enter({.tenant = "mine"});
      ns[t] = NsPerCall(*account, admitted[t]);
    });
  }
  for (std::thread& thread : running) thread.join();
  fmt::print(
      "{{\"bench\":\"admission\",\"what\":\"{}\",\"tenants\":{},\"threads\":{},"
      "\"ns_per_call\":{:.1f},\"admitted\":{}}}\n",
      what, tenants, threads, *std::ranges::max_element(ns), admitted.front());
}

void Main() {
  const CallLimitsOptions wide{.connection = {.calls_per_second = 100'000'000},
                               .tenant = {.calls_per_second = 100'000'000, .bytes = 1 << 30},
                               .all = {.calls_per_second = 100'000'000, .bytes = 1 << 30}};
  CallLimitsOptions narrow = wide;
  narrow.tenant.calls_per_second = 10;
  Row("admitted", wide, 0, 1);
  Row("admitted", wide, 10'000, 1);
  Row("admitted", wide, 0, 2);
  Row("refused", narrow, 0, 1);
}

}  // namespace
}  // namespace kvcove::rpc

int main() { kvcove::rpc::Main(); }
