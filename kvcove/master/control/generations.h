// SPDX-License-Identifier: Apache-2.0
// The generation table: the slot and the generation of each namespace and weight version. A plain
// state machine that turns requests into decisions and the facts that must be stored first. No I/O;
// needs a lock. See docs/generations.md.
//
// A slot's generation is
//   unused -> (first registration) -> used -> (reset) -> another generation, unused
// A used generation stays used: neither the end of a session nor a restart clears that.
//
// A generation number is a 40-bit counter and 24 random bits, compared whole. A master whose store
// lost its latest facts may give a counter a second time, but not a number.
#pragma once

#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/master/control/registrations.h"
#include "kvcove/master/control/version_order.h"
#include "kvcove/master/store/facts.h"
#include "kvcove/wire/messages.h"

namespace kvcove::master {

using wire::PruneOutcome;
using wire::PruneRequest;
using wire::RegisterRequest;
using wire::Registration;
using wire::ResetRequest;

// One namespace and weight version, as an operator sees it.
struct SlotDescription {
  SlotId slot = 0;
  std::string name;  // qualified by its tenant
  std::string version;
  Generation generation = 0;
  bool used = false;   // a reset raises it
  bool named = false;  // an engine uses this version, or it has none
  bool dead = false;   // pruned: nothing is found or stored under it any more
  // Of two versions of a namespace, the one that engines have named first has the lower number; 0:
  // not known, or no version.
  std::uint64_t order = 0;
};

// An engine that is registered at a namespace, as an operator sees it.
struct EngineDescription {
  std::string name;  // the namespace, qualified by its tenant
  std::string engine;
  std::optional<std::string> version;  // the weights that it uses now, where it names versions
  bool open = false;                   // else it finds and stores nothing before it has reset
  std::size_t processes = 0;           // that keep its registration alive
};

struct GenerationOptions {
  std::uint32_t max_slots = kMaxSlots;
  // Slots that one tenant may have, where there are tenants.
  std::uint32_t tenant_slots = kMaxSlots / 4;
  // For this long after a start, each version counts as named.
  std::int64_t all_named_ns = Registrations::kAllNamedNs;
  bool used_for_ever = true;  // false: for simulations, to show that they notice
};

class Generations {
 public:
  static constexpr std::size_t kResetIdsKept = 1024;  // of each tenant
  // Namespaces that are remembered as reset by an engine. With this many, every namespace starts
  // closed.
  static constexpr std::size_t kEngineResetsKept = 1 << 16;

  Generations(const GenerationOptions& options, Id128 incarnation, std::int64_t started_ns)
      : options_(options),
        started_ns_(started_ns),
        incarnation_(incarnation),
        registrations_(started_ns, options.all_named_ns) {}

  static std::uint64_t CounterOf(Generation generation) { return generation >> 24; }

  // Loads the table of an earlier master. The store does not say which generations are used, so
  // each counts as used.
  void Load(const StoredState& state);
  // Makes all later numbers have a counter above this one.
  void RaiseCounter(std::uint64_t counter) { counter_ = std::max(counter_, counter); }
  std::uint64_t counter() const { return counter_; }

  // The changes of a request, with the facts to be stored. Plan...() decides them; the method
  // without `Plan` carries them out once they are stored. The caller must decide no other request
  // in between.
  struct Plan {
    struct Slot {
      SlotId slot = 0;
      SlotFact fact;
      bool raise = false;
      Id128 reset_id;
    };
    std::vector<Slot> slots;
    std::vector<std::string> engine_resets;  // keys of facts
    VersionOrder::Change order;
    std::vector<FactChange> changes;
  };
  // Plans a registration, which needs a change only for a new slot. Errors: kInvalid; kDenied for a
  // dead version; kLimit when all slots or bindings are in use, or this tenant's share of them.
  Result<Plan> PlanRegister(const RegisterRequest& request, std::int64_t now_ns);
  Registration Register(const RegisterRequest& request, const Plan& plan, std::uint64_t revision,
                        std::int64_t now_ns);
  // Plans several resets, which share one raise. An engine's reset gives the namespace a slot if
  // it has none: by the slot's generation a later master knows that the engine has reset.
  Plan PlanReset(const std::vector<ResetRequest>& requests, std::int64_t now_ns);
  void Reset(const std::vector<ResetRequest>& requests, const Plan& plan, std::uint64_t revision,
             std::int64_t now_ns);
  // Plans the death of versions of a namespace. Their used generations are raised as by a reset.
  // Errors: kInvalid.
  Result<Plan> PlanPrune(const PruneRequest& request);
  PruneOutcome Prune(const PruneRequest& request, const Plan& plan, std::uint64_t revision);
  // Returns when an engine's reset last raised or shared a generation with which `request` would be
  // answered. Counts the first arrival of `request`, if it was decided before, and no later one.
  // kUnshared: it was not, or no reset that is not late shares one, or the answer opens nothing.
  static constexpr std::int64_t kUnshared = std::numeric_limits<std::int64_t>::min();
  std::int64_t SharedNs(const ResetRequest& request) const;
  // Returns the generation, without a version, that the engine may use; 0: none.
  Generation BoundTo(std::string_view name, std::string_view engine) const;
  // Plans another incarnation: every slot becomes free, and no object that was stored counts.
  Plan PlanVoid();
  void Void(const Id128& incarnation, const Plan& plan, std::uint64_t revision);

