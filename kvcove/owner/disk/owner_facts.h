// SPDX-License-Identifier: Apache-2.0
// What an owner with a disk keeps beside it, so that its identity outlives the process: the file
// `owner` in its data directory. Text with a checksum; replaced whole.
#pragma once

#include <optional>
#include <string>

#include "kvcove/base/result.h"
#include "kvcove/wire/owner_link.h"

namespace kvcove::owner {

struct OwnerFacts {
  Id128 identity;
  // What it follows, and the highest position of that control store that it has seen: a master that
  // shows less has lost facts, so resets that the disk has obeyed may be among them. Zero: it has
  // followed no master yet.
  Id128 pool;
  Id128 incarnation;
  wire::Position seen;
  bool operator==(const OwnerFacts&) const = default;
};

std::string Encode(const OwnerFacts& facts);
// Nothing for a text that is damaged.
std::optional<OwnerFacts> DecodeOwnerFacts(const std::string& text);

// Nothing when there are none, or they are damaged. Errors: kUnavailable.
Result<std::optional<OwnerFacts>> ReadOwnerFacts(const std::string& directory);
// Durable when it returns. Errors: kUnavailable.
Status WriteOwnerFacts(const std::string& directory, const OwnerFacts& facts);

}  // namespace kvcove::owner
