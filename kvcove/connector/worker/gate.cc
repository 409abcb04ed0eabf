// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/worker/gate.h"

#include <utility>

namespace kvcove::connector {

void Gate::TakePlan(const Plan& plan) {
  if (plan.fingerprint != 0) wanted_ = plan.fingerprint;
  const bool told = plan.adapters.size() > number_;
  adapters_known_ = told ? plan.adapters[number_] : 0;
}

bool Gate::WeightsChanging() {
  ++changes_;
  if (fingerprints_) closed_ = true;
  return fingerprints_;
}

void Gate::SetFingerprint(std::string fingerprint) {
  news_.fingerprint_asked = std::exchange(wanted_, 0);
  news_.fingerprint = std::move(fingerprint);
  news_.fingerprint_changes = changes_;
  closed_ = false;
}

void Gate::SetAdapters(const std::vector<AdapterPrint>& adapters) {
  std::map<AdapterId, Adapter> now;
  bool changed = adapters.size() != adapters_.size();
  for (const AdapterPrint& print : adapters) {
    const auto before = adapters_.find(print.id);
    const bool same = before != adapters_.end() && before->second.digest == print.digest;
    now[print.id] =
        same ? before->second : Adapter{.digest = print.digest, .since = adapters_number_ + 1};
    changed = changed || !same;
  }
  if (!changed) return;
  adapters_ = std::move(now);
  news_.adapters_number = ++adapters_number_;
  news_.adapters = adapters;
}

bool Gate::Loads(const AdapterPrint& adapter) const {
  if (closed_ || without_pool_) return false;
  if (adapter.id == 0) return true;
  // The scheduler made the order's digest from reports up to `adapters_known_`. An adapter that
  // came later has the same id and other tensors.
  const auto at = adapters_.find(adapter.id);
  return at != adapters_.end() && at->second.since <= adapters_known_;
}

bool Gate::Saves(const AdapterPrint& adapter, std::int64_t now_ns) const {
  return now_ns >= pressure_until_ns_ && Loads(adapter);
}

Report Gate::TakeReport() {
  Report report = std::exchange(news_, {});
  report.rank = number_;
  report.weight_changes = changes_;
  return report;
}

}  // namespace kvcove::connector
