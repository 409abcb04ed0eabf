// SPDX-License-Identifier: Apache-2.0
// What must hold in a simulated cluster when all faults have ended and some quiet has passed.
#pragma once

#include "tests/sim/sim_cluster.h"

namespace kvcove::sim {

// Violations go to the cluster's oracle.
void CheckEnd(Cluster& cluster);

}  // namespace kvcove::sim
