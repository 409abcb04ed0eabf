// SPDX-License-Identifier: Apache-2.0
// The processes of a simulated cluster, joined: who runs where, and what is known of what was
// stored.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/cluster_simulation.h"
#include "tests/sim/sim_oracle.h"
#include "tests/sim/sim_requester.h"

namespace kvcove::sim {

class Cluster {
 public:
  static constexpr int kOwners = 3;
  static constexpr Place kMasterPlace = 2 * kOwners;
  static constexpr Place kElsewhere = kMasterPlace + 1;  // a requester without an owner
  static constexpr int kKeys = 12;

  // What kind of run this is, by the seed.
  struct Kind {
    bool pressure = false;   // values do not all fit
    bool few_slots = false;  // slots are reused
    bool strict = false;
    bool keeps = false;  // nothing is reset or removed, so what was stored must be there at the end
  };

  explicit Cluster(const ClusterSimOptions& options);
  ~Cluster();

  void StartOwner(Place place);
  void KillOwner(Place place);
  SimOwner* owner(Place place) const { return owners_[place].get(); }

  // ---- what must be there at the end
  // Acknowledged by an owner: listed, and visible.
  struct Kept {
    Oracle::Serial serial = 0;
    Place owner = -1;
    std::uint64_t life = 0;
    Token token;
  };
  void Keep(const SimRequester::Stored& stored);
  // It may have gone from there.
  void Moved(Place owner, const std::string& key) { moved_.insert({owner, key}); }

  const ClusterSimOptions options;
  const Kind kind;
  ClusterSimReport report;
  World world;
  Oracle oracle;
  SimMaster master;
  std::vector<std::unique_ptr<SimRequester>> requesters;
  std::vector<Kept> kept;
  // Slots that owners must drop, as the master found in its store: by identity.
  std::set<std::pair<Id128, SlotId>> barred;
  // The store has lost facts: a new incarnation may void everything.
  bool facts_lost = false;
  // All of them, and with them the pool's id.
  bool pool_lost = false;

  // Its identity was ended by somebody, while this process lived.
  bool Forgotten(const SimOwner& owner) const { return owner.forgotten(); }
  bool WasMoved(Place owner, const std::string& key) const { return moved_.contains({owner, key}); }

 private:
  master::MasterOptions MasterOptionsOf() const;
  void MasterStarted(const master::StoredState& state);
  void NamePredecessors(Place place);
  void CheckStale(const Token& token);

  std::vector<std::unique_ptr<SimOwner>> owners_;
  // Owners that were killed, per place.
  struct Former {
    Id128 identity;
    std::weak_ptr<Segment> segment;  // of readers that still map it
    Id128 told;                      // the identity of the owner that names it to the master
  };
  std::map<Place, std::vector<Former>> former_;
  std::set<std::pair<Place, std::string>> moved_;
};

}  // namespace kvcove::sim
