// SPDX-License-Identifier: Apache-2.0
// For tests: an owner's core as its link sees it, and a master that answers as the test says.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kvcove/owner/link/link_core.h"

namespace kvcove::owner {

// Writes down what it is told, in order.
class FakeTarget final : public LinkTarget {
 public:
  void Publish(const Id128& now, const std::vector<SlotUpdate>& updates) override {
    std::string line = "publish";
    incarnation = now;
    for (const SlotUpdate& update : updates) {
      line += ' ' + std::to_string(update.slot) + '=' + std::to_string(update.generation);
      if (!update.named) line += " unnamed";
    }
    said.push_back(line);
  }
  void SetHidden(const std::vector<SlotId>& slots) override {
    std::string line = "hide";
    for (const SlotId slot : slots) line += ' ' + std::to_string(slot);
    said.push_back(line);
  }
  void SetLease(std::int64_t deadline_ns) override {
    if (on_lease) on_lease();
    lease_ns = deadline_ns;
    said.push_back(deadline_ns == 0 ? "no lease" : "lease");
  }
  void SetMasterReachable(bool reachable) override { master_reachable = reachable; }
  void SetDraining(bool now) override { draining = now; }
  void Follow(const OwnerFacts& now) override { followed.emplace_back(now, said); }
  void TableKnown() override { ++table_known; }
  bool AwaitApplied() override {
    ++awaited;
    return !link_ends;
  }
  bool link_ends = false;
  wire::RenewRequest Report() override {
    return {.objects = 42, .disks_void = asks_void, .opening = told_opening};
  }
  DirectoryOpening::Named Openings() const override { return openings; }
  void Welcomed(const std::optional<Id128>& opening) override { welcomed.push_back(opening); }
  void OpeningStored(const Id128& opening) override { stored_opening = opening; }
  bool AwaitsOpening() const override { return awaits_opening; }
  void EndOpening() override { said.push_back("last opening"); }
  void EndDiskWaits() override { said.push_back("no waits"); }
  void SetDisksVoid(bool stored) override { disks_void = stored; }
  std::uint64_t capacity_bytes() const override { return 1 << 30; }

  void ApplyKeys(const wire::Removal& removal) override {
    said.push_back("remove " + std::to_string(removal.number));
  }
  BegunPattern BeginPattern(const wire::Removal& removal) override {
    said.push_back("begin " + std::to_string(removal.number));
    return {.objects = 3, .open = walks_disks};
  }
  std::size_t PatternRoom() const override {
    if (on_room) std::exchange(on_room, nullptr)();
    return pattern_room;
  }
  std::vector<wire::RemovalsRequest::Count> TakeEndedPatterns() override {
    return std::exchange(ended_patterns, {});
  }
  void ForgetPatterns() override { ++forgotten_patterns; }
  bool walks_disks = false;
  std::size_t pattern_room = wire::kMaxOpenRemovals;
  mutable std::function<void()> on_room;  // is called once
  std::vector<wire::RemovalsRequest::Count> ended_patterns;
  int forgotten_patterns = 0;
  void DropSlots(std::span<const SlotId> slots) override {
    for (const SlotId slot : slots) said.push_back("drop " + std::to_string(slot));
  }
  bool BeginDrop(std::span<const SlotId> slots) override {
    DropSlots(slots);
    return drops;
  }
  bool DropEnded() override { return !drops; }
  bool drops = false;  // disks are walked for slots
  void DropVoidSlot(SlotId slot) override { said.push_back("drop void " + std::to_string(slot)); }
  void SetApplied(std::uint64_t number) override { applied = number; }

  std::vector<Listing> TakeListings(std::size_t /*at_most*/) override {
    return std::exchange(listings, {});
  }
  void ReturnListings(std::vector<Listing> back) override {
    listings.insert(listings.begin(), std::make_move_iterator(back.begin()),
                    std::make_move_iterator(back.end()));
  }
  void CompleteListing(Listing listing, std::span<const Code> codes) override {
    listing.done(codes);
  }
  std::vector<InventoryItem> TakeGone(std::size_t at_most) override {
    if (gone.size() <= at_most) return std::exchange(gone, {});
    const auto end = gone.begin() + static_cast<std::ptrdiff_t>(at_most);
    std::vector<InventoryItem> taken(gone.begin(), end);
    gone.erase(gone.begin(), end);
    return taken;
  }
  bool TakeGoneOverflow() override { return std::exchange(overflow, false); }
  std::vector<InventoryItem> Inventory(ObjectId& cursor, std::size_t at_most) override {
    std::vector<InventoryItem> items;
    ++looks;
    if (!settled) return items;
    while (cursor < objects && items.size() < at_most) {
      items.push_back({.item = {.hash = {.high = 1, .low = cursor}, .inventory = true},
                       .id = cursor,
                       .version = 1});
      ++cursor;
    }
    if (cursor >= objects) cursor = Core::kWalkDone;
    return items;
  }
  std::optional<ObjectId> ReportAgainFrom() override { return again_from; }
  void WalkEnds() override { ++ended; }
  void Reported() override {
    EXPECT_GT(ended, reported) << "what was reported is not noted";
    ++reported;
  }
  void DropObjects(std::span<const InventoryItem> items) override {
    if (on_drop) on_drop();
    for (const InventoryItem& item : items) dropped.push_back(item.id);
  }

  // A put that waits for the master's answer.
  std::shared_ptr<std::vector<Code>> Put(std::uint64_t key) {
    auto codes = std::make_shared<std::vector<Code>>();
    listings.push_back(
        {.pending = {{.reservation = key, .item = {.hash = {.high = 2, .low = key}}}},
         .done = [codes](std::span<const Code> now) {
           codes->insert(codes->end(), now.begin(), now.end());
         }});
    return codes;
  }
  void Evict(std::uint64_t key) {
    gone.push_back({.item = {.hash = {.high = 2, .low = key}, .gone = true}});
  }
  void Move(std::uint64_t key) {
    gone.push_back({.item = {.hash = {.high = 2, .low = key}, .inventory = true},
                    .id = static_cast<ObjectId>(key)});
  }

