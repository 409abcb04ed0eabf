// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/worker.h"

#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <numeric>

#include "kvcove/base/posix.h"

namespace kvcove::connector {

// One object: a part of a chunk.
struct WorkerRole::Item {
  std::uint32_t place = 0;  // in the order's chunks
  std::string key;
  std::string after;
  Hints hints;
  std::uint64_t bytes = 0;
  bool device = false;
  std::vector<MutableBuffer> pieces;
};

// Its fields are written by the thread that runs it, and by others only while it is queued.
struct WorkerRole::Job {
  JobId id = 0;
  bool load = false;
  bool sync = false;
  std::string request;
  std::string version;
  std::string adapter;  // its digest
  Token token;
  std::vector<ChunkPlace> chunks;
  std::vector<Item> items;
  std::shared_ptr<std::function<void()>> ready;  // saves of one step share it
  std::atomic<bool> cancelled{false};
  std::size_t next = 0;         // item
  std::set<std::uint32_t> bad;  // places that failed
  bool stale = false;
  Counters counters;

  void FailAll() {
    for (std::uint32_t i = 0; i < chunks.size(); ++i) bad.insert(i);
  }
  // What has not been moved yet.
  void FailRest() {
    for (; next < items.size(); ++next) bad.insert(items[next].place);
  }
};

WorkerRole::WorkerRole(const WorkerOptions& options, const Clock& clock)
    : options_(options), keys_(options.shape), clock_(clock) {
  {
    const MutexLock lock(mutex_);
    report_.rank = options_.number;
  }
  for (std::uint32_t i = 0; i < options_.threads; ++i) {
    threads_.push_back(StartThread("kvcove-mover", [this] { Loop(); }));
  }
}

WorkerRole::~WorkerRole() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    for (const auto& job : running_) job->cancelled = true;
    changed_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

Status WorkerRole::Register(const std::vector<LayerMemory>& layers) {
  std::vector<std::vector<Shard>> shards(options_.shape.groups.size());
  for (std::uint32_t g = 0; g < shards.size(); ++g) {
    for (Part& part : keys_.PartsOf(options_.rank, g)) shards[g].push_back({.part = part});
  }
  for (const LayerMemory& layer : layers) {
    if (layer.group >= shards.size()) {
      return kvcove::Fail(Code::kInvalid, fmt::format("KV layer '{}': there is no KV group {}",
                                                      layer.name, layer.group));
    }
    std::uint64_t heads = 1;
    for (const Axis& axis : layer.axes) {
      if (axis.kind == AxisKind::kHead) heads = axis.count;
    }
    std::vector<Shard>& parts = shards[layer.group];
    for (Shard& shard : parts) {
      // A rank that has one part has it whole, whatever its heads are called.
      const bool whole = parts.size() == 1;
      KVCOVE_ASSIGN(BlockRuns runs,
                    RunsOf(layer, whole ? 0 : shard.part.first_head,
                           whole ? static_cast<std::uint32_t>(heads) : shard.part.heads));
      shard.bytes += runs.bytes;
      shard.device = options_.device != nullptr && options_.device->Owns(layer.base);
      if (shard.device) KVCOVE_TRY(Probe(layer, runs));
      shard.layers.push_back(std::move(runs));
    }
  }
  for (std::uint32_t g = 0; g < shards.size(); ++g) {
    for (const Shard& shard : shards[g]) KVCOVE_TRY(CheckObjectSize(shard.bytes));
  }
  const MutexLock lock(mutex_);
  shards_ = std::move(shards);
  changed_.NotifyAll();
  return {};
}

Status WorkerRole::Probe(const LayerMemory& layer, const BlockRuns& runs) const {
  const Run& end = runs.runs.back();
  const std::uintptr_t last =
      runs.base + (runs.blocks - 1) * runs.block_stride + end.offset + end.bytes - 1;
  for (const std::uintptr_t address : {runs.base + runs.runs.front().offset, last}) {
    std::byte byte{};
    const Status copied = options_.device->ToHost(&byte, address, 1);
    if (copied) continue;
    return kvcove::Fail(copied.error().code,
                        fmt::format("KV layer '{}': its device memory at {:#x} cannot be copied: "
                                    "{}",
                                    layer.name, address, copied.error().detail));
  }
  return {};
}

void WorkerRole::Unregister() {
  // Destroyed after the lock is released: a save's `ready` may need the engine's own locks to go
  // (Python's GIL), and a thread that holds them may wait for ours.
  std::deque<std::shared_ptr<Job>> dropped;
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  shards_.clear();
  for (auto* queue : {&loads_, &saves_}) {
    for (auto& job : *queue) {
      job->FailAll();
      End(job, lines);
      dropped.push_back(std::move(job));
    }
    queue->clear();
  }
  for (const auto& job : running_) job->cancelled = true;
  while (!running_.empty()) changed_.Wait(mutex_);
}

std::vector<std::uint64_t> WorkerRole::ChunkBytes() const {
  const MutexLock lock(mutex_);
  std::vector<std::uint64_t> bytes;
  for (const auto& group : shards_) bytes.push_back(group.empty() ? 0 : group.front().bytes);
  return bytes;
}

void WorkerRole::Connect(std::unique_ptr<Store> store, bool ask_first) {
  std::shared_ptr<Store> before;  // its end is a call of the pool: after the lock
  const MutexLock lock(mutex_);
  ask_first_ = ask_first;
  before = std::exchange(store_, std::move(store));
  changed_.NotifyAll();
}

bool WorkerRole::connected() const {
  const MutexLock lock(mutex_);
  return store_ != nullptr;
}

// ---- orders

void WorkerRole::Fail(const LoadOrder& order, LinesAfterLock& lines) {
  auto job = std::make_shared<Job>();
  job->id = order.job;
  job->load = true;
  job->request = order.request;
  job->chunks = order.chunks;
  job->FailAll();
  job->sync = order.sync;
  if (job->sync) ++sync_left_;
  End(job, lines);
}

void WorkerRole::Drop(const SaveOrder& order) {
  SaveDone done{.job = order.job};
  for (std::uint32_t i = 0; i < order.chunks.size(); ++i) done.missing.push_back(i);
  report_.counters.dropped_keys += order.chunks.size();
  report_.saves.push_back(std::move(done));
}

std::shared_ptr<WorkerRole::Job> WorkerRole::LoadJob(const LoadOrder& order) {
  auto job = std::make_shared<Job>();
  job->id = order.job;
  job->load = true;
  job->sync = order.sync;
  job->request = order.request;
  job->version = order.version;
  job->adapter = order.adapter.digest;
  job->chunks = order.chunks;
  for (std::uint32_t i = 0; i < order.chunks.size(); ++i) {
    const ChunkPlace& place = order.chunks[i];
    for (const Shard& shard : shards_[place.group]) {
      Item item{.place = i, .bytes = shard.bytes};
      AppendKey(shard.part.tag, place.hash, item.key, job->adapter);
      job->items.push_back(std::move(item));
    }
  }
  return job;
}

std::shared_ptr<WorkerRole::Job> WorkerRole::SaveJob(const SaveOrder& order) {
  auto job = std::make_shared<Job>();
  job->id = order.job;
  job->request = order.request;
  job->version = order.version;
  job->adapter = order.adapter.digest;
  job->token = order.token;
  job->chunks = order.chunks;
  for (std::uint32_t i = 0; i < order.chunks.size(); ++i) {
    const ChunkPlace& place = order.chunks[i];
    if (place.block == kNullBlock || !keys_.Stores(options_.rank, place.group, place.chunk)) {
      continue;
    }
    const std::uint64_t token = place.chunk * options_.shape.groups[place.group].chunk_tokens;
    const bool last = i + 1 == order.chunks.size() || order.chunks[i + 1].group != place.group;
    const Hints hints{.output_tokens = order.hints.output_tokens,
                      .ephemeral = token >= order.hints.ephemeral_from,
                      .session_ends = order.hints.session_ends,
                      .request_goes_on = order.goes_on || !last};
    for (const Shard& shard : shards_[place.group]) {
      Item item{.place = i, .hints = hints, .bytes = shard.bytes};
      AppendKey(shard.part.tag, place.hash, item.key, job->adapter);
      if (i > 0 && order.chunks[i - 1].group == place.group) {
        AppendKey(shard.part.tag, order.chunks[i - 1].hash, item.after, job->adapter);
      }
      job->items.push_back(std::move(item));
    }
  }
  return job;
}

void WorkerRole::Queue(std::shared_ptr<Job> job, LinesAfterLock& lines) {
  for (Item& item : job->items) {
    const ChunkPlace& place = job->chunks[item.place];
    const std::vector<Shard>& shards = shards_[place.group];
    const auto shard = std::find_if(shards.begin(), shards.end(), [&](const Shard& candidate) {
      return item.key.starts_with(candidate.part.tag) && item.key[candidate.part.tag.size()] == '@';
    });
    for (const BlockRuns& layer : shard->layers) {
      if (place.block >= layer.blocks) {  // half a value is none
        job->bad.insert(item.place);
        item.pieces.clear();
        break;
      }
      const std::uintptr_t block = layer.base + place.block * layer.block_stride;
      for (const Run& run : layer.runs) {
        const std::uintptr_t at = block + run.offset;
        item.pieces.push_back({.data = reinterpret_cast<void*>(at), .size = run.bytes});  // NOLINT
      }
    }
    item.device = shard->device;
  }
  auto& queue = job->load ? loads_ : saves_;
  if (queue.size() >= options_.most_queued) {
    job->FailAll();
    job->counters.dropped_keys += job->items.size();
    return End(job, lines);
  }
  queue.push_back(std::move(job));
  changed_.NotifyOne();
}

void WorkerRole::Begin(const Plan& plan) {
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  if (plan.fingerprint != 0) fingerprint_wanted_ = plan.fingerprint;
  const bool told = plan.adapters.size() > options_.number;
  adapters_known_ = told ? plan.adapters[options_.number] : 0;
  const std::set<JobId> cancelled(plan.cancelled.begin(), plan.cancelled.end());
  if (!cancelled.empty()) {
    std::deque<std::shared_ptr<Job>> left;
    for (auto& job : loads_) {
      if (!cancelled.contains(job->id)) {
        left.push_back(std::move(job));
        continue;
      }
      job->FailAll();
      End(job, lines);
    }
    loads_ = std::move(left);
    for (const auto& job : running_) {
      if (cancelled.contains(job->id)) job->cancelled = true;
    }
  }
  for (const LoadOrder& order : plan.refused) Fail(order, lines);
  for (const LoadOrder& order : plan.loads) {
    if (gate_closed_ || shards_.empty() || cancelled.contains(order.job) ||
        !AdapterStands(order.adapter)) {
      Fail(order, lines);
      continue;
    }
    if (order.sync) ++sync_left_;
    Queue(LoadJob(order), lines);
  }
  // A step that never finished has computed nothing that could be saved.
  for (const SaveOrder& order : step_saves_) Drop(order);
  step_saves_ = plan.saves;
}

void WorkerRole::WaitForSyncLoads() {
  const auto left = [&] {
    const MutexLock lock(mutex_);
    return sync_left_ > 0;
  };
  while (options_.threads == 0 && left() && RunOne()) {
  }
  const MutexLock lock(mutex_);
  while (sync_left_ > 0 && !stopping_) changed_.Wait(mutex_);
}

void WorkerRole::FinishStep(std::function<void()> ready) {
  // Before the lock, so that it is destroyed after it (see Unregister).
  const auto shared = std::make_shared<std::function<void()>>(std::move(ready));
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  for (const SaveOrder& order : std::exchange(step_saves_, {})) {
    if (gate_closed_ || shards_.empty() || clock_.NowNs() < pressure_until_ns_ ||
        !AdapterStands(order.adapter)) {
      Drop(order);
      continue;
    }
    auto job = SaveJob(order);
    if (*shared) job->ready = shared;
    Queue(std::move(job), lines);
  }
}

Ended WorkerRole::TakeEnded() {
  const MutexLock lock(mutex_);
  return std::exchange(ended_, {});
}

Report WorkerRole::TakeReport() {
  const MutexLock lock(mutex_);
  Report report = std::exchange(report_, {});
  report_.rank = options_.number;
  report.weight_changes = weight_changes_;
  report.counters.queued_jobs = loads_.size() + saves_.size() + running_.size();
  return report;
}

// ---- weights

void WorkerRole::WeightsChanging() {
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  ++weight_changes_;
  if (!options_.fingerprints) return;
  gate_closed_ = true;
  // What is being loaded was computed with the weights of before.
  for (const auto& job : loads_) {
    job->FailAll();
    End(job, lines);
  }
  loads_.clear();
  for (const auto& job : running_) {
    if (job->load) job->cancelled = true;
  }
}

bool WorkerRole::FingerprintWanted() const {
  const MutexLock lock(mutex_);
  return fingerprint_wanted_ != 0;
}

void WorkerRole::SetFingerprint(std::string fingerprint) {
  const MutexLock lock(mutex_);
  report_.fingerprint_asked = std::exchange(fingerprint_wanted_, 0);
  report_.fingerprint = std::move(fingerprint);
  report_.fingerprint_changes = weight_changes_;
  gate_closed_ = false;
}

void WorkerRole::SetAdapters(const std::vector<AdapterPrint>& adapters) {
  const MutexLock lock(mutex_);
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
  report_.adapters_number = ++adapters_number_;
  report_.adapters = adapters;
}

bool WorkerRole::AdapterStands(const AdapterPrint& adapter) const {
  if (adapter.id == 0) return true;
  const auto at = adapters_.find(adapter.id);
  return at != adapters_.end() && at->second.since <= adapters_known_;
}

// ---- running

std::shared_ptr<WorkerRole::Job> WorkerRole::NextJob() {
  if (store_ == nullptr) return nullptr;
  for (auto* queue : {&loads_, &saves_}) {
    if (queue->empty()) continue;
    std::shared_ptr<Job> job = std::move(queue->front());
    queue->pop_front();
    running_.insert(job);
    return job;
  }
  return nullptr;
}

bool WorkerRole::RunOne() {
  std::shared_ptr<Job> job;
  std::shared_ptr<Store> store;
  {
    const MutexLock lock(mutex_);
    job = NextJob();
    if (job == nullptr) return false;
    store = store_;
  }
  bool over = true;
  try {
    over = RunBatch(*job, *store);
  } catch (const std::exception& error) {
    LogError("{}: job {} of request {} failed: {}", options_.engine, job->id, job->request,
             error.what());
    job->FailRest();
  }
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  running_.erase(job);
  if (over || job->cancelled) {
    job->FailRest();
    End(job, lines);
  } else {
    // Its turn comes again before newer ones of its kind, but after loads.
    (job->load ? loads_ : saves_).push_front(job);
  }
  changed_.NotifyAll();
  return true;
}

void WorkerRole::Loop() {
  while (true) {
    {
      const MutexLock lock(mutex_);
      while (!stopping_ && (store_ == nullptr || (loads_.empty() && saves_.empty()))) {
        changed_.Wait(mutex_);
      }
      if (stopping_) return;
    }
    (void)RunOne();
  }
}

std::size_t WorkerRole::BatchEnd(const Job& job) const {
  std::size_t end = job.next;
  std::uint64_t bytes = 0;
  while (end < job.items.size() &&
         (end == job.next || bytes + job.items[end].bytes <= options_.batch_bytes)) {
    bytes += job.items[end++].bytes;
  }
  return end;
}

bool WorkerRole::RunBatch(Job& job, Store& store) {
  if (job.next < job.items.size() && !job.cancelled) {
    const std::size_t from = job.next;
    const std::size_t to = BatchEnd(job);
    const std::int64_t start = clock_.NowNs();
    if (job.load) {
      LoadBatch(job, store, from, to);
    } else {
      SaveBatch(job, store, from, to);
    }
    const auto ns = static_cast<std::uint64_t>(clock_.NowNs() - start);
    (job.load ? job.counters.load_ns : job.counters.save_ns) += ns;
    job.next = to;
  }
  // A load's chunks are of use only up to the first that failed: the rest is not worth moving.
  const bool hopeless = job.load && !job.bad.empty() && options_.shape.all_full();
  if (job.next < job.items.size() && !job.cancelled && !hopeless) return false;
  (job.load ? job.counters.failed_keys : job.counters.dropped_keys) += job.items.size() - job.next;
  job.FailRest();
  return true;
}

bool WorkerRole::Copied(Job& job, const Status& status) {
  if (status) return true;
  ++job.counters.copy_errors;
  if (const std::uint64_t times = copy_lines_.Due(clock_.NowNs()); times > 0) {
    LogError("{}: rank {}: {} of request {} failed in the device's memory: {} ({} such failures)",
             options_.engine, options_.number, job.load ? "a load" : "a save", job.request,
             status.error().detail, times);
  }
  return false;
}

bool WorkerRole::ToHost(Job& job, const Item& item, std::vector<std::byte>& staging) {
  staging.resize(item.bytes);
  std::size_t at = 0;
  for (const MutableBuffer& piece : item.pieces) {
    const auto address = reinterpret_cast<std::uintptr_t>(piece.data);
    const Status copied = options_.device->ToHost(staging.data() + at, address, piece.size);
    if (!Copied(job, copied)) return false;
    at += piece.size;
  }
  return true;
}

bool WorkerRole::FromHost(Job& job, const Item& item, const std::vector<std::byte>& staging) {
  std::size_t at = 0;
  for (const MutableBuffer& piece : item.pieces) {
    const auto address = reinterpret_cast<std::uintptr_t>(piece.data);
    const Status copied = options_.device->FromHost(address, staging.data() + at, piece.size);
    if (!Copied(job, copied)) return false;
    at += piece.size;
  }
  return true;
}

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

void WorkerRole::LoadBatch(Job& job, Store& store, std::size_t from, std::size_t to) {
  std::vector<std::vector<std::byte>> staging(to - from);
  std::vector<MutableBuffer> staged(to - from);
  std::vector<GetItem> items(to - from);
  for (std::size_t i = from; i < to; ++i) {
    const Item& item = job.items[i];
    items[i - from] = {.key = item.key, .into = item.pieces};
    if (!item.device) continue;
    staging[i - from].resize(item.bytes);
    staged[i - from] = {.data = staging[i - from].data(), .size = item.bytes};
    items[i - from].into = {&staged[i - from], 1};
  }
  std::vector<ItemResult> results(items.size());
  (void)store.Get(items, results, {.timeout = options_.timeout, .version = job.version});
  std::vector<std::size_t> misfits;
  std::uint64_t misfit_bytes = 0;
  for (std::size_t i = from; i < to; ++i) {
    const Item& item = job.items[i];
    const ItemResult& result = results[i - from];
    const bool placed = !job.bad.contains(item.place);
    // A value of another size is not what was asked for, whatever its key says.
    const bool fits = result.bytes == item.bytes;
    if (placed && !fits && (result.ok() || result.code == Code::kBufferTooSmall)) {
      misfits.push_back(i);
      misfit_bytes = result.bytes;
    }
    if (!result.ok() || !fits || !placed ||
        (item.device && !FromHost(job, item, staging[i - from]))) {
      job.bad.insert(item.place);
      ++job.counters.failed_keys;
      continue;
    }
    ++job.counters.loaded_keys;
    job.counters.loaded_bytes += item.bytes;
    ++job.counters.keys_by_tier[static_cast<std::size_t>(result.tier)];
    job.counters.bytes_by_tier[static_cast<std::size_t>(result.tier)] += item.bytes;
  }
  RemoveMisfits(job, store, misfits, misfit_bytes);
}

void WorkerRole::SaveBatch(Job& job, Store& store, std::size_t from, std::size_t to) {
  if (from == 0 && job.ready != nullptr) {
    ExpectNoLock("a callback of the engine");
    (*job.ready)();
  }
  std::vector<std::size_t> items(to - from);
  std::iota(items.begin(), items.end(), from);
  // What is there already is neither copied from a device nor sent.
  const bool asked = ask_first_ || job.items[from].device;
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
  for (const std::size_t i : items) keys.push_back(job.items[i].key);
  std::vector<ItemResult> there(keys.size());
  (void)store.Exists(keys, there, {.timeout = options_.timeout, .version = job.version});
  std::vector<std::size_t> left;
  std::vector<std::size_t> misfits;
  std::uint64_t misfit_bytes = 0;
  for (std::size_t k = 0; k < items.size(); ++k) {
    if (there[k].ok() && there[k].bytes == job.items[items[k]].bytes) {
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
  std::vector<std::vector<std::byte>> staging(which.size());
  std::vector<std::vector<ConstBuffer>> pieces(which.size());
  std::vector<PutItem> items;
  for (std::size_t k = 0; k < which.size(); ++k) {
    const Item& item = job.items[which[k]];
    if (item.pieces.empty() || (item.device && !ToHost(job, item, staging[k]))) {
      job.bad.insert(item.place);
      ++job.counters.refused_keys;
      continue;
    }
    std::vector<ConstBuffer>& value = pieces[k];
    if (item.device) {
      value.push_back({.data = staging[k].data(), .size = item.bytes});
    } else {
      for (const MutableBuffer& piece : item.pieces) {
        value.push_back({.data = piece.data, .size = piece.size});
      }
    }
    put.push_back(which[k]);
    items.push_back({.key = item.key, .value = value, .after = item.after, .hints = item.hints});
  }
  if (items.empty()) return {};
  std::vector<ItemResult> results(items.size());
  (void)store.Put(job.token, items, results, {.timeout = options_.timeout, .version = job.version});
  return CountPuts(job, put, results);
}

std::vector<std::size_t> WorkerRole::CountPuts(Job& job, const std::vector<std::size_t>& items,
                                               const std::vector<ItemResult>& results) {
  std::vector<std::size_t> there;
  bool pressed = false;
  for (std::size_t k = 0; k < items.size(); ++k) {
    const Item& item = job.items[items[k]];
    switch (results[k].code) {
      case Code::kOk:
        ++job.counters.saved_keys;
        job.counters.saved_bytes += item.bytes;
        continue;
      case Code::kExists:
        there.push_back(items[k]);
        continue;
      case Code::kInProgress:  // another engine is storing it
        ++job.counters.existing_keys;
        continue;
      case Code::kStale:
        ++job.counters.stale_keys;
        job.stale = true;
        break;
      case Code::kNoSpace:
        pressed = true;
        ++job.counters.refused_keys;
        break;
      default:
        ++job.counters.refused_keys;
    }
    job.bad.insert(item.place);
  }
  if (job.stale) job.cancelled = true;  // the rest would be refused, too
  if (!pressed) return there;
  const MutexLock lock(mutex_);
  pressure_until_ns_ = clock_.NowNs() + options_.pressure.count() * kMillisecond;
  job.cancelled = true;
  return there;
}

void WorkerRole::SayTiers(const Job& job, LinesAfterLock& lines) {
  const Counters& c = job.counters;
  const auto of = [](const auto& by_tier, Tier tier) {
    return by_tier[static_cast<std::size_t>(tier)];
  };
  lines.Info(
      "Mooncake load tier summary: request={} memory_keys={} disk_keys={} unknown_keys={} "
      "success_keys={} failed_keys={} "
      "bytes_by_tier={{memory={}, remote_memory={}, disk={}, unknown={}}}",
      job.request, of(c.keys_by_tier, Tier::kMemory) + of(c.keys_by_tier, Tier::kRemoteMemory),
      of(c.keys_by_tier, Tier::kDisk), of(c.keys_by_tier, Tier::kUnknown), c.loaded_keys,
      c.failed_keys, of(c.bytes_by_tier, Tier::kMemory), of(c.bytes_by_tier, Tier::kRemoteMemory),
      of(c.bytes_by_tier, Tier::kDisk), of(c.bytes_by_tier, Tier::kUnknown));
}

void WorkerRole::End(const std::shared_ptr<Job>& job, LinesAfterLock& lines) {
  ++(job->load ? job->counters.load_jobs : job->counters.save_jobs);
  report_.counters.Add(job->counters);
  if (!job->load) {
    report_.saves.push_back({.job = job->id, .missing = {job->bad.begin(), job->bad.end()}});
    return;
  }
  if (job->cancelled) {
    // Also what was moved already: it was cancelled because its values may be wrong.
    job->FailAll();
  }
  if (options_.tier_log) SayTiers(*job, lines);
  LoadDone done{.job = job->id};
  for (const std::uint32_t place : job->bad) done.failed.push_back(job->chunks[place].block);
  if (!done.failed.empty()) {
    ended_.failed_blocks.insert(ended_.failed_blocks.end(), done.failed.begin(), done.failed.end());
    ended_.failed.push_back(job->request);
  }
  if (job->sync) {
    --sync_left_;
    changed_.NotifyAll();
  } else {
    ended_.loaded.push_back(job->request);
  }
  report_.loads.push_back(std::move(done));
}

}  // namespace kvcove::connector
