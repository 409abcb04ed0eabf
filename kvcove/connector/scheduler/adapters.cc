// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/scheduler/adapters.h"

#include <fmt/core.h>

#include <iterator>

#include "kvcove/base/hash.h"

namespace kvcove::connector {
namespace {

constexpr std::size_t kMostAdapters = 4096;  // beyond it, adapters that a rank lacks are forgotten

}  // namespace

Adapters::Change Adapters::Take(const Report& report, LinesAfterLock& lines) {
  Change change;
  if (report.adapters_number <= seen_[report.rank]) return change;
  seen_[report.rank] = report.adapters_number;
  auto& mine = ranks_[report.rank];
  mine.clear();
  for (const AdapterPrint& print : report.adapters) {
    mine[print.id] = print.digest;
    known_.try_emplace(print.id);
  }
  for (auto at = known_.begin(); at != known_.end();) {
    auto& [id, known] = *at;
    const std::string digest = DigestOf(id);
    const bool other = !digest.empty() && digest != known.digest;
    if (known.there && (digest.empty() || other)) change.voided.push_back(id);
    known.there = !digest.empty();
    if (other) {
      lines.Info("{}: LoRA adapter {}: {}{}", engine_, id, digest,
                 known.digest.empty() ? "" : fmt::format(" (was {})", known.digest));
      change.other = change.other || !known.digest.empty();
      known.digest = digest;
      known.tag = ++last_tag_;
    }
    at = !known.there && known_.size() > kMostAdapters ? known_.erase(at) : std::next(at);
  }
  return change;
}

std::string Adapters::DigestOf(AdapterId adapter) const {
  std::string all;
  std::string first;
  bool alike = true;
  for (const auto& rank : ranks_) {
    const auto at = rank.find(adapter);
    if (at == rank.end()) return {};
    all += at->second + "|";
    if (first.empty()) first = all;
    alike = alike && at->second + "|" == first;
  }
  // Mostly each rank has the whole adapter. Then the digest does not depend on the number of ranks,
  // so engines with other numbers of them share.
  if (alike) all = first;
  const Id128 hash = Hash128(all, 0);
  return ToHex(hash);
}

const Adapters::Known* Adapters::Find(AdapterId adapter) const {
  const auto at = known_.find(adapter);
  return at != known_.end() && at->second.there ? &at->second : nullptr;
}

bool Adapters::IsCurrent(const AdapterPrint& adapter) const {
  if (adapter.id == 0) return true;
  const auto at = known_.find(adapter.id);
  return at != known_.end() && at->second.digest == adapter.digest;
}

std::vector<std::uint64_t> Adapters::Seen() const {
  return known_.empty() ? std::vector<std::uint64_t>{} : seen_;
}

}  // namespace kvcove::connector
