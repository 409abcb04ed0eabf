// SPDX-License-Identifier: Apache-2.0
// The role of one rank: it moves chunks between the engine's KV memory and the pool, on threads of
// its own.
//
//   Begin(plan)   loads are queued at once; FinishStep() queues the step's saves as soon as what
//                 they read has been computed: a thread of its own waits for that, so no mover
//                 does. Loads go before saves, the oldest first.
//   A job ends exactly once, whatever happens: done, failed, cancelled, or its thread threw. A load
//   that has ended writes nothing any more; a save that has ended reads nothing any more.
//
// A device's memory goes by way of pinned host memory (transport/device_queue.h), and no thread
// waits for the device. A batch of a load is over for its mover once it is submitted: it runs
// behind the mark that Begin has set in the engine's stream. A batch of a save comes back to a
// mover when its bytes are on the host. Where the pool's memory on this host is pinned, the device
// copies out of it and into it, and there is no other memory in between (worker_in_place.cc).
// docs/device.md has the picture.
//
// The role keeps the order of calls, the lock, the threads, and the calls of the pool and of the
// device. Its state is in parts that have none of these: Shards (where objects lie), JobQueue and
// ComputedSteps (what waits and runs), Gate (whether it may), DeviceMoves (what is on the device),
// JobResults (what has ended). One lock guards them: a job that ends leaves one part and enters
// another at once.
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

namespace kvcove::connector {

// Memory that the host cannot read. Thread-safe. Null stands for none.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual bool Owns(std::uintptr_t address) const = 0;
  // Moves bytes to and from the device on which the address lies. Opened at the first call, kept
  // for longer than any role. Errors: the device's.
  virtual Result<transport::DeviceQueue*> QueueOf(std::uintptr_t address) const = 0;
};

// The engine's stream at a step, as its framework has it; 0, its default stream, is always safe.
using transport::StreamHandle;

struct WorkerOptions {
  EngineShape shape;
  Rank rank;
  std::uint32_t number = 0;  // of this rank in the engine's world
  std::string engine;        // for logs
  const DeviceMemory* device = nullptr;
  std::uint32_t threads = 2;                // 0: the threads that call RunOne
  std::uint64_t batch_bytes = 16 << 20;     // moved between two looks at the queue
  std::uint32_t most_queued = 4096;         // saves beyond are dropped; loads fail
  std::chrono::milliseconds timeout{1000};  // of one batch
  std::chrono::milliseconds pressure{100};  // nothing is saved after the pool had no room
  // A device that does not go on: then a batch fails for want of pinned memory, and Unregister
  // returns although something is under way.
  std::chrono::milliseconds device_timeout{10000};
  // Of the pool's memory on this host, pinned for the device at most; 0: all goes by way of pinned
  // buffers.
  std::uint64_t pin_bytes = ~std::uint64_t{0};
  std::uint64_t pin_piece_bytes = 64 << 20;
  // Each way: of the pool's memory, held by transfers at most. What is more goes by way of pinned
  // buffers, and holds none of it.
  std::uint64_t in_place_bytes = 64 << 20;
  // Into so many parts, of layers that follow each other, a synchronous load is cut, so that the
  // first layers' forward pass runs while later ones land (WaitForLayer). 1: it is one.
  std::uint32_t layer_parts = 1;
  // Changes of weights are told (WeightsChanging), and answered with fingerprints.
  bool fingerprints = true;
  bool tier_log = false;  // a line a load
  NamespacePriority priority =
      NamespacePriority::kUnsaid;  // of this engine's namespace, said with each save
};

// Thread-safe.
class WorkerRole {
 public:
  WorkerRole(const WorkerOptions& options, const Clock& clock);
  // Ends what runs, drops what is queued.
  ~WorkerRole();
  // Whether its threads could be started; else it is of no use. Errors: as StartThread.
  const Status& started() const { return started_; }

  // The engine's KV memory, all layers of all groups. It must stay until Unregister or the end.
  // Device memory is read at its first and its last byte, so that what cannot be copied is said
  // here and not by every load. Errors: kInvalid, and the device's own, with the layer's name.
  Status Register(const std::vector<LayerMemory>& layers);
  // Waits until nothing touches that memory any more; what is queued fails. False: a device still
  // moves bytes after the device's timeout; it is said in the log.
  bool Unregister();
  // Bytes of one chunk's object, by group: for logs.
  std::vector<std::uint64_t> ChunkBytes() const;

  // Saves wait until there is a store, loads as long as a call may take. `ask_first`: what is to be
  // saved is looked up before, as in a cluster, where others may have it; a pool of this host says
  // so without a copy.
  void Connect(std::unique_ptr<Store> store, bool ask_first = false);
  bool connected() const;
  // It is not there yet: what waits for it fails, so that no block is kept for long.
  void FailWaiting();
  // There will be none: what waits for one fails, what comes is not queued, and the scheduler is
  // told to look up and to save nothing more.
  void DoWithout();

