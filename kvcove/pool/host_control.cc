// SPDX-License-Identifier: Apache-2.0
#include "kvcove/pool/host_control.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>

#include "kvcove/base/interrupt.h"
#include "kvcove/base/log.h"
#include "kvcove/base/random.h"

namespace kvcove::pool {
namespace {

constexpr std::int64_t kControlTellNs = 500 * kMillisecond;
constexpr std::int64_t kQuestionsNs = kSecond;  // longest wait for the end of questions

std::string NameOf(const std::string& data_directory) {
  if (data_directory.empty()) return "process:" + ToHex(RandomId());
  std::error_code error;
  const std::filesystem::path path = std::filesystem::weakly_canonical(data_directory, error);
  return "directory:" + (error ? data_directory : path.string());
}

// Adds one owner's results of a removal. The error of an owner that may still show the key is the
// answer, whatever the other owners have removed; else a key is removed if one owner has removed
// it.
void MergeRemoved(std::vector<Code>& all, std::span<const Code> one) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool proven = all[i] == Code::kOk || all[i] == Code::kMiss;
    if (proven && one[i] != Code::kMiss) all[i] = one[i];
  }
}

// Gathers the results of one call at several owners, which may come from any thread. The last one
// passes all of them on, in the order of the owners.
template <typename T>
class OwnersAnswers {
 public:
  using Done = std::function<void(std::vector<Result<T>>)>;
  OwnersAnswers(std::size_t owners, Done done)
      : results_(owners), done_(std::move(done)), open_(owners) {}
  // Each owner's result is an element of its own. The decrement (acq_rel) makes them visible to the
  // thread that passes them on.
  void Add(std::size_t owner, Result<T> result) {
    results_[owner] = std::move(result);
    if (open_.fetch_sub(1, std::memory_order_acq_rel) == 1) done_(std::move(results_));
  }

 private:
  std::vector<Result<T>> results_;
  const Done done_;
  std::atomic<std::size_t> open_;
};

}  // namespace

HostControl::HostControl(const Options& options, const Clock& clock)
    : options_(options), clock_(clock), name_(NameOf(options.data_directory)) {
  engines_ = std::make_unique<HostEngines>([this](std::span<const HostEngines::Engine> engines) {
    const std::int64_t deadline_ns = SystemClock::Instance().NowNs() + kControlTellNs;
    for (const auto& [name, engine] : engines) (void)EndEngine(name, engine, deadline_ns);
    return engines.size();
  });
}

Result<std::shared_ptr<HostControl>> HostControl::Open(const Options& options, const Clock& clock) {
  std::shared_ptr<HostControl> control(new HostControl(options, clock));
  KVCOVE_TRY(control->Resume());
  KVCOVE_TRY(control->engines_->Resume());
  return control;
}

Status HostControl::Resume() {
  KVCOVE_ASSIGN(auto opened, master::BlockingGenerations::Open(options_, *this, clock_));
  (void)Take(std::move(opened));
  return {};
}

// Questions run on threads that no hand-over pauses. The last one would close the store later, and
// the successor would find it in use.
void HostControl::Pause() {
  const GenerationsPtr last = Take(nullptr);
  const std::int64_t until_ns = SystemClock::Instance().NowNs() + kQuestionsNs;
  while (last.use_count() > 1 && SystemClock::Instance().NowNs() < until_ns) {
    SleepNs(kMillisecond / 10);
  }
}

void HostControl::Publish(const Id128& incarnation, const std::vector<SlotUpdate>& updates) {
  const MutexLock lock(mutex_);
  incarnation_ = incarnation;
  for (const SlotUpdate& update : updates) slots_[update.slot] = update;
  for (const auto& owner : owners_) owner->link_side().Publish(incarnation, updates);
}

std::uint32_t HostControl::AddOwner(std::shared_ptr<owner::Owner> owner) {
  // Under one hold of the lock: an update that was published between these steps would not reach
  // the new owner, which would then have a lease on an old generation.
  const MutexLock lock(mutex_);
  std::vector<SlotUpdate> updates;
  updates.reserve(slots_.size());
  for (const auto& [slot, update] : slots_) updates.push_back(update);
  owner->link_side().Publish(incarnation_, updates);
  owners_.push_back(std::move(owner));
  return added_++;
}

void HostControl::RemoveOwner(const owner::Owner& owner) {
  {
    const MutexLock lock(mutex_);
    std::erase_if(owners_, [&](const auto& one) { return one.get() == &owner; });
    if (!owners_.empty()) return;
  }
  engines_.reset();  // reports the ends that are pending, for which it needs generations_
  const GenerationsPtr generations = Held();
  if (generations == nullptr) return;
  if (const Status closed = generations->Close(); !closed) {
    LogWarn("the clean end could not be written down, so the next start waits for leases: {}",
            closed.error().ToString());
  }
}

std::vector<std::shared_ptr<owner::Owner>> HostControl::Owners() {
  const MutexLock lock(mutex_);
  return owners_;
}

Result<HostControl::GenerationsPtr> HostControl::Generations() const {
  if (GenerationsPtr generations = Held()) return generations;
  return Fail(Code::kUnavailable, "the generations are not open; restart this process");
}

