// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/worker/worker.h"

#include <fmt/core.h>

#include "kvcove/base/posix.h"
#include "kvcove/base/size.h"

namespace kvcove::connector {

WorkerRole::WorkerRole(const WorkerOptions& options, const Clock& clock)
    : options_(options),
      keys_(options.shape),
      clock_(clock),
      jobs_(options.most_queued),
      results_(options.tier_log),
      gate_(options.number, options.fingerprints),
      in_place_{std::make_shared<InPlaceBudget>(options.in_place_bytes),
                std::make_shared<InPlaceBudget>(options.in_place_bytes)} {
  if (options_.threads > 0) started_ = StartThreads();
}

Status WorkerRole::StartThreads() {
  const auto start = [this](const char* name, std::function<void()> body) -> Status {
    KVCOVE_ASSIGN(std::thread thread, StartThread(name, std::move(body)));
    threads_.push_back(std::move(thread));
    return {};
  };
  for (std::uint32_t i = 0; i < options_.threads; ++i) {
    const Thread thread = i == 0 ? Thread::kFirstMover : Thread::kMover;
    KVCOVE_TRY(start("kvcove-mover", [this, thread] { Loop(thread); }));
  }
  KVCOVE_TRY(start("kvcove-saver", [this] { Loop(Thread::kSaver); }));
  return start("kvcove-steps", [this] { AwaitSteps(); });
}

WorkerRole::~WorkerRole() {
  std::shared_ptr<SegmentPins> pins;  // destroyed last, after the lock: waits for the driver
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    pins = std::move(pins_);
    jobs_.CancelRunning([](const Job&) { return true; });
    changed_.NotifyAll();
    stepped_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
  transport::DeviceQueue* const queue = queue_;
  if (queue == nullptr) return;
  (void)AwaitFlights();
  // A device that hangs may end tickets after this: their callbacks refer to this role.
  queue->Forget(this);
}

Status WorkerRole::Register(const std::vector<LayerMemory>& layers) {
  Shards shards(options_.shape, keys_, options_.rank, layers.size(), options_.layer_parts);
  transport::DeviceQueue* queue = nullptr;
  for (const LayerMemory& layer : layers) {
    KVCOVE_ASSIGN(const std::vector<BlockRuns> runs, shards.RunsIn(layer));
    const bool device = options_.device != nullptr && options_.device->Owns(layer.base);
    for (const BlockRuns& of_shard : runs) {
      transport::DeviceQueue* of_layer = nullptr;
      if (device) {
        KVCOVE_ASSIGN(of_layer, Probe(layer, of_shard));
      }
      if (of_layer != queue && &layer != &layers.front()) {
        return Fail(Code::kInvalid,
                    fmt::format("KV layer '{}' is on another device than layer '{}'", layer.name,
                                layers.front().name));
      }
      queue = of_layer;
    }
    shards.Add(layer, runs, device);
  }
  KVCOVE_TRY(shards.Check());
  if (queue != nullptr) {
    LogInfo("{}: rank {}: KV by way of {}, {} pinned", options_.engine, options_.number,
            queue->Describe(), FormatSize(queue->stats().pinned_bytes));
  }
  if (transport::DeviceQueue* const before = queue_; before != nullptr && before != queue) {
    before->Forget(this);  // drops marks of steps, whose callbacks are not needed any more
  }
  {
    const MutexLock lock(mutex_);
    // Host memory: only the saver copies for saves (JobQueue::Share).
    quiet_saves_ = queue == nullptr && options_.threads > 0;
    queue_ = queue;
    shards_ = std::make_shared<const Shards>(std::move(shards));
    changed_.NotifyAll();
  }
  StartPins();
  RegisterRings();
  return {};
}

Result<transport::DeviceQueue*> WorkerRole::Probe(const LayerMemory& layer,
                                                  const BlockRuns& runs) const {
  const Run& end = runs.runs.back();
  const std::uintptr_t last =
      runs.base + (runs.blocks - 1) * runs.block_stride + end.offset + end.bytes - 1;
  transport::DeviceQueue* found = nullptr;
  for (const std::uintptr_t address : {runs.base + runs.runs.front().offset, last}) {
    std::byte byte{};
    const auto queue = options_.device->QueueOf(address);
    const Status copied =
        queue ? (*queue)->Move(transport::DeviceWay::kSave, &byte, address, 1, DeviceDeadline())
              : Status(std::unexpected<Error>(queue.error()));
    if (copied) {
      found = *queue;
      continue;
    }
    return Fail(copied.error().code,
                fmt::format("KV layer '{}': its device memory at {:#x} cannot be copied: "
                            "{}",
                            layer.name, address, copied.error().detail));
  }
  return found;
}

bool WorkerRole::Unregister() {
  LetGo();
  if (AwaitFlights()) return true;
  LogError("{}: rank {}: the device still moves bytes after {} ms; the KV memory may still change",
           options_.engine, options_.number, options_.device_timeout.count());
  return false;
}

void WorkerRole::LetGo() {
  // Declared before the lock, so destroyed after it is released: the destructor of a step's `ready`
  // may need the engine's own locks (Python's GIL), and a thread that holds them may wait for ours.
  std::vector<std::shared_ptr<Job>> dropped;
  std::deque<ComputedStep> steps;
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  // First, so that no order becomes a job from now on. Running jobs keep their own reference, and
  // the wait below is for them: afterwards no mover touches the engine's memory.
  shards_.reset();
  FailQueued(dropped, steps, lines);
  CancelMoving([](const Job&) { return true; });
  while (jobs_.running()) changed_.Wait(mutex_);
}

void WorkerRole::FailQueued(std::vector<std::shared_ptr<Job>>& dropped,
                            std::deque<ComputedStep>& steps, LinesAfterLock& lines) {
  steps = steps_.TakeAll();
  dropped = jobs_.TakeAll();
  const auto fail = [&](const std::shared_ptr<Job>& job) KVCOVE_REQUIRES(mutex_) {
    job->FailAll();
    End(job, lines);
  };
  for (const ComputedStep& step : steps) {
    for (const auto& job : step.saves) fail(job);
  }
  for (const auto& job : dropped) fail(job);
}

void WorkerRole::CancelMoving(const std::function<bool(const Job&)>& matches) {
  jobs_.CancelRunning(matches);
  moves_.Cancel(matches);
}

std::vector<std::uint64_t> WorkerRole::ChunkBytes() const {
  const MutexLock lock(mutex_);
  return shards_ == nullptr ? std::vector<std::uint64_t>{} : shards_->ChunkBytes();
}

void WorkerRole::Connect(std::unique_ptr<Store> store, bool ask_first) {
  {
    std::shared_ptr<Store> before;  // destroyed after the lock: its end is a call of the pool
    std::shared_ptr<SegmentPins> pins;
    const MutexLock lock(mutex_);
    ask_first_ = ask_first;
    before = std::exchange(store_, std::move(store));
    pins = std::move(pins_);
    rings_of_ = nullptr;
    changed_.NotifyAll();
    stepped_.NotifyAll();
  }
  // After `pins` of the former store has ended: its thread called that store.
  StartPins();
  RegisterRings();
}

void WorkerRole::FailWaiting() {
  std::vector<std::shared_ptr<Job>> dropped;  // as in LetGo
  std::deque<ComputedStep> steps;
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  if (store_ != nullptr) return;
  FailQueued(dropped, steps, lines);
}

void WorkerRole::DoWithout() {
  std::vector<std::shared_ptr<Job>> dropped;  // as in LetGo
  std::deque<ComputedStep> steps;
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  gate_.DoWithout();
  FailQueued(dropped, steps, lines);
  changed_.NotifyAll();
}

bool WorkerRole::connected() const {
  const MutexLock lock(mutex_);
  return store_ != nullptr;
}

void WorkerRole::WeightsChanging() {
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  if (!gate_.WeightsChanging()) return;
  // Fails loads that wait or run: their values were computed with the weights of before.
  for (const auto& job : jobs_.TakeLoads([](const Job&) { return true; })) {
    job->FailAll();
    End(job, lines);
  }
  CancelMoving([](const Job& job) { return job.load; });
}

bool WorkerRole::FingerprintWanted() const {
  const MutexLock lock(mutex_);
  return gate_.FingerprintWanted();
}

void WorkerRole::SetFingerprint(std::string fingerprint) {
  const MutexLock lock(mutex_);
  gate_.SetFingerprint(std::move(fingerprint));
}

void WorkerRole::SetAdapters(const std::vector<AdapterPrint>& adapters) {
  const MutexLock lock(mutex_);
  gate_.SetAdapters(adapters);
}

}  // namespace kvcove::connector
