// SPDX-License-Identifier: Apache-2.0
#include "kvcove/policy/ablations.h"

namespace kvcove::policy {

std::vector<Ablation> Ablations() {
  std::vector<Ablation> all = {{"default", {}}};
  const auto add = [&](std::string_view name, const auto& change) {
    Ablation& ablation = all.emplace_back(name);
    change(ablation.options);
  };
  add("no-segments", [](SegmentOptions& o) { o.cut = false; });
  add("no-turns", [](SegmentOptions& o) { o.turns = false; });
  add("no-lengths", [](SegmentOptions& o) { o.lengths = false; });
  add("no-before-tail", [](SegmentOptions& o) { o.before_tail = false; });
  add("uses-to-9", [](SegmentOptions& o) { o.most_uses = 9; });
  add("not-deepest", [](SegmentOptions& o) { o.deepest = false; });
  add("whole-weights", [](SegmentOptions& o) { o.by_size = false; });
  add("tail-weight-1", [](SegmentOptions& o) { o.tail_weight = 1; });
  add("small-ghost", [](SegmentOptions& o) {
    o.ghost_share = 2;
    o.least_ghost = 2000;
  });
  add("large-ghost", [](SegmentOptions& o) { o.least_ghost = o.most_ghost; });
  add("no-living", [](SegmentOptions& o) { o.hazards.count_living = false; });
  add("class-weight-30", [](SegmentOptions& o) { o.hazards.class_weight = 30; });
  add("no-halving", [](SegmentOptions& o) { o.hazards.limit = 1e30F; });
  return all;
}

}  // namespace kvcove::policy
