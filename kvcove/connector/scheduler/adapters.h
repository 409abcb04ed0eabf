// SPDX-License-Identifier: Apache-2.0
// LoRA adapters of an engine: which of them all ranks have, and the digest of the ranks' tensors.
//
// An adapter's tag is never used again: blocks that were computed with an adapter before it changed
// are not those of after it has changed back.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kvcove/base/log.h"
#include "kvcove/connector/plan.h"

namespace kvcove::connector {

// Does no I/O. Needs its owner's lock.
class Adapters {
 public:
  struct Known {
    std::string digest;  // of all ranks; as it was last, where a rank lacks the adapter now
    std::uint64_t tag = 0;
    bool there = false;  // on every rank
  };
  // The changes that a report has made.
  struct Change {
    std::vector<AdapterId> voided;  // a rank lacks them now, or has others: requests are void
    bool other = false;             // one has other tensors than before
  };

  // `engine`: for logs.
  Adapters(std::uint32_t world, std::string engine)
      : engine_(std::move(engine)), ranks_(world), seen_(world, 0) {}

  // Takes a rank's list of adapters, unless a later one is known already.
  Change Take(const Report& report, LinesAfterLock& lines);
  // The adapter, null while a rank lacks it.
  const Known* Find(AdapterId adapter) const;
  // Whether what was computed with this adapter may still be found: its tensors are the same.
  bool IsCurrent(const AdapterPrint& adapter) const;
  // By rank: the number of the report that all this was made of. Empty: no rank has named any.
  std::vector<std::uint64_t> Seen() const;

 private:
  // The ranks' digests of one adapter, together; empty while one of them does not have it.
  std::string DigestOf(AdapterId adapter) const;

  const std::string engine_;
  std::map<AdapterId, Known> known_;
  std::uint64_t last_tag_ = 0;
  std::vector<std::map<AdapterId, std::string>> ranks_;
  std::vector<std::uint64_t> seen_;  // numbers, by rank
};

}  // namespace kvcove::connector
