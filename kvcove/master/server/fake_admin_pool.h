// SPDX-License-Identifier: Apache-2.0
// A pool of plain values behind an admin endpoint, for tests of its routes and page.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/master/server/admin_pool.h"

namespace kvcove::master {

// The values are set before it is served; Reset and Cancel are thread-safe.
class FakeAdminPool : public AdminPool {
 public:
  Readiness Ready() const override { return ready; }
  nlohmann::json Status() const override { return nlohmann::json::object(); }
  std::string Metrics() const override { return {}; }
  std::vector<wire::OwnerStat> Owners() const override { return owners; }
  Result<std::vector<SlotDescription>> Namespaces() const override { return slots; }
  Result<std::vector<std::string>> VersionedNames() const override {
    return std::vector<std::string>();
  }
  std::vector<std::uint64_t> BytesBySlot() const override { return bytes_by_slot; }
  Result<EngineList> Engines(std::size_t at_most) const override {
    EngineList list{.engines = engines, .registered = engines.size()};
    if (list.engines.size() > at_most) list.engines.resize(at_most);
    return list;
  }
  std::vector<TaskStat> Tasks() const override {
    const MutexLock lock(mutex_);
    return tasks;
  }
  Counts Count() const override { return counts; }
  Result<AskPage> PagesOf(const wire::OwnerStat& /*owner*/) const override {
    return Fail(Code::kUnavailable, "this pool has no objects");
  }
  Found Find(std::span<const SlotDescription> of, std::string_view /*key*/,
             std::int64_t /*deadline_ns*/) const override {
    Found found{.keys = {}, .own = {}, .away = {}, .since = "the master started"};
    found.keys.resize(of.size(), {.reason = MissReason::kEvicted, .holders = {}});
    return found;
  }
  void CountPrefix(const SlotDescription& /*slot*/, std::span<const std::string_view> /*keys*/,
                   std::int64_t /*deadline_ns*/, PrefixCount& count) const override {
    count.End(MissReason::kEvicted);
  }
  Result<wire::ResetOutcome> Reset(const wire::ResetRequest& request,
                                   std::int64_t /*deadline_ns*/) override {
    const MutexLock lock(mutex_);
    asked.push_back("reset " + request.name);
    return wire::ResetOutcome{};
  }
  Result<wire::PruneOutcome> Prune(const wire::PruneRequest& /*request*/,
                                   std::int64_t /*deadline_ns*/) override {
    return wire::PruneOutcome{};
  }
  Result<std::uint64_t> Remove(const SlotDescription& /*slot*/, std::string_view /*pattern*/,
                               std::int64_t /*deadline_ns*/) override {
    return 0;
  }
  Result<PinCounts> Pin(const PinRequest& /*request*/, std::int64_t /*deadline_ns*/) override {
    return PinCounts{};
  }

  Readiness ready{.ready = true, .text = "leader"};
  std::vector<wire::OwnerStat> owners;
  std::vector<SlotDescription> slots;
  std::vector<std::uint64_t> bytes_by_slot;
  std::vector<EngineDescription> engines;
  Counts counts;
  std::vector<TaskStat> tasks;
  std::vector<std::string> asked;  // to reset

 protected:
  mutable Mutex mutex_;
};

}  // namespace kvcove::master
