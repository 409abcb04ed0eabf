// SPDX-License-Identifier: Apache-2.0
// The LoRA adapters of an engine: those that all ranks have, and the digests of the ranks' tensors.
//
// Each change of an adapter's tensors gives it a new tag, which is never used again: so blocks that
// were computed before a change never pass for blocks of after it, even if the tensors are changed
// back.
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
    std::string digest;  // of all ranks; the last one, where a rank lacks the adapter now
    std::uint64_t tag = 0;
    bool there = false;  // every rank has it
  };
  // The changes that a report has made.
  struct Change {
    std::vector<AdapterId> voided;  // a rank lacks them now, or has other tensors
    bool other = false;             // an adapter has other tensors than before
  };

  // `engine` names the engine in logs.
  Adapters(std::uint32_t world, std::string engine)
      : engine_(std::move(engine)), ranks_(world), seen_(world, 0) {}

  // Takes a rank's list of adapters, unless a later one is known already.
  Change Take(const Report& report, LinesAfterLock& lines);
  // Returns the adapter; null while a rank lacks it.
  const Known* Find(AdapterId adapter) const;
  // Returns whether KV of this adapter may still be found: its tensors are the same.
  bool IsCurrent(const AdapterPrint& adapter) const;
  // Returns, by rank, the number of the last report taken. Empty: no rank has named an adapter.
  std::vector<std::uint64_t> Seen() const;

 private:
  // Returns the digest of all ranks' digests; empty while one of them lacks the adapter.
  std::string DigestOf(AdapterId adapter) const;

  const std::string engine_;
  std::map<AdapterId, Known> known_;
  std::uint64_t last_tag_ = 0;
  std::vector<std::map<AdapterId, std::string>> ranks_;
  std::vector<std::uint64_t> seen_;  // numbers, by rank
};

}  // namespace kvcove::connector
