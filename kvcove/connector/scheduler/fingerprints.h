// SPDX-License-Identifier: Apache-2.0
// Makes the weights' version of the ranks' fingerprints.
//
// A rank's fingerprint is a digest of all its tensors. With expert parallelism each rank has other
// experts, and their placement is no property of the weights (a balancer changes it while an engine
// runs): there the digest covers all tensors but the experts, and each expert has a digest of its
// own, by layer and number. The experts of all ranks together name the weights; where the ranks of
// one engine lack some, those of its data-parallel peers have them.
//
//   rank's text    <digest>  or  <digest>;<experts in all>;<expert>=<digest>,...
//   engine's text  the same, its ranks' digests with '|' between them, and all their experts
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/base/result.h"

namespace kvcove::connector {

struct WeightsPrint {
  std::string digest;
  std::uint64_t experts_in_all = 0;  // of the model; 0: no expert has a digest of its own
  std::map<std::string, std::string, std::less<>> experts;
  bool complete() const { return experts.size() >= experts_in_all; }
  bool operator==(const WeightsPrint&) const = default;
};

// Parses a rank's or an engine's text. Errors: kCorrupt.
Result<WeightsPrint> ParsePrint(std::string_view text);
std::string TextOf(const WeightsPrint& print);

// Joins the texts of one engine's ranks, in their order. Equal copies of an expert (a balancer
// makes them) count once; if copies differ, which is no state to share, all their digests count.
// Errors: kCorrupt.
Result<WeightsPrint> Joined(const std::vector<std::string>& ranks);

// Returns the version that all engines with these weights have; none while experts are missing, or
// while a peer has other weights. `own` was Joined; `peers` are engines' texts.
std::optional<std::string> VersionWith(const WeightsPrint& own,
                                       const std::vector<std::string>& peers);
// Returns the version of an engine that cannot ask its peers, and so shares with none of them.
std::string VersionAlone(const WeightsPrint& own);

}  // namespace kvcove::connector
