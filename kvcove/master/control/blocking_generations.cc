// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/control/blocking_generations.h"

#include <algorithm>

#include "kvcove/base/log.h"
#include "kvcove/master/control/start.h"
#include "kvcove/master/control/wait_for.h"
#include "kvcove/master/store/file_store.h"
#include "kvcove/master/store/memory_store.h"

namespace kvcove::master {

// Forwards to the owner, which has published the generations when the call returns.
class BlockingGenerations::Sink final : public GenerationSink {
 public:
  explicit Sink(OwnerSink& owner) : owner_(owner) {}
  void Publish(const Id128& incarnation, const std::vector<Generations::Published>& updates,
               Deferred& /*after*/) override {
    std::vector<SlotUpdate> changed;
    for (const Generations::Published& published : updates) {
      slots_[published.update.slot] = published.update;
      changed.push_back(Named(published.update));
    }
    incarnation_ = incarnation;
    owner_.Publish(incarnation, changed);
  }
  void SetUnnamed(std::vector<SlotId> unnamed, Deferred& /*after*/) override {
    std::vector<SlotUpdate> changed;
    const std::vector<SlotId> before = std::exchange(unnamed_, std::move(unnamed));
    for (auto& [slot, update] : slots_) {
      const SlotUpdate now = Named(update);
      if (now.named != !Contains(before, slot)) changed.push_back(now);
    }
    if (!changed.empty()) owner_.Publish(incarnation_, changed);
  }
  // Publish is the proof: the only owner has published when it returns, and no other owner can have
  // a lease.
  void Await(std::int64_t /*deadline_ns*/, Reply<void> proven) override { proven({}); }

