// SPDX-License-Identifier: Apache-2.0
// The role of one rank: it moves chunks between the engine's KV memory and the pool, on threads of
// its own.
//
//   Begin(plan)   queues the plan's loads at once. FinishStep() queues the step's saves as soon as
//                 the KV that they read is computed: the thread kvcove-steps waits for that, so no
//                 mover does. Loads precede saves; JobQueue has their order.
//   A job ends exactly once, whatever happens: done, failed, cancelled, or its thread threw. A load
//   that has ended writes nothing any more; a save that has ended reads nothing any more.
//
// A device's memory is moved by way of pinned host memory (transport/device_queue.h), and no thread
// waits for the device. A batch of a load is over for its mover once it is submitted: it runs
// behind the mark that Begin has set in the engine's stream. A batch of a save returns to a mover
// when its bytes are on the host. Where the pool's memory on this host is pinned, the device copies
// out of it and into it, without a ring in between (worker_in_place.cc). docs/device.md has the
// picture. The rings are registered with the pool, so that RDMA moves values of other hosts into
// them and out of them.
//
// Threads: kvcove-mover, kvcove-saver and kvcove-steps; callbacks run on kvcove-device. The role
// has the order of calls, the lock, the threads, and the calls of the pool and of the device. Its
// state is in parts that have none of these: Shards (places of objects), JobQueue and ComputedSteps
// (jobs that wait or run), Gate (permission), DeviceMoves (batches on the device), JobResults
// (outcomes). One lock guards them: a job that ends leaves one part and enters another at once. It
// is never held over a call of the pool, of the device, or of the engine.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/log.h"
#include "kvcove/base/mutex.h"
#include "kvcove/connector/plan.h"
#include "kvcove/connector/shape.h"
#include "kvcove/connector/store.h"
#include "kvcove/connector/worker/device_moves.h"
#include "kvcove/connector/worker/gate.h"
#include "kvcove/connector/worker/in_place.h"
#include "kvcove/connector/worker/job.h"
#include "kvcove/connector/worker/job_queue.h"
#include "kvcove/connector/worker/job_results.h"
#include "kvcove/connector/worker/layout.h"
#include "kvcove/connector/worker/segment_pins.h"
#include "kvcove/connector/worker/shards.h"
#include "kvcove/transport/device_queue.h"
#include "kvcove/transport/landing.h"

namespace kvcove::connector {

// Memory that the host cannot read. Thread-safe.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual bool Owns(std::uintptr_t address) const = 0;
  // Returns the queue of the device that has this address. The first call opens it, and it outlives
  // every role. Errors: the device's.
  virtual Result<transport::DeviceQueue*> QueueOf(std::uintptr_t address) const = 0;
};

// The engine's stream of a step, as its framework names it; 0, the default stream, is always safe.
using transport::StreamHandle;

struct WorkerOptions {
  EngineShape shape;
  Rank rank;
  std::uint32_t number = 0;                 // of this rank in the engine's world
  std::string engine;                       // names the engine in logs
  const DeviceMemory* device = nullptr;     // null: all KV memory is the host's
  std::uint32_t threads = 2;                // movers; 0: callers of RunOne do all work
  std::uint64_t batch_bytes = 16 << 20;     // a mover moves at most so much before its next job
  std::uint32_t most_queued = 4096;         // saves beyond it are dropped; loads fail
  std::chrono::milliseconds timeout{1000};  // of one batch
  std::chrono::milliseconds pressure{100};  // pause of saves after the pool had no room
  // Limit for a device that makes no progress: then a batch fails for want of pinned memory, and
  // Unregister returns although bytes are under way.
  std::chrono::milliseconds device_timeout{10000};
  // Limit for the wait behind a call whose RDMA transfer could not be stopped. Pinned memory that
  // it may still touch is kept for longer.
  std::chrono::milliseconds settle{transport::kSettle};
  // Most bytes of the pool's memory on this host that are pinned for the device; 0: all transfers
  // take pinned buffers.
  std::uint64_t pin_bytes = ~std::uint64_t{0};
  std::uint64_t pin_piece_bytes = 64 << 20;
  // Most bytes of the pool's memory that transfers hold, each way. Further transfers take pinned
  // buffers, and hold none of it.
  std::uint64_t in_place_bytes = 64 << 20;
  // Cuts a synchronous load into so many parts, each of consecutive layers, so that the first
  // layers' forward pass runs while later ones are loaded (WaitForLayer). 1: no cut.
  std::uint32_t layer_parts = 1;
  // The engine reports changes of its weights (WeightsChanging) and answers with fingerprints.
  bool fingerprints = true;
  bool tier_log = false;  // log a line for each load
  NamespacePriority priority =
      NamespacePriority::kUnsaid;  // of this engine's namespace, sent with each save
};

