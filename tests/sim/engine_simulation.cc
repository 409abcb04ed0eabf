// SPDX-License-Identifier: Apache-2.0
#include "engine_simulation.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/random.h"
#include "kvcove/master/control/generations.h"
#include "lab/replay/model.h"

namespace kvcove::sim {
namespace {

using connector::VersionSource;
using lab::ModelEngine;
using lab::Weights;

constexpr int kOwners = 4;
constexpr std::size_t kCapacity = 6000;  // objects
constexpr char kName[] = "model";

struct Stored {
  std::string bytes;
  Generation generation = 0;
  int owner = 0;
};

// The pool of all engines: what is promised, and no more.
class World {
 public:
  explicit World(const EngineSimOptions& options);
  EngineSimReport Run();

  // ---- the pool, as a session sees it
  class SimStore;

 private:
  struct Life;  // of one engine's processes

  void After(std::int64_t delay_ns, std::function<void()> run) {
    events_.push_back({truth_.NowNs() + delay_ns, next_event_++, std::move(run)});
    std::ranges::push_heap(events_, Later);
  }
  struct Event {
    std::int64_t at_ns = 0;
    std::uint64_t number = 0;
    std::function<void()> run;
  };
  static bool Later(const Event& a, const Event& b) {
    return std::tie(a.at_ns, a.number) > std::tie(b.at_ns, b.number);
  }
  std::int64_t Soon(std::uint64_t most_us) {
    return static_cast<std::int64_t>(random_.Below(most_us) + 1) * kMicrosecond;
  }
  void Fail(const std::string& what) {
    if (report_.violation.empty()) {
      report_.violation =
          fmt::format("seed {}, {} us: {}", options_.seed, truth_.NowNs() / 1000, what);
    }
  }

  // The pool's own acts.
  Result<wire::Registration> Register(const std::string& engine, std::string_view version);
  void RaiseNow(const wire::ResetRequest& request);
  void Commit(SlotId slot, Generation generation, const std::string& key, std::string bytes);
  void DisturbPool();

  // Engines.
  void StartEngine(std::size_t index);
  void Tick(std::size_t index, std::uint64_t life);
  void Move(std::size_t index, std::uint64_t life, std::uint32_t rank);
  void Collect(std::size_t index);
  void Check(std::size_t index);
  void Submit(std::size_t index);
  void Update();
  void UpdateEngine(std::size_t index, Weights weights);
  void PauseEngine(std::size_t index);
  void SyncEngine(std::size_t index, std::uint64_t life, Weights weights, bool told);
  void WakeEngine(std::size_t index, std::uint64_t life);
  std::string SaltOf(Weights weights) const { return fmt::format("step-{}", weights); }

  const EngineSimOptions options_;
  Random random_;
  FakeClock truth_;
  std::vector<Event> events_;
  std::uint64_t next_event_ = 0;
  master::Generations generations_;
  std::uint64_t revision_ = 0;
  std::map<std::pair<SlotId, std::string>, Stored> objects_;
  std::vector<std::unique_ptr<Life>> engines_;
  std::vector<std::uint64_t> lives_;
  std::vector<std::uint64_t> submitted_;
  Weights weights_ = 1;
  Weights largest_ = 1;
  bool winding_down_ = false;
  EngineSimReport report_;
};

class World::SimStore final : public connector::Store {
 public:
  SimStore(World& world, std::string engine) : world_(world), engine_(std::move(engine)) {}
  ~SimStore() override { *alive_ = false; }

  Result<Token> Capture(std::string_view version, std::chrono::milliseconds) override {
    if (closed_) return kvcove::Fail(Code::kClosed, "closed");
    if (Lost()) return kvcove::Fail(Code::kTimeout, "lost");
    KVCOVE_ASSIGN(const wire::Registration bound, world_.Register(engine_, version));
    if (!bound.open) return kvcove::Fail(Code::kClosed, "another engine has reset it");
    return Token{
        .incarnation = bound.incarnation, .generation = bound.generation, .slot = bound.slot};
  }

