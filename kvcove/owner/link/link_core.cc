// SPDX-License-Identifier: Apache-2.0
// The lease's lane, and generations, which arrive on that lane and on the watch lane.
#include "kvcove/owner/link/link_core.h"

#include <algorithm>

#include "kvcove/base/log.h"

namespace kvcove::owner {
namespace {

constexpr std::int64_t kCallNs = 500 * kMillisecond;
// Pause before a lease is asked for again while the master waits for other members' hellos.
constexpr std::int64_t kDoubtedNs = 50 * kMillisecond;

}  // namespace

LinkCore::LinkCore(LinkTarget& target, LinkIdentity identity, std::int64_t renewal_ns,
                   const Clock& clock)
    : target_(target),
      identity_(std::move(identity)),
      renewal_ns_(renewal_ns),
      clock_(clock),
      member_(identity_.before) {}

LinkCore::State LinkCore::state() const {
  const MutexLock lock(mutex_);
  return {.epoch = member_.epoch(),
          .number = member_.number(),
          .term = member_.seen().term,
          .reported = report_.reported(),
          .dropped = gave_way_};
}

std::uint64_t LinkCore::term() const {
  const MutexLock lock(mutex_);
  return member_.epoch() == 0 ? 0 : member_.seen().term;
}

bool LinkCore::AwaitsWelcome() const {
  const MutexLock lock(mutex_);
  return member_.Unwelcome();
}

void LinkCore::Disconnected() {
  const MutexLock lock(mutex_);
  member_.SayHelloAgain(/*new_epoch=*/false);
}

std::optional<LinkCore::Call> LinkCore::Goodbye() {
  OwnerFacts facts;
  {
    const MutexLock lock(mutex_);
    if (member_.epoch() == 0) return std::nullopt;
    facts = member_.Facts(identity_.owner);
  }
  if (identity_.disk) target_.Follow(facts);
  const Id128 opening = target_.Report().opening;
  const MutexLock lock(mutex_);
  return Call{.method = wire::Method::kOwnerGoodbye,
              .body = wire::Encode(wire::WatchRequest{
                  .number = member_.number(), .epoch = member_.epoch(), .opening = opening}),
              .timeout_ns = kCallNs};
}

// ---- the lanes' next calls

LinkCore::Step LinkCore::Next(Lane lane) {
  if (lane == Lane::kLease) return NextLease();
  if (lane == Lane::kWatch) return NextWatch();
  return lane == Lane::kRemovals ? NextRemovals() : NextList();
}

LinkCore::Step LinkCore::NextWatch() {
  const std::size_t lane = Index(Lane::kWatch);
  const MutexLock lock(mutex_);
  if (member_.Unwelcome() || std::exchange(pause_[lane], false)) return {.wait_ns = kLanePauseNs};
  asked_under_[lane] = member_.epoch();
  return {.call = Call{.method = wire::Method::kWatch,
                       .body = wire::Encode(wire::WatchRequest{.number = member_.number(),
                                                               .epoch = member_.epoch(),
                                                               .table = table_.revision(),
                                                               .naming = table_.naming(),
                                                               .partial = table_.partial(),
                                                               .map = MapRevision()}),
                       .timeout_ns = kWatchNs}};
}

LinkCore::Step LinkCore::NextLease() {
  const wire::RenewRequest report = target_.Report();
  const DirectoryOpening::Named openings = target_.Openings();
  const MutexLock lock(mutex_);
  if (const std::int64_t wait_ns = member_.TakeWait(); wait_ns > 0) return {.wait_ns = wait_ns};
  asked_under_[Index(Lane::kLease)] = member_.epoch();
  // The time is that before the call: Renewed counts the lease from it.
  if (member_.BeginCall(clock_.NowNs())) {
    wire::OwnerHello hello = member_.Hello(identity_);
    hello.capacity_bytes = target_.capacity_bytes();
    hello.opening = openings.now;
    hello.opening_before = openings.before;
    return {.call = Call{.method = wire::Method::kOwnerHello,
                         .body = wire::Encode(hello),
                         .timeout_ns = kCallNs}};
  }
  wire::RenewRequest request = report;
  request.number = member_.number();
  request.epoch = member_.epoch();
  request.table = table_.revision();
  request.partial = table_.partial();
  request.naming = table_.naming();
  request.told = report_.reported();
  request.map = MapRevision();
  request.told_map = report_.reported_map();
  request.leased = member_.Leased();
  return {.call = Call{.method = wire::Method::kRenew,
                       .body = wire::Encode(request),
                       .timeout_ns = kCallNs}};
}

// ---- effects of the answers

void LinkCore::Answer(Lane lane, const Result<std::string>& reply) {
  if (lane == Lane::kLease) return AnswerLease(reply);
  if (lane == Lane::kList) return AnswerList(reply);
  std::uint32_t asked_under = 0;
  {
    const MutexLock lock(mutex_);
    if (!reply) {
      // The next call repeats this one; after kStale it has to wait for the next hello.
      pause_[Index(lane)] = reply.error().code != Code::kTimeout;
      return;
    }
    asked_under = asked_under_[Index(lane)];
    if (asked_under != member_.epoch()) return;
  }
  if (lane == Lane::kWatch) {
    const auto changes = wire::DecodeChanges(wire::AsBytes(*reply));
    if (changes) Apply(*changes, asked_under);
  } else {
    if (const auto page = wire::DecodeRemovalsPage(wire::AsBytes(*reply))) ApplyRemovals(*page);
  }
}

void LinkCore::AnswerLease(const Result<std::string>& reply) {
  bool hello = false;
  {
    const MutexLock lock(mutex_);
    hello = member_.saying_hello();
    if (!reply) {
      // The master does not know this owner, or has given its number to another tenant.
      const Code code = reply.error().code;
      if (!hello && (code == Code::kStale || code == Code::kDenied)) {
        member_.SayHelloAgain(/*new_epoch=*/false);
      }
      member_.Wait(kLanePauseNs);
      return;
    }
  }
  if (hello) {
    const auto welcome = wire::DecodeOwnerWelcome(wire::AsBytes(*reply));
    if (!welcome) return;
    if (welcome->rolled_back) {
      LogWarn(
          "the master knows a later opening of this owner's data directory, so that was put back "
          "from a copy: this owner joins anew, and its disks start empty. Nothing needs to be "
          "done; a copy of a data directory or a disk restores no values");
    }
    Welcomed(*welcome);
  } else if (const auto renewed = wire::DecodeRenewReply(wire::AsBytes(*reply))) {
    Renewed(*renewed);
  }
}

void LinkCore::ForgetIdentity(const wire::OwnerWelcome& welcome) {
  SetLease(0);
  std::vector<SlotUpdate> nothing;
  std::vector<Listing> listings;
  OwnerFacts facts;
  {
    const MutexLock lock(mutex_);
    nothing = table_.Void();
    listings = TakeUnanswered();
    member_.Forgotten(welcome);
    identity_.owner = RandomId();
    facts = member_.Facts(identity_.owner);
  }
  target_.Follow(facts);
  // In this order: first no put is accepted any more, then all objects are removed. Else another
  // table could make the same generations current again while objects of them are left.
  target_.Publish(welcome.incarnation, nothing);
  for (const SlotUpdate& update : nothing) target_.DropVoidSlot(update.slot);
  hidden_.clear();
  target_.SetHidden({});
  target_.ReturnListings(std::move(listings));
}

void LinkCore::NamePredecessor(const Id128& predecessor) {
  const MutexLock lock(mutex_);
  member_.NamePredecessor(predecessor);
}

Id128 LinkCore::predecessor() const {
  const MutexLock lock(mutex_);
  return member_.predecessor();
}

void LinkCore::Welcomed(const wire::OwnerWelcome& welcome) {
  // Not while the watch lane applies a page: the generations that it publishes, the table's
  // revision and the position belong together.
  const MutexLock apply_lock(apply_mutex_);
  {
    const MutexLock lock(mutex_);
    member_.Answered();
  }
  if (welcome.forgotten) return ForgetIdentity(welcome);
  // Other owners may have stored this owner's keys meanwhile: no reader may trust the memory before
  // the inventory is reported again.
  if (welcome.tell_first) SetLease(0);
  std::vector<Listing> listings;
  std::vector<SlotUpdate> nothing;
  OwnerFacts facts;
  std::uint64_t applied = 0;
  {
    const MutexLock lock(mutex_);
    if (!member_.ShowedAll()) {
      // While this hello was under way, this owner took changes from an earlier master's late
      // answer. The new master may have lost them, and notices that only from a hello that shows
      // them. If it never noticed, this owner would keep generations that no master knows.
      member_.SayHelloAgain(/*new_epoch=*/false);
      return;
    }
    // Objects of another incarnation are void.
    if (welcome.incarnation != member_.incarnation()) nothing = table_.Void();
    const bool same_master = member_.Follows(welcome);
    if (!same_master) table_.ForgetNaming();
    removals_.Welcomed(welcome.removals, same_master);
    applied = removals_.applied();
    if (!welcome.resumed) {
      report_.Begin();
      credit_ = 0;
      sequence_ = 0;
      listings = TakeUnanswered();
    }
    member_.Welcomed(welcome);
    facts = member_.Facts(identity_.owner);
  }
  target_.Follow(facts);
  target_.Welcomed(welcome.opening);
  if (!nothing.empty()) target_.Publish(welcome.incarnation, nothing);
  target_.SetApplied(applied);
  target_.ReturnListings(std::move(listings));
}

void LinkCore::SetLease(std::int64_t deadline_ns) {
  {
    const MutexLock lock(mutex_);
    member_.SetLease(deadline_ns);
  }
  target_.SetLease(deadline_ns);
}

void LinkCore::Renewed(const wire::RenewReply& reply) {
  std::int64_t sent_ns = 0;
  std::uint32_t asked_under = 0;
  {
    const MutexLock lock(mutex_);
    sent_ns = member_.sent_ns();
    asked_under = asked_under_[Index(Lane::kLease)];
    if (asked_under != member_.epoch()) return;
    member_.See(reply.revision);
  }
  target_.SetDisksVoid(reply.disks_void);
  target_.OpeningStored(reply.opening);
  const bool hurries = target_.AwaitsOpening();
  // Hidden slots and generations before the deadline: a reader that loads the new deadline
  // (acquire) must also see the state for which the master granted it.
  std::vector<SlotId> hidden = reply.hidden;
  if (!reply.granted) {
    // The last lease may be running. A slot whose barrier a reset has ended is shown under its new
    // generation only, and that may be in these changes or in a later page: a grant says that all
    // are published.
    hidden.insert(hidden.end(), hidden_.begin(), hidden_.end());
    std::ranges::sort(hidden);
    hidden.erase(std::ranges::unique(hidden).begin(), hidden.end());
  }
  if (hidden != hidden_) {
    target_.SetHidden(hidden);
    hidden_ = std::move(hidden);
  }
  Apply(reply.changes, asked_under);
  if (reply.granted) {
    // Counted from the time of the request. The master counts from its receipt, which is later, so
    // readers stop before the master considers the lease to have ended.
    SetLease(sent_ns + reply.lease_ns);
    target_.SetMasterReachable(true);
    target_.SetDraining(reply.draining);
  }
  FollowPosition(asked_under);
  const MutexLock lock(mutex_);
  if (reply.tell_again) {
    member_.SayHelloAgain(/*new_epoch=*/true);
  } else if (reply.granted) {
    member_.Wait(hurries ? kLanePauseNs : renewal_ns_);
  } else if (reply.doubted) {
    member_.Wait(kDoubtedNs);
  } else if (reply.changes.from == reply.changes.to) {
    // No lease before the inventory is reported; the shell renews at once then
    // (Link::NoteReported), so more frequent calls would only keep the master of a thousand owners
    // from their listings.
    member_.Wait(report_.reported() || hurries ? kLanePauseNs : renewal_ns_);
  }
}

// Passes a later position on, so that it is durable within a second: a store that is put back to an
// earlier state, without a barrier for instance, is known by that even if all processes end. Apply
// passes on the positions of generations only.
void LinkCore::FollowPosition(std::uint32_t asked_under) {
  if (!identity_.disk) return;
  // As in Apply: no earlier facts may follow later ones.
  const MutexLock apply_lock(apply_mutex_);
  OwnerFacts facts;
  {
    const MutexLock lock(mutex_);
    if (asked_under != member_.epoch()) return;
    if (!pace_.Take(member_.seen().revision, clock_.NowNs())) return;
    facts = member_.Facts(identity_.owner);
  }
  target_.Follow(facts);
}

void LinkCore::Apply(const wire::Changes& changes, std::uint32_t asked_under) {
  NoteMap(changes.map);
  const MutexLock apply_lock(apply_mutex_);
  std::optional<std::vector<SlotUpdate>> updates;
  {
    const MutexLock lock(mutex_);
    // Another master has welcomed this owner since, by a hello that did not show this page.
    if (asked_under != member_.epoch()) return;
    if (changes.incarnation != member_.incarnation()) {
      member_.SayHelloAgain(/*new_epoch=*/false);
      return;
    }
    updates = table_.Take(changes);
    if (!updates) return;
  }
  // Before the table acknowledges the page: the master may prove a reset by that, so no older
  // generation may be found or stored any more.
  if (!updates->empty()) target_.Publish(changes.incarnation, *updates);
  OwnerFacts facts;
  {
    const MutexLock lock(mutex_);
    // The next hello shows it, so that a master that lacks this revision notices that it lost
    // facts.
    member_.See(changes.to);
    facts = member_.Facts(identity_.owner);
  }
  // After a restart hello shows them, too, unless the process ends before they are durable. The
  // acknowledgement does not wait for that: neither a lease nor a reset may depend on a file.
  if (!changes.slots.empty()) target_.Follow(facts);
  bool known = false;
  {
    const MutexLock lock(mutex_);
    known = table_.Acknowledge(changes);
  }
  if (known) target_.TableKnown();
}

}  // namespace kvcove::owner