  // Loads into a device's memory write nothing before the device has done what `stream` has now.
  void Begin(Plan plan, StreamHandle stream = 0);
  // Until the plan's synchronous loads have ended, or, for a device's memory, are all submitted:
  // `stream` then waits for them on the device. They end by their calls' timeouts.
  void WaitForSyncLoads(StreamHandle stream = 0);
  // With `layer_parts`, instead: until the parts up to that layer's are submitted; the stream then
  // waits for them. A layer without a name here is of the last part. FinishStep waits for the rest.
  void WaitForLayer(std::string_view layer, StreamHandle stream);
  // `ready` returns when what this step computed can be read. It is called once, on the role's
  // thread for that, step after step, once there is a store, and its saves are due when it
  // returns; if it throws, they fail. It is called and destroyed without a lock of the role. Empty:
  // what the host's processors have computed can be read now, and a device's once it has done what
  // `stream` has now.
  void FinishStep(std::function<void()> ready, StreamHandle stream = 0);
  Ended TakeEnded();
  Report TakeReport();

  // The weights of this rank change, or may have. Until the scheduler asks for their fingerprint,
  // loads fail and saves are dropped.
  void WeightsChanging();
  // True when the scheduler asked; SetFingerprint answers.
  bool FingerprintWanted() const;
  void SetFingerprint(std::string fingerprint);

  // The LoRA adapters that this rank has now, whenever they may have changed: before Begin and
  // before FinishStep. A load or save whose adapter has changed since the plan's digest of it was
  // made fails, or is dropped.
  void SetAdapters(const std::vector<AdapterPrint>& adapters);

  // One batch of the job that is due, in the caller's thread; false when there is none.
  bool RunOne() { return RunOne(Share::kAll); }
  // Without threads of the role: a step of what pins the pool's memory (segment_pins.h). Bytes that
  // are pinned now.
  std::uint64_t PinOne();

 private:
  using Share = JobQueue::Share;
  enum class Thread : std::uint8_t { kFirstMover, kMover, kSaver };
  std::shared_ptr<Job> NextJob(Share share) KVCOVE_REQUIRES(mutex_);
  // What a thread has to run now; none: nothing.
  std::optional<Share> Due(Thread thread) const KVCOVE_REQUIRES(mutex_);
  bool RunOne(Share share);
  // Waits for the oldest step whose saves are not due yet; false when there is none.
  bool AwaitStep();
  Status StartThreads();
  void AwaitSteps();
  // A save with a `step` is due when that step is computed.
  void Queue(std::shared_ptr<Job> job, ComputedStep* step, LinesAfterLock& lines)
      KVCOVE_REQUIRES(mutex_);
  // The step's orders become jobs that are due at once, or jobs of `step`.
  void QueueSaves(ComputedStep& step, bool marked, bool at_once, LinesAfterLock& lines)
      KVCOVE_REQUIRES(mutex_);
  enum class Ran : std::uint8_t { kMore, kOver, kBlocked };
  Ran RunBatch(Job& job, Store& store);
  void LoadBatch(Job& job, Store& store, std::size_t from, std::size_t to);
  void SaveBatch(Job& job, Store& store, std::size_t from, std::size_t to);
  // Looks at what the pool answered to a load of `items`; returns, as numbers in `items`, those
  // that came whole.
  std::vector<std::size_t> JudgeLoad(Job& job, Store& store, std::span<const std::size_t> items,
                                     std::span<const ItemResult> results);

  // ---- a device's memory
  // All three: false where no memory is free now, and some of what is lent will be.
  bool LoadBatchToDevice(Job& job, Store& store, std::size_t from, std::size_t to);
  // By way of the ring.
  void LoadByRing(Job& job, Store& store, const std::vector<std::size_t>& items);
  bool SaveBatchFromDevice(Job& job, Store& store, std::size_t from, std::size_t to);
  bool SaveByRing(Job& job, const std::vector<std::size_t>& items);
  // Of the batch [from, to) of a save: what is to be stored. Asked once, however often the batch
  // waits for memory.
  const std::vector<std::size_t>& Wanted(Job& job, Store& store, std::size_t from, std::size_t to);
  void Submit(const std::shared_ptr<Batch>& batch);
  // From here on its end is told when all its parts are over.
  void Fly(const std::shared_ptr<Batch>& batch);
  void SubmitPart(const std::shared_ptr<Batch>& batch, std::uint32_t part);
  // On kvcove-device: one part of a batch is over.
  void PartDone(const std::shared_ptr<Batch>& batch, transport::DeviceDone& done);
  void EndBatch(Batch& batch, LinesAfterLock& lines) KVCOVE_REQUIRES(mutex_);
  // Puts a save's batch whose bytes have come. False when there is none.
  bool RunFetched();
  void StoreFetched(Batch& batch, Store& store);

