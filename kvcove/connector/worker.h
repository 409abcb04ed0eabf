// SPDX-License-Identifier: Apache-2.0
// The role of one rank: it moves chunks between the engine's KV memory and the pool, on threads of
// its own.
//
//   Begin(plan)   loads are queued at once; FinishStep() queues the step's saves as soon as what
//                 they read has been computed: a thread of its own waits for that, so no mover
//                 does. Loads go before saves, the oldest first.
//   A job ends exactly once, whatever happens: done, failed, cancelled, or its thread threw. A load
//   that has ended writes nothing any more; a save that has ended reads nothing any more.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/log.h"
#include "kvcove/base/mutex.h"
#include "kvcove/connector/layout.h"
#include "kvcove/connector/plan.h"
#include "kvcove/connector/shape.h"
#include "kvcove/connector/store.h"

namespace kvcove::connector {

// Memory that the host cannot read. Thread-safe. Null stands for none.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual bool Owns(std::uintptr_t address) const = 0;
  // Both return when the bytes are there.
  virtual Status ToHost(void* host, std::uintptr_t device, std::size_t bytes) const = 0;
  virtual Status FromHost(std::uintptr_t device, const void* host, std::size_t bytes) const = 0;
};

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
  // Changes of weights are told (WeightsChanging), and answered with fingerprints.
  bool fingerprints = true;
  bool tier_log = false;  // a line a load
  NamespacePriority priority =
      NamespacePriority::kUnsaid;  // of this engine's namespace, said with each save
};

// What the engine must know after a step.
struct Ended {
  std::vector<std::string> loaded;     // requests whose load has ended, well or not
  std::vector<BlockId> failed_blocks;  // of them: they hold nothing that can be used
  std::vector<std::string> failed;     // requests with such blocks
};

// Thread-safe.
class WorkerRole {
 public:
  WorkerRole(const WorkerOptions& options, const Clock& clock);
  // Ends what runs, drops what is queued.
  ~WorkerRole();

  // The engine's KV memory, all layers of all groups. It must stay until Unregister or the end.
  // Device memory is read at its first and its last byte, so that what cannot be copied is said
  // here and not by every load. Errors: kInvalid, and the device's own, with the layer's name.
  Status Register(const std::vector<LayerMemory>& layers);
  // Waits until nothing touches that memory any more; what is queued fails.
  void Unregister();
  // Bytes of one chunk's object, by group: for logs.
  std::vector<std::uint64_t> ChunkBytes() const;

  // Jobs wait until there is a store. `ask_first`: what is to be saved is looked up before, as in a
  // cluster, where others may have it; a pool of this host says so without a copy.
  void Connect(std::unique_ptr<Store> store, bool ask_first = false);
  bool connected() const;

  void Begin(Plan plan);
  // Until the plan's synchronous loads have ended. They end by their calls' timeouts.
  void WaitForSyncLoads();
  // `ready` returns when what this step computed can be read. It is called once, on the role's
  // thread for that, step after step, once there is a store, and its saves are due when it
  // returns; if it throws, they fail. May be empty. It is called and destroyed without a lock of
  // the role.
  void FinishStep(std::function<void()> ready);
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

 private:
  struct Job;
  // A run of bytes that every block has, at a place of its own.
  struct Descriptor {
    std::uintptr_t base = 0;  // of block 0
    std::uint64_t block_stride = 0;
    std::uint64_t bytes = 0;
  };
  struct Shard {
    Part part;
    std::vector<Descriptor> runs;  // in an object's order; what touches is one, across layers
    std::uint64_t blocks = 0;      // that all of its layers have
    std::uint64_t bytes = 0;
    bool device = false;  // whether its layers lie in memory that the host cannot read
    void Add(const BlockRuns& layer);
  };
  // By group. Immutable; a job keeps what it was queued with.
  using Shards = std::vector<std::vector<Shard>>;
  struct Item;

  // The saves of a step that the device may still be computing.
  struct ComputedStep {
    std::shared_ptr<std::function<void()>> ready;
    std::vector<std::shared_ptr<Job>> saves;
  };

