// SPDX-License-Identifier: Apache-2.0
// What a master makes of what its store holds: the pool, its own term, and for how long leases of
// an earlier master may run. Plain values, no I/O.
#pragma once

#include <vector>

#include "kvcove/master/control/control.h"
#include "kvcove/master/store/generation_log.h"

namespace kvcove::master {

struct StartPlan {
  StoredState state;  // with a pool
  Leadership leadership;
  // To be stored before anything is answered.
  std::vector<FactChange> changes;
  // Leases that members of `state` may hold end by then.
  std::int64_t leases_until_ns = 0;
  // Leases of owners that are not known may run until then: the store says nothing about them.
  std::int64_t unknown_leases_until_ns = 0;
};

// `lease_ns`: the longest that this master gives. `revision`: of the store. `old`: a file of the
// first format, if the store has nothing else. Errors: kCorrupt.
Result<StartPlan> PlanStart(const Facts& facts, std::uint64_t revision, std::int64_t lease_ns,
                            std::int64_t now_ns, const Restored* old = nullptr);

}  // namespace kvcove::master