  // ---- in place
  void StartPins();
  // What a transfer of so many bytes may use; nothing while no memory of the pool is pinned.
  struct InPlace {
    std::shared_ptr<SegmentPins> pins;
    std::shared_ptr<InPlaceMemory> memory;  // null: transfers hold too much of it now
  };
  std::optional<InPlace> TakeInPlace(transport::DeviceWay way, std::uint64_t bytes, bool bounded);
  // Whether a batch waits for others of its way to give back what they hold of the pool. By way of
  // the ring it would cost a copy by the processor, while the link is busy anyway.
  bool WaitsFor(const std::optional<InPlace>& in_place, bool load) const;
  struct Lent {
    std::shared_ptr<Batch> batch;      // null: nothing is lent
    std::vector<std::size_t> by_ring;  // the others, but for those that failed
    bool waits = false;                // too much is lent already, and nothing is decided
  };
  Lent Lend(Job& job, Store& store, const InPlace& in_place, std::vector<std::size_t> items,
            bool may_wait);
  // False for a while after the pool gave memory that is not pinned.
  bool SavesInPlace() const;
  // False: nothing of it, and all goes by way of the ring.
  bool SaveInPlace(Job& job, Store& store, const InPlace& in_place,
                   const std::vector<std::size_t>& items);
  // Whether what a load has read in place was valid until now.
  static void Revalidate(Batch& batch);
  void CommitInPlace(Batch& batch);
  void StepReached(const std::shared_ptr<const transport::DeviceMark>& mark, const Status& status);
  // Saves of a step that is computed, or failed.
  void StepDone(ComputedStep& step, const std::string& error, LinesAfterLock& lines)
      KVCOVE_REQUIRES(mutex_);

  // ---- loads that the engine's stream waits for
  // All of the job that can be lent at once.
  bool LoadForStream(Job& job, Store& store);
  // The first layers of all batches, then the next ones. `last`: nothing of the job follows.
  void SubmitByLayers(Job& job, const std::vector<std::shared_ptr<Batch>>& batches, bool last);
  // The host, until all synchronous loads have submitted the parts up to `part`; kAllParts: until
  // they are over but for what the device does.
  static constexpr std::uint32_t kAllParts = ~std::uint32_t{0};
  void AwaitSubmitted(std::uint32_t part);
  void WaitOnStream(StreamHandle stream, std::uint32_t part);

  std::int64_t DeviceDeadline() const;
  // Of Unregister: everything but what the device does.
  void LetGo();
  // Fails what is queued. `dropped` and `steps` get what must be destroyed without the lock.
  void FailQueued(std::vector<std::shared_ptr<Job>>& dropped, std::deque<ComputedStep>& steps,
                  LinesAfterLock& lines) KVCOVE_REQUIRES(mutex_);
  // Jobs that run or are on the device move no further batch.
  void CancelMoving(const std::function<bool(const Job&)>& matches) KVCOVE_REQUIRES(mutex_);
  // Until nothing is on the device. False: the device's timeout has passed.
  bool AwaitFlights();
  // Of these items, those that are not in the pool. What has another size there is removed first.
  std::vector<std::size_t> NotStored(Job& job, Store& store, const std::vector<std::size_t>& items);
  // Returns those that were there already.
  std::vector<std::size_t> PutItems(Job& job, Store& store, const std::vector<std::size_t>& items);
  // A value's pieces end where `ends` says.
  std::vector<std::size_t> PutValues(Job& job, Tally& tally, Store& store,
                                     const std::vector<std::size_t>& items,
                                     std::span<const ConstBuffer> pieces,
                                     std::span<const std::size_t> ends);
  std::vector<std::size_t> CountPuts(Job& job, Tally& tally, const std::vector<std::size_t>& items,
                                     const std::vector<ItemResult>& results);
  // Values of another size than this engine's: nobody can load them, and while they are there
  // nobody can store others.
  void RemoveMisfits(Job& job, Store& store, const std::vector<std::size_t>& items,
                     std::uint64_t found_bytes);
  // A copy of `items` values that failed is counted, and said now and then.
  void CountCopyErrors(const Job& job, Tally& tally, std::size_t items, const Status& status,
                       LinesAfterLock& lines);
  // The queue that moves bytes of a layer; its first and last byte are read.
  Result<transport::DeviceQueue*> Probe(const LayerMemory& layer, const BlockRuns& runs) const;
  void End(const std::shared_ptr<Job>& job, LinesAfterLock& lines) KVCOVE_REQUIRES(mutex_);
  // Those that have waited for one for as long as a call may take. False: none.
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
  // Of the memory that is registered; null where it is the host's.
  std::atomic<transport::DeviceQueue*> queue_{nullptr};
  std::shared_ptr<SegmentPins> pins_ KVCOVE_GUARDED_BY(mutex_);  // of store_, for queue_
  // Transfers may outlive this.
  const std::array<std::shared_ptr<InPlaceBudget>, transport::kDeviceWays> in_place_;
  std::int64_t save_in_place_from_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::vector<SaveOrder> step_saves_ KVCOVE_GUARDED_BY(mutex_);  // of the step that is running
  std::uint64_t step_ KVCOVE_GUARDED_BY(mutex_) = 0;             // Plan::step, until it is reported
  bool quiet_saves_ KVCOVE_GUARDED_BY(mutex_) = false;           // the memory is the host's
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  CondVar stepped_;  // steps_ has one more, there is a store, or the role stops
  LogLimit copy_lines_;
  LogLimit misfit_lines_;
  Status started_;
  std::vector<std::thread> threads_;
};

}  // namespace kvcove::connector
