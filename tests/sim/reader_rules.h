// SPDX-License-Identifier: Apache-2.0
// A reader's last look before it copies. A run may leave out one of its checks, to show that the
// simulation notices; the product has no such switch.
#pragma once

#include "kvcove/segment/protected_slot.h"

namespace kvcove::sim {

struct ReaderRules {
  bool generation = true;  // the entry's generation, the session's and the current one are compared
  bool second_look = true;   // the entry is protected, and its version compared after the fence
  bool revalidation = true;  // of a loan: generation and deadline are compared once more at its end
};

inline MissReason Confirm(const ReaderRules& rules, const segment::HeaderView& view,
                          const segment::Found& found, const segment::ReadScope& scope,
                          std::int64_t now_ns) {
  if (rules.generation && rules.second_look) return segment::Confirm(view, found, scope, now_ns);
  if (rules.second_look && !view.StillThere(found.place, found.version)) return MissReason::kRaced;
  if (rules.generation) return CheckScope(view, scope, found.generation, now_ns);
  return view.LeaseHolds(now_ns) ? MissReason::kNone : MissReason::kLease;
}

}  // namespace kvcove::sim