  // Which jobs a thread runs. Saves of host memory, where the forward pass needs the processors,
  // are one thread's, of low priority; movers then run loads only.
  enum class Share : std::uint8_t { kAll, kLoads, kSaves };
  std::shared_ptr<Job> NextJob(Share share) KVCOVE_REQUIRES(mutex_);
  // What a mover, or the saver, has to run now; none: nothing.
  std::optional<Share> Due(bool saver) const KVCOVE_REQUIRES(mutex_);
  bool RunOne(Share share);
  // Waits for the oldest step whose saves are not due yet; false when there is none.
  bool AwaitStep();
  void AwaitSteps();
  // A save with a `step` is due when that step is computed.
  void Queue(std::shared_ptr<Job> job, ComputedStep* step, LinesAfterLock& lines)
      KVCOVE_REQUIRES(mutex_);
  // Both take what they need out of the order.
  std::shared_ptr<Job> LoadJob(LoadOrder& order) KVCOVE_REQUIRES(mutex_);
  std::shared_ptr<Job> SaveJob(SaveOrder& order) KVCOVE_REQUIRES(mutex_);
  // The objects of a job: keys and places. On the mover that runs its first batch, as the engine's
  // thread waits for Begin and FinishStep.
  void Prepare(Job& job) const;
  void AddItems(Job& job, std::uint32_t place, const Hints& hints) const;
  // Where the blocks of items [from, to) lie.
  static void Place(Job& job, std::size_t from, std::size_t to);
  // True when the job is over.
  bool RunBatch(Job& job, Store& store);
  void LoadBatch(Job& job, Store& store, std::size_t from, std::size_t to);
  void SaveBatch(Job& job, Store& store, std::size_t from, std::size_t to);
  // Of these items, those that are not in the pool. What has another size there is removed first.
  std::vector<std::size_t> NotStored(Job& job, Store& store, const std::vector<std::size_t>& items);
  // Returns those that were there already.
  std::vector<std::size_t> PutItems(Job& job, Store& store, const std::vector<std::size_t>& items);
  std::vector<std::size_t> CountPuts(Job& job, const std::vector<std::size_t>& items,
                                     const std::vector<ItemResult>& results);
  // Values of another size than this engine's: nobody can load them, and while they are there
  // nobody can store others.
  void RemoveMisfits(Job& job, Store& store, const std::vector<std::size_t>& items,
                     std::uint64_t found_bytes);
  std::size_t BatchEnd(const Job& job) const;
  bool ToHost(Job& job, const Item& item, std::vector<std::byte>& staging);
  bool FromHost(Job& job, const Item& item, const std::vector<std::byte>& staging);
  // True for a copy that was done; a failed one is counted, and logged now and then.
  bool Copied(Job& job, const Status& status);
  Status Probe(const LayerMemory& layer, const BlockRuns& runs) const;
  bool AdapterStands(const AdapterPrint& adapter) const KVCOVE_REQUIRES(mutex_);
  void End(const std::shared_ptr<Job>& job, LinesAfterLock& lines) KVCOVE_REQUIRES(mutex_);
  void Fail(const LoadOrder& order, LinesAfterLock& lines) KVCOVE_REQUIRES(mutex_);
  void Drop(const SaveOrder& order) KVCOVE_REQUIRES(mutex_);
  static void SayTiers(const Job& job, LinesAfterLock& lines);
  void Loop(bool saver);

  const WorkerOptions options_;
  const Keys keys_;
  const Clock& clock_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<const Shards> shards_ KVCOVE_GUARDED_BY(mutex_);  // null: no memory
  std::shared_ptr<Store> store_ KVCOVE_GUARDED_BY(mutex_);
  std::atomic<bool> ask_first_{false};
  std::deque<std::shared_ptr<Job>> loads_ KVCOVE_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Job>> saves_ KVCOVE_GUARDED_BY(mutex_);
  std::deque<ComputedStep> steps_ KVCOVE_GUARDED_BY(mutex_);
  std::size_t undue_saves_ KVCOVE_GUARDED_BY(mutex_) = 0;  // of steps_
  std::set<std::shared_ptr<Job>> running_ KVCOVE_GUARDED_BY(mutex_);
  std::vector<SaveOrder> step_saves_ KVCOVE_GUARDED_BY(mutex_);  // of the step that is running
  std::uint32_t sync_left_ KVCOVE_GUARDED_BY(mutex_) = 0;
  Ended ended_ KVCOVE_GUARDED_BY(mutex_);
  Report report_ KVCOVE_GUARDED_BY(mutex_);
  std::uint64_t weight_changes_ KVCOVE_GUARDED_BY(mutex_) = 0;
  bool gate_closed_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::uint64_t fingerprint_wanted_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t step_ KVCOVE_GUARDED_BY(mutex_) = 0;  // Plan::step, until it is reported
  std::int64_t pressure_until_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
  struct Adapter {
    std::string digest;
    std::uint64_t since = 0;  // the number that it came with
  };
  std::map<AdapterId, Adapter> adapters_ KVCOVE_GUARDED_BY(mutex_);
  std::uint64_t adapters_number_ KVCOVE_GUARDED_BY(mutex_) = 0;  // of changes so far
  std::uint64_t adapters_known_ KVCOVE_GUARDED_BY(mutex_) = 0;   // by the step's plan
  bool quiet_saves_ KVCOVE_GUARDED_BY(mutex_) = false;           // the memory is the host's
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  CondVar stepped_;  // steps_ has one more, there is a store, or the role stops
  LogLimit copy_lines_;
  LogLimit misfit_lines_;
  std::vector<std::thread> threads_;
};

}  // namespace kvcove::connector
