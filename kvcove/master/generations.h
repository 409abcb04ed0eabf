// SPDX-License-Identifier: Apache-2.0
// Generations, registrations and resets as a plain state machine: requests go in, decisions and
// records to be persisted come out. No I/O, no clock, no lock. docs/generations.md has the prose.
//
// A slot is one (namespace, weight version). Its generation is
//   unused -> (first registration) -> used -> (reset) -> another generation, unused
// and *used* is for ever: neither the end of a session nor a restart clears it.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/model/ids.h"
#include "kvcove/wire/messages.h"

namespace kvcove::master {

// What must be on disk before anybody learns of it. Replaying all records in order restores the
// state.
struct Record {
  enum class Kind : std::uint8_t {
    kSlot = 1,         // slot was given to (namespace, version) with this generation
    kRaise = 2,        // slot has this generation now, by request `reset_id`
    kEngineReset = 3,  // an engine has reset the namespace: new engines start closed
    kDropSlot = 4,     // slot is free again
    kStart = 5,        // a master started; reset_id.low is its term, generation the last one
    kMissed = 6,       // a removal from slot was proven although an owner had not heard of it
  };
  Kind kind = Kind::kSlot;
  SlotId slot = 0;
  Generation generation = 0;
  Id128 reset_id;
  std::string name;
  std::string version;
  bool operator==(const Record&) const = default;
};

// One namespace and weight version, as an operator sees it.
struct SlotDescription {
  SlotId slot = 0;
  std::string name;  // qualified by its tenant
  std::string version;
  Generation generation = 0;
  bool used = false;   // a reset raises it
  bool named = false;  // an engine uses this version, or it has none
};

using wire::RegisterRequest;
using wire::Registration;
using wire::ResetRequest;

class Generations {
 public:
  // `used_for_ever` false: for simulations only, to show that they notice.
  explicit Generations(Id128 incarnation, Generation last_generation = 0, bool used_for_ever = true)
      : incarnation_(incarnation),
        last_generation_(last_generation),
        used_for_ever_(used_for_ever) {}

  // Applies a record of an earlier life. Every generation found so counts as used.
  void Restore(const Record& record);

  // Two steps: the first decides and appends what must be persisted; once that is done, the second
  // answers. Between them no other call is made. Errors: kLimit when all slots are in use,
  // kInvalid.
  Status PrepareRegister(const RegisterRequest& request, std::vector<Record>& records);
  Registration FinishRegister(const RegisterRequest& request, const std::vector<Record>& records);

  // The first step decides what to raise; the second makes it current. A raise shared by several
  // requests is one pair of calls with all of them.
  void PrepareReset(const std::vector<ResetRequest>& requests, std::vector<Record>& records);
  // Returns the slots that have another generation now.
  std::vector<SlotId> FinishReset(const std::vector<ResetRequest>& requests,
                                  const std::vector<Record>& records);

  // The versions that an engine still uses; what no engine names is reclaimed first.
  void NameVersions(std::string_view name, std::string_view engine,
                    const std::vector<std::string>& versions);
  // Its last session ended.
  void EndEngine(std::string_view name, std::string_view engine);

  // Slots of which an owner that comes back may have missed a removal, in this life or an earlier.
  const std::set<SlotId>& missed_removals() const { return missed_removals_; }
  // Grows with each start; 1 for the first.
  std::uint64_t term() const { return term_; }
  // What must be persisted first in a new life.
  Record StartRecord() const;

  // What owners must know now.
  SlotUpdate UpdateOf(SlotId slot) const;
  std::vector<SlotId> Slots() const;
  std::vector<SlotId> SlotsOf(std::string_view name) const;
  std::vector<SlotDescription> Describe() const;
  // Records that restore this state, for a compacted file.
  std::vector<Record> Snapshot() const;
  Id128 incarnation() const { return incarnation_; }
  Generation last_generation() const { return last_generation_; }

 private:
  static constexpr std::size_t kMaxResetIds = 1024;
  static constexpr std::size_t kMaxBindings = 65536;

  struct SlotState {
    std::string name;
    std::string version;
    Generation generation = 0;
    bool used = false;
    std::uint64_t raises = 0;         // in this life
    std::uint64_t engine_raises = 0;  // the value of `raises` at the last one by an engine
    std::string raised_by;            // that engine
  };
  struct Binding {
    bool open = false;
    std::optional<std::string> current_version;
    std::set<SlotId> named;
    // For the namespace's slot without version: what it was bound to.
    std::uint64_t raises = 0;
    bool bound = false;
  };
  using BindingKey = std::pair<std::string, std::string>;  // namespace, engine

  void ApplySlot(const Record& record, bool used);
  std::optional<SlotId> FindSlot(std::string_view name, std::string_view version) const;
  std::optional<SlotId> FreeSlot() const;
  bool Named(SlotId slot) const;
  void RememberResetId(Id128 id);
  bool IsVersionChange(const ResetRequest& request) const;

  Id128 incarnation_;
  Generation last_generation_;
  bool used_for_ever_;
  std::map<std::pair<std::string, std::string>, SlotId, std::less<>> slots_by_name_;
  std::map<SlotId, SlotState> slots_;
  std::set<std::string, std::less<>> engine_reset_;  // namespaces
  std::map<BindingKey, Binding> bindings_;
  std::deque<Id128> reset_ids_;
  std::set<SlotId> missed_removals_;
  std::uint64_t term_ = 0;
};

}  // namespace kvcove::master