// Thread-safe.
class WorkerRole {
 public:
  WorkerRole(const WorkerOptions& options, const Clock& clock);
  // Ends the jobs that run, drops queued ones, and waits for the device, for its timeout at most.
  ~WorkerRole();
  // Returns whether its threads could be started; if not, it must not be used. Errors: as
  // StartThread.
  const Status& started() const { return started_; }

  // Registers the engine's KV memory, all layers of all groups, which must stay until Unregister or
  // the destructor. Reads the first and the last byte of device memory, so that memory that cannot
  // be copied is an error here and not of every load. Errors: kInvalid, and the device's own, with
  // the layer's name.
  Status Register(const std::vector<LayerMemory>& layers);
  // Fails queued jobs, and waits until no thread or device touches that memory any more. False: a
  // device still moves bytes after the device's timeout, which is logged.
  bool Unregister();
  // Returns the bytes of one chunk's object, by group, for logs.
  std::vector<std::uint64_t> ChunkBytes() const;

  // Sets the store. Before that, saves wait, and loads wait for `timeout` and then fail.
  // `ask_first`: looks values up before it saves them, as in a cluster, where another host may have
  // them; a pool of this host reports that without a copy.
  void Connect(std::unique_ptr<Store> store, bool ask_first = false);
  bool connected() const;
  // Fails the jobs that wait for a store which is still absent, so that no block is kept for long.
  void FailWaiting();
  // Gives up the store for good: fails the jobs that wait, queues no new ones, and reports to the
  // scheduler that it must neither look up nor save any more.
  void DoWithout();

  // Takes a step's plan and queues its loads. Loads into a device's memory write nothing before the
  // device has done the present work of `stream`.
  void Begin(Plan plan, StreamHandle stream = 0);
  // Waits until the plan's synchronous loads have ended, or, for a device's memory, are all
  // submitted; `stream` then waits for them on the device. They end by their calls' timeouts.
  void WaitForSyncLoads(StreamHandle stream = 0);
  // Waits, with `layer_parts`, until the parts up to that layer's are submitted; `stream` then
  // waits for these. A layer with an unknown name counts as the last part's. FinishStep waits for
  // the rest.
  void WaitForLayer(std::string_view layer, StreamHandle stream);
  // Ends a step: its saves become due when `ready` returns, which must be when the step's KV can be
  // read. kvcove-steps calls each `ready` once, step after step, once there is a store; if it
  // throws, the saves fail. It is called and destroyed without a lock of the role. Empty: the KV of
  // host memory can be read now, and a device's once it has done the present work of `stream`.
  void FinishStep(std::function<void()> ready, StreamHandle stream = 0);
  // Returns the outcomes since the last call that the engine must know.
  Ended TakeEnded();
  // Returns the report for the scheduler: changes since the last one.
  Report TakeReport();

  // Notes that the weights of this rank change, or may have changed. Until SetFingerprint, loads
  // fail and saves are dropped.
  void WeightsChanging();
  // Returns true if the scheduler has asked for the fingerprint; SetFingerprint answers.
  bool FingerprintWanted() const;
  void SetFingerprint(std::string fingerprint);

  // Sets the LoRA adapters that this rank has now; call it before Begin and before FinishStep
  // whenever they may have changed. A load whose adapter has changed since the plan's digest of it
  // was made fails; such a save is dropped.
  void SetAdapters(const std::vector<AdapterPrint>& adapters);

  // Runs one batch of the next job in the caller's thread. False: there was no work.
  bool RunOne() { return RunOne(Share::kAll); }
  // Returns the bytes of the pool that are pinned now. If the role has no threads, pins a piece
  // first (segment_pins.h).
  std::uint64_t PinOne();

 private:
  using Share = JobQueue::Share;
  enum class Thread : std::uint8_t { kFirstMover, kMover, kSaver };
  std::shared_ptr<Job> NextJob(Share share) KVCOVE_REQUIRES(mutex_);
  // Returns the jobs of which a thread has one to run now; none: the thread sleeps.
  std::optional<Share> Due(Thread thread) const KVCOVE_REQUIRES(mutex_);
  bool RunOne(Share share);
  // Waits for the oldest step without a mark, and makes its saves due. False: there is none.
  bool AwaitStep();
  Status StartThreads();
  void AwaitSteps();
  // Queues a job, or ends it as failed if too many wait. `step`: a save that becomes due with it.
  void Queue(std::shared_ptr<Job> job, ComputedStep* step, LinesAfterLock& lines)
      KVCOVE_REQUIRES(mutex_);
  // Makes jobs of the step's orders, which are due at once, or with `step`.
  void QueueSaves(ComputedStep& step, bool marked, bool at_once, LinesAfterLock& lines)
      KVCOVE_REQUIRES(mutex_);
  enum class Ran : std::uint8_t { kMore, kOver, kBlocked };
  Ran RunBatch(Job& job, Store& store);
  void LoadBatch(Job& job, Store& store, std::size_t from, std::size_t to);
  void SaveBatch(Job& job, Store& store, std::size_t from, std::size_t to);
  // Counts the pool's answers to a load of `items`; returns, as indices into `items`, those that
  // were loaded whole.
  std::vector<std::size_t> JudgeLoad(Job& job, Store& store, std::span<const std::size_t> items,
                                     std::span<const ItemResult> results);