Result<HostControl::Description> HostControl::Describe() const {
  KVCOVE_ASSIGN(const GenerationsPtr generations, Generations());
  return Description{.pool = generations->pool(),
                     .slots = generations->Describe(),
                     .registrations = generations->registrations()};
}

Result<HostControl::EngineList> HostControl::Engines(std::size_t at_most) const {
  KVCOVE_ASSIGN(const GenerationsPtr generations, Generations());
  EngineList list{.engines = generations->Engines(at_most),
                  .registered = generations->registrations()};
  // Here no holder keeps a registration alive, but the sessions of processes.
  for (master::EngineDescription& engine : list.engines) {
    engine.processes = engines_->ProcessesOf({engine.name, engine.engine});
  }
  return list;
}

Result<std::vector<std::string>> HostControl::VersionedNames() const {
  KVCOVE_ASSIGN(const GenerationsPtr generations, Generations());
  return generations->VersionedNames();
}

Result<wire::Registration> HostControl::Register(const wire::RegisterRequest& request,
                                                 std::int64_t deadline_ns) {
  KVCOVE_ASSIGN(const GenerationsPtr generations, Generations());
  return generations->Register(request, deadline_ns);
}

Result<wire::ResetOutcome> HostControl::Reset(const wire::ResetRequest& request,
                                              std::int64_t deadline_ns) {
  KVCOVE_ASSIGN(const GenerationsPtr generations, Generations());
  return generations->Reset(request, deadline_ns);
}

Status HostControl::NameVersions(std::string_view name, std::string_view engine,
                                 std::span<const std::string> versions, std::int64_t deadline_ns) {
  KVCOVE_ASSIGN(const GenerationsPtr generations, Generations());
  return generations->NameVersions(name, engine, versions, deadline_ns);
}

Status HostControl::EndEngine(std::string_view name, std::string_view engine,
                              std::int64_t deadline_ns) {
  KVCOVE_ASSIGN(const GenerationsPtr generations, Generations());
  return generations->EndEngine(name, engine, deadline_ns);
}

Result<wire::PruneOutcome> HostControl::Prune(const wire::PruneRequest& request,
                                              std::int64_t deadline_ns) {
  KVCOVE_ASSIGN(const GenerationsPtr generations, Generations());
  return generations->Prune(request, deadline_ns);
}

Result<std::vector<Code>> HostControl::Remove(const Token& token,
                                              std::span<const std::string_view> keys,
                                              std::int64_t deadline_ns) {
  // At all owners: after a proven removal no owner may show the key.
  std::vector<Code> codes(keys.size(), Code::kMiss);
  for (const auto& owner : Owners())
    MergeRemoved(codes, owner->removals().Remove(token, keys, deadline_ns));
  return codes;
}

Result<std::uint64_t> HostControl::RemoveMatching(const Token& token, std::string_view pattern,
                                                  std::int64_t deadline_ns) {
  std::uint64_t removed = 0;
  for (const auto& owner : Owners()) {
    KVCOVE_ASSIGN(const std::uint64_t here,
                  owner->removals().RemoveMatching(token, pattern, deadline_ns));
    removed += here;
  }
  return removed;
}

void HostControl::RemoveThen(const Token& token, std::span<const std::string_view> keys,
                             std::int64_t deadline_ns, const RemoveDone& done) {
  const auto owners = Owners();
  if (owners.empty()) return done(std::vector<Code>(keys.size(), Code::kMiss));
  const auto answers = std::make_shared<OwnersAnswers<std::vector<Code>>>(
      owners.size(),
      [done, count = keys.size()](const std::vector<Result<std::vector<Code>>>& results) {
        std::vector<Code> codes(count, Code::kMiss);
        for (const auto& result : results) {
          if (!result) return done(std::unexpected(result.error()));
          MergeRemoved(codes, *result);
        }
        done(std::move(codes));
      });
  for (std::size_t i = 0; i < owners.size(); ++i) {
    owners[i]->removals().RemoveThen(
        token, keys, deadline_ns,
        [answers, i](Result<std::vector<Code>> codes) { answers->Add(i, std::move(codes)); });
  }
}

void HostControl::RemoveMatchingThen(const Token& token, std::string_view pattern,
                                     std::int64_t deadline_ns, const MatchDone& done) {
  const auto owners = Owners();
  if (owners.empty()) return done(std::uint64_t{0});
  const auto answers = std::make_shared<OwnersAnswers<std::uint64_t>>(
      owners.size(), [done](const std::vector<Result<std::uint64_t>>& results) {
        std::uint64_t removed = 0;
        for (const auto& result : results) {
          if (!result) return done(std::unexpected(result.error()));
          removed += *result;
        }
        done(removed);
      });
  for (std::size_t i = 0; i < owners.size(); ++i) {
    owners[i]->removals().RemoveMatchingThen(
        token, pattern, deadline_ns,
        [answers, i](Result<std::uint64_t> removed) { answers->Add(i, std::move(removed)); });
  }
}

void HostControl::EndRemovals() {
  for (const auto& owner : Owners()) owner->removals().waits().EndAll();
}

}  // namespace kvcove::pool
