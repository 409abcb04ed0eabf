// SPDX-License-Identifier: Apache-2.0
// The namespaces and weight versions that engines use now: volatile, kept alive by the processes
// that hold them. A plain state machine over the master's clock; needs a lock.
//
// An engine is registered for a namespace as long as one of its holders calls the master: the
// process of the engine's session, or the owner that speaks for the sessions on its host. A master
// that has just started knows no engine, so for a while every version counts as named.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/model/ids.h"

namespace kvcove::master {

class Registrations {
 public:
  struct Binding {
    bool open = false;
    std::optional<std::string> current_version;
    std::set<SlotId> named;
    std::uint64_t raises = 0;  // of the slot without a version, when the engine was bound to it
    bool bound = false;
    // Closed, and no reset has closed it: when it was bound, it did not show the generation of
    // then.
    bool unsure = false;
    bool kept = false;  // registered without a holder: only End ends the binding
    std::set<Id128> holders;
  };

  // A holder counts for this long after its last call.
  static constexpr std::int64_t kHolderNs = 30 * kSecond;
  // For this long after a start, every version that an earlier master knew counts as named.
  static constexpr std::int64_t kAllNamedNs = 60 * kSecond;
  static constexpr std::size_t kMaxBindings = 65536;

  explicit Registrations(std::int64_t started_ns, std::int64_t all_named_ns = kAllNamedNs)
      : all_named_until_ns_(started_ns + all_named_ns) {}

  // Returns kLimit when there are too many bindings, in all or of this tenant. An engine that is
  // registered already always has room.
  Status CheckRoom(std::string_view name, std::string_view engine) const;
  // Returns the engine's binding, adds it if it is missing, and notes a call of its holder.
  // `holder` zero: the binding needs no holder that keeps it alive.
  Binding& Bind(std::string_view name, std::string_view engine, const Id128& holder,
                std::int64_t now_ns);
  // Returns the binding of an engine that may not have registered yet. A binding that this call
  // adds ends after kHolderNs unless the engine registers.
  Binding& Expect(std::string_view name, std::string_view engine, std::int64_t now_ns);
  // Calls `visit(engine, binding)` for each engine of the namespace.
  template <typename Visit>
  void ForEachOf(const std::string& name, Visit&& visit) {
    for (auto at = bindings_.lower_bound(Key(name, std::string()));
         at != bindings_.end() && at->first.first == name; ++at) {
      visit(at->first.second, at->second);
    }
  }
  // Calls `visit(namespace, engine, binding)` for each binding until it returns false.
  template <typename Visit>
  void ForEach(Visit&& visit) const {
    for (const auto& [key, binding] : bindings_) {
      if (!visit(key.first, key.second, binding)) return;
    }
  }
  Binding* Find(std::string_view name, std::string_view engine);
  const Binding* Find(std::string_view name, std::string_view engine) const;

  void Name(Binding& binding, SlotId slot);
  // Replaces the slots that the engine names.
  void SetNamed(Binding& binding, const std::set<SlotId>& slots);
  // Ends the engine's registration at this holder; the binding ends with its last holder. `holder`
  // zero: at every holder.
  void End(std::string_view name, std::string_view engine, const Id128& holder);
  // Notes a call of the holder.
  void Heard(const Id128& holder, std::int64_t now_ns);
  void EndHolder(const Id128& holder);
  // Ends holders that were silent for kHolderNs. Returns true when a slot may have become unnamed.
  bool Expire(std::int64_t now_ns);
  // Makes slots of the namespace unnamed, whatever its engines have said.
  void Unname(const std::string& name, const std::set<SlotId>& slots);
  // Discards all that engines said about the slot, which has another namespace now.
  void ForgetSlot(SlotId slot);

  bool Named(SlotId slot, std::int64_t now_ns) const {
    return names_.contains(slot) || (now_ns < all_named_until_ns_ && inherited_.contains(slot));
  }
  // Returns true if an engine has named the slot to this master.
  bool Held(SlotId slot) const { return names_.contains(slot); }
  // Marks a slot of an earlier master: engines that use it may not have registered here yet.
  void Inherit(SlotId slot) { inherited_.insert(slot); }
  // Returns a number that grows whenever a slot may have become named or unnamed.
  std::uint64_t version() const { return version_; }
  std::size_t size() const { return bindings_.size(); }

 private:
  using Key = std::pair<std::string, std::string>;  // namespace, engine
  struct Holder {
    std::int64_t until_ns = 0;
    std::set<Key> bindings;
  };
  void Erase(std::map<Key, Binding, std::less<>>::iterator at);
  void Unname(SlotId slot);

  std::int64_t all_named_until_ns_;
  bool all_named_ended_ = false;
  std::uint64_t version_ = 1;
  std::map<Key, Binding, std::less<>> bindings_;
  std::map<Id128, Holder> holders_;
  std::set<SlotId> inherited_;
  std::map<SlotId, std::uint32_t> names_;                        // by how many bindings
  std::map<std::string, std::uint32_t, std::less<>> by_tenant_;  // bindings
};

}  // namespace kvcove::master