  // ---- a device's memory
  // Each of the three returns false, and has done nothing, if memory for the batch will be returned
  // by others under way: the job waits for that.
  bool LoadBatchToDevice(Job& job, Store& store, std::size_t from, std::size_t to);
  // Loads into a piece of the ring, for which it waits, and submits that.
  void LoadByRing(Job& job, Store& store, const std::vector<std::size_t>& items);
  bool SaveBatchFromDevice(Job& job, Store& store, std::size_t from, std::size_t to);
  bool SaveByRing(Job& job, const std::vector<std::size_t>& items);
  // Returns the items of a save's batch [from, to) that are to be stored. Asks the pool once,
  // however often the batch waits for memory.
  const std::vector<std::size_t>& Wanted(Job& job, Store& store, std::size_t from, std::size_t to);
  void Submit(const std::shared_ptr<Batch>& batch);
  // Begins a batch: its end is reported when all of its parts are over.
  void Fly(const std::shared_ptr<Batch>& batch);
  void SubmitPart(const std::shared_ptr<Batch>& batch, std::uint32_t part);
  // Ends one part of a batch, on kvcove-device, or on the mover whose submission failed.
  void PartDone(const std::shared_ptr<Batch>& batch, transport::DeviceDone& done);
  void EndBatch(Batch& batch, LinesAfterLock& lines) KVCOVE_REQUIRES(mutex_);
  // Stores a save's batch whose bytes are on the host. False: there is none.
  bool RunFetched();
  // Registers the rings with the store, once for each two of them. The caller waits for the pool's
  // device, some 40 to 170 ms a GiB.
  void RegisterRings();
  void StoreFetched(Batch& batch, Store& store);

  // ---- in place
  void StartPins();
  // The means of a transfer in place.
  struct InPlace {
    std::shared_ptr<SegmentPins> pins;
    std::shared_ptr<InPlaceMemory> memory;  // null: transfers hold too much of the pool now
  };
  // Takes `bytes` of the way's budget; nothing: no memory of the pool is pinned.
  std::optional<InPlace> TakeInPlace(transport::DeviceWay way, std::uint64_t bytes, bool bounded);
  // Returns whether a batch waits until others of its way return memory of the pool. By way of the
  // ring it would cost a copy by the processor, while the link is busy anyway.
  bool WaitsFor(const std::optional<InPlace>& in_place, bool load) const;
  struct Lent {
    std::shared_ptr<Batch> batch;      // null: no value is lent
    std::vector<std::size_t> by_ring;  // values that are neither lent nor failed
    bool waits = false;                // too much is lent already; no value is decided
  };
  // Borrows the values of `items`. `may_wait`: other loans will end, so it returns `waits` instead
  // of values for the ring when the session's bound of loans is reached.
  Lent Lend(Job& job, Store& store, const InPlace& in_place, std::vector<std::size_t> items,
            bool may_wait);
  // Returns false for a while after the pool reserved memory that is not pinned.
  bool SavesInPlace() const;
  // Reserves memory of the pool for `items` and submits them. False: nothing is reserved, and all
  // must take the ring.
  bool SaveInPlace(Job& job, Store& store, const InPlace& in_place,
                   const std::vector<std::size_t>& items);
  // Marks the values of a load whose loan was not valid to the end.
  static void Revalidate(Batch& batch);
  void CommitInPlace(Batch& batch);
  void StepReached(const std::shared_ptr<const transport::DeviceMark>& mark, const Status& status);
  // Makes the saves of a computed step due. `error`: fails them instead, if it is not empty.
  void StepDone(ComputedStep& step, const std::string& error, LinesAfterLock& lines)
      KVCOVE_REQUIRES(mutex_);

  // ---- loads for which the engine's stream waits
  // Submits as much of the job as can be lent at once. False: the rest waits for memory.
  bool LoadForStream(Job& job, Store& store);
  // Submits the first layers of all batches, then the next ones. `last`: nothing of the job
  // follows.
  void SubmitByLayers(Job& job, const std::vector<std::shared_ptr<Batch>>& batches, bool last);
  // Waits, on the host, until all synchronous loads have submitted the parts up to `part`;
  // kAllParts: until their movers are done with them.
  static constexpr std::uint32_t kAllParts = ~std::uint32_t{0};
  void AwaitSubmitted(std::uint32_t part);
  void WaitOnStream(StreamHandle stream, std::uint32_t part);

