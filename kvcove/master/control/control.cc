// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/control/control.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>

#include "kvcove/base/log.h"

namespace kvcove::master {
namespace {

constexpr std::int64_t kWatchNs = 2 * kSecond;  // a watch without news is answered after this
// That of an owner with open removals. The more owners have some, the longer it is, so that 5,000
// requests a second acknowledge them: each visits all members, under the lock of the leases.
constexpr std::int64_t kOpenWatchNs = 10 * kMillisecond;
constexpr std::int64_t kOpenWatchEachNs = kSecond / 5000;
constexpr std::int64_t kListenNs = 2 * kSecond;  // after a start, no key counts as "never put"
constexpr std::int64_t kSweepNs = kSecond;
// For this long after a start, the id of a lost pool wins over the one that new members know.
constexpr std::int64_t kAdoptNs = 60 * kSecond;

std::int64_t UnixSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::vector<FactChange> Deletions(std::vector<std::string> keys) {
  std::vector<FactChange> changes;
  for (std::string& key : keys) {
    changes.push_back({.key = std::move(key), .value = std::nullopt});
  }
  return changes;
}

}  // namespace

Control::Control(const ControlOptions& options, const Leadership& leadership, Id128 incarnation,
                 OrderedCommits& commits, Standings& standings, Hooks hooks, const Clock& clock)
    : options_(options),
      commits_(commits),
      standings_(standings),
      hooks_(std::move(hooks)),
      clock_(clock),
      started_ns_(clock.NowNs()),
      leadership_(leadership),
      incarnation_(incarnation),
      members_(options.members, leadership.position.term,
               static_cast<std::uint32_t>(leadership.position.tag)),
      table_(options.table_page_bytes),
      removals_(leadership.position.term, options.removals),
      // Begins at a random value, so that an owner cannot take another master's for this one's.
      naming_(leadership.position.tag | 1) {}

void Control::Load(const StoredState& state, std::int64_t leases_until_ns,
                   std::int64_t unknown_leases_until_ns) {
  const MutexLock lock(mutex_);
  unknown_leases_until_ns_ = unknown_leases_until_ns;
  members_.Load(state, removals_.last(), leases_until_ns, clock_.NowNs());
  standings_.untold = members_.untold();
}

void Control::Stop() {
  Deferred deferred(commits_);
  const MutexLock lock(mutex_);
  stopping_ = true;
  const Error stopping{Code::kUnavailable, "the master is stopping"};
  for (const auto& [number, watch] : watches_) {
    deferred.Answer<wire::Changes>(watch.reply, std::unexpected(stopping));
  }
  watches_.clear();
  for (const auto& [number, watch] : removal_watches_) {
    deferred.Answer<wire::RemovalsPage>(watch.reply, std::unexpected(stopping));
  }
  removal_watches_.clear();
  for (const auto& proof : proofs_) {
    deferred.Answer<void>(proof->done, std::unexpected(stopping));
  }
  proofs_.clear();
  for (const Barring& barring : barring_) {
    deferred.Answer<void>(barring.done, Fail(Code::kUnavailable, "the master is stopping"));
  }
  barring_.clear();
}

// ---- hello

bool Control::KnowsLessThan(const wire::Position& seen) const {
  const wire::Position& own = leadership_.position;
  if (seen.term == 0) return false;  // no master has welcomed this owner
  if (seen.term > own.term) return true;
  if (seen.term == own.term) return seen.tag != own.tag;
  const auto& terms = leadership_.terms;
  const auto at = std::ranges::find(terms, seen.term, &TermFact::term);
  // Terms are forgotten from the oldest on, so a gap among those that are kept is a loss.
  if (at == terms.end()) return !terms.empty() && seen.term > terms.front().term;
  if (at->tag != seen.tag) return true;
  // Revisions that the owner saw in its term lie before the next term's first one. If not, facts
  // of the end of that term are lost.
  const auto next = std::next(at);
  return next != terms.end() && seen.revision >= next->first_revision;
}

void Control::Hello(const wire::OwnerHello& hello, std::uint64_t connection,
                    const Reply<wire::OwnerWelcome>& reply) {
  Deferred deferred(commits_);
  const MutexLock lock(mutex_);
  const auto refuse = [&](Code code, std::string why) {
    deferred.Answer<wire::OwnerWelcome>(reply, Fail(code, std::move(why)));
  };
  if (stopping_) return refuse(Code::kUnavailable, "the master is stopping");
  if (hello.pool != Id128{} && hello.pool != leadership_.pool && hello.pool != former_pool_) {
    if (!MayAdopt()) {
      return refuse(Code::kIncompatible,
                    fmt::format("the owner at {} belongs to another pool than this master; start "
                                "it without its old data, or name its own master",
                                hello.address));
    }
    Adopt(hello, deferred);
    return refuse(Code::kStale, "the pool takes the id that its owners know; say hello again");
  }
  if (hello.incarnation == incarnation_ && KnowsLessThan(hello.seen)) {
    lost_ = true;
    deferred.Add([this, hello, term = leadership_.position.term] {
      LogError(
          "the owner at {} knows of facts that the control store has lost (term {}, revision "
          "{}; the store is at term {}, revision {}): everything stored so far is void",
          hello.address, hello.seen.term, hello.seen.revision, term, commits_.revision());
      hooks_.facts_lost();
    });
    return refuse(Code::kStale, "the master has lost facts, so a new incarnation begins");
  }
  const Result<Members::Admission> admission = members_.Admit(hello, clock_.NowNs());
  if (!admission) return refuse(admission.error().code, admission.error().detail);
  // No reader maps the predecessor's memory any more, so its lease need not be waited for.
  if (const auto before = members_.PredecessorOf(hello)) EndMember(*before, deferred);
  switch (*admission) {
    case Members::Admission::kMember:
      break;
    case Members::Admission::kFresh:
      return Join(hello, connection, reply, deferred);
    case Members::Admission::kUnknown:
      return AnswerForgotten(hello, /*rolled_back=*/false, reply, deferred);
  }
  // In another incarnation the disks are void anyway.
  if (hello.incarnation != incarnation_ || !members_.RolledBack(hello)) {
    return FinishHello(hello, connection, reply, deferred);
  }
  // A process that has the lease must not be told to join anew: readers may still map its memory.
  const Status ended = members_.MayForget(*members_.Find(hello.owner), clock_.NowNs());
  if (!ended) return refuse(Code::kStale, ended.error().detail);
  deferred.Add([hello] {
    LogWarn(
        "the owner at {} has a data directory of an earlier time, as from a copy that was put "
        "back: it joins anew, and its disks start empty, because they may hold removed values. "
        "The directory's original may still return; if there is none any more, 'kvcove admin "
        "forget {}' ends its membership",
        hello.address, ToHex(hello.owner));
  });
  AnswerForgotten(hello, /*rolled_back=*/true, reply, deferred);
}

void Control::AnswerForgotten(const wire::OwnerHello& hello, bool rolled_back,
                              const Reply<wire::OwnerWelcome>& reply, Deferred& deferred) {
  // Nothing is left of a member whose disks are void. But the hello of a rolled back directory may
  // be that of a clone, whose original is away and comes back.
  const auto member = members_.Find(hello.owner);
  if (member && !rolled_back) EndMember(*member, deferred);
  deferred.Answer<wire::OwnerWelcome>(reply, wire::OwnerWelcome{.pool = leadership_.pool,
                                                                .incarnation = incarnation_,
                                                                .position = leadership_.position,
                                                                .forgotten = true,
                                                                .rolled_back = rolled_back});
}

bool Control::MayAdopt() const {
  return leadership_.new_pool && (members_.size() == 0 || clock_.NowNs() < started_ns_ + kAdoptNs);
}

// The store was lost. The pool takes the id that its owners know, so that other pools' owners are
// refused.
void Control::Adopt(const wire::OwnerHello& hello, Deferred& deferred) {
  if (std::exchange(adopting_, true)) return;
  deferred.Add([this, pool = hello.pool, address = hello.address] {
    LogWarn(
        "the control store was empty, and the owner at {} knows this pool: what it holds is "
        "void, and it may join anew",
        address);
    hooks_.adopt_pool(pool, [this, pool](const Result<void>& stored) {
      const MutexLock lock(mutex_);
      adopting_ = false;
      if (!stored) return;
      // Owners that have joined already stay members, and learn the id with their next hello
      // (Renew refuses them until then).
      former_pool_ = std::exchange(leadership_.pool, pool);
      leadership_.new_pool = false;
      for (const MemberRef& ref : members_.All()) know_former_pool_.insert(ref.number);
    });
  });
}

// Stores an identity before its first lease. Otherwise a later master would not wait for that lease
// when it proves a reset.
void Control::Join(const wire::OwnerHello& hello, std::uint64_t connection,
                   const Reply<wire::OwnerWelcome>& reply, Deferred& deferred) {
  if (joining_.contains(hello.owner)) {
    return deferred.Answer<wire::OwnerWelcome>(
        reply, Fail(Code::kStale, "this owner is being stored; say hello again"));
  }
  const Result<MemberFact> fact = members_.FactFor(hello, UnixSeconds());
  if (!fact) {
    return deferred.Answer<wire::OwnerWelcome>(reply, std::unexpected(fact.error()));
  }
  joining_[hello.owner] = connection;
  commits_.Add({{.key = MemberKey(hello.owner), .value = Encode(*fact)}},
               [this, hello, fact = *fact, reply](const Result<std::uint64_t>& revision) {
                 Deferred after(commits_);
                 const MutexLock lock(mutex_);
                 // Not the argument: the connection may have ended meanwhile (Disconnected).
                 const std::uint64_t connection = joining_.extract(hello.owner).mapped();
                 if (!revision) {
                   members_.Abandon(fact);
                   return after.Answer<wire::OwnerWelcome>(reply,
                                                           std::unexpected(revision.error()));
                 }
                 members_.Add(hello.owner, fact, removals_.shown(), clock_.NowNs());
                 FinishHello(hello, connection, reply, after);
               });
}

void Control::FinishHello(const wire::OwnerHello& hello, std::uint64_t connection,
                          const Reply<wire::OwnerWelcome>& reply, Deferred& deferred) {
  const std::int64_t now = clock_.NowNs();
  const OwnerNumber number = *members_.Find(hello.owner);
  Standings::Owner& standing = standings_.owner(number);
  // Makes the owner present, then checks whether it was overtaken, in this order: pairs with
  // Standings::Overtake.
  standing.present_until_ns.store(now + options_.members.lease_ns, std::memory_order_seq_cst);
  const bool overtaken = standing.overtaken.load(std::memory_order_seq_cst);
  wire::OwnerWelcome welcome = members_.Welcome(hello, overtaken, now);
  welcome.pool = leadership_.pool;
  welcome.incarnation = incarnation_;
  welcome.position = leadership_.position;
  welcome.position.revision = commits_.revision();
  if (members_.HasDisk(number)) welcome.opening = members_.OpeningOf(number);
  if (!welcome.resumed) {
    standing.live_until_ns.store(0, std::memory_order_release);
    // The replaced values were listed under the last epoch; the owner lists all under the new one.
    standing.overtaken.store(false, std::memory_order_seq_cst);
  }
  standing.tenant.store(TenantTag(hello.tenant), std::memory_order_release);
  ShowStanding(number);
  // At once: from here on the directory must remember the values that it loses, because this owner
  // may list an older one of the same key (DirectoryService::Unlist).
  standings_.untold.store(members_.untold(), std::memory_order_relaxed);
  if (connection != 0) lease_connections_[connection] = number;
  know_former_pool_.erase(number);
  EndWatches(number, deferred);
  deferred.Add([hello, welcome] {
    LogInfo("owner {} at {} {} (number {}, epoch {}, {} MiB)", hello.host, hello.address,
            welcome.resumed ? "is back" : "said hello", welcome.number, welcome.epoch,
            hello.capacity_bytes >> 20);
  });
  deferred.Answer<wire::OwnerWelcome>(reply, welcome);
}

void Control::ShowStanding(OwnerNumber number) {
  const Members::Epochs epochs = members_.EpochsOf(number);
  Standings::Owner& standing = standings_.owner(number);
  // `epoch` comes after the three fields that belong to it: its release pairs with the acquire of
  // Standings::EpochIs and MayListAgain.
  standing.first_epoch.store(epochs.first_epoch, std::memory_order_release);
  standing.told_epoch.store(epochs.told_epoch, std::memory_order_release);
  standing.tells_first.store(epochs.tells_first, std::memory_order_release);
  standing.epoch.store(epochs.epoch, std::memory_order_release);
  standing.disk_away.store(members_.DiskAway(number), std::memory_order_release);
}

void Control::HideStanding(OwnerNumber number) {
  Standings::Owner& standing = standings_.owner(number);
  standing.live_until_ns.store(0, std::memory_order_release);
  standing.present_until_ns.store(0, std::memory_order_seq_cst);
}

void Control::Disconnected(std::uint64_t connection) {
  const MutexLock lock(mutex_);
  for (auto& [owner, joining] : joining_) {
    if (joining == connection) joining = 0;
  }
  const auto at = lease_connections_.find(connection);
  if (at == lease_connections_.end()) return;
  const OwnerNumber number = at->second;
  lease_connections_.erase(at);
  const bool another = std::ranges::any_of(
      lease_connections_, [&](const auto& entry) { return entry.second == number; });
  // Look-ups do not find the owner's objects any more. Its lease still runs: resets wait for it,
  // and listings do not replace values that processes on its host may read.
  if (!another) standings_.owner(number).live_until_ns.store(0, std::memory_order_release);
}

void Control::Goodbye(const wire::WatchRequest& request) {
  Deferred deferred(commits_);
  const MutexLock lock(mutex_);
  if (!members_.Current(request.number, request.epoch)) return;
  deferred.Add([number = request.number] { LogInfo("owner {} said goodbye", number); });
  members_.LeaseReturned(request.number);
  StoreOpening(request.number, request.opening);
  if (!members_.HasDisk(request.number)) return EndMember(request.number, deferred);
  // The member stays: its next process returns with the objects on its disk.
  HideStanding(request.number);
  EndWatches(request.number, deferred);
  CheckProofs(deferred);
}

// Stores the end of a member before anything is proven without it, or its values are replaced: a
// later master that found the member would welcome it, with objects that were removed or replaced
// meanwhile.
void Control::EndMember(OwnerNumber number, Deferred& deferred) {
  if (members_.Ending(number)) return;
  HideStanding(number);
  EndWatches(number, deferred);
  // Another member may get the number soon, and these connections are not that one's.
  std::erase_if(lease_connections_, [&](const auto& entry) { return entry.second == number; });
  know_former_pool_.erase(number);
  if (hooks_.ended) {
    deferred.Add([this, process = members_.ProcessOf(number)] { hooks_.ended(process); });
  }
  commits_.Add(Deletions(members_.BeginEnd(number)),
               [this, ref = members_.RefOf(number)](const Result<std::uint64_t>& revision) {
                 Deferred after(commits_);
                 const MutexLock lock(mutex_);
                 if (!revision) {
                   members_.AbandonEnd(ref);
                   return CheckBarring(after);
                 }
                 for (const SlotId slot : members_.HiddenOf(ref.number)) {
                   standings_.SetBarred(ref.number, slot, false);
                 }
                 standings_.SetHidden(ref.number, {});
                 Standings::Owner& standing = standings_.owner(ref.number);
                 standing.epoch.store(0, std::memory_order_release);
                 standing.overtaken.store(false, std::memory_order_seq_cst);
                 members_.End(ref);
                 standings_.untold = members_.untold();
                 CheckProofs(after);
                 CheckBarring(after);
               });
}

void Control::Delete(std::vector<std::string> keys) {
  if (keys.empty()) return;
  // If this fails, a later master obeys a barrier that is not needed any more, which is safe.
  commits_.Add(Deletions(std::move(keys)), [](const Result<std::uint64_t>&) {});
}

// The answer to a renewal does not wait for the store: the owner proves removals once a later
// answer says that the fact is stored. A renewal repeats what could not be stored.
void Control::VoidDisks(OwnerNumber number) {
  if (!members_.HasDisk(number) || !voiding_.insert(number).second) return;
  commits_.Add(
      {{.key = MemberKey(members_.IdOf(number)), .value = Encode(members_.WithoutDisk(number))}},
      [this, ref = members_.RefOf(number)](const Result<std::uint64_t>& revision) {
        const MutexLock lock(mutex_);
        voiding_.erase(ref.number);
        if (revision) members_.SetDisksVoid(ref);
      });
}

// The owner names the number in each renewal, and so repeats what could not be stored.
void Control::StoreOpening(OwnerNumber number, const Id128& opening) {
  const auto fact = members_.AskOpening(number, opening);
  if (!fact) return;
  commits_.Add({{.key = OpeningKey(members_.IdOf(number)), .value = Encode(*fact)}},
               [this, ref = members_.RefOf(number)](const Result<std::uint64_t>& revision) {
                 const MutexLock lock(mutex_);
                 members_.OpeningStored(ref, revision.has_value());
               });
}

// ---- leases and changes

wire::Changes Control::ChangesSince(OwnerNumber number, std::uint64_t table, std::uint64_t naming,
                                    std::uint64_t map) const {
  wire::Changes changes = table_.Since(table, members_.TenantOfOwner(number));
  changes.incarnation = incarnation_;
  changes.naming = naming_;
  if (naming != naming_) {
    changes.names_changed = true;
    changes.unnamed = unnamed_;
  }
  if (map_ != nullptr && map_->revision != map) changes.map = map_;
  return changes;
}

Result<wire::RenewReply> Control::Renew(const wire::RenewRequest& request) {
  Deferred deferred(commits_);
  const MutexLock lock(mutex_);
  const std::int64_t now = clock_.NowNs();
  // Master::Stop may have stored already that no lease is running.
  if (stopping_) return Fail(Code::kUnavailable, "the master is stopping");
  if (!members_.Current(request.number, request.epoch) ||
      know_former_pool_.contains(request.number)) {
    return Fail(Code::kStale, "the master does not know this owner; say hello again");
  }
  Standings::Owner& standing = standings_.owner(request.number);
  const bool untold = members_.Untold(request.number);
  bool overtaken = false;
  const Members::Renewal renewal =
      members_.Renew(request, table_.revision(), now, [&](std::int64_t until_ns) {
        // In this order: pairs with Standings::Overtake.
        standing.present_until_ns.store(until_ns, std::memory_order_seq_cst);
        overtaken = standing.overtaken.load(std::memory_order_seq_cst);
        return !overtaken;
      });
  const bool granted = renewal == Members::Renewal::kGranted && !lost_;
  ShowStanding(request.number);
  if (request.disks_void) VoidDisks(request.number);
  StoreOpening(request.number, request.opening);
  if (granted && members_.Told(request.number)) {
    // The owner returned before any of its values was replaced, or has listed the rest of them
    // again, so the barriers for replaced values are not needed any more.
    std::vector<std::string> keys;
    for (const SlotId slot : members_.EndOvertaken(request.number, keys)) {
      standings_.SetBarred(request.number, slot, false);
    }
    Delete(std::move(keys));
  }
  wire::RenewReply reply{
      .granted = granted,
      .lease_ns = options_.members.lease_ns,
      .revision = commits_.revision(),
      .hidden = members_.HiddenOf(request.number),
      .draining = members_.Draining(request.number),
      .changes = ChangesSince(request.number, request.table, request.naming, request.map),
      .tell_again = overtaken,
      .doubted = lost_ || renewal == Members::Renewal::kDoubted,
      .disks_void = request.disks_void && !members_.HasDisk(request.number),
      .opening = members_.OpeningOf(request.number)};
  if (reply.granted) {
    // Hidden before live: otherwise a look-up could find an object whose removal was proven.
    standings_.SetHidden(request.number, reply.hidden);
    standing.live_until_ns.store(now + options_.members.lease_ns, std::memory_order_release);
  }
  // untold() visits all members, a large pool renews thousands of times a second, and few renewals
  // change it.
  if (members_.Untold(request.number) != untold) {
    standings_.untold.store(members_.untold(), std::memory_order_relaxed);
  }
  CheckProofs(deferred);
  if (hooks_.heard) {
    deferred.Add([this, process = members_.ProcessOf(request.number)] { hooks_.heard(process); });
  }
  return reply;
}

void Control::Watch(const wire::WatchRequest& request, Reply<wire::Changes> reply) {
  Deferred deferred(commits_);
  const MutexLock lock(mutex_);
  if (stopping_ || !members_.Current(request.number, request.epoch)) {
    return deferred.Answer<wire::Changes>(reply, Fail(Code::kStale, "say hello again"));
  }
  if (!request.partial) {
    members_.AcknowledgeTable(request.number, request.epoch, request.table);
  }
  CheckProofs(deferred);
  // An owner has one watch: the connection of an earlier one has ended.
  if (const auto at = watches_.find(request.number); at != watches_.end()) {
    deferred.Answer<wire::Changes>(at->second.reply,
                                   Fail(Code::kStale, "another watch took this one's place"));
    watches_.erase(at);
  }
  if (request.table != table_.revision() || request.naming != naming_ ||
      (map_ != nullptr && map_->revision != request.map)) {
    return deferred.Answer<wire::Changes>(
        reply, ChangesSince(request.number, request.table, request.naming, request.map));
  }
  watches_[request.number] = {
      .since_ns = clock_.NowNs(), .request = request, .reply = std::move(reply)};
}

// Answers the owner's watches: a call without an answer would keep its connection for ever.
void Control::EndWatches(OwnerNumber number, Deferred& deferred) {
  const Error again{Code::kStale, "say hello again"};
  if (const auto watch = watches_.extract(number)) {
    deferred.Answer<wire::Changes>(watch.mapped().reply, std::unexpected(again));
  }
  if (const auto watch = removal_watches_.extract(number)) {
    deferred.Answer<wire::RemovalsPage>(watch.mapped().reply, std::unexpected(again));
  }
}

void Control::AnswerWatches(Deferred& deferred) {
  for (auto& [number, watch] : watches_) {
    deferred.Answer<wire::Changes>(
        watch.reply,
        ChangesSince(number, watch.request.table, watch.request.naming, watch.request.map));
  }
  watches_.clear();
}

// ---- GenerationSink

void Control::Publish(const Id128& incarnation, const std::vector<Generations::Published>& updates,
                      Deferred& after) {
  const MutexLock lock(mutex_);
  if (std::exchange(incarnation_, incarnation) != incarnation) {
    lost_ = false;
    members_.Believe();
  }
  for (const Generations::Published& published : updates) {
    // Look-ups use the new generation from here on.
    standings_.SetSlot(published.update);
    // A start publishes the generations of an earlier master: its barriers stay.
    if (!table_.Set(published.update, published.revision)) continue;
    // Owners with the new generation show none of the objects of these removals. A pending proof
    // of one of them waits for that generation instead (CheckProof).
    removals_.Void(published.update.slot);
    for (OwnerNumber number = 0; number < members_.numbers(); ++number) {
      standings_.SetBarred(number, published.update.slot, false);
    }
    Delete(members_.VoidBarriers(published.update.slot));
  }
  AnswerWatches(after);
}

void Control::SetUnnamed(std::vector<SlotId> unnamed, Deferred& after) {
  const MutexLock lock(mutex_);
  if (unnamed == unnamed_) return;
  unnamed_ = std::move(unnamed);
  ++naming_;
  AnswerWatches(after);
}

void Control::Await(std::int64_t deadline_ns, Reply<void> proven) {
  if (hooks_.await_shards) {
    // Waits for shards and owners at the same time: the last proof answers, or the first failure.
    struct Both {
      std::atomic<int> left{2};
      std::atomic<bool> failed{false};
      Reply<void> proven;
    };
    auto both = std::make_shared<Both>();
    both->proven = std::move(proven);
    const auto one = [both](const Result<void>& done) {
      if (!done) {
        if (!both->failed.exchange(true)) both->proven(done);
      } else if (both->left.fetch_sub(1) == 1) {
        both->proven(done);
      }
    };
    hooks_.await_shards(deadline_ns, one);
    proven = one;
  }
  Deferred deferred(commits_);
  const MutexLock lock(mutex_);
  AddProof({.removal = false,
            .target = table_.revision(),
            .slot = 0,
            .deadline_ns = deadline_ns,
            .waiting = members_.All(),
            .done = std::move(proven)},
           deferred);
}

// ---- shards

void Control::SetShardMap(std::shared_ptr<const wire::ShardMap> map, bool lost) {
  Deferred deferred(commits_);
  const MutexLock lock(mutex_);
  if (lost) {
    members_.ShardLost(map->revision, [this](OwnerNumber number, SlotId slot) {
      return standings_.GaveWay(number, slot);
    });
  }
  if (map_ == nullptr || map_->revision < map->revision) map_ = std::move(map);
  standings_.untold.store(members_.untold(), std::memory_order_relaxed);
  AnswerWatches(deferred);
}

OwnerNumber Control::OwnersForShards(std::map<OwnerNumber, std::vector<SlotId>>& drops) const {
  const MutexLock lock(mutex_);
  for (OwnerNumber number = 0; number < members_.numbers(); ++number) {
    std::vector<SlotId> slots = members_.DropsOf(number);
    if (!slots.empty()) drops[number] = std::move(slots);
  }
  return members_.numbers();
}

std::uint64_t Control::shown() const {
  const MutexLock lock(mutex_);
  return removals_.shown();
}

// Checks each owner only after its barrier is stored. If the owner has begun another epoch
// meanwhile, the answer is kNo, and the shard asks again.
void Control::AnswerBars(const std::vector<OwnerSlot>& values, Reply<wire::ShardBarReply> reply) {
  std::vector<OwnerSlot> known = values;
  std::map<OwnerNumber, std::vector<SlotId>> drops;
  const OwnerNumber end = OwnersForShards(drops);
  std::erase_if(known, [end](const OwnerSlot& value) { return value.first >= end; });
  BarOvertaken(known, [this, values, reply = std::move(reply)](const Result<void>& done) {
    wire::ShardBarReply answers;
    for (const auto& [number, slot] : values) {
      wire::ShardBarReply::One one;
      const Standings::Owner& owner = standings_.owner(number);
      // The answer is for this epoch, so it is read before the checks and again after them.
      one.epoch = owner.epoch.load(std::memory_order_acquire);
      if (done && standings_.Barred(number, slot)) {
        if (standings_.TellsFirst(number)) {
          one.gives_way = wire::GivesWay::kEarlier;
        } else if (!standings_.Present(number) && standings_.Overtake(number)) {
          one.gives_way = wire::GivesWay::kThisToo;
        }
        if (owner.epoch.load(std::memory_order_acquire) != one.epoch) {
          one.gives_way = wire::GivesWay::kNo;
        }
      }
      if (one.gives_way != wire::GivesWay::kNo) standings_.NoteGaveWay(number, slot);
      answers.answers.push_back(one);
    }
    reply(std::move(answers));
  });
}

// ---- time

void Control::Tick() {
  Deferred deferred(commits_);
  const MutexLock lock(mutex_);
  const std::int64_t now = clock_.NowNs();
  CheckProofs(deferred);
  // An owner repeats a listing after a while, and each repetition adds an entry here, so an entry
  // does not wait for a hanging store for ever.
  std::erase_if(barring_, [&](const Barring& barring) {
    if (now < barring.since_ns + kWatchNs) return false;
    deferred.Answer<void>(barring.done,
                          Fail(Code::kTimeout, "the control store does not take a barrier"));
    return true;
  });
  // An owner abandons a watch after a few seconds, and with it the connection. An earlier answer,
  // without changes, keeps the connection, over which the owner watches again.
  std::erase_if(watches_, [&](const auto& entry) KVCOVE_REQUIRES(mutex_) {
    const auto& [number, watch] = entry;
    if (now < watch.since_ns + kWatchNs) return false;
    deferred.Answer<wire::Changes>(
        watch.reply,
        ChangesSince(number, watch.request.table, watch.request.naming, watch.request.map));
    return true;
  });
  const auto walks = [](const wire::RemovalsRequest& request) {
    return !request.open.empty() || !request.dropping.empty();
  };
  const std::int64_t open = std::ranges::count_if(
      removal_watches_, [&](const auto& entry) { return walks(entry.second.request); });
  const std::int64_t open_ns = std::max(kOpenWatchNs, open * kOpenWatchEachNs);
  std::erase_if(removal_watches_, [&](const auto& entry) KVCOVE_REQUIRES(mutex_) {
    const RemovalsWaiting& watch = entry.second;
    // The owner acknowledges an open removal with its next request.
    const std::int64_t longest_ns = walks(watch.request) ? open_ns : kWatchNs;
    if (now < watch.since_ns + longest_ns) return false;
    deferred.Answer<wire::RemovalsPage>(watch.reply, PageFor(watch.request));
    return true;
  });
  if (now < swept_ns_ + kSweepNs) return;
  swept_ns_ = now;
  for (const OwnerNumber number : members_.AwayForTooLong(now)) EndMember(number, deferred);
  removals_.Trim(members_.AppliedByAll());
  std::erase_if(buckets_,
                [&](const auto& entry) { return entry.second.at_ns + kSecond * 60 < now; });
}

// ---- administration

Status Control::Forget(OwnerNumber number) {
  Deferred deferred(commits_);
  const MutexLock lock(mutex_);
  KVCOVE_TRY(members_.MayForget(number, clock_.NowNs()));
  EndMember(number, deferred);
  return {};
}

Status Control::SetDraining(OwnerNumber number, bool draining) {
  const MutexLock lock(mutex_);
  return members_.SetDraining(number, draining);
}

std::vector<wire::OwnerStat> Control::Owners() const {
  const MutexLock lock(mutex_);
  return members_.Stat(clock_.NowNs());
}

std::vector<MemberDescription> Control::Describe() const {
  const MutexLock lock(mutex_);
  return members_.Describe(clock_.NowNs());
}

bool Control::Warming() const {
  const std::int64_t now = clock_.NowNs();
  const MutexLock lock(mutex_);
  if (now < started_ns_ + kListenNs) return true;
  // Each look-up with a miss calls this, so it visits all members only while one is untold.
  return standings_.untold.load(std::memory_order_relaxed) != 0 && members_.Warming(now);
}

std::int64_t Control::RunsForNs() const {
  const MutexLock lock(mutex_);
  return clock_.NowNs() - started_ns_;
}

bool Control::LeaseRunning() const {
  const MutexLock lock(mutex_);
  return members_.LeaseRunning(clock_.NowNs());
}

Control::Counts Control::Count() const {
  const MutexLock lock(mutex_);
  return {.table = table_.revision(),
          .removals = removals_.last(),
          .removal_entries = removals_.size(),
          .removal_bytes = removals_.bytes(),
          .members = members_.size(),
          .barriers = members_.barriers(),
          .proofs = proofs_.size(),
          .watches = watches_.size() + removal_watches_.size(),
          .removals_refused = removals_refused_};
}

}  // namespace kvcove::master
