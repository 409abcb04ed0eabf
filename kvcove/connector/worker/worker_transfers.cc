// SPDX-License-Identifier: Apache-2.0
// Moves a batch's bytes between host memory of the engine and the pool, and counts the answers.
// worker_device.cc moves those of a device's memory.
#include "kvcove/connector/worker/worker.h"

namespace kvcove::connector {
namespace {

// Returns the tier of a value that was not loaded. A look-up may be older than the value's last
// demotion, so a miss whose reason is a disk's counts for the disk.
Tier FailedTier(const ItemResult& result, Tier looked_up) {
  if (result.tier != Tier::kUnknown) return result.tier;
  switch (result.reason) {
    case MissReason::kDiskDamaged:
    case MissReason::kDiskFailed:
    case MissReason::kDiskTimeout:
    case MissReason::kNoRoom:
      return Tier::kDisk;
    default:
      return looked_up;
  }
}

}  // namespace

void WorkerRole::RemoveMisfits(Job& job, Store& store, const std::vector<std::size_t>& items,
                               std::uint64_t found_bytes) {
  if (items.empty()) return;
  std::vector<std::string_view> keys;
  for (const std::size_t i : items) keys.push_back(job.items[i].key);
  std::vector<ItemResult> removed(keys.size());
  (void)store.Remove(keys, removed, {.timeout = options_.timeout, .version = job.version});
  job.counters.misfit_keys += keys.size();
  if (const std::uint64_t times = misfit_lines_.Due(clock_.NowNs()); times > 0) {
    LogWarn(
        "{}: rank {}: the value of {} has {} bytes, not the {} of this engine's blocks; it is "
        "removed, so that this engine's takes its place ({} such batches)",
        options_.engine, options_.number, keys.front(), found_bytes, job.items[items.front()].bytes,
        times);
  }
}

std::vector<std::size_t> WorkerRole::JudgeLoad(Job& job, Store& store,
                                               std::span<const std::size_t> items,
                                               std::span<const ItemResult> results) {
  std::vector<std::size_t> whole;
  whole.reserve(items.size());
  std::vector<std::size_t> misfits;
  std::uint64_t misfit_bytes = 0;
  for (std::size_t k = 0; k < items.size(); ++k) {
    const Job::Item& item = job.items[items[k]];
    const ItemResult& result = results[k];
    const bool placed = !job.bad.contains(item.place);
    // A value of another size is no block of this engine's, though its key is equal.
    const bool fits = result.bytes == item.bytes;
    if (placed && !fits && (result.ok() || result.code == Code::kBufferTooSmall)) {
      misfits.push_back(items[k]);
      misfit_bytes = result.bytes;
    }
    if (result.ok() && fits && placed) {
      whole.push_back(k);
      continue;
    }
    job.bad.insert(item.place);
    ++job.counters.failed_keys;
    // A value that was delivered, and whose chunk failed for another reason, blames no tier.
    if (!result.ok() || !fits) {
      const Tier tier = FailedTier(result, job.chunks[item.place].tier);
      ++job.counters.failed_by_tier[static_cast<std::size_t>(tier)];
    }
    if (result.code == Code::kMiss) {
      ++job.counters.missed[static_cast<std::size_t>(result.reason)];
    }
  }
  RemoveMisfits(job, store, misfits, misfit_bytes);
  return whole;
}

void WorkerRole::LoadBatch(Job& job, Store& store, std::size_t from, std::size_t to) {
  const std::vector<std::size_t> which = Job::Range(from, to);
  std::vector<GetItem> items;
  items.reserve(which.size());
  for (const std::size_t i : which) {
    items.push_back({.key = job.items[i].key, .into = job.items[i].pieces});
  }
  std::vector<ItemResult> results(items.size());
  (void)store.Get(items, results, {.timeout = options_.timeout, .version = job.version});
  for (const std::size_t k : JudgeLoad(job, store, which, results)) {
    Job::CountLoaded(job, job.items[which[k]], results[k].tier);
  }
}

void WorkerRole::SaveBatch(Job& job, Store& store, std::size_t from, std::size_t to) {
  std::vector<std::size_t> items = Job::Range(from, to);
  // With `ask_first` asks before it sends, so that existing values cross no network. Else the put
  // itself reports existing keys, and only those are looked up: one of another size is removed, and
  // put again.
  const bool asked = ask_first_;
  if (asked) items = NotStored(job, store, items);
  const std::vector<std::size_t> there = PutItems(job, store, items);
  if (asked) {
    job.counters.existing_keys += there.size();
  } else if (!there.empty()) {
    items = NotStored(job, store, there);
    job.counters.existing_keys += PutItems(job, store, items).size();
  }
}

std::vector<std::size_t> WorkerRole::NotStored(Job& job, Store& store,
                                               const std::vector<std::size_t>& items) {
  std::vector<std::string_view> keys;
  keys.reserve(items.size());
  for (const std::size_t i : items) keys.push_back(job.items[i].key);
  std::vector<ItemResult> there(keys.size());
  (void)store.Exists(keys, there, {.timeout = options_.timeout, .version = job.version});
  std::vector<std::size_t> left;
  left.reserve(items.size());
  std::vector<std::size_t> misfits;
  std::uint64_t misfit_bytes = 0;
  for (std::size_t k = 0; k < items.size(); ++k) {
    // A look-up does not know the size of a value on a disk. Its load checks the size.
    const bool fits = there[k].bytes == job.items[items[k]].bytes || there[k].tier == Tier::kDisk;
    if (there[k].ok() && fits) {
      if (there[k].tier == Tier::kDisk) job.on_disk.insert(job.items[items[k]].place);
      ++job.counters.existing_keys;
      continue;
    }
    left.push_back(items[k]);
    if (!there[k].ok()) continue;
    misfits.push_back(items[k]);
    misfit_bytes = there[k].bytes;
  }
  RemoveMisfits(job, store, misfits, misfit_bytes);
  return left;
}

std::vector<std::size_t> WorkerRole::PutItems(Job& job, Store& store,
                                              const std::vector<std::size_t>& which) {
  std::vector<std::size_t> put;
  std::vector<std::size_t> ends;
  std::vector<ConstBuffer> pieces;
  put.reserve(which.size());
  ends.reserve(which.size());
  pieces.reserve(job.pieces.size());
  for (const std::size_t i : which) {
    const Job::Item& item = job.items[i];
    if (item.pieces.empty()) {
      job.bad.insert(item.place);
      ++job.counters.refused_keys;
      continue;
    }
    for (const MutableBuffer& piece : item.pieces) {
      pieces.push_back({.data = piece.data, .size = piece.size});
    }
    put.push_back(i);
    ends.push_back(pieces.size());
  }
  return PutValues(job, job, store, put, pieces, ends);
}

std::vector<std::size_t> WorkerRole::PutValues(Job& job, Tally& tally, Store& store,
                                               const std::vector<std::size_t>& which,
                                               std::span<const ConstBuffer> pieces,
                                               std::span<const std::size_t> ends) {
  if (which.empty()) return {};
  std::vector<PutItem> items;
  items.reserve(which.size());
  std::size_t from = 0;
  for (std::size_t k = 0; k < which.size(); ++k) {
    const Job::Item& item = job.items[which[k]];
    items.push_back({.key = item.key,
                     .value = pieces.subspan(from, ends[k] - from),
                     .after = item.after,
                     .hints = item.hints});
    from = ends[k];
  }
  std::vector<ItemResult> results(items.size());
  (void)store.Put(job.token, items, results, {.timeout = options_.timeout, .version = job.version});
  return CountPuts(job, tally, which, results);
}

std::vector<std::size_t> WorkerRole::CountPuts(Job& job, Tally& tally,
                                               const std::vector<std::size_t>& items,
                                               const std::vector<ItemResult>& results) {
  std::vector<std::size_t> there;
  bool pressed = false;
  bool stale = false;
  for (std::size_t k = 0; k < items.size(); ++k) {
    const Job::Item& item = job.items[items[k]];
    switch (results[k].code) {
      case Code::kOk:
        ++tally.counters.saved_keys;
        tally.counters.saved_bytes += item.bytes;
        continue;
      case Code::kExists:
        there.push_back(items[k]);
        continue;
      case Code::kInProgress:  // another engine is storing it
        ++tally.counters.existing_keys;
        continue;
      case Code::kStale:
        ++tally.counters.stale_keys;
        stale = true;
        break;
      case Code::kNoSpace:
        pressed = true;
        ++tally.counters.refused_keys;
        break;
      default:
        ++tally.counters.refused_keys;
    }
    tally.bad.insert(item.place);
  }
  // All items have one token, so the pool would refuse the rest, too.
  if (stale) job.cancelled = true;
  // The pool has no room: puts of other jobs would fail, too, and each costs a copy. So all saves
  // pause, and this job is given up.
  if (!pressed) return there;
  const MutexLock lock(mutex_);
  gate_.SetPressure(clock_.NowNs() + options_.pressure.count() * kMillisecond);
  job.cancelled = true;
  return there;
}

}  // namespace kvcove::connector
