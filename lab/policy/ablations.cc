// SPDX-License-Identifier: Apache-2.0
#include "lab/policy/ablations.h"

namespace kvcove::lab {

std::vector<Ablation> Ablations() {
  std::vector<Ablation> all = {{"default", {}}};
  const auto add = [&](std::string_view name, const auto& change) {
    Ablation& ablation = all.emplace_back(name);
    change(ablation.options);
  };
  add("no-segments", [](policy::SegmentOptions& o) { o.cut = false; });
  add("no-turns", [](policy::SegmentOptions& o) { o.turns = false; });
  add("no-lengths", [](policy::SegmentOptions& o) { o.lengths = false; });
  add("no-before-tail", [](policy::SegmentOptions& o) { o.before_tail = false; });
  add("uses-to-9", [](policy::SegmentOptions& o) { o.most_uses = 9; });
  add("not-deepest", [](policy::SegmentOptions& o) { o.deepest = false; });
  add("whole-weights", [](policy::SegmentOptions& o) { o.by_size = false; });
  add("tail-weight-1", [](policy::SegmentOptions& o) { o.tail_weight = 1; });
  add("small-ghost", [](policy::SegmentOptions& o) {
    o.ghost_share = 2;
    o.least_ghost = 2000;
  });
  add("large-ghost", [](policy::SegmentOptions& o) { o.least_ghost = o.most_ghost; });
  add("no-living", [](policy::SegmentOptions& o) { o.hazards.count_living = false; });
  add("class-weight-30", [](policy::SegmentOptions& o) { o.hazards.class_weight = 30; });
  add("no-halving", [](policy::SegmentOptions& o) { o.hazards.limit = 1e30F; });
  return all;
}

}  // namespace kvcove::lab
