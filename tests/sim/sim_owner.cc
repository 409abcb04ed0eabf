// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_owner.h"

#include <fmt/core.h>
#include <fmt/format.h>

namespace kvcove::sim {
namespace {

constexpr std::int64_t kRenewalNs = 250 * kMillisecond;
constexpr std::int64_t kTickNs = 20 * kMillisecond;
constexpr std::int64_t kRetryNs = 50 * kMillisecond;

}  // namespace

Segment::Segment(std::uint64_t payload_bytes, std::uint64_t max_objects, std::uint64_t seed) {
  const segment::HeaderSizes sizes{.max_objects = max_objects, .payload_bytes = payload_bytes};
  const std::size_t bytes = segment::HeaderFileBytes(sizes);
  header = Zeroed(bytes);
  payload = Zeroed(payload_bytes);
  page = Zeroed(sizeof(segment::SessionPage));
  if (!segment::FormatHeader(header.get(), sizes, {1, 2}, seed)) std::abort();
  segment::FormatSessionPage(page.get());
  view = *segment::HeaderView::Open(header.get(), bytes);
}

SimOwner::SimOwner(World& world, SimMaster& master, Place place, const Options& options)
    : world_(world),
      place_(place),
      options_(options),
      segment_(std::make_shared<Segment>(options.payload_bytes, options.max_objects,
                                         world.random().Next())),
      link_(*this,
            {.owner = {world.random().Next(), world.random().Next()},
             .process = {world.random().Next(), world.random().Next()},
             .address = AddressOf(place),
             .socket = {},
             .host = std::to_string(world.host(place)),
             .tenant = {}},
            kRenewalNs, world.clock(place)) {
  core_ = *owner::Core::Open({.payload_bytes = options.payload_bytes,
                              .max_objects = options.max_objects,
                              .clear_foreign = true,
                              .listed = true},
                             segment_->view, segment_->payload.get(), world.clock(place));
  core_->AddPayloadBelow(options.payload_bytes);
  first_identity_ = identity();
  // Of the readers of its host.
  (void)core_->AddSession(&segment_->shared(), place);
  server_ = std::make_unique<SimServer>(world, place, *this);
  for (auto& connection : connections_) {
    connection = std::make_unique<SimConnection>(world, master, place, "");
  }
}

SimOwner::~SimOwner() = default;

void SimOwner::Start() {
  for (const Lane lane : owner::LinkCore::kLanes) {
    world_.In(place_, 0, [this, lane] { RunLane(lane); });
  }
  world_.In(place_, 0, [this] { Tick(); });
}

void SimOwner::SayGoodbye() {
  SetLease(0);
  const auto goodbye = link_.Goodbye();
  if (!goodbye) return;
  connections_[0]->Call(goodbye->method, goodbye->body, goodbye->timeout_ns,
                        [](const Result<std::string>&) {});
}

void SimOwner::Tick() {
  core_->Tick();
  world_.In(place_, kTickNs, [this] { Tick(); });
}

// ---- lanes, as link.cc drives them

void SimOwner::RunLane(Lane lane) {
  SimConnection& connection = *connections_[static_cast<std::size_t>(lane)];
  if (!connection.open() && lane == Lane::kLease) link_.Disconnected();
  const owner::LinkCore::Step step = link_.Next(lane);
  if (!step.call) return WaitLane(lane, step.wait_ns);
  connection.Call(
      step.call->method, step.call->body, step.call->timeout_ns,
      [this, lane](const Result<std::string>& reply) {
        const bool refused = !reply && reply.error().code == Code::kUnavailable;
        if (lane == Lane::kLease && !reply && (refused || reply.error().code == Code::kTimeout)) {
          SetMasterReachable(false);
        }
        link_.Answer(lane, reply);
        WaitLane(lane, refused ? kRetryNs : 0);
      });
}

void SimOwner::WaitLane(Lane lane, std::int64_t wait_ns) {
  const std::int64_t wait = std::max<std::int64_t>(wait_ns, 20 * kMicrosecond);
  if (lane != Lane::kList) {
    return world_.In(place_, wait, [this, lane] { RunLane(lane); });
  }
  list_waiting_ = true;
  world_.In(place_, wait, [this, number = ++list_wait_] {
    if (number != list_wait_ || !list_waiting_) return;
    list_waiting_ = false;
    RunLane(Lane::kList);
  });
}

void SimOwner::Wake() {
  if (!list_waiting_) return;
  list_waiting_ = false;
  world_.In(place_, 20 * kMicrosecond, [this] { RunLane(Lane::kList); });
}

// ---- gets and puts of others

bool SimOwner::LeaseHolds() const {
  return !options_.rules.lease || segment_->view.LeaseHolds(world_.NowOf(place_));
}

std::uint64_t SimOwner::TenantOfSlot(SlotId slot) const {
  const auto at = tenants_.find(slot);
  return at == tenants_.end() ? ~0ULL : at->second;
}

wire::SessionNumber SimOwner::AddRemoteSession() { return core_->AddSession(nullptr, place_); }

void SimOwner::EndSession(wire::SessionNumber session) { core_->EndSession(session); }

std::vector<wire::PutResult> SimOwner::Reserve(wire::SessionNumber session, const Token& token,
                                               std::span<const wire::PutItem> items, bool evict) {
  std::vector<wire::PutResult> places(items.size());
  if (draining_) {
    for (wire::PutResult& place : places) place.code = Code::kNoSpace;
  } else {
    places = core_->Put(session, token, items, evict);
  }
  if (!options_.rules.awaits && core_->Awaits(token)) places[0].code = Code::kStale;
  if (places[0].code == Code::kStale) options_.refused_as_stale(token);
  reserved_ = places[0].code == Code::kOk;
  if (reserved_) {
    world_.Log(fmt::format("owner {} reserves {} for {}, slot {}, begun after {:x}", place_,
                           places[0].reservation, items[0].key, token.slot, core_->applied()));
  }
  return places;
}

void SimOwner::FinishThen(wire::SessionNumber session, std::span<const wire::FinishItem> items,
                          std::function<void(std::vector<Code>)> done) {
  const std::vector<Code> codes = core_->Finish(session, items);
  std::vector<owner::Pending> pending = core_->TakePending();
  if (pending.empty()) return done(codes);
  if (!options_.rules.removal_number) pending[0].item.removals = ~0ULL >> 1;
  outbox_.push_back(
      {.pending = std::move(pending), .done = [done = std::move(done)](std::span<const Code> of) {
         done({of.begin(), of.end()});
       }});
  Wake();
}

std::vector<owner::Loan> SimOwner::Lend(const Token& token,
                                        std::span<const std::string_view> keys) {
  std::vector<owner::Loan> loans = core_->Lend(token, keys);
  if (!options_.rules.reader.second_look) core_->Return(loans);
  return loans;
}

void SimOwner::Return(std::span<const owner::Loan> loans) {
  if (options_.rules.reader.second_look) core_->Return(loans);
}

void SimOwner::SetChecksum(const owner::Loan& loan, std::uint64_t checksum) {
  core_->SetChecksum(loan, checksum);
}

// ---- LinkTarget

void SimOwner::Publish(const Id128& incarnation, const std::vector<SlotUpdate>& updates) {
  for (const SlotUpdate& update : updates) {
    tenants_[update.slot] = TenantTag(TenantOf(update.name));
  }
  if (options_.rules.lease_last) return core_->SetSlots(incarnation, updates);
  // Too late: the deadline is there before.
  world_.In(place_, 50 * kMillisecond,
            [this, incarnation, updates] { core_->SetSlots(incarnation, updates); });
}

void SimOwner::SetHidden(const std::vector<SlotId>& slots) {
  world_.Log(fmt::format("owner {} hides {} slots", place_, slots.size()));
  if (options_.rules.lease_last) return core_->SetHidden(slots);
  world_.In(place_, 50 * kMillisecond, [this, slots] { core_->SetHidden(slots); });
}

void SimOwner::SetLease(std::int64_t deadline_ns) { core_->RenewLease(deadline_ns); }

void SimOwner::SetMasterReachable(bool reachable) { reachable_ = reachable; }

void SimOwner::LogRemoval(const wire::Removal& removal) {
  world_.Log(fmt::format("owner {} applies removal {:x} from slot {} under {:x}, has {:x}: {} {}",
                         place_, removal.number, removal.slot, removal.generation,
                         core_->GenerationOf(removal.slot), fmt::join(removal.keys, " "),
                         removal.pattern));
}

void SimOwner::ApplyKeys(const wire::Removal& removal) {
  LogRemoval(removal);
  if (!core_->Means(removal.slot, removal.generation)) return;
  for (const std::string& key : removal.keys) (void)core_->Remove(removal.slot, key);
}

owner::LinkTarget::BegunPattern SimOwner::BeginPattern(const wire::Removal& removal) {
  LogRemoval(removal);
  BegunPattern begun{.objects = 0, .open = options_.walks};
  owner::Core::Walk walk{.done = !core_->Means(removal.slot, removal.generation)};
  while (!walk.done) {
    begun.objects += core_->RemoveMatching(removal.slot, removal.pattern, walk);
  }
  if (!begun.open) return begun;
  ++walks_;
  world_.In(place_, world_.Some(kSecond), [this, number = removal.number] {
    --walks_;
    ended_patterns_.push_back({.number = number, .objects = 0});
  });
  return begun;
}

void SimOwner::DropSlots(std::span<const SlotId> slots) {
  for (const SlotId slot : slots) {
    world_.Log(fmt::format("owner {} drops slot {}", place_, slot));
    dropped_.insert(slot);
    owner::Core::Walk walk;
    while (!walk.done) core_->DropSlot(slot, walk);
  }
}

bool SimOwner::BeginDrop(std::span<const SlotId> slots) {
  DropSlots(slots);
  if (!options_.walks) return false;
  ++drops_;
  world_.In(place_, world_.Some(kSecond), [this] { --drops_; });
  return true;
}

void SimOwner::SetApplied(std::uint64_t number) { core_->SetApplied(number); }

std::vector<owner::Listing> SimOwner::TakeListings(std::size_t at_most_items) {
  std::vector<owner::Listing> listings;
  std::size_t items = 0;
  while (!outbox_.empty() && items < at_most_items) {
    items += outbox_.front().pending.size();
    listings.push_back(std::move(outbox_.front()));
    outbox_.pop_front();
  }
  return listings;
}

void SimOwner::ReturnListings(std::vector<owner::Listing> listings) {
  for (auto at = listings.rbegin(); at != listings.rend(); ++at) {
    outbox_.push_front(std::move(*at));
  }
}

void SimOwner::CompleteListing(owner::Listing listing, std::span<const Code> codes) {
  std::vector<Code> outcomes;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    world_.Log(fmt::format("owner {}: reservation {} begun after {:x} is listed: {}", place_,
                           listing.pending[i].reservation, listing.pending[i].item.removals,
                           CodeName(codes[i])));
    outcomes.push_back(core_->FinishListing(listing.pending[i], codes[i]));
  }
  listing.done(outcomes);
}

std::vector<owner::InventoryItem> SimOwner::TakeGone(std::size_t at_most) {
  return core_->TakeGone(at_most);
}

std::vector<owner::InventoryItem> SimOwner::Inventory(owner::ObjectId& cursor,
                                                      std::size_t at_most) {
  return core_->Inventory(cursor, at_most);
}

void SimOwner::DropObjects(std::span<const owner::InventoryItem> items) {
  world_.Log(fmt::format("owner {} gives way with {} objects", place_, items.size()));
  for (const owner::InventoryItem& item : items) gave_way_.insert(item.item.hash);
  for (const owner::InventoryItem& item : items) core_->DropObject(item.id, item.version);
}

}  // namespace kvcove::sim
