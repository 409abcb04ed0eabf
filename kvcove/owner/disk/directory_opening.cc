// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/disk/directory_opening.h"

namespace kvcove::owner {

void DirectoryOpening::Read(const OwnerFacts& facts) {
  now_ = facts.opening;
  before_ = facts.opening_before;
}

void DirectoryOpening::Set(OwnerFacts& facts) const {
  facts.opening = now_;
  facts.opening_before = before_;
}

void DirectoryOpening::Adopt(const OwnerFacts& facts) {
  Read(facts);
  drawn_ = now_ != Id128{};
}

void DirectoryOpening::Draw() {
  before_ = stored_;
  now_ = RandomId();
  drawn_ = true;
  written_ = false;
}

bool DirectoryOpening::Welcomed(const std::optional<Id128>& stored, std::int64_t now_ns) {
  kept_ = stored.has_value();
  if (!kept_) return false;
  stored_ = *stored;
  if (drawn_) {
    // A master that begins another incarnation asks for no opening, and may have an earlier one.
    // The next hello is asked for it, perhaps before that master has stored the present one.
    if (stored_ == now_ || stored_ == before_) return false;
    before_ = stored_;
    return true;
  }
  Draw();
  drawn_ns_ = now_ns;
  return true;
}

void DirectoryOpening::Forget() {
  stored_ = {};
  drawn_ = false;
}

bool DirectoryOpening::DrawAgain(std::int64_t now_ns) {
  if (now_ns - drawn_ns_ < again_ns_ || !DrawLast()) return false;
  drawn_ns_ = now_ns;
  return true;
}

bool DirectoryOpening::DrawLast() {
  if (!kept_ || !drawn_ || stored_ != now_) return false;
  Draw();
  return true;
}

}  // namespace kvcove::owner