  Status Exists(std::span<const std::string_view> keys, std::span<ItemResult> results,
                const CallOptions& options) override {
    if (Lost()) {
      std::fill(results.begin(), results.end(), ItemResult{.code = Code::kTimeout});
      return kvcove::Fail(Code::kTimeout, "lost");
    }
    const auto bound =
        closed_ ? kvcove::Fail(Code::kClosed, "closed") : world_.Register(engine_, options.version);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const Stored* stored =
          bound && bound->open ? Find(bound->slot, bound->generation, keys[i]) : nullptr;
      results[i] =
          stored == nullptr
              ? ItemResult{.code = Code::kMiss, .reason = MissReason::kNeverPut}
              : ItemResult{.code = Code::kOk, .bytes = stored->bytes.size(), .tier = Tier::kMemory};
    }
    return {};
  }

  Status Get(std::span<const GetItem> items, std::span<ItemResult> results,
             const CallOptions& options) override {
    const auto bound =
        closed_ ? kvcove::Fail(Code::kClosed, "closed") : world_.Register(engine_, options.version);
    for (std::size_t i = 0; i < items.size(); ++i) {
      results[i] = {.code = Code::kMiss, .reason = MissReason::kEvicted};
      if (world_.random_.OneIn(400)) {
        results[i].code = Code::kTimeout;
        ++world_.report_.lost_messages;
        continue;
      }
      const Stored* stored =
          bound && bound->open ? Find(bound->slot, bound->generation, items[i].key) : nullptr;
      if (stored == nullptr) continue;
      std::size_t at = 0;
      for (const MutableBuffer& piece : items[i].into) {
        std::memcpy(piece.data, stored->bytes.data() + at, piece.size);
        at += piece.size;
      }
      results[i] = {.code = Code::kOk, .bytes = stored->bytes.size(), .tier = Tier::kMemory};
    }
    return {};
  }

  Status Remove(std::span<const std::string_view>, std::span<ItemResult>,
                const CallOptions&) override {
    return kvcove::Fail(Code::kInternal, "every value has its engine's size here");
  }

  Status Put(const Token& token, std::span<const PutItem> items, std::span<ItemResult> results,
             const CallOptions&) override {
    for (std::size_t i = 0; i < items.size(); ++i) {
      std::string bytes;
      for (const ConstBuffer& piece : items[i].value) {
        bytes.append(static_cast<const char*>(piece.data), piece.size);
      }
      const std::string key(items[i].key);
      if (world_.random_.OneIn(50)) {
        // Sent, not heard of again, and it arrives later, or never.
        results[i] = {.code = Code::kTimeout};
        ++world_.report_.lost_messages;
        if (world_.random_.OneIn(3)) continue;
        ++world_.report_.late_puts;
        World& world = world_;
        world_.After(static_cast<std::int64_t>(world_.random_.Below(40)) * kMillisecond,
                     [&world, token, key, bytes = std::move(bytes)] {
                       world.Commit(token.slot, token.generation, key, bytes);
                     });
        continue;
      }
      const SlotUpdate now = world_.generations_.PublishedOf(token.slot).update;
      if (world_.options_.checks.generation && now.generation != token.generation) {
        ++world_.report_.stale_puts;
        results[i] = {.code = Code::kStale};
        continue;
      }
      if (world_.random_.OneIn(300)) {
        results[i] = {.code = Code::kNoSpace};
        continue;
      }
      world_.Commit(token.slot, token.generation, key, std::move(bytes));
      results[i] = {.code = Code::kOk};
    }
    return {};
  }

  Status Reset(const ResetOptions& options) override {
    const wire::ResetRequest request{.name = kName,
                                     .engine = engine_,
                                     .version = options.version,
                                     .id = {world_.random_.Next(), world_.random_.Next()}};
    if (!world_.random_.OneIn(6)) {
      world_.RaiseNow(request);
      closed_ = false;
      return {};
    }
    ++world_.report_.resets_unproven;
    closed_ = true;
    // Perhaps it was done all the same; it is repeated under its id until it is proven.
    if (world_.random_.OneIn(2)) world_.RaiseNow(request);
    const std::uint64_t number = ++reset_;
    world_.After(static_cast<std::int64_t>(world_.random_.Below(60)) * kMillisecond,
                 [this, alive = alive_, late = request, number]() mutable {
                   if (!*alive) return;
                   late.late = true;
                   world_.RaiseNow(late);
                   if (number == reset_) closed_ = false;
                 });
    return kvcove::Fail(Code::kNotProven, "an owner did not answer");
  }
  Status NameVersions(std::span<const std::string>, std::chrono::milliseconds) override {
    return {};
  }
  bool closed() const override { return closed_; }

