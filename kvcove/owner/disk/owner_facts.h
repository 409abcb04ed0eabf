// SPDX-License-Identifier: Apache-2.0
// The facts that an owner with a disk keeps, so that its identity outlives the process: the file
// `owner` in its data directory. Text with a checksum, replaced as a whole.
#pragma once

#include <optional>
#include <string>

#include "kvcove/base/result.h"
#include "kvcove/wire/owner_link.h"

namespace kvcove::owner {

struct OwnerFacts {
  Id128 identity;
  // The pool and the incarnation that the owner follows, and the highest position of their control
  // store that it has seen. A master that shows less has lost facts, perhaps also resets that the
  // disk has applied. Zero: the owner has followed no master yet.
  Id128 pool;
  Id128 incarnation;
  wire::Position seen;
  // The last opening of the directory, by which the master knows it from a copy, and the one that
  // the master has stored if it has not stored that yet (wire::OwnerHello). Zero: none was drawn.
  Id128 opening;
  Id128 opening_before;
  bool operator==(const OwnerFacts&) const = default;
};

// Returns the facts as text.
std::string Encode(const OwnerFacts& facts);
// Returns the facts of a text; nothing for a damaged one.
std::optional<OwnerFacts> DecodeOwnerFacts(const std::string& text);

// Reads the facts; nothing if the file is missing or damaged. Errors: kUnavailable.
Result<std::optional<OwnerFacts>> ReadOwnerFacts(const std::string& directory);
// Writes the facts; durable when it returns. Errors: kUnavailable.
Status WriteOwnerFacts(const std::string& directory, const OwnerFacts& facts);

}  // namespace kvcove::owner
