// SPDX-License-Identifier: Apache-2.0
// One life of an owner's process in a simulated cluster: the real `LinkCore` with its four lanes
// over the real `Core`, the real `DataService`, and what owner.cc does between them.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kvcove/owner/core/core.h"
#include "kvcove/owner/core/data_store.h"
#include "kvcove/owner/link/link_core.h"
#include "kvcove/segment/reader.h"
#include "tests/sim/memory.h"
#include "tests/sim/reader_rules.h"
#include "tests/sim/sim_master.h"
#include "tests/sim/sim_transfer.h"
#include "tests/sim/sim_world.h"

namespace kvcove::sim {

// What is switched off in turn, to show that it would be noticed.
struct OwnerRules {
  ReaderRules reader;
  bool lease = true;           // readers and owners look at the lease
  bool lease_last = true;      // hidden slots and generations are published before the deadline
  bool removal_number = true;  // a put says which removals it was begun after
  bool awaits = true;          // a put under a generation that is not known yet is not stale
  bool lineage = true;         // an owner that was killed is over when nobody maps its memory
};

// An owner's memory. It outlives the owner's process while a reader still maps it.
struct Segment {
  Segment(std::uint64_t payload_bytes, std::uint64_t max_objects, std::uint64_t seed);
  segment::SessionPage& shared() { return *reinterpret_cast<segment::SessionPage*>(page.get()); }
  Memory header;
  Memory payload;
  Memory page;  // of all readers of this host
  segment::HeaderView view;
};

class SimOwner final : public owner::LinkTarget, public owner::DataStore {
 public:
  struct Options {
    std::uint64_t payload_bytes = 32 << 10;
    std::uint64_t max_objects = 128;
    OwnerRules rules;
    // A removal by pattern stays open for a while, as that of an owner with disks; a few at a time.
    bool walks = false;
    std::function<void(const Token&)> refused_as_stale;  // told of a put's token
  };
  SimOwner(World& world, SimMaster& master, Place place, const Options& options);
  ~SimOwner() override;
  void Start();
  // Gives the lease back, as a process does that ends in order.
  void SayGoodbye();

  const std::shared_ptr<Segment>& segment() const { return segment_; }
  owner::Core& core() { return *core_; }
  const owner::LinkCore& link() const { return link_; }
  const Id128& identity() const { return link_.identity().owner; }
  std::string address() const { return AddressOf(place_); }
  static std::string AddressOf(Place place) { return "owner-" + std::to_string(place); }
  std::size_t outbox() const { return outbox_.size(); }

  // ---- gets and puts of others
  SimServer& server() { return *server_; }
  // Whether the last reservation was made.
  bool reserved() const { return reserved_; }
  wire::SessionNumber AddRemoteSession() override;
  void EndSession(wire::SessionNumber session) override;
  std::vector<wire::PutResult> Reserve(wire::SessionNumber session, const Token& token,
                                       std::span<const wire::PutItem> items, bool evict) override;
  void FinishThen(wire::SessionNumber session, std::span<const wire::FinishItem> items,
                  std::function<void(std::vector<Code>)> done) override;
  bool MasterReachable() const override { return reachable_; }
  bool Awaits(const Token& token) override { return options_.rules.awaits && core_->Awaits(token); }
  std::vector<owner::Loan> Lend(const Token& token,
                                std::span<const std::string_view> keys) override;
  void Return(std::span<const owner::Loan> loans) override;
  void SetChecksum(const owner::Loan& loan, std::uint64_t checksum) override;
  bool LeaseHolds() const override;
  std::uint64_t TenantOfSlot(SlotId slot) const override;
  segment::Payload payload() const override {
    return {.data = segment_->payload.get(), .granule = segment_->view.granule()};
  }

  // ---- LinkTarget
  void Publish(const Id128& incarnation, const std::vector<SlotUpdate>& updates) override;
  void SetHidden(const std::vector<SlotId>& slots) override;
  void SetLease(std::int64_t deadline_ns) override;
  void SetMasterReachable(bool reachable) override;
  void SetDraining(bool draining) override { draining_ = draining; }
  wire::RenewRequest Report() override { return core_->Report(); }
  std::uint64_t capacity_bytes() const override { return options_.payload_bytes; }
  void ApplyKeys(const wire::Removal& removal) override;
  BegunPattern BeginPattern(const wire::Removal& removal) override;
  std::size_t PatternRoom() const override { return kMostWalks - std::min(kMostWalks, walks_); }
  std::vector<wire::RemovalsRequest::Count> TakeEndedPatterns() override {
    return std::exchange(ended_patterns_, {});
  }
  void DropSlots(std::span<const SlotId> slots) override;
  bool BeginDrop(std::span<const SlotId> slots) override;
  bool DropEnded() override { return drops_ == 0; }
  void SetApplied(std::uint64_t number) override;
  std::vector<owner::Listing> TakeListings(std::size_t at_most_items) override;
  void ReturnListings(std::vector<owner::Listing> listings) override;
  void CompleteListing(owner::Listing listing, std::span<const Code> codes) override;
  std::vector<owner::InventoryItem> TakeGone(std::size_t at_most) override;
  bool TakeGoneOverflow() override { return core_->TakeGoneOverflow(); }
  std::vector<owner::InventoryItem> Inventory(owner::ObjectId& cursor,
                                              std::size_t at_most) override;
  void DropObjects(std::span<const owner::InventoryItem> items) override;

  // Slots that this owner dropped because the master said so.
  const std::set<SlotId>& dropped() const { return dropped_; }
  // Another owner's value was there before one of this key.
  bool GaveWay(const Id128& hash) const { return gave_way_.contains(hash); }
  void NamePredecessor(const Id128& predecessor) { link_.NamePredecessor(predecessor); }
  Id128 predecessor() const { return link_.predecessor(); }
  // It had to drop everything and take another identity.
  bool forgotten() const { return identity() != first_identity_; }

 private:
  using Lane = owner::LinkCore::Lane;
  static constexpr std::size_t kMostWalks = 3;
  void LogRemoval(const wire::Removal& removal);
  void RunLane(Lane lane);
  void WaitLane(Lane lane, std::int64_t wait_ns);
  void Wake();
  void Tick();

  World& world_;
  const Place place_;
  const Options options_;
  const std::shared_ptr<Segment> segment_;
  std::unique_ptr<owner::Core> core_;
  std::map<SlotId, std::uint64_t> tenants_;
  bool reachable_ = true;
  bool reserved_ = false;
  owner::LinkCore link_;
  std::array<std::unique_ptr<SimConnection>, owner::LinkCore::kLanes.size()> connections_;
  std::uint64_t list_wait_ = 0;  // counts the list lane's waits
  bool list_waiting_ = false;
  std::deque<owner::Listing> outbox_;
  bool draining_ = false;
  std::vector<wire::RemovalsRequest::Count> ended_patterns_;
  std::size_t walks_ = 0;  // that have not ended
  std::size_t drops_ = 0;  // likewise
  std::set<SlotId> dropped_;
  std::set<Id128> gave_way_;
  std::unique_ptr<SimServer> server_;  // ends before what it uses
  Id128 first_identity_;
};

}  // namespace kvcove::sim