 private:
  bool Lost() {
    if (!world_.random_.OneIn(200)) return false;
    ++world_.report_.lost_messages;
    return true;
  }
  const Stored* Find(SlotId slot, Generation generation, std::string_view key) {
    const auto at = world_.objects_.find({slot, std::string(key)});
    if (at == world_.objects_.end()) return nullptr;
    if (world_.options_.checks.generation && at->second.generation != generation) return nullptr;
    return &at->second;
  }

  World& world_;
  const std::string engine_;
  bool closed_ = false;
  std::uint64_t reset_ = 0;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

struct World::Life {
  std::unique_ptr<SimStore> store;
  std::unique_ptr<connector::LookupRunner> runner;
  std::unique_ptr<connector::SchedulerRole> scheduler;
  std::vector<std::unique_ptr<connector::WorkerRole>> workers;
  std::unique_ptr<ModelEngine> engine;
  bool asleep = false;
  std::uint64_t idle_steps = 0;
};

World::World(const EngineSimOptions& options)
    : options_(options),
      random_(options.seed),
      generations_({}, {random_.Next(), random_.Next()}, 0),
      engines_(options.engines),
      lives_(options.engines, 0),
      submitted_(options.engines, 0) {
  for (std::size_t i = 0; i < options_.engines; ++i) StartEngine(i);
  After(5 * kMillisecond, [this] { DisturbPool(); });
  After(30 * kMillisecond, [this] { Update(); });
}

// ---- pool

Result<wire::Registration> World::Register(const std::string& engine, std::string_view version) {
  const wire::RegisterRequest request{
      .name = kName, .version = std::string(version), .engine = engine};
  KVCOVE_ASSIGN(const master::Generations::Plan plan,
                generations_.PlanRegister(request, truth_.NowNs()));
  return generations_.Register(request, plan, ++revision_, truth_.NowNs());
}

void World::RaiseNow(const wire::ResetRequest& request) {
  const master::Generations::Plan plan = generations_.PlanReset({request}, truth_.NowNs());
  generations_.Reset({request}, plan, ++revision_, truth_.NowNs());
}

void World::Commit(SlotId slot, Generation generation, const std::string& key, std::string bytes) {
  if (options_.checks.generation &&
      generations_.PublishedOf(slot).update.generation != generation) {
    ++report_.stale_puts;
    return;
  }
  if (objects_.size() >= kCapacity) {
    auto victim =
        objects_.lower_bound({slot, fmt::format("g0.h{}of{}@{:02x}", random_.Below(options_.tp),
                                                options_.tp, random_.Below(256))});
    if (victim == objects_.end()) victim = objects_.begin();
    objects_.erase(victim);
    ++report_.evictions;
  }
  Stored& stored = objects_[{slot, key}];
  if (stored.generation == generation) return;  // the old value stays
  stored = {.bytes = std::move(bytes),
            .generation = generation,
            .owner = static_cast<int>(random_.Below(kOwners))};
}

void World::DisturbPool() {
  if (winding_down_) return;
  After(static_cast<std::int64_t>(1 + random_.Below(20)) * kMillisecond, [this] { DisturbPool(); });
  if (random_.OneIn(20)) {  // an owner dies, and what it held
    ++report_.owner_deaths;
    const int owner = static_cast<int>(random_.Below(kOwners));
    std::erase_if(objects_, [&](const auto& entry) { return entry.second.owner == owner; });
    return;
  }
  // Some are evicted.
  for (int i = 0; i < 5 && !objects_.empty(); ++i) {
    const SlotId slot = objects_.rbegin()->first.first;
    const auto at =
        objects_.lower_bound({slot, fmt::format("g0.h{}of{}@{:02x}", random_.Below(options_.tp),
                                                options_.tp, random_.Below(256))});
    if (at == objects_.end()) continue;
    objects_.erase(at);
    ++report_.evictions;
  }
}

// ---- engines

void World::StartEngine(std::size_t index) {
  auto life = std::make_unique<Life>();
  const std::string name = fmt::format("engine-{}-{}", index, ++lives_[index]);
  const lab::ModelShape shape{.tp = options_.tp,
                              .block_tokens = 4,
                              .layers = 2,
                              .blocks = static_cast<std::uint32_t>(40 + random_.Below(60))};
  life->store = std::make_unique<SimStore>(*this, name);
  life->runner = connector::RunHere(*life->store, truth_, std::chrono::seconds(60));
  life->scheduler = std::make_unique<connector::SchedulerRole>(
      connector::SchedulerOptions{.shape = lab::ShapeOf(shape),
                                  .engine = name,
                                  .versions = options_.versions,
                                  .load_async = !random_.OneIn(5),
                                  .save_decoded = random_.OneIn(2),
                                  .events = true,
                                  .closed_on_reset_failure = random_.OneIn(2),
                                  .blocks = shape.blocks},
      *life->store, *life->runner, truth_);
  for (std::uint32_t rank = 0; rank < options_.tp; ++rank) {
    life->workers.push_back(std::make_unique<connector::WorkerRole>(
        connector::WorkerOptions{.shape = lab::ShapeOf(shape),
                                 .rank = {.tp = rank},
                                 .number = rank,
                                 .engine = name,
                                 .threads = 0,
                                 .batch_bytes = 64 + random_.Below(400),
                                 .pressure = std::chrono::milliseconds(1),
                                 .fingerprints = options_.versions == VersionSource::kFingerprint &&
                                                 options_.checks.worker_gate},
        truth_));
    life->workers.back()->Connect(std::make_unique<SimStore>(*this, name), random_.OneIn(2));
  }
  lab::ModelOptions options{.shape = shape,
                            .name = name,
                            .versions = options_.versions,
                            .batch_tokens = static_cast<std::uint32_t>(8 + random_.Below(40)),
                            .most_running = 6};
  if (options_.versions == VersionSource::kSalt) {
    options.weights_of_salt = [](const std::string& salt) {
      return static_cast<Weights>(std::strtoull(salt.c_str() + 5, nullptr, 10));
    };
  }
  lab::ModelConnector roles{.scheduler = life->scheduler.get()};
  for (const auto& worker : life->workers) roles.workers.push_back(worker.get());
  life->engine = std::make_unique<ModelEngine>(options, std::vector<lab::ModelConnector>{roles});
  if (!life->engine->Start(weights_)) Fail("an engine does not start");
  if (options_.versions == VersionSource::kEngine || options_.versions == VersionSource::kSalt) {
    life->scheduler->SetVersion(SaltOf(weights_));
  }
  // Without versions only a reset says which weights it has.
  if (options_.versions == VersionSource::kNone && largest_ > 1) (void)life->scheduler->Reset();
  engines_[index] = std::move(life);
  const std::uint64_t number = lives_[index];
  After(Soon(1000), [this, index, number] { Tick(index, number); });
  for (std::uint32_t rank = 0; rank < options_.tp; ++rank) {
    After(Soon(1000), [this, index, number, rank] { Move(index, number, rank); });
  }
}

void World::Submit(std::size_t index) {
  // Prompts of a few families, so that engines meet: a common beginning and an end of its own.
  const std::uint64_t family = random_.Below(12);
  lab::ModelRequest request{
      .id = fmt::format("r{}-{}-{}", index, lives_[index], ++submitted_[index])};
  const std::uint64_t common = 8 + family * 3;
  for (std::uint64_t t = 0; t < common; ++t) {
    request.tokens.push_back(static_cast<std::uint32_t>(Mix64(family * 1000 + t) % 50000));
  }
  const std::uint64_t tail = random_.Below(10);
  const std::uint64_t variant = random_.Below(4);
  for (std::uint64_t t = 0; t < tail; ++t) {
    request.tokens.push_back(
        static_cast<std::uint32_t>(Mix64(family * 77 + variant * 131 + t) % 50000));
  }
  request.generate = static_cast<std::uint32_t>(1 + random_.Below(6));
  if (options_.versions == VersionSource::kSalt) request.salt = SaltOf(weights_);
  engines_[index]->engine->Add(std::move(request));
}

void World::Check(std::size_t index) {
  const lab::ModelCounts& counts = engines_[index]->engine->counts();
  if (counts.stale_blocks > 0) Fail(fmt::format("engine {} loaded a stale block", index));
  if (counts.wrong_blocks > 0) Fail(fmt::format("engine {} loaded wrong bytes", index));
}

void World::Collect(std::size_t index) {
  const lab::ModelCounts& counts = engines_[index]->engine->counts();
  report_.loads += counts.loaded_blocks * options_.tp;
  report_.finished += counts.finished;
  report_.aborted += counts.aborted;
  report_.preempted += counts.preempted;
  report_.failed_blocks += counts.failed_blocks;
  report_.void_loads += engines_[index]->scheduler->stats().loads_void;
}

void World::Tick(std::size_t index, std::uint64_t number) {
  if (lives_[index] != number) return;
  Life& life = *engines_[index];
  ModelEngine& engine = *life.engine;
  After(Soon(600), [this, index, number] { Tick(index, number); });
  if (engine.stepping()) {
    engine.Finish();
    Check(index);
    return;
  }
  if (!winding_down_ && !life.asleep) {
    if (engine.Unfinished().size() < 10 && random_.OneIn(2)) Submit(index);
    if (random_.OneIn(60)) {
      const std::vector<std::string> ids = engine.Unfinished();
      if (!ids.empty()) (void)engine.Abort(ids[random_.Below(ids.size())]);
    }
    // Without versions a reset says "I have the new weights": one that has not would lie.
    const bool honest = options_.versions != VersionSource::kNone || engine.weights() == weights_;
    if (random_.OneIn(400) && honest) {
      (void)engine.ResetPrefixCache(random_.OneIn(2), random_.OneIn(2));
    }
  }
  if (engine.has_work()) engine.Step();
}

void World::Move(std::size_t index, std::uint64_t number, std::uint32_t rank) {
  if (lives_[index] != number) return;
  (void)engines_[index]->workers[rank]->RunOne();
  // Some ranks are slow for a while.
  After(random_.OneIn(100) ? 20 * kMillisecond : Soon(250),
        [this, index, number, rank] { Move(index, number, rank); });
}

void World::UpdateEngine(std::size_t index, Weights weights) {
  Life& life = *engines_[index];
  ModelEngine& engine = *life.engine;
  const std::uint64_t number = lives_[index];
  const bool told = options_.versions != VersionSource::kFingerprint || random_.OneIn(2);
  if (options_.versions == VersionSource::kSalt) {
    // prime-rl: nothing pauses; the engine tells its version, requests name theirs by their salt.
    engine.ChangeWeights(weights, false);
    life.scheduler->SetVersion(SaltOf(weights));
    return;
  }
  if (options_.versions == VersionSource::kFingerprint && random_.OneIn(3)) {
    // No pause and no reset: the weights change under what runs. With checks on, what the engine
    // computes on its own old blocks must not reach the pool.
    engine.ChangeWeights(weights, told);
    if (options_.checks.own_reset) (void)engine.ResetPrefixCache(true, false);
    return;
  }
  PauseEngine(index);
  SyncEngine(index, number, weights, told);
}

// verl: abort, reset, sync, wake up, reset.
void World::PauseEngine(std::size_t index) {
  Life& life = *engines_[index];
  if (life.engine->stepping()) life.engine->Finish();
  (void)life.engine->PauseGeneration(ModelEngine::PauseMode::kAbort, /*clear_cache=*/true);
  life.asleep = true;
}

void World::SyncEngine(std::size_t index, std::uint64_t number, Weights weights, bool told) {
  After(Soon(5000), [this, index, number, weights, told] {
    if (lives_[index] != number) return;
    Life& life = *engines_[index];
    if (life.engine->stepping()) life.engine->Finish();
    life.engine->ChangeWeights(weights, told);
    if (options_.versions == VersionSource::kEngine) life.scheduler->SetVersion(SaltOf(weights));
    After(Soon(3000), [this, index, number] { WakeEngine(index, number); });
  });
}

// Until its own cache is empty, too: blocks of jobs that have not ended hold it up.
void World::WakeEngine(std::size_t index, std::uint64_t number) {
  if (lives_[index] != number) return;
  Life& life = *engines_[index];
  if (life.engine->stepping()) life.engine->Finish();
  if (!life.engine->WakeUp() && ++life.idle_steps < 200) {
    After(Soon(3000), [this, index, number] { WakeEngine(index, number); });
    return;
  }
  life.idle_steps = 0;
  life.engine->ResumeGeneration();
  life.asleep = false;
}

void World::Update() {
  if (winding_down_) return;
  After(static_cast<std::int64_t>(40 + random_.Below(120)) * kMillisecond, [this] { Update(); });
  // Without versions a trainer has a barrier: all have the last weights, and all are paused, before
  // anybody gets newer ones.
  const bool barrier = options_.versions == VersionSource::kNone;
  const bool all_there = std::all_of(engines_.begin(), engines_.end(), [&](const auto& life) {
    return !life->asleep && life->engine->weights() == weights_;
  });
  if (barrier && !all_there) return;
  ++report_.updates;
  for (std::size_t i = 0; barrier && i < engines_.size(); ++i) PauseEngine(i);
  // Sometimes back to weights of before.
  weights_ = options_.versions == VersionSource::kFingerprint && random_.OneIn(3)
                 ? 1 + random_.Below(largest_)
                 : ++largest_;
  const Weights weights = weights_;
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    const std::uint64_t number = lives_[i];
    if (random_.OneIn(30)) {  // it dies instead, and comes back with the new weights
      ++report_.engine_deaths;
      Collect(i);
      engines_[i].reset();
      StartEngine(i);
      continue;
    }
    if (barrier) {
      SyncEngine(i, number, weights, /*told=*/true);
      continue;
    }
    After(Soon(20'000), [this, i, number, weights] {
      if (lives_[i] == number && !engines_[i]->asleep) UpdateEngine(i, weights);
    });
  }
}

EngineSimReport World::Run() {
  std::int64_t end_ns = 0;
  std::uint64_t counted = 0;
  while (!events_.empty() && report_.violation.empty()) {
    std::ranges::pop_heap(events_, Later);
    const Event event = std::move(events_.back());
    events_.pop_back();
    truth_.AdvanceNs(std::max<std::int64_t>(0, event.at_ns - truth_.NowNs()));
    event.run();
    if (++counted % 4096 != 0) continue;
    std::uint64_t loads = report_.loads;
    for (const auto& life : engines_) {
      loads += life->engine->counts().loaded_blocks * options_.tp;
    }
    const bool enough = loads >= options_.loads || truth_.NowNs() > 600 * kSecond;
    if (!winding_down_ && enough) {
      winding_down_ = true;
      end_ns = truth_.NowNs() + 10 * kSecond;
    }
    if (!winding_down_) continue;
    if (truth_.NowNs() > end_ns) break;
  }
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    Collect(i);
    ModelEngine& engine = *engines_[i]->engine;
    if (!report_.violation.empty()) continue;
    if (engine.stepping()) engine.Finish();
    const std::vector<std::string> stuck = engine.Unfinished();
    if (!stuck.empty()) Fail(fmt::format("engine {}: request {} is stuck", i, stuck.front()));
    if (const std::string leak = engine.Leaks(); !leak.empty()) {
      Fail(fmt::format("engine {}: {}", i, leak));
    }
  }
  return report_;
}

}  // namespace

EngineSimReport SimulateEngines(const EngineSimOptions& options) { return World(options).Run(); }

}  // namespace kvcove::sim
