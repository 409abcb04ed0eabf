// SPDX-License-Identifier: Apache-2.0
// What was put, reset and removed in a simulated cluster, and therefore what a read may find.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/sim_world.h"

namespace kvcove::sim {

// A namespace of a tenant, under one weight version.
struct Space {
  std::string tenant;
  std::string name;
  std::string version;
  int family = 0;  // spaces of one namespace have the same
};

class Oracle {
 public:
  using Serial = std::uint64_t;
  // Resets that had been called when a token was captured.
  struct Stamp {
    std::uint64_t family = 0;
    std::uint64_t version = 0;
  };
  struct Written {
    int space = 0;
    std::string key;
    std::size_t words = 0;
    Stamp stamp;
    bool reserved = false;        // an owner has begun to store it
    std::int64_t removed_ns = 0;  // a removal that began after its put was proven then
    bool removal_called = false;  // nobody says what such a removal took with it
  };
  struct Reset {
    int family = 0;
    std::optional<int> space;  // only this version
    std::uint64_t number = 0;
    std::uint64_t trust = 0;
  };
  struct Removal {
    std::vector<Serial> doomed;
    std::uint64_t trust = 0;
    std::uint64_t number = 0;
  };
  struct Reading {
    int space = 0;
    std::string key;
    Stamp proven;
    std::int64_t began_ns = 0;
    std::uint64_t trust = 0;  // see StoreRolledBack
    bool dead = false;
  };
  // A prune, with the spaces that it declares dead for certain.
  struct Prune {
    std::vector<int> dies;
  };
  // A registration that is under way.
  struct Registering {
    int space = 0;
    bool dead = false;
  };

  Oracle(World& world, std::vector<Space> spaces);

  const std::vector<Space>& spaces() const { return spaces_; }
  void Fail(const std::string& what);
  const std::string& violation() const { return violation_; }
  void SetSeed(std::uint64_t seed) { seed_ = seed; }

  // ---- puts
  // Call it when the token has been captured.
  Stamp Called(int space) const;
  Serial BeginPut(int space, const std::string& key, std::size_t words, const Stamp& stamp);
  void Reserved(Serial serial);
  const Written& written(Serial serial) const { return written_.at(serial); }
  // A reset or a removal may have taken it.
  bool MayBeGone(Serial serial) const;
  // The owner has begun to store it: removals that are under way may take it, too.

  // ---- resets and removals
  Reset CallReset(int family, std::optional<int> space);
  void ProvenReset(const Reset& reset);
  // What it dooms: every put of these keys that an owner had begun to store.
  Removal CallRemoval(int space, const std::function<bool(const std::string&)>& matches);
  void ProvenRemoval(const Removal& removal);
  // ---- dead versions
  // A version is earlier than another for certain if an engine was registered for it before any
  // engine asked to be registered for the other. Only for runs in which the store loses no facts.
  Registering BeginRegistering(const std::string& tenant, const std::string& name,
                               const std::string& version);
  void Registered(const Registering& registering);
  Prune CallPrune(int space);
  void ProvenPrune(const Prune& prune);
  // A prune may have declared it dead.
  bool MayBeDead(int space) const {
    return !spaces_[space].version.empty() && pruned_.contains(spaces_[space].family);
  }

  // The store has lost facts that it had said were durable: what was proven by them may come
  // undone, until the owners that know better have come back: Trust.
  void StoreRolledBack();
  void Trust() { trust_ += trust_ % 2; }

  // ---- reads
  Reading BeginRead(int space, const std::string& key) const;
  // The put whose value it is; 0 and a violation when it must not have been found.
  Serial Verify(const Reading& reading, const std::vector<std::uint64_t>& words);
  std::uint64_t verified() const { return verified_; }

 private:
  World& world_;
  const std::vector<Space> spaces_;
  std::uint64_t seed_ = 0;
  std::string violation_;
  Serial next_serial_ = 1;
  std::map<Serial, Written> written_;
  std::map<std::pair<int, std::string>, std::vector<Serial>> by_key_;
  std::map<int, std::uint64_t> family_called_;
  std::map<int, std::uint64_t> family_proven_;
  std::map<int, std::uint64_t> version_called_;  // by space
  std::map<int, std::uint64_t> version_proven_;
  std::map<int, std::uint64_t> first_asked_;  // by space; moments in the order of events
  std::map<int, std::uint64_t> first_named_;
  std::uint64_t moments_ = 0;
  std::set<int> pruned_;  // families
  std::set<int> dead_;    // spaces
  // Removals and resets that may still be carried out, though nobody has said so.
  struct UnderWay {
    int family = -1;  // a reset
    int space = -1;   // a removal
    std::function<bool(const std::string&)> matches;
    std::int64_t until_ns = 0;
    std::uint64_t number = 0;
  };
  bool TakenBy(const UnderWay& one, const Written& put) const;
  std::vector<UnderWay> under_way_;
  std::uint64_t next_number_ = 1;
  std::uint64_t verified_ = 0;
  std::uint64_t trust_ = 2;  // grows with each change; odd: nothing is proven
};

}  // namespace kvcove::sim