  // Replaces the versions that an engine still uses. Objects of versions that no engine names are
  // reclaimed first.
  void NameVersions(std::string_view name, std::string_view engine,
                    const std::vector<std::string>& versions);
  void EndEngine(std::string_view name, std::string_view engine, const Id128& holder);
  Registrations& registrations() { return registrations_; }
  const Registrations& registrations() const { return registrations_; }

  // A slot as owners must know it now. `revision`: the store's, at the slot's last change.
  struct Published {
    SlotUpdate update;
    std::uint64_t revision = 0;
  };
  std::optional<SlotId> FindSlot(std::string_view name, std::string_view version) const;
  Published PublishedOf(SlotId slot) const;
  std::vector<Published> All() const;  // also slots that have become free
  // Returns true if the slot has a version that no engine names. A slot without a version is never
  // unnamed.
  bool Unnamed(SlotId slot, std::int64_t now_ns) const;
  std::vector<SlotId> UnnamedSlots(std::int64_t now_ns) const;
  std::vector<SlotDescription> Describe(std::int64_t now_ns) const;
  // Returns the first `at_most` engines in the order of namespaces.
  std::vector<EngineDescription> Engines(std::size_t at_most) const;
  Id128 incarnation() const { return incarnation_; }
  std::size_t used_slots() const { return slots_by_name_.size(); }
  const VersionOrder& order() const { return order_; }
  // Registrations that were refused: all slots or bindings were in use, or the tenant's share.
  struct Refused {
    std::uint64_t slots = 0;
    std::uint64_t registrations = 0;
    std::uint64_t dead = 0;  // for versions that are dead
  };
  const Refused& refused() const { return refused_; }

 private:
  struct SlotState {
    SlotFact fact;
    std::uint64_t revision = 0;
    bool used = false;
    std::uint64_t raises = 0;         // since the slot got this namespace and version
    std::uint64_t engine_raises = 0;  // the value of `raises` at the last raise by an engine
    std::string raised_by;            // the engine of that raise
    std::uint64_t named_last = 0;     // the value of `namings_` at the last naming
    // When an engine's reset last raised or shared the generation. A late one shares it with
    // nobody.
    std::int64_t shared_ns = kUnshared;
  };
  struct TenantResets {
    std::deque<Id128> order;
    std::set<Id128> ids;
  };

  Generation NextNumber();
  const SlotState* Find(std::string_view name, std::string_view version) const;
  // Returns true if another engine's reset has closed the binding, as far as this master knows.
  static bool ClosedByAnother(const Registrations::Binding& binding, std::string_view engine,
                              const SlotState& slot);
  static bool StillOpen(const Registrations::Binding& binding, std::string_view engine,
                        const SlotState& slot);
  // Returns whether the engine finds and stores values now.
  bool Works(std::string_view name, std::string_view engine,
             const Registrations::Binding& binding) const;
  // Returns true if a proven reset opens the binding, or leaves it open.
  static bool MayOpen(const Registrations::Binding& binding, std::string_view engine,
                      const SlotState& slot);
  // Slots that a plan changes already, with the namespaces that they are new to; empty: to none.
  using Taken = std::map<SlotId, std::string_view>;
  // Returns a free slot, or the one to be taken from its namespace; none of `taken`. Errors:
  // kLimit.
  Result<SlotId> SlotFor(std::string_view name, const Taken& taken, std::int64_t now_ns) const;
  void PlanSlot(SlotId slot, std::string_view name, std::string_view version, Plan& plan);
  void Assign(const Plan::Slot& change, std::uint64_t revision);
  bool Repeated(const ResetRequest& request) const;
  void RememberReset(const ResetRequest& request);
  // Plans to store the ids of these requests, and to delete the oldest beyond kResetIdsKept.
  void PlanResetIds(const std::vector<const ResetRequest*>& requests, Plan& plan) const;
  // Closes the bindings that the slot's last raise by another engine has closed, before the slot
  // gets another namespace and its raises are forgotten.
  void EndLife(const SlotState& slot);
  bool StartsClosed(std::string_view name) const;
  bool IsVersionChange(const ResetRequest& request) const;
  // Returns false if a repetition of the request opens nothing: another engine's reset has closed
  // the session since.
  bool Opens(const ResetRequest& request) const;
  // Returns the slots whose objects the request voids.
  std::vector<SlotId> Covered(const ResetRequest& request) const;
  // Calls `visit(slot)` for each slot of the namespace whose version is dead.
  template <typename Visit>
  void ForEachDead(const std::string& name, const VersionOrder::Change& order,
                   const Visit& visit) const;
  // Notes for SharedNs when the request came to share generations. `repeated`: it was decided
  // before.
  void NoteSharing(const ResetRequest& request, bool repeated, std::int64_t now_ns);
  bool OpenFor(const RegisterRequest& request, const Registrations::Binding& binding,
               const SlotState& slot) const;

  const GenerationOptions options_;
  const std::int64_t started_ns_;
  Id128 incarnation_;
  std::uint64_t counter_ = 0;
  std::uint64_t namings_ = 0;
  Refused refused_;
  std::map<std::pair<std::string, std::string>, SlotId, std::less<>> slots_by_name_;
  std::map<SlotId, SlotState> slots_;  // slots that ever had a namespace
  std::map<std::string, std::uint32_t, std::less<>> slots_of_tenant_;
  std::set<std::string, std::less<>> engine_resets_;            // keys of facts
  std::map<std::string, TenantResets, std::less<>> reset_ids_;  // by tenant
  VersionOrder order_;
  Registrations registrations_;
};

}  // namespace kvcove::master
