// SPDX-License-Identifier: Apache-2.0
// What goes wrong in a simulated cluster: processes pause, die and come back, networks part, disks
// fail and forget, hosts' clocks stop. Often one thing goes wrong while another is away.
#pragma once

#include "tests/sim/sim_cluster.h"

namespace kvcove::sim {

class Faults {
 public:
  explicit Faults(Cluster& cluster) : cluster_(cluster), world_(cluster.world) {}
  void Start();
  // All faults end, and everything that is dead starts again.
  void End();

 private:
  Random& random() { return world_.random(); }
  void Disturb();
  void Pause(Place place);
  void PauseHost();
  void Cut();
  void RestartOwner(Place place);
  void RestartMaster();
  void HarmFile();
  void DisturbDisk();
  void Forget();
  // Another one goes with even odds while this one is away.
  void Compound(std::int64_t away_ns);
  void AwaitTrust();
  std::int64_t AwayNs();

  Cluster& cluster_;
  World& world_;
  bool ended_ = false;
  int compounds_ = 0;
};

}  // namespace kvcove::sim