 private:
  static bool Contains(const std::vector<SlotId>& slots, SlotId slot) {
    return std::ranges::find(slots, slot) != slots.end();
  }
  SlotUpdate Named(SlotUpdate update) const {
    update.named = !Contains(unnamed_, update.slot);
    return update;
  }
  OwnerSink& owner_;
  // These need no lock: the keeper calls Publish and SetUnnamed under its own.
  Id128 incarnation_;
  std::map<SlotId, SlotUpdate> slots_;
  std::vector<SlotId> unnamed_;
};

BlockingGenerations::BlockingGenerations(const std::string& data_directory, OwnerSink& sink,
                                         const Clock& clock)
    : clock_(clock), late_(StoreIsLate(data_directory)), sink_(std::make_unique<Sink>(sink)) {}

BlockingGenerations::~BlockingGenerations() {
  store_.reset();  // first: its callbacks use the keeper and commits_
}

Result<std::unique_ptr<BlockingGenerations>> BlockingGenerations::Open(const Options& options,
                                                                       OwnerSink& sink,
                                                                       const Clock& clock) {
  const std::string& data_directory = options.data_directory;
  std::unique_ptr<BlockingGenerations> blocking(
      new BlockingGenerations(data_directory, sink, clock));
  Opened opened;
  FileStore* file = nullptr;
  if (data_directory.empty()) {
    blocking->store_ = std::make_unique<MemoryStore>();
  } else {
    KVCOVE_ASSIGN(std::unique_ptr<FileSystem> disk, PosixFileSystem::Open(data_directory));
    KVCOVE_ASSIGN(std::unique_ptr<FileStore> store,
                  FileStore::Open(std::move(disk), {.clock = &clock}, opened));
    file = store.get();
    blocking->store_ = std::move(store);
    KVCOVE_TRY(file->Start());
  }
  KVCOVE_ASSIGN(const StartPlan plan,
                PlanStart(opened.facts, opened.revision, options.lease_ns, clock.NowNs(),
                          opened.from_v1 ? &*opened.from_v1 : nullptr));
  blocking->commits_ = std::make_unique<OrderedCommits>(*blocking->store_, opened.revision);
  // A pool without a directory, or with one that was never used, had no owner before whose memory
  // a reader could still map, so its resets need not wait for leases.
  const bool first = data_directory.empty() || (opened.found_nothing && !opened.damaged);
  blocking->keeper_ = std::make_unique<GenerationKeeper>(
      GenerationKeeper::Options{
          .generations = {},
          .proven_from_ns =
              first ? 0 : std::max(plan.leases_until_ns, plan.unknown_leases_until_ns),
          .log_resets = options.log_resets},
      plan.state, *blocking->commits_, *blocking->sink_, clock);
  // Stored before the keeper answers any call: nobody may learn of a pool or a term that a crash
  // takes back.
  KVCOVE_TRY(blocking->Wait<void>(clock.NowNs() + 10 * kSecond, [&](const Reply<void>& ready) {
    blocking->commits_->Add(plan.changes, [ready](const Result<std::uint64_t>& revision) {
      ready(revision ? Result<void>() : std::unexpected(revision.error()));
    });
    blocking->commits_->Flush();
  }));
  // Only now does the store have all that the first format had.
  if (file != nullptr && opened.from_v1) file->RetireV1();
  blocking->keeper_->Start();
  return blocking;
}

template <typename T>
Result<T> BlockingGenerations::Wait(std::int64_t deadline_ns,
                                    const std::function<void(Reply<T>)>& call) {
  // The keeper ends a late call itself, in the first Tick after the deadline, and its error says
  // more. So the wait is longer, and ends by itself only if the keeper cannot answer.
  return WaitFor<T>(
      clock_, deadline_ns + kSecond, call,
      [this, ended = ended_.load()]() -> Status {
        if (keeper_ != nullptr) keeper_->Tick();
        if (ended_ == ended) return {};
        return Fail(Code::kUnavailable, "another process takes over; try again");
      },
      late_);
}

Result<Registration> BlockingGenerations::Register(const RegisterRequest& request,
                                                   std::int64_t deadline_ns) {
  return Wait<Registration>(deadline_ns, [&](Reply<Registration> reply) {
    keeper_->Register(request, deadline_ns, std::move(reply));
  });
}

Result<ResetOutcome> BlockingGenerations::Reset(const ResetRequest& request,
                                                std::int64_t deadline_ns) {
  return Wait<ResetOutcome>(deadline_ns, [&](Reply<ResetOutcome> reply) {
    keeper_->Reset(request, deadline_ns, std::move(reply));
  });
}

Status BlockingGenerations::NameVersions(std::string_view name, std::string_view engine,
                                         std::span<const std::string> versions,
                                         std::int64_t /*deadline_ns*/) {
  return keeper_->NameVersions(name, engine, {versions.begin(), versions.end()});
}

Status BlockingGenerations::EndEngine(std::string_view name, std::string_view engine,
                                      std::int64_t /*deadline_ns*/) {
  keeper_->EndEngine(name, engine, Id128{});
  return {};
}

Result<PruneOutcome> BlockingGenerations::Prune(const PruneRequest& request,
                                                std::int64_t deadline_ns) {
  return Wait<PruneOutcome>(deadline_ns, [&](Reply<PruneOutcome> reply) {
    keeper_->Prune(request, deadline_ns, std::move(reply));
  });
}

PoolFact BlockingGenerations::pool() const { return keeper_->pool(); }

std::vector<SlotDescription> BlockingGenerations::Describe() const { return keeper_->Describe(); }

std::vector<EngineDescription> BlockingGenerations::Engines(std::size_t at_most) const {
  return keeper_->Engines(at_most);
}

std::vector<std::string> BlockingGenerations::VersionedNames() const {
  return keeper_->VersionedNames();
}

std::size_t BlockingGenerations::registrations() const { return keeper_->registrations(); }

Status BlockingGenerations::Close() {
  return Wait<void>(clock_.NowNs() + kSecond,
                    [&](Reply<void> done) { keeper_->EndCleanly(std::move(done)); });
}

}  // namespace kvcove::master
