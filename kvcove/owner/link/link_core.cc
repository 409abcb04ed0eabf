// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/link/link_core.h"

#include <algorithm>

#include "kvcove/base/log.h"

namespace kvcove::owner {
namespace {

constexpr std::int64_t kCallNs = 500 * kMillisecond;
constexpr std::int64_t kWatchNs = 5 * kSecond;
constexpr std::int64_t kFollowNs = kSecond;  // at least, between two positions that are followed
// Pause before credit is asked for again: 16 owners report at a time, and a thousand may wait.
constexpr std::int64_t kCreditNs = 100 * kMillisecond;
// Pause before a lease is asked for again while the master waits for other members' hellos.
constexpr std::int64_t kDoubtedNs = 50 * kMillisecond;

std::size_t Index(LinkCore::Lane lane) { return static_cast<std::size_t>(lane); }

}  // namespace

LinkCore::LinkCore(LinkTarget& target, LinkIdentity identity, std::int64_t renewal_ns,
                   const Clock& clock)
    : target_(target), identity_(std::move(identity)), renewal_ns_(renewal_ns), clock_(clock) {
  const auto& before = identity_.before;
  if (!before || before->seen.term == 0) return;
  fresh_ = false;
  pool_ = before->pool;
  incarnation_ = before->incarnation;
  seen_ = before->seen;
}

OwnerFacts LinkCore::Facts() const {
  return {.identity = identity_.owner, .pool = pool_, .incarnation = incarnation_, .seen = seen_};
}

LinkCore::State LinkCore::state() const {
  const MutexLock lock(mutex_);
  return {.epoch = epoch_,
          .number = number_,
          .term = seen_.term,
          .reported = reported_,
          .dropped = gave_way_};
}

std::uint64_t LinkCore::term() const {
  const MutexLock lock(mutex_);
  return epoch_ == 0 ? 0 : seen_.term;
}

bool LinkCore::AwaitsWelcome() const {
  const MutexLock lock(mutex_);
  return Unwelcome();
}

void LinkCore::SayHelloAgain(bool new_epoch) {
  hello_wanted_ = true;
  new_epoch_wanted_ = new_epoch_wanted_ || new_epoch;
  lease_wait_ns_ = 0;
}

void LinkCore::Disconnected() {
  const MutexLock lock(mutex_);
  SayHelloAgain(/*new_epoch=*/false);
}

std::optional<LinkCore::Call> LinkCore::Goodbye() {
  OwnerFacts facts;
  {
    const MutexLock lock(mutex_);
    if (epoch_ == 0) return std::nullopt;
    facts = Facts();
  }
  if (identity_.disk) target_.Follow(facts);
  const Id128 opening = target_.Report().opening;
  const MutexLock lock(mutex_);
  return Call{.method = wire::Method::kOwnerGoodbye,
              .body = wire::Encode(
                  wire::WatchRequest{.number = number_, .epoch = epoch_, .opening = opening}),
              .timeout_ns = kCallNs};
}

// ---- the lanes' next calls

LinkCore::Step LinkCore::Next(Lane lane) {
  if (lane == Lane::kLease) return NextLease();
  if (lane == Lane::kList) return NextList();
  if (lane == Lane::kRemovals) {
    NoteEndedPatterns();
    if (AwaitsRoom()) return {.wait_ns = kLanePauseNs};
  }
  const MutexLock lock(mutex_);
  if (Unwelcome() || std::exchange(pause_[Index(lane)], false)) return {.wait_ns = kLanePauseNs};
  asked_under_[Index(lane)] = epoch_;
  if (lane == Lane::kWatch) {
    return {.call = Call{.method = wire::Method::kWatch,
                         .body = wire::Encode(wire::WatchRequest{.number = number_,
                                                                 .epoch = epoch_,
                                                                 .table = table_,
                                                                 .naming = naming_,
                                                                 .partial = partial_,
                                                                 .map = MapRevision()}),
                         .timeout_ns = kWatchNs}};
  }
  // The call acknowledges all removals up to `after`: ApplyRemovals says how long that must wait.
  if (rounds_ < acknowledge_at_round_) {
    asked_under_[Index(lane)] = 0;
    return {.wait_ns = kLanePauseNs / 10};
  }
  return {.call = Call{.method = wire::Method::kRemovals,
                       .body = wire::Encode(NextRemovals()),
                       .timeout_ns = kWatchNs}};
}

wire::RemovalsRequest LinkCore::NextRemovals() {
  wire::RemovalsRequest request{.number = number_,
                                .epoch = epoch_,
                                .after = Acknowledged(),
                                .matched = std::exchange(matched_, {}),
                                .dropped = dropped_,
                                .ahead = removals_};
  for (const auto& [number, round] : open_) request.open.push_back(number);
  return request;
}

// Also takes patterns of an earlier master, which no `open_` names: their keys must be unlisted,
// too. Forgets those whose keys are unlisted now: the next request acknowledges them.
void LinkCore::NoteEndedPatterns() {
  const auto ended = target_.TakeEndedPatterns();
  const MutexLock lock(mutex_);
  for (const wire::RemovalsRequest::Count& count : ended) {
    const auto open = open_.find(count.number);
    if (open == open_.end()) continue;
    open->second = rounds_ + 2;
    matched_.push_back(count);
  }
  std::erase_if(open_, [&](const auto& entry) KVCOVE_REQUIRES(mutex_) {
    return entry.second && *entry.second <= rounds_;
  });
}

// More may be open than there are walks: each stays open until its keys are unlisted, too. There
// may also be more walks, because those of an earlier master are not open any more.
std::size_t LinkCore::PatternRoom() {
  const std::size_t room = target_.PatternRoom();
  const MutexLock lock(mutex_);
  return std::min(room, wire::kMaxOpenRemovals - std::min(wire::kMaxOpenRemovals, open_.size()));
}

// A request would only be answered with the same page. All that was applied before it is
// acknowledged already, and the end of an open removal, which has to be acknowledged, makes room.
bool LinkCore::AwaitsRoom() {
  const std::size_t room = PatternRoom();
  const MutexLock lock(mutex_);
  if (room > 0) awaits_room_ = false;
  return awaits_room_;
}

LinkCore::Step LinkCore::NextLease() {
  const wire::RenewRequest report = target_.Report();
  const DirectoryOpening::Named openings = target_.Openings();
  const MutexLock lock(mutex_);
  if (const std::int64_t wait_ns = std::exchange(lease_wait_ns_, 0); wait_ns > 0) {
    return {.wait_ns = wait_ns};
  }
  sent_ns_ = clock_.NowNs();  // before the call: Renewed counts the lease from here
  asked_under_[Index(Lane::kLease)] = epoch_;
  saying_hello_ = hello_wanted_;
  if (!saying_hello_) {
    wire::RenewRequest request = report;
    request.number = number_;
    request.epoch = epoch_;
    request.table = table_;
    request.partial = partial_;
    request.naming = naming_;
    request.told = reported_;
    request.map = MapRevision();
    request.told_map = reported_map_;
    request.leased = leased_until_ns_ > sent_ns_;
    return {.call = Call{.method = wire::Method::kRenew,
                         .body = wire::Encode(request),
                         .timeout_ns = kCallNs}};
  }
  sent_predecessor_ = predecessor_;
  sent_seen_ = seen_;
  const wire::OwnerHello hello{.pool = pool_,
                               .incarnation = incarnation_,
                               .seen = sent_seen_,
                               .owner = identity_.owner,
                               .fresh = fresh_,
                               .process = identity_.process,
                               .predecessor = sent_predecessor_,
                               .number = number_,
                               .epoch = new_epoch_wanted_ ? 0 : epoch_,
                               .address = identity_.address,
                               .socket = identity_.socket,
                               .host = identity_.host,
                               .tenant = identity_.tenant,
                               .capacity_bytes = target_.capacity_bytes(),
                               .disk = identity_.disk,
                               .opening = openings.now,
                               .opening_before = openings.before};
  return {.call = Call{.method = wire::Method::kOwnerHello,
                       .body = wire::Encode(hello),
                       .timeout_ns = kCallNs}};
}

LinkCore::Step LinkCore::NextList() {
  bool reported = false;
  std::uint32_t credit = 0;
  bool sharded = false;
  {
    const MutexLock lock(mutex_);
    sharded = shards_.active();
    lane_session_ = 0;
  }
  if (sharded) {
    Step step = NextShard(0);
    const MutexLock lock(mutex_);
    lane_session_ = step.session;
    return step;
  }
  // Held until the batch is stored: UseMap moves a stored batch into the new map's lanes, but would
  // not see items that were taken and are not stored yet.
  const MutexLock route(route_mutex_);
  UseMap();
  {
    const MutexLock lock(mutex_);
    if (shards_.active()) return {.wait_ns = 0};
    const std::size_t lane = Index(Lane::kList);
    if (Unwelcome() || std::exchange(pause_[lane], false)) return {.wait_ns = kLanePauseNs};
    if (const std::int64_t wait_ns = std::exchange(list_wait_ns_, 0); wait_ns > 0) {
      return {.wait_ns = wait_ns};
    }
    asked_under_[lane] = epoch_;
    if (batch_) {
      return {.call = Call{
                  .method = wire::Method::kList, .body = batch_->body, .timeout_ns = kListCallNs}};
    }
    reported = reported_;
    credit = credit_;
  }
  if (target_.TakeGoneOverflow()) {
    // Removals of entries were lost, so the master would send readers here for objects that this
    // owner does not have. A new epoch voids all its entries.
    const MutexLock lock(mutex_);
    SayHelloAgain(/*new_epoch=*/true);
    pause_[Index(Lane::kList)] = true;
    return {.wait_ns = kLanePauseNs};
  }
  if (reported) reported = !ReportsAgain();
  Batch batch = MakeBatch(reported, credit);
  {
    const MutexLock lock(mutex_);
    if (epoch_ == asked_under_[Index(Lane::kList)]) {
      if (batch.body.empty()) {
        ++rounds_;
        return {.wait_ns = kLanePauseNs};
      }
      batch_ = std::move(batch);
      return {.call = Call{
                  .method = wire::Method::kList, .body = batch_->body, .timeout_ns = kListCallNs}};
    }
  }
  // A new epoch began meanwhile: everything is reported again in it. Puts are not in the inventory
  // yet, so they return to the queue; `gone` may be dropped.
  target_.ReturnListings(std::move(batch.listings));
  return {.wait_ns = 0};
}

bool LinkCore::ReportsAgain() {
  const std::optional<ObjectId> from = target_.ReportAgainFrom();
  const MutexLock lock(mutex_);
  if (!reported_ || epoch_ != asked_under_[Index(Lane::kList)]) return false;
  if (from && !std::exchange(reporting_again_, true)) cursor_ = again_from_ = *from;
  if (!from) reporting_again_ = false;  // it failed again
  return reporting_again_;
}

// The order matters. Removed entries are taken after the listings and sent before them, so that a
// key that was evicted and stored again remains listed. The inventory is read last: an object that
// is withdrawn after that is in the next batch.
LinkCore::Batch LinkCore::MakeBatch(bool reported, std::uint32_t credit) {
  Batch batch;
  ObjectId cursor = 0;
  bool may_walk = false;
  wire::ListRequest request;
  {
    const MutexLock lock(mutex_);
    request.number = number_;
    request.epoch = asked_under_[Index(Lane::kList)];
    request.sequence = sequence_ + 1;
    request.applied = applied_at_batch_ = removals_;
    cursor = cursor_;
    may_walk = MayWalk();
  }
  batch.listings = target_.TakeListings(kListPageItems);
  batch.gone = target_.TakeGone(kGonePageItems);
  batch.last = cursor == Core::kWalkDone && batch.gone.size() < kGonePageItems;
  for (const InventoryItem& item : batch.gone) request.items.push_back(item.item);
  // More removed entries may be queued, possibly of these listings' keys: list those later.
  if (batch.gone.size() == kGonePageItems) {
    target_.ReturnListings(std::exchange(batch.listings, {}));
  } else {
    for (const Listing& listing : batch.listings) {
      for (const Pending& pending : listing.pending) request.items.push_back(pending.item);
    }
    if (!reported && credit > 0 && cursor != Core::kWalkDone && !may_walk) {
      batch.waits = true;
    } else if (!reported && credit > 0 && cursor != Core::kWalkDone) {
      const ObjectId from = cursor;
      batch.inventory = target_.Inventory(cursor, std::min<std::size_t>(kListPageItems, credit));
      batch.waits = batch.inventory.empty() && cursor == from;
      for (const InventoryItem& item : batch.inventory) request.items.push_back(item.item);
    }
  }
  const MutexLock lock(mutex_);
  if (reported && request.items.empty()) return batch;
  if (request.epoch == epoch_ && (!reported_ || reporting_again_)) cursor_ = cursor;
  batch.sequence = request.sequence;
  batch.body = wire::Encode(request);
  return batch;
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
    if (asked_under != epoch_) return;
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
    hello = saying_hello_;
    if (!reply) {
      // The master does not know this owner, or has given its number to another tenant.
      const Code code = reply.error().code;
      if (!hello && (code == Code::kStale || code == Code::kDenied)) {
        SayHelloAgain(/*new_epoch=*/false);
      }
      lease_wait_ns_ = kLanePauseNs;
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
    for (const auto& [slot, update] : slots_) nothing.push_back({.slot = slot, .name = {}});
    slots_.clear();
    listings = EndShards();
    if (batch_) {
      listings.insert(listings.end(), std::make_move_iterator(batch_->listings.begin()),
                      std::make_move_iterator(batch_->listings.end()));
    }
    batch_.reset();
    table_ = 0;
    partial_ = false;
    naming_ = 0;
    epoch_ = 0;
    number_ = wire::kNoOwner;
    seen_ = {};
    pool_ = welcome.pool;
    incarnation_ = welcome.incarnation;
    identity_.owner = RandomId();
    fresh_ = true;
    facts = Facts();
    SayHelloAgain(/*new_epoch=*/false);
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
  predecessor_ = predecessor;
  SayHelloAgain(/*new_epoch=*/false);
}

Id128 LinkCore::predecessor() const {
  const MutexLock lock(mutex_);
  return predecessor_;
}

void LinkCore::Welcomed(const wire::OwnerWelcome& welcome) {
  // Not while the watch lane applies a page: its generations, `table_` and `seen_` belong together.
  const MutexLock apply_lock(apply_mutex_);
  {
    const MutexLock lock(mutex_);
    if (predecessor_ == sent_predecessor_) predecessor_ = {};
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
    if (seen_ != sent_seen_) {
      // While this hello was under way, this owner took changes from an earlier master's late
      // answer. The new master may have lost them, and notices that only from a hello that shows
      // them. If it never noticed, this owner would keep generations that no master knows.
      SayHelloAgain(/*new_epoch=*/false);
      return;
    }
    if (welcome.incarnation != incarnation_) {
      // Objects of another incarnation are void.
      for (const auto& [slot, update] : slots_) nothing.push_back({.slot = slot, .name = {}});
      slots_.clear();
      table_ = 0;
      partial_ = false;
      leased_until_ns_ = 0;  // it vouches for another history
    }
    const bool same_master = welcome.incarnation == incarnation_ &&
                             welcome.position.term == seen_.term &&
                             welcome.position.tag == seen_.tag;
    // Removals that were proven under an earlier master are applied here, or their slot is hidden;
    // so this master's number is a valid start.
    removals_ = same_master ? std::max(removals_, welcome.removals) : welcome.removals;
    applied = removals_;
    if (!same_master) {
      open_.clear();
      awaits_room_ = false;
      naming_ = 0;
      dropped_ = 0;
      matched_.clear();
    }
    if (!welcome.resumed) {
      reported_ = reporting_again_ = false;
      cursor_ = 0;
      stale_reported_ = false;
      credit_ = 0;
      sequence_ = 0;
      listings = EndShards();
      if (batch_) {
        listings.insert(listings.end(), std::make_move_iterator(batch_->listings.begin()),
                        std::make_move_iterator(batch_->listings.end()));
      }
      batch_.reset();
    }
    fresh_ = false;
    hello_wanted_ = predecessor_ != Id128{};  // it was named after this hello
    new_epoch_wanted_ = false;
    pool_ = welcome.pool;
    incarnation_ = welcome.incarnation;
    seen_ = welcome.position;
    number_ = welcome.number;
    epoch_ = welcome.epoch;
    facts = Facts();
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
    leased_until_ns_ = deadline_ns;
  }
  target_.SetLease(deadline_ns);
}

void LinkCore::Renewed(const wire::RenewReply& reply) {
  std::int64_t sent_ns = 0;
  std::uint32_t asked_under = 0;
  {
    const MutexLock lock(mutex_);
    sent_ns = sent_ns_;
    asked_under = asked_under_[Index(Lane::kLease)];
    if (asked_under != epoch_) return;
    seen_.revision = std::max(seen_.revision, reply.revision);
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
    SayHelloAgain(/*new_epoch=*/true);
  } else if (reply.granted) {
    lease_wait_ns_ = hurries ? kLanePauseNs : renewal_ns_;
  } else if (reply.doubted) {
    lease_wait_ns_ = kDoubtedNs;
  } else if (reply.changes.from == reply.changes.to) {
    // No lease before the inventory is reported; the shell renews at once then
    // (Link::NoteReported), so more frequent calls would only keep the master of a thousand owners
    // from their listings.
    lease_wait_ns_ = reported_ || hurries ? kLanePauseNs : renewal_ns_;
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
    const std::int64_t now_ns = clock_.NowNs();
    if (asked_under != epoch_ || seen_.revision == followed_revision_ || now_ns < next_follow_ns_) {
      return;
    }
    followed_revision_ = seen_.revision;
    next_follow_ns_ = now_ns + kFollowNs;
    facts = Facts();
  }
  target_.Follow(facts);
}

void LinkCore::Apply(const wire::Changes& changes, std::uint32_t asked_under) {
  NoteMap(changes.map);
  const MutexLock apply_lock(apply_mutex_);
  std::vector<SlotUpdate> updates;
  {
    const MutexLock lock(mutex_);
    // Another master has welcomed this owner since, by a hello that did not show this page.
    if (asked_under != epoch_) return;
    if (changes.incarnation != incarnation_) {
      SayHelloAgain(/*new_epoch=*/false);
      return;
    }
    // A page that does not begin at this owner's position was repeated, or the other lane has
    // applied it already.
    const bool next = changes.from == table_ && changes.to >= table_;
    const bool names = changes.names_changed && changes.naming != naming_;
    if (!next && !names) return;
    const auto named = [&](SlotId slot) {
      return !std::ranges::binary_search(changes.unnamed, slot);
    };
    if (names) {
      for (auto& [slot, update] : slots_) {
        if (update.named == named(slot)) continue;
        update.named = named(slot);
        updates.push_back(update);
      }
    }
    // After the names: their updates have the generations that were known before this page.
    if (next) updates.insert(updates.end(), changes.slots.begin(), changes.slots.end());
    for (SlotUpdate& update : updates) {
      const auto known = slots_.find(update.slot);
      update.named = names ? named(update.slot) : known == slots_.end() || known->second.named;
      if (next) slots_[update.slot] = update;
    }
  }
  // Before `table_`, which acknowledges the page: the master may prove a reset by that, so no older
  // generation may be found or stored any more.
  if (!updates.empty()) target_.Publish(changes.incarnation, updates);
  OwnerFacts facts;
  {
    const MutexLock lock(mutex_);
    // The next hello shows it, so that a master that lacks this revision notices that it lost
    // facts.
    seen_.revision = std::max(seen_.revision, changes.to);
    facts = Facts();
  }
  // After a restart hello shows them, too, unless the process ends before they are durable. The
  // acknowledgement does not wait for that: neither a lease nor a reset may depend on a file.
  if (!changes.slots.empty()) target_.Follow(facts);
  bool known = false;
  {
    const MutexLock lock(mutex_);
    if (changes.from == table_ && changes.to >= table_) {
      table_ = changes.to;
      partial_ = changes.more;
      known = !partial_;
    }
    if (changes.names_changed) naming_ = changes.naming;
  }
  if (known) target_.TableKnown();
}

// A page ends before the first pattern for which there is no room. If that one were applied within
// the lane, each such pattern would wait for a walk of its own, and all removals behind it with it:
// an owner that returns to thousands of them would prove nothing for as many walks, while its lease
// runs. So one walk serves all for which there was room.
void LinkCore::ApplyRemovals(const wire::RemovalsPage& page) {
  const std::size_t room = PatternRoom();
  std::uint64_t applied = 0;
  {
    const MutexLock lock(mutex_);
    // Another master may have welcomed this owner since: its log may begin with keys, which need no
    // room.
    if (asked_under_[Index(Lane::kRemovals)] != epoch_) return;
    applied = removals_;
    // A master of an earlier version sends all again that is behind an open removal, at once.
    pause_[Index(Lane::kRemovals)] =
        !page.removals.empty() && page.removals.front().number <= applied;
    const auto next = std::ranges::upper_bound(page.removals, applied, {}, &wire::Removal::number);
    awaits_room_ = room == 0 && next != page.removals.end() && !next->pattern.empty();
    // Drops nothing either: the page comes again, and each drop walks over the disks.
    if (awaits_room_) return;
  }
  if (!page.drop.empty()) target_.DropSlots(page.drop);
  std::vector<wire::RemovalsRequest::Count> matched;
  std::vector<std::uint64_t> open;
  bool unlists = !page.drop.empty();
  std::uint64_t upto = page.upto;
  for (const wire::Removal& removal : page.removals) {
    if (removal.number <= applied) continue;
    if (!removal.pattern.empty() && open.size() >= room) {
      upto = removal.number - 1;
      break;
    }
    if (!removal.keys.empty()) target_.ApplyKeys(removal);
    if (removal.pattern.empty()) continue;
    const LinkTarget::BegunPattern begun = target_.BeginPattern(removal);
    matched.push_back({.number = removal.number, .objects = begun.objects});
    if (begun.open) open.push_back(removal.number);
    unlists = unlists || !begun.open;
  }
  // If not, `removals_` does not advance, so this process or a successor's asks for the page again.
  if (!target_.AwaitApplied()) return;
  // Excludes Welcomed, which sets the start of another master's numbers: an old page's number must
  // not be stored over it.
  const MutexLock apply_lock(apply_mutex_);
  {
    const MutexLock lock(mutex_);
    if (asked_under_[Index(Lane::kRemovals)] != epoch_) return;
  }
  target_.SetApplied(std::max(applied, upto));
  const MutexLock lock(mutex_);
  removals_ = std::max(removals_, upto);
  for (const std::uint64_t number : open) open_.emplace(number, std::nullopt);
  if (page.drop_number != 0) dropped_ = page.drop_number;
  matched_.insert(matched_.end(), matched.begin(), matched.end());
  // The master knows keys by their hashes only, so this owner must unlist the keys that a pattern
  // removed before it acknowledges. The round under way may have taken its items before; the next
  // one takes the removed keys, so wait for the end of two.
  if (unlists) acknowledge_at_round_ = rounds_ + 2;
}

// ---- listings

void LinkCore::AnswerList(const Result<std::string>& reply) {
  std::uint64_t session = 0;
  {
    const MutexLock lock(mutex_);
    session = lane_session_;
  }
  if (session != 0) return AnswerShard(0, session, reply);
  {
    const MutexLock lock(mutex_);
    const std::size_t lane = Index(Lane::kList);
    if (asked_under_[lane] != epoch_ || !batch_) return;
    if (!reply) {
      // The same batch is sent again under its sequence number, so the master acts on it once.
      pause_[lane] = true;
      if (reply.error().code == Code::kStale) SayHelloAgain(/*new_epoch=*/true);
      return;
    }
  }
  std::size_t items = 0;
  {
    const MutexLock lock(mutex_);
    if (!batch_) return;  // UseMap has moved it into the lanes of a map
    items = batch_->gone.size() + batch_->inventory.size();
    for (const Listing& listing : batch_->listings) items += listing.pending.size();
  }
  const auto listed = wire::DecodeListReply(wire::AsBytes(*reply), items);
  if (listed) Listed(*listed);
}

void LinkCore::Listed(const wire::ListReply& reply) {
  Batch batch;
  std::uint64_t number = 0;
  {
    const MutexLock lock(mutex_);
    if (!batch_) return;
    batch = std::move(*batch_);
    batch_.reset();
    number = BeginCompleting();
    sequence_ = batch.sequence;
    credit_ = reply.credit;
  }
  // Refused: another owner has another value of the key, or the directory has no room for the
  // tenant. An object that is not listed must not be found on this host alone, so it is dropped. An
  // object that moved during the walk may have been reported in `gone` only.
  std::vector<InventoryItem> second;
  bool stale = false;
  const auto take = [&](std::vector<InventoryItem>& reported, std::span<const Code> answers) {
    for (std::size_t i = 0; i < reported.size(); ++i) {
      if (answers[i] == Code::kExists || answers[i] == Code::kLimit) {
        second.push_back(std::move(reported[i]));
      }
      stale = stale || answers[i] == Code::kStale;
    }
  };
  std::span<const Code> codes = reply.codes;
  take(batch.gone, codes.first(batch.gone.size()));
  codes = codes.subspan(batch.gone.size());
  for (Listing& listing : batch.listings) {
    const std::size_t count = listing.pending.size();
    target_.CompleteListing(std::move(listing), codes.first(count));
    codes = codes.subspan(count);
  }
  take(batch.inventory, codes);
  if (!second.empty()) target_.DropObjects(second);
  EndCompleting(number, second.size(), stale);
  if (!Walked(batch)) return;
  target_.WalkEnds();
  target_.Reported();
}

// Returns whether the walk over the inventory has ended with this batch.
bool LinkCore::Walked(const Batch& batch) {
  const MutexLock lock(mutex_);
  // A full page may leave removed keys in the queue, for the next one.
  if (batch.gone.size() < kGonePageItems) ++rounds_;
  if (shards_.active()) return false;  // a map is in use since: ShardsReported ends the walk
  if (reported_ && !reporting_again_) return false;
  if (cursor_ != Core::kWalkDone) {
    if (batch.waits) list_wait_ns_ = kLanePauseNs;
    if (credit_ == 0) list_wait_ns_ = kCreditNs;
    return false;
  }
  // An object that moved behind the walk's cursor is reported as moved, in the next batch.
  if (identity_.disk && !batch.last) return false;
  if (std::exchange(stale_reported_, false)) {
    // Some items were refused as removed or of an older generation. This owner is about to apply
    // that removal or reset; the walk begins again to report the objects that are left then.
    cursor_ = reported_ ? again_from_ : 0;
    list_wait_ns_ = kLanePauseNs;
    return false;
  }
  reported_ = true;
  reporting_again_ = false;
  lease_wait_ns_ = 0;
  return true;
}

}  // namespace kvcove::owner
