// SPDX-License-Identifier: Apache-2.0
// The weights' version, of what ranks say of theirs.
//
// A rank's fingerprint is a digest, of all that it has. With expert parallelism each rank has other
// experts, and who has which is no property of the weights (it also changes while an engine runs,
// where load is balanced): there the digest is of all but the experts, and each expert has one of
// its own, by layer and number. Experts of all ranks together name the weights; where the ranks of
// one engine have not all of them, those of its data-parallel peers have the others.
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
  std::uint64_t experts_in_all = 0;  // of the model; 0: none lies apart
  std::map<std::string, std::string, std::less<>> experts;
  bool complete() const { return experts.size() >= experts_in_all; }
  bool operator==(const WeightsPrint&) const = default;
};

// Errors: kCorrupt.
Result<WeightsPrint> ParsePrint(std::string_view text);
std::string TextOf(const WeightsPrint& print);

// The ranks of one engine, in their order. Copies of an expert (a balancer makes them) count once;
// where they differ, which is no state to share, all their digests do. Errors: kCorrupt.
Result<WeightsPrint> Joined(const std::vector<std::string>& ranks);

// The version that all engines with these weights have; none while experts are missing, or while
// a peer has other weights. `own` was Joined; `peers` are engines' texts.
std::optional<std::string> VersionWith(const WeightsPrint& own,
                                       const std::vector<std::string>& peers);
// The version of an engine that cannot ask its peers: it shares with none of them.
std::string VersionAlone(const WeightsPrint& own);

}  // namespace kvcove::connector
