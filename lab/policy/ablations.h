// SPDX-License-Identifier: Apache-2.0
// The parts of the default policy, each taken away or set otherwise: what `kvcove policy
// --ablations` compares, so that each part can show what it is worth.
#pragma once

#include <string_view>
#include <vector>

#include "kvcove/policy/segments.h"

namespace kvcove::lab {

struct Ablation {
  std::string_view name;
  policy::SegmentOptions options;
};

// The first one is the default as it is.
std::vector<Ablation> Ablations();

}  // namespace kvcove::lab
