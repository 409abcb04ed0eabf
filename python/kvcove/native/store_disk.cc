// SPDX-License-Identifier: Apache-2.0
#include "store_disk.h"

#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/interrupt.h"

namespace kvcove::python {
namespace {

std::vector<std::size_t> OfUnknownSize(std::span<const ItemResult> results) {
  std::vector<std::size_t> which;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const ItemResult& result = results[i];
    if (result.ok() && result.tier == Tier::kDisk && result.bytes == 0) which.push_back(i);
  }
  return which;
}

std::vector<std::string_view> KeysAt(std::span<const std::string_view> keys,
                                     std::span<const std::size_t> which) {
  std::vector<std::string_view> some;
  for (const std::size_t i : which) some.push_back(keys[i]);
  return some;
}

}  // namespace

Status LookUpOnly(Session& session, std::span<const std::string_view> keys,
                  std::span<ItemResult> results, const CallOptions& options) {
  CallOptions look = options;
  look.hold = {};
  Status found = session.Exists(keys, results, look);
  if (!found || options.hold.count() == 0) return found;
  std::vector<std::size_t> which;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (results[i].ok() && results[i].tier != Tier::kDisk) which.push_back(i);
  }
  if (which.empty()) return found;
  std::vector<ItemResult> held(which.size());
  found = session.Exists(KeysAt(keys, which), held, options);
  for (std::size_t k = 0; k < which.size(); ++k) results[which[k]] = held[k];
  return found;
}

Status GetPatiently(Session& session, std::span<const GetItem> items, std::span<ItemResult> results,
                    const CallOptions& options, std::int64_t patience_ns) {
  const Clock& clock = SystemClock::Instance();
  const std::int64_t until_ns = clock.NowNs() + patience_ns;
  Status status = session.Get(items, results, options);
  while (patience_ns > 0 && LeftNs(until_ns, clock) > 0) {
    std::vector<std::size_t> which;
    std::vector<std::string_view> keys;
    for (std::size_t i = 0; i < items.size(); ++i) {
      const MissReason reason = results[i].reason;
      if (results[i].code != Code::kMiss) continue;
      if (reason != MissReason::kEvicted && reason != MissReason::kRaced) continue;
      which.push_back(i);
      keys.push_back(items[i].key);
    }
    if (which.empty()) break;
    const auto places = session.Places(keys, options);
    if (!places) break;
    std::vector<GetItem> again;
    std::vector<std::size_t> listed;
    for (std::size_t k = 0; k < which.size(); ++k) {
      if ((*places)[k].empty()) continue;
      listed.push_back(which[k]);
      again.push_back(items[which[k]]);
    }
    if (again.empty()) break;
    SleepNs(kMillisecond);
    std::vector<ItemResult> read(again.size());
    status = session.Get(again, read, options);
    for (std::size_t k = 0; k < listed.size(); ++k) results[listed[k]] = read[k];
  }
  return status;
}

void BringUp(Session& session, std::span<const std::string_view> keys,
             std::span<ItemResult> results, const CallOptions& options, std::int64_t patience_ns) {
  const std::vector<std::size_t> which = OfUnknownSize(results);
  if (which.empty()) return;
  // Into no room at all: the answer has the size, and the value is in memory then.
  std::vector<GetItem> items;
  for (const std::size_t i : which) items.push_back({.key = keys[i]});
  std::vector<ItemResult> read(which.size());
  (void)GetPatiently(session, items, read, options, patience_ns);
  for (std::size_t k = 0; k < which.size(); ++k) {
    ItemResult& result = results[which[k]];
    if (read[k].ok() || read[k].code == Code::kBufferTooSmall) {
      result.bytes = read[k].bytes;
    } else {
      result = read[k];
    }
  }
}

void FindSizes(Session& session, std::span<const std::string_view> keys,
               std::span<ItemResult> results, const CallOptions& options) {
  const std::vector<std::size_t> which = OfUnknownSize(results);
  if (which.empty()) return;
  if (const auto places = session.Places(KeysAt(keys, which), options)) {
    for (std::size_t k = 0; k < which.size(); ++k) {
      if (!(*places)[k].empty()) results[which[k]].bytes = (*places)[k].front().bytes;
    }
  }
  BringUp(session, keys, results, options, /*patience_ns=*/0);
}

}  // namespace kvcove::python
