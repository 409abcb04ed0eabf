// SPDX-License-Identifier: Apache-2.0
// The decisions of a starting master about its store: the pool, its own term, and how long leases
// of an earlier master may run. Plain values, no I/O.
#pragma once

#include <vector>

#include "kvcove/master/control/control.h"
#include "kvcove/master/store/generation_log.h"

namespace kvcove::master {

struct StartPlan {
  StoredState state;  // with a pool
  Leadership leadership;
  // The caller stores these before it answers any call.
  std::vector<FactChange> changes;
  // The leases of members in `state` have ended by then; 0: none runs.
  std::int64_t leases_until_ns = 0;
  // Owners that the store does not know may hold leases until then; 0: there are none.
  std::int64_t unknown_leases_until_ns = 0;
};

// Plans the start of a master from the facts in its store. `lease_ns`: the longest lease that this
// master gives. `revision`: the store's. `old`: a file of the first format, if the store has
// nothing else. Errors: kCorrupt.
Result<StartPlan> PlanStart(const Facts& facts, std::uint64_t revision, std::int64_t lease_ns,
                            std::int64_t now_ns, const Restored* old = nullptr);

}  // namespace kvcove::master
