// SPDX-License-Identifier: Apache-2.0
// The movers: which job is due, and one batch of it at a time; and the thread that waits for the
// device to have computed a step.
#include <exception>

#include "kvcove/base/background.h"
#include "kvcove/base/interrupt.h"
#include "kvcove/connector/worker/worker.h"
#include "kvcove/connector/worker/worker_job.h"

namespace kvcove::connector {

std::shared_ptr<WorkerRole::Job> WorkerRole::NextJob(Share share) {
  if (store_ == nullptr) return nullptr;
  for (auto* queue : {&loads_, &saves_}) {
    const bool theirs = share == Share::kAll || (share == Share::kLoads) == (queue == &loads_);
    if (!theirs || queue->empty() || FlowOf(queue == &loads_).blocked) continue;
    std::shared_ptr<Job> job = std::move(queue->front());
    queue->pop_front();
    running_.insert(job);
    return job;
  }
  return nullptr;
}

std::optional<WorkerRole::Share> WorkerRole::Due(Thread thread) const {
  if (store_ == nullptr) return std::nullopt;
  const bool saver = thread == Thread::kSaver;
  const bool device = queue_ != nullptr;
  if (saver && !quiet_saves_ && !device) return std::nullopt;
  const bool only_loads = quiet_saves_ || (device && thread == Thread::kFirstMover);
  const Share share = saver ? Share::kSaves : only_loads ? Share::kLoads : Share::kAll;
  const bool loads = share != Share::kSaves && !loads_.empty() && !load_flow_.blocked;
  const bool saves =
      share != Share::kLoads && ((!saves_.empty() && !save_flow_.blocked) || !fetched_.empty());
  return loads || saves ? std::optional(share) : std::nullopt;
}

bool WorkerRole::RunOne(Share share) {
  std::shared_ptr<Job> job;
  std::shared_ptr<Store> store;
  {
    const MutexLock lock(mutex_);
    job = NextJob(share);
    store = store_;
  }
  // Bytes that have come hold pinned memory, so they go before further saves.
  if ((job == nullptr || !job->load) && share != Share::kLoads && RunFetched()) {
    if (job == nullptr) return true;
    const MutexLock lock(mutex_);
    running_.erase(job);
    saves_.push_front(job);
    changed_.NotifyAll();
    return true;
  }
  if (job == nullptr) {
    if (options_.threads != 0) return false;
    transport::DeviceQueue* const queue = queue_;
    return (queue != nullptr && queue->Advance()) || AwaitStep();
  }
  Ran ran = Ran::kOver;
  const std::int64_t start = clock_.NowNs();
  try {
    // What it waits for need not come any more once the job is cancelled.
    InterruptBy interrupt(job->cancelled);
    ran = RunBatch(*job, *store);
  } catch (const std::exception& error) {
    LogError("{}: job {} of request {} failed: {}", options_.engine, job->id, job->request,
             error.what());
    // Of a load for the stream it is not known what was not submitted.
    job->sync ? job->FailAll() : job->FailRest();
  }
  const std::int64_t end = clock_.NowNs();
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  job->AddBusy(start, end);
  running_.erase(job);
  if (ran == Ran::kOver || job->cancelled) {
    job->FailRest();
    End(job, lines);
  } else {
    Flow& flow = FlowOf(job->load);
    if (ran == Ran::kBlocked && flow.batches > 0) flow.blocked = true;
    // Its turn comes again before newer ones of its kind, but after loads.
    (job->load ? loads_ : saves_).push_front(job);
  }
  changed_.NotifyAll();
  return true;
}

void WorkerRole::Loop(Thread thread) {
  if (thread == Thread::kSaver) LowerThisThread();
  while (true) {
    std::optional<Share> share;
    {
      const MutexLock lock(mutex_);
      while (!stopping_ && !(share = Due(thread))) changed_.Wait(mutex_);
      if (stopping_) return;
    }
    (void)RunOne(*share);
  }
}

bool WorkerRole::AwaitStep() {
  std::shared_ptr<std::function<void()>> ready;
  {
    const MutexLock lock(mutex_);
    if (steps_.empty() || store_ == nullptr) return false;
    ready = steps_.front().ready;
  }
  ExpectNoLock("a callback of the engine");
  std::string error;
  try {
    (*ready)();
  } catch (const std::exception& thrown) {
    error = thrown.what();
    LogError("{}: what a step computed cannot be saved: {}", options_.engine, error);
  }
  ComputedStep step;
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  // Unregister may have ended it meanwhile.
  if (steps_.empty() || steps_.front().ready != ready) return true;
  step = std::move(steps_.front());
  steps_.pop_front();
  StepDone(step, error, lines);
  return true;
}

void WorkerRole::StepDone(ComputedStep& step, const std::string& error, LinesAfterLock& lines) {
  undue_saves_ -= step.saves.size();
  for (std::shared_ptr<Job>& job : step.saves) {
    if (error.empty()) {
      job->since_ns = clock_.NowNs();
      saves_.push_back(std::move(job));
      continue;
    }
    job->FailAll();
    job->counters.dropped_keys += job->objects();
    End(job, lines);
  }
  changed_.NotifyAll();
}

void WorkerRole::AwaitSteps() {
  while (true) {
    {
      const MutexLock lock(mutex_);
      while (!stopping_ && (steps_.empty() || store_ == nullptr)) stepped_.Wait(mutex_);
      if (stopping_) return;
    }
    (void)AwaitStep();
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

void WorkerRole::AddItems(Job& job, std::uint32_t place, const Hints& hints) const {
  const ChunkPlace& chunk = job.chunks[place];
  const std::vector<Shard>& shards = (*job.shards)[chunk.group];
  const bool follows = !job.load && place > 0 && job.chunks[place - 1].group == chunk.group;
  // The items of the chunk before, if it is stored, too.
  const bool known = follows && !job.items.empty() && job.items.back().place == place - 1;
  const std::size_t before = known ? job.items.size() - shards.size() : 0;
  const auto key_of = [&job](const Shard& shard, const BlockHash& hash) {
    const std::size_t from = job.text.size();
    AppendKey(shard.part.tag, hash, job.text, job.adapter);
    return std::string_view(job.text).substr(from);
  };
  for (std::size_t s = 0; s < shards.size(); ++s) {
    const Shard& shard = shards[s];
    Item item{.place = place, .hints = hints, .bytes = shard.bytes, .shard = &shard};
    item.key = key_of(shard, chunk.hash);
    if (follows) {
      item.after = known ? job.items[before + s].key : key_of(shard, job.chunks[place - 1].hash);
    }
    if (chunk.block >= shard.blocks) job.bad.insert(place);  // half a value is none
    job.items.push_back(item);
  }
}

void WorkerRole::Prepare(Job& job) const {
  std::size_t objects = 0;
  std::size_t bytes = 0;
  for (const ChunkPlace& chunk : job.chunks) {
    for (const Shard& shard : (*job.shards)[chunk.group]) {
      ++objects;
      bytes += KeyBytes(shard.part.tag, chunk.hash, job.adapter);
    }
  }
  // Each chunk's key is written once at most. What is written stays where it is.
  job.items.reserve(objects);
  job.text.reserve(bytes);
  for (std::uint32_t i = 0; i < job.chunks.size(); ++i) {
    const ChunkPlace& place = job.chunks[i];
    if (job.load) {
      AddItems(job, i, {});
      continue;
    }
    if (place.block == kNullBlock || !keys_.Stores(options_.rank, place.group, place.chunk)) {
      continue;
    }
    const std::uint64_t token = place.chunk * options_.shape.groups[place.group].chunk_tokens;
    const bool last = i + 1 == job.chunks.size() || job.chunks[i + 1].group != place.group;
    AddItems(job, i,
             {.output_tokens = job.hints.output_tokens,
              .ephemeral = token >= job.hints.ephemeral_from,
              .session_ends = job.hints.session_ends,
              .request_goes_on = job.goes_on || !last,
              .priority = options_.priority});
  }
  job.prepared = true;
}

void WorkerRole::Place(Job& job, std::size_t from, std::size_t to) {
  std::size_t count = 0;
  for (std::size_t i = from; i < to; ++i) count += job.items[i].shard->runs.size();
  job.pieces.clear();
  job.pieces.reserve(count);  // so that it stays where it is
  for (std::size_t i = from; i < to; ++i) {
    Item& item = job.items[i];
    const std::uint64_t block = job.chunks[item.place].block;
    if (block >= item.shard->blocks) continue;
    const std::size_t first = job.pieces.size();
    for (const Descriptor& run : item.shard->runs) {
      const std::uintptr_t at = run.base + block * run.block_stride;
      job.pieces.push_back({.data = reinterpret_cast<void*>(at), .size = run.bytes});  // NOLINT
    }
    item.pieces = std::span(job.pieces).subspan(first);
  }
}

WorkerRole::Ran WorkerRole::RunBatch(Job& job, Store& store) {
  if (!job.prepared && !job.cancelled) Prepare(job);
  if (job.next < job.items.size() && !job.cancelled) {
    const std::size_t from = job.next;
    const std::size_t to = BatchEnd(job);
    const std::int64_t start = clock_.NowNs();
    const bool device = job.device();
    bool ran = true;
    if (device && job.load && job.sync) {
      ran = LoadForStream(job, store);
    } else {
      Place(job, from, to);
      if (!device) {
        job.load ? LoadBatch(job, store, from, to) : SaveBatch(job, store, from, to);
      } else {
        ran = job.load ? LoadBatchToDevice(job, store, from, to)
                       : SaveBatchFromDevice(job, store, from, to);
      }
      if (ran) job.next = to;
    }
    const auto ns = static_cast<std::uint64_t>(clock_.NowNs() - start);
    (job.load ? job.counters.load_ns : job.counters.save_ns) += ns;
    if (!ran) return Ran::kBlocked;
  }
  const bool more = job.next < job.items.size() && !job.Hopeless(options_.shape);
  if (more && !job.cancelled) return Ran::kMore;
  (job.load ? job.counters.failed_keys : job.counters.dropped_keys) += job.objects() - job.next;
  job.FailRest();
  return Ran::kOver;
}

}  // namespace kvcove::connector
