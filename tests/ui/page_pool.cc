// SPDX-License-Identifier: Apache-2.0
// The page over a pool of plain values, of any size: page_pool PORT OWNERS NAMESPACES. It ends with
// its stdin. A reset appears on stdout; a drain becomes a task, which copies a little at each look,
// and can be cancelled. Its counters grow at each look as those of a pool that is used, so a short
// test fills the hour: the clock of the page runs 10 s for each of its ticks.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "kvcove/base/size.h"
#include "kvcove/base/text.h"
#include "kvcove/http/server.h"
#include "kvcove/master/server/admin_request.h"
#include "kvcove/master/server/fake_admin_pool.h"
#include "kvcove/master/server/page.h"
#include "kvcove/master/server/page_history.h"
#include "kvcove/model/ids.h"
#include "kvcove/rpc/address.h"

namespace kvcove::master {
namespace {

class UsedPool final : public FakeAdminPool {
 public:
  UsedPool(std::size_t owner_count, std::size_t namespace_count) {
    for (std::size_t i = 0; i < owner_count; ++i) {
      owners.push_back({.number = static_cast<wire::OwnerNumber>(i),
                        .address = fmt::format("10.0.{}.{}:7401", i / 256, i % 256),
                        .socket = {},
                        .host = fmt::format("node{:04}", i),
                        .capacity_bytes = 64 * kGiB,
                        .free_bytes = (10 + i % 40) * kGiB,
                        .live = i != 7,
                        .objects = 120'000 + 37 * i,
                        .tenant = {},
                        .disks = 2,
                        .disks_aside = i == 11 ? 1U : 0U,
                        .disk_capacity_bytes = 2048 * kGiB,
                        .disk_bytes = 700 * kGiB});
    }
    for (std::size_t i = 0; i < 2 * namespace_count; ++i) {
      // The last two read the same: one is the tenant's, the other one is of no tenant.
      std::string name = fmt::format("team{}/model-{}", i / 2 % 97, i / 2);
      if (i / 2 + 2 == namespace_count) name = QualifiedName("twin", "model");
      if (i / 2 + 1 == namespace_count) name = "twin:model";
      slots.push_back({.slot = static_cast<SlotId>(i),
                       .name = std::move(name),
                       .version = fmt::format("step-{}", 100 + i % 2),
                       .used = true});
      bytes_by_slot.push_back((i * 7919 % 10'000) * kMiB);
    }
    for (std::size_t i = 0; i < 200; ++i) {
      engines.push_back({.name = slots[i % slots.size()].name,
                         .engine = fmt::format("engine-{}", i),
                         .version = "step-101",
                         .open = i != 5,
                         .processes = 1});
    }
    counts.calls = {{"lookup", {}}, {"reset", {}}};
  }

  // The estimates, as those of one host.
  nlohmann::json Status() const override {
    const nlohmann::json ratios = {
        {"half", 0.31}, {"same", 0.42}, {"double", 0.55}, {"quadruple", 0.61}, {"any", 0.7}};
    return {{"expected", {{"asked", 100'000}, {"hit_ratio", {{"memory", ratios}}}}}};
  }
  std::vector<wire::OwnerStat> Owners() const override {
    const MutexLock lock(mutex_);
    return owners;
  }
  Counts Count() const override {
    const MutexLock lock(mutex_);
    return counts;
  }

  void Work() {
    const MutexLock lock(mutex_);
    const std::uint64_t wave = 50 + (worked_ * 13 % 40);
    ++worked_;
    owners[0].hits += 40 * wave;
    owners[0].hit_bytes += 400 * wave * kMiB;
    owners[0].put_bytes += 90 * wave * kMiB;
    counts.misses[static_cast<std::size_t>(MissReason::kEvicted)] += 1000;
    counts.misses[static_cast<std::size_t>(MissReason::kNeverPut)] += 500;
    counts.misses[static_cast<std::size_t>(MissReason::kOwnerGone)] += 3;
    counts.calls[0].second[4 + worked_ % 3] += 1000;
    counts.resets = worked_ / 20;
    for (TaskStat& task : tasks) {
      if (task.state != TaskState::kRunning) continue;
      task.copied += 1000;
      task.copied_bytes += 900 * kMiB;
      task.seconds += 1;
    }
  }
  std::uint64_t Drain(const std::string& owner) {
    const MutexLock lock(mutex_);
    tasks.insert(tasks.begin(),
                 {.id = tasks.size() + 1,
                  .request = {.kind = TaskKind::kDrain, .from = owner, .to = {}, .prefix = {}},
                  .state = TaskState::kRunning,
                  .message = {}});
    for (wire::OwnerStat& one : owners) one.draining = one.draining || one.address == owner;
    return tasks.front().id;
  }
  void Cancel(std::uint64_t id) {
    const MutexLock lock(mutex_);
    for (TaskStat& task : tasks) {
      if (task.id != id) continue;
      task.state = TaskState::kCancelled;
      for (wire::OwnerStat& one : owners) {
        if (one.address == task.request.from) one.draining = false;
      }
    }
  }
  Result<wire::ResetOutcome> Reset(const wire::ResetRequest& request,
                                   std::int64_t /*deadline_ns*/) override {
    fmt::print("reset {}\n", request.name);
    std::fflush(stdout);
    return wire::ResetOutcome{};
  }

 private:
  std::uint64_t worked_ = 0;
};

// Serves until stdin ends.
Status Serve(std::uint16_t port, const std::shared_ptr<UsedPool>& pool) {
  static FakeClock clock;
  std::vector<http::Route> routes = PoolRoutes(pool, clock);
  Page page = PageOf(pool, {.drains = true}, clock);
  std::ranges::move(page.routes, std::back_inserter(routes));
  AddRoute(routes, "POST", "/v1/drain", /*waits=*/false,
           [pool](const http::Request& request) -> Result<nlohmann::json> {
             return nlohmann::json{{"task", pool->Drain(request.Get("owner"))}};
           });
  AddRoute(routes, "POST", "/v1/cancel", /*waits=*/false,
           [pool](const http::Request& request) -> Result<nlohmann::json> {
             KVCOVE_ASSIGN(const std::uint64_t id, NumberIn(request, "id", 0));
             pool->Cancel(id);
             return nlohmann::json{{"cancelled", id}};
           });
  const auto work = [pool, tick = std::move(page.tick)] {
    pool->Work();
    tick();
    clock.AdvanceNs(PageHistory::kIntervalNs);
  };
  for (std::size_t i = 0; i < PageHistory::kPoints; ++i) work();
  rpc::Address address = rpc::LoopbackAddress(port);
  http::ServerOptions options{.authorize = {}, .tick = work, .logins = true, .tunnel = {}};
  KVCOVE_ASSIGN(options.listener, rpc::ListenTcp(address));
  KVCOVE_ASSIGN(const auto server, http::Server::Open(std::move(options), std::move(routes)));
  fmt::print("http://{}/\n", address.ToString());
  std::fflush(stdout);
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return {};
}

}  // namespace
}  // namespace kvcove::master

int main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "usage: page_pool PORT OWNERS NAMESPACES\n");
    return 2;
  }
  const auto number = [&](int i) { return kvcove::LeadingNumber(argv[i]); };
  const auto pool = std::make_shared<kvcove::master::UsedPool>(number(2), number(3));
  const kvcove::Status served = kvcove::master::Serve(static_cast<std::uint16_t>(number(1)), pool);
  if (served) return 0;
  fmt::print(stderr, "page_pool: {}\n", served.error().ToString());
  return 1;
}