  std::int64_t DeviceDeadline() const;
  // Does the host's part of Unregister: afterwards only the device may touch the memory.
  void LetGo();
  // Fails queued jobs. The caller destroys `dropped` and `steps` without the lock.
  void FailQueued(std::vector<std::shared_ptr<Job>>& dropped, std::deque<ComputedStep>& steps,
                  LinesAfterLock& lines) KVCOVE_REQUIRES(mutex_);
  // Cancels jobs that run or are on the device: they move no further batch.
  void CancelMoving(const std::function<bool(const Job&)>& matches) KVCOVE_REQUIRES(mutex_);
  // Waits until no batch is on the device. False: not within the device's timeout.
  bool AwaitFlights();
  // Returns the items that are not in the pool; removes values of another size first.
  std::vector<std::size_t> NotStored(Job& job, Store& store, const std::vector<std::size_t>& items);
  // Stores items of host memory; returns those that the pool had already.
  std::vector<std::size_t> PutItems(Job& job, Store& store, const std::vector<std::size_t>& items);
  // Stores items. `ends[k]` is the end of the k-th value's pieces.
  std::vector<std::size_t> PutValues(Job& job, Tally& tally, Store& store,
                                     const std::vector<std::size_t>& items,
                                     std::span<const ConstBuffer> pieces,
                                     std::span<const std::size_t> ends);
  std::vector<std::size_t> CountPuts(Job& job, Tally& tally, const std::vector<std::size_t>& items,
                                     const std::vector<ItemResult>& results);
  // Removes values of another size than this engine's: they can never be loaded, and while they
  // exist no engine can store the right ones.
  void RemoveMisfits(Job& job, Store& store, const std::vector<std::size_t>& items,
                     std::uint64_t found_bytes);
  // Counts a failed copy of `items` values, and logs it now and then.
  void CountCopyErrors(const Job& job, Tally& tally, std::size_t items, const Status& status,
                       LinesAfterLock& lines);
  // Returns the queue of a layer's device; reads its first and last byte.
  Result<transport::DeviceQueue*> Probe(const LayerMemory& layer, const BlockRuns& runs) const;
  // Ends a job for its mover; it ends as a whole with its last batch on the device.
  void End(const std::shared_ptr<Job>& job, LinesAfterLock& lines) KVCOVE_REQUIRES(mutex_);
  // Fails loads that have waited for a store for `timeout`. False: there is none.
  bool FailLoadsWithoutStore(LinesAfterLock& lines) KVCOVE_REQUIRES(mutex_);
  void Loop(Thread thread);

  const WorkerOptions options_;
  const Keys keys_;
  const Clock& clock_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<const Shards> shards_ KVCOVE_GUARDED_BY(mutex_);  // null: no memory
  std::shared_ptr<Store> store_ KVCOVE_GUARDED_BY(mutex_);
  std::atomic<bool> ask_first_{false};
  JobQueue jobs_ KVCOVE_GUARDED_BY(mutex_);
  ComputedSteps steps_ KVCOVE_GUARDED_BY(mutex_);
  DeviceMoves moves_ KVCOVE_GUARDED_BY(mutex_);
  JobResults results_ KVCOVE_GUARDED_BY(mutex_);
  Gate gate_ KVCOVE_GUARDED_BY(mutex_);
  // Queue of the registered memory; null where that is the host's. Atomic, so that a call of the
  // queue needs no lock; only Register changes it.
  std::atomic<transport::DeviceQueue*> queue_{nullptr};
  std::shared_ptr<SegmentPins> pins_ KVCOVE_GUARDED_BY(mutex_);  // of store_, for queue_
  // The queue whose rings are registered with store_, or are being registered. Null: none.
  transport::DeviceQueue* rings_of_ KVCOVE_GUARDED_BY(mutex_) = nullptr;
  // Shared: transfers on a hanging device outlive the role.
  const std::array<std::shared_ptr<InPlaceBudget>, transport::kDeviceWays> in_place_;
  std::int64_t save_in_place_from_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::vector<SaveOrder> step_saves_ KVCOVE_GUARDED_BY(mutex_);  // of the step that is running
  std::uint64_t step_ KVCOVE_GUARDED_BY(mutex_) = 0;             // Plan::step, until it is reported
  bool quiet_saves_ KVCOVE_GUARDED_BY(mutex_) = false;           // the memory is the host's
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  CondVar stepped_;  // notified of a new step, of a store, and of the role's end
  LogLimit copy_lines_;
  LogLimit misfit_lines_;
  Status started_;
  std::vector<std::thread> threads_;
};

}  // namespace kvcove::connector
