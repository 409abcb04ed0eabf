// SPDX-License-Identifier: Apache-2.0
// LoRA adapters: their digests, and what is void when one of them changes.
#include <fmt/core.h>

#include "kvcove/base/hash.h"
#include "kvcove/connector/scheduler/scheduler.h"

namespace kvcove::connector {
namespace {

constexpr std::size_t kMostAdapters = 4096;  // remembered, those that ranks have not

}  // namespace

bool SchedulerRole::BindAdapter(Request& request, AdapterId adapter) const {
  request.adapter = {.id = adapter, .digest = {}};
  request.adapter_tag = 0;
  if (adapter == 0) return true;
  const auto at = adapters_.find(adapter);
  if (at == adapters_.end() || !at->second.there) return false;
  request.adapter.digest = at->second.digest;
  request.adapter_tag = at->second.tag;
  return true;
}

void SchedulerRole::TakeAdapters(const Report& report, LinesAfterLock& lines) {
  if (report.adapters_number <= adapters_seen_[report.rank]) return;
  adapters_seen_[report.rank] = report.adapters_number;
  auto& mine = rank_adapters_[report.rank];
  mine.clear();
  for (const AdapterPrint& print : report.adapters) {
    mine[print.id] = print.digest;
    adapters_.try_emplace(print.id);
  }
  for (auto at = adapters_.begin(); at != adapters_.end();) {
    auto& [id, known] = *at;
    const std::string digest = DigestOf(id);
    const bool other = !digest.empty() && digest != known.digest;
    if (known.there && (digest.empty() || other)) VoidAdapter(id);
    known.there = !digest.empty();
    if (other) {
      lines.Info("{}: LoRA adapter {}: {}{}", options_.engine, id, digest,
                 known.digest.empty() ? "" : fmt::format(" (was {})", known.digest));
      // Block hashes have its name alone, so it is not known which of those that were told are its.
      if (!known.digest.empty()) events_.Clear(lines);
      known.digest = digest;
      known.tag = ++last_tag_;
    }
    at = !known.there && adapters_.size() > kMostAdapters ? adapters_.erase(at) : std::next(at);
  }
}

std::string SchedulerRole::DigestOf(AdapterId adapter) const {
  std::string all;
  std::string first;
  bool alike = true;
  for (const auto& rank : rank_adapters_) {
    const auto at = rank.find(adapter);
    if (at == rank.end()) return {};
    all += at->second + "|";
    if (first.empty()) first = all;
    alike = alike && at->second + "|" == first;
  }
  // As many ranks as there may be: mostly each has the whole adapter.
  if (alike) all = first;
  const Id128 hash = Hash128(all, 0);
  return ToHex(hash);
}

void SchedulerRole::VoidAdapter(AdapterId adapter) {
  for (auto& [id, request] : requests_) {
    if (request.adapter.id != adapter) continue;
    request.may_store = false;
    DropLookup(request);
    request.tiers = {};
  }
  for (auto& [job, load] : loads_) {
    if (load.order.adapter.id == adapter) load.epoch = 0;
  }
}

bool SchedulerRole::HasAdapter(AdapterId adapter) const {
  const MutexLock lock(mutex_);
  const auto at = adapters_.find(adapter);
  return at != adapters_.end() && at->second.there;
}

}  // namespace kvcove::connector
