// SPDX-License-Identifier: Apache-2.0
// An owner stands still, or does not reach its master, while a reset is proven. Then the master
// starts over a store that was put back to before the reset, and the owner returns at about the
// same time: to this master it shows nothing that the store lacks.
#pragma once

#include <string>

#include "tests/sim/sim_cluster.h"

namespace kvcove::sim {

class Rollbacks {
 public:
  explicit Rollbacks(Cluster& cluster) : cluster_(cluster), world_(cluster.world) {}
  void Start();
  void End() { ended_ = true; }

 private:
  struct Episode {
    std::string store;  // as it was when the owner went away
    std::int64_t returns_ns = 0;
  };
  Random& random() { return world_.random(); }
  bool AllFollow() const;
  void Begin();
  void SendAway(Place place, std::int64_t away_ns);
  void Reset(const Episode& episode);
  void RollBack(const Episode& episode);

  Cluster& cluster_;
  World& world_;
  bool ended_ = false;
};

}  // namespace kvcove::sim
