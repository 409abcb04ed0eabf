// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_owner.h"

#include <fmt/core.h>
#include <fmt/format.h>

#include <cstring>

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
  segment::FormatHeader(header.get(), sizes, {1, 2}, seed);
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
  core_->AddPayloadUpTo(options.payload_bytes / segment::kGranule);
  first_identity_ = identity();
  session_ = core_->AddSession(&segment_->shared(), place);
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

// ---- data server

bool SimOwner::LeaseHolds() const {
  return !options_.rules.lease || segment_->view.LeaseHolds(world_.NowOf(place_));
}

void SimOwner::Write(std::span<const Extent> extents, const std::vector<std::uint64_t>& words) {
  std::size_t at = 0;
  for (const Extent& extent : extents) {
    const std::size_t count =
        std::min<std::size_t>(extent.count * segment::kGranule / 8, words.size() - at);
    std::memcpy(segment_->payload.get() + std::uint64_t{extent.start} * segment::kGranule,
                words.data() + at, count * 8);
    at += count;
  }
}

void SimOwner::Put(const PutRequest& request, const std::function<void()>& reserved,
                   const CodeDone& done) {
  if (draining_) return done(Code::kNoSpace);
  const wire::PutItem item{.key = request.key,
                           .size_bytes = static_cast<std::uint32_t>(request.words.size() * 8),
                           .value = {},
                           .after = {}};
  const wire::PutResult place = core_->Put(session_, request.token, {&item, 1}, request.evict)[0];
  if (place.code != Code::kOk) return done(place.code);
  reserved();
  world_.Log(fmt::format("owner {} reserves {} for put {} of {}, slot {}, begun after {:x}{}",
                         place_, place.reservation, request.words[0], request.key,
                         request.token.slot, core_->applied(),
                         request.copied_at != 0 ? ", a copy" : ""));
  // The bytes arrive bit by bit, sometimes after everything else.
  const bool slow = world_.faults() && world_.random().OneIn(30);
  const std::int64_t takes = world_.Some(slow ? 2 * kSecond : 300 * kMicrosecond);
  world_.In(place_, takes, [this, place, request, done] {
    Write(place.extents, request.words);
    Commit(place.reservation, request, done);
  });
}

void SimOwner::Commit(std::uint64_t reservation, const PutRequest& request, const CodeDone& done) {
  const wire::FinishItem finish{.reservation = reservation,
                                .commit = true,
                                .group = request.group,
                                .copied_at = request.copied_at};
  const Code code = core_->Finish(session_, {&finish, 1})[0];
  std::vector<owner::Pending> pending = core_->TakePending();
  if (pending.empty()) return done(code);
  // The first of both answers counts.
  const auto answered = std::make_shared<bool>(false);
  const auto once = [answered, done](Code outcome) {
    if (!std::exchange(*answered, true)) done(outcome);
  };
  world_.In(place_, request.budget_ns, [once] { once(Code::kNotListed); });
  if (!options_.rules.removal_number) pending[0].item.removals = ~0ULL >> 1;
  outbox_.push_back({.pending = std::move(pending),
                     .done = [once](std::span<const Code> codes) { once(codes[0]); }});
  Wake();
}

std::vector<owner::Loan> SimOwner::Lend(const Token& token, std::string_view key) {
  if (!LeaseHolds()) return {};
  std::vector<owner::Loan> loans = core_->Lend(token, {&key, 1});
  // The lease once more, now that the memory is protected: deadline last.
  if (!LeaseHolds()) {
    core_->Return(loans);
    return {};
  }
  return loans;
}

// ---- LinkTarget

void SimOwner::Publish(const Id128& incarnation, const std::vector<SlotUpdate>& updates) {
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

void SimOwner::SetMasterReachable(bool /*reachable*/) {}

std::uint64_t SimOwner::ApplyRemoval(const wire::Removal& removal) {
  world_.Log(fmt::format("owner {} applies removal {:x} from slot {} under {:x}, has {:x}: {} {}",
                         place_, removal.number, removal.slot, removal.generation,
                         core_->GenerationOf(removal.slot), fmt::join(removal.keys, " "),
                         removal.pattern));
  if (!core_->Means(removal.slot, removal.generation)) return 0;
  for (const std::string& key : removal.keys) (void)core_->Remove(removal.slot, key);
  std::uint64_t matched = 0;
  owner::Core::Walk walk{.done = removal.pattern.empty()};
  while (!walk.done) {
    matched += core_->RemoveMatching(removal.slot, removal.pattern, walk);
  }
  return matched;
}

void SimOwner::DropSlot(SlotId slot) {
  world_.Log(fmt::format("owner {} drops slot {}", place_, slot));
  dropped_.insert(slot);
  owner::Core::Walk walk;
  while (!walk.done) core_->DropSlot(slot, walk);
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

std::vector<wire::ListItem> SimOwner::TakeGone(std::size_t at_most) {
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