  std::vector<std::string> said;
  Id128 incarnation;
  std::int64_t lease_ns = -1;
  bool master_reachable = false;
  bool draining = false;
  bool asks_void = false;
  bool disks_void = false;
  DirectoryOpening::Named openings;
  Id128 told_opening;
  Id128 stored_opening;
  bool awaits_opening = false;
  std::vector<std::optional<Id128>> welcomed;
  std::uint64_t applied = 0;
  ObjectId objects = 0;
  std::vector<Listing> listings;
  std::vector<InventoryItem> gone;
  bool overflow = false;
  std::optional<ObjectId> again_from;
  int reported = 0;
  int ended = 0;  // walks
  std::vector<ObjectId> dropped;
  std::function<void()> on_drop;   // before they are
  std::function<void()> on_lease;  // before it is set
  // With what was said before.
  std::vector<std::pair<OwnerFacts, std::vector<std::string>>> followed;
  int table_known = 0;
  int awaited = 0;
  bool settled = true;
  int looks = 0;  // at the inventory
};

class LinkCoreFixture : public testing::Test {
 protected:
  using Lane = LinkCore::Lane;
  static constexpr Id128 kPool{.high = 1, .low = 1};
  static constexpr Id128 kIncarnation{.high = 2, .low = 2};
  static constexpr std::uint64_t kTerm = 4;
  static constexpr std::uint64_t kFirst = kTerm << 40;
  static constexpr std::int64_t kRenewalNs = 250 * kMillisecond;

  // The lane's next call; it must be this one.
  LinkCore::Call Ask(Lane lane, wire::Method method) {
    for (int i = 0; i < 8; ++i) {
      const LinkCore::Step step = core_.Next(lane);
      if (!step.call) continue;
      EXPECT_EQ(step.call->method, method);
      return *step.call;
    }
    ADD_FAILURE() << "the lane has nothing to ask";
    return {};
  }
  bool Idle(Lane lane) { return !core_.Next(lane).call; }
  static std::span<const std::byte> Bytes(const std::string& body) {
    return std::as_bytes(std::span(body));
  }
  void Fail(Lane lane, Code code) { core_.Answer(lane, kvcove::Fail(code, "as the test wants")); }

  wire::OwnerHello AskHello() {
    return *wire::DecodeOwnerHello(Bytes(Ask(Lane::kLease, wire::Method::kOwnerHello).body));
  }
  wire::RenewRequest AskRenew() {
    return *wire::DecodeRenew(Bytes(Ask(Lane::kLease, wire::Method::kRenew).body));
  }
  wire::ListRequest AskList() {
    return *wire::DecodeList(Bytes(Ask(Lane::kList, wire::Method::kList).body));
  }
  wire::RemovalsRequest AskRemovals() {
    return *wire::DecodeRemovalsRequest(Bytes(Ask(Lane::kRemovals, wire::Method::kRemovals).body));
  }
  static wire::OwnerWelcome Welcome(std::uint32_t epoch, bool resumed = false) {
    return {.pool = kPool,
            .incarnation = kIncarnation,
            .position = {.term = kTerm, .tag = 44, .revision = 100},
            .number = 3,
            .epoch = epoch,
            .lease_ns = kSecond,
            .resumed = resumed,
            .removals = kFirst};
  }
  void AnswerHello(const wire::OwnerWelcome& welcome) {
    core_.Answer(Lane::kLease, wire::Encode(welcome));
  }
  void Join(std::uint32_t epoch = 7) {
    AskHello();
    AnswerHello(Welcome(epoch));
    target_.said.clear();
  }
  static wire::Changes Changes(std::uint64_t from, std::uint64_t to,
                               std::vector<SlotUpdate> slots = {}) {
    return {.incarnation = kIncarnation,
            .from = from,
            .to = to,
            .slots = std::move(slots),
            .unnamed = {}};
  }
  void Grant(wire::Changes changes = Changes(0, 0), std::vector<SlotId> hidden = {},
             bool granted = true) {
    core_.Answer(Lane::kLease, wire::Encode(wire::RenewReply{.granted = granted,
                                                             .lease_ns = kSecond,
                                                             .revision = 120,
                                                             .hidden = std::move(hidden),
                                                             .changes = std::move(changes)}));
  }
  void AnswerList(const wire::ListRequest& request, std::uint32_t credit = 4096,
                  Code code = Code::kOk) {
    core_.Answer(Lane::kList,
                 wire::Encode(wire::ListReply{
                     .codes = std::vector<Code>(request.items.size(), code), .credit = credit}));
  }
  void AnswerRemovals(wire::RemovalsPage page) {
    core_.Answer(Lane::kRemovals, wire::Encode(page));
  }
  // Until the inventory is reported.
  void TellAll() {
    for (int i = 0; i < 100 && !core_.state().reported; ++i) AnswerList(AskList());
    ASSERT_TRUE(core_.state().reported);
  }

  explicit LinkCoreFixture(bool disk = false) : disk_(disk) {}

  const bool disk_;
  FakeClock clock_;
  FakeTarget target_;
  LinkCore core_{target_,
                 {.owner = {.high = 100, .low = 1},
                  .process = {.high = 200, .low = 1},
                  .address = "h:1",
                  .socket = {},
                  .host = "h",
                  .tenant = {},
                  .disk = disk_},
                 kRenewalNs,
                 clock_};
};

}  // namespace kvcove::owner
