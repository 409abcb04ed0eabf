// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/tier/disk_state.h"

namespace kvcove::owner {

std::optional<std::uint64_t> DiskState::reporting_in() const {
  return reporting() ? std::optional(era_) : std::nullopt;
}

std::optional<std::uint64_t> DiskState::unnoted_in() const {
  return on() && note_ == Note::kStruck ? std::optional(era_) : std::nullopt;
}

bool DiskState::SetOn() {
  if (state_ != State::kOpening) return false;
  state_ = State::kOn;
  return true;
}

bool DiskState::Use(State as) {
  if (!opening() && state_ != State::kAside) return false;
  state_ = as;
  why_.clear();
  // Puts of keys on the disk need no strike any more: the disk finds these keys itself.
  if (note_ == Note::kMustBeStruck) note_ = Note::kNamed;
  return true;
}

bool DiskState::SetOnReported(std::uint64_t era) {
  if (!reporting() || era_ != era) return false;
  state_ = State::kOn;
  return true;
}

// The disk's era has ended already if the disk is aside: then only the state changes.
bool DiskState::EndEra(State next, const std::string& why) {
  const bool ends = !aside();
  state_ = next;
  if (!ends) return false;
  why_ = why;
  ++era_;
  return true;
}

bool DiskState::SetAside(const std::string& why) { return !aside() && EndEra(State::kAside, why); }

bool DiskState::Void(const std::string& why) {
  return state_ != State::kUnmounted && EndEra(State::kVoided, why);
}

bool DiskState::Unmount(const std::string& why) { return EndEra(State::kUnmounted, why); }

bool DiskState::UseAnew() {
  if (state_ != State::kVoided) return false;
  state_ = State::kAside;
  return true;
}

// A disk that is being reported must be reported again: its report ends with the era.
bool DiskState::Pause() {
  return !aside() &&
         EndEra(reporting() || state_ == State::kReopening ? State::kReopening : State::kOpening,
                {});
}

// Keeps kMustBeStruck: a put still waits for that strike.
void DiskState::Name() {
  if (note_ == Note::kStruck) note_ = Note::kNamed;
}

bool DiskState::Cover() {
  if (on() || note_ == Note::kStruck) return false;
  note_ = Note::kMustBeStruck;
  return true;
}

}  // namespace kvcove::owner
