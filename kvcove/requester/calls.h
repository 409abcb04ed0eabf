// SPDX-License-Identifier: Apache-2.0
// What sessions and their clients of owners have in common.
#pragma once

#include <map>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/requester/types.h"
#include "kvcove/wire/messages.h"

namespace kvcove::requester {

// Why a call could not be made.
std::unexpected<Error> NotConnected();
std::unexpected<Error> NotProven();
std::unexpected<Error> MustReset();

inline constexpr std::size_t kMaxListed = 1 << 20;
// Adds all pages of one service to `objects`.
Status ListFrom(wire::ObjectService& service, SlotId slot, std::string_view prefix,
                std::int64_t deadline_ns, std::map<std::string, StoredObject>& objects);
Result<ObjectCount> CountFrom(wire::ObjectService& service, SlotId slot, std::int64_t deadline_ns);
std::vector<StoredObject> ValuesOf(std::map<std::string, StoredObject> objects);
// What sessions with these options ask the master.
// `reset`: the session's last one that was proven. What it bound the engine to is told to the
// master, as long as the caller knows of nothing newer.
wire::RegisterRequest RegistrationOf(const SessionOptions& options, std::string_view version,
                                     const wire::ResetOutcome& reset);
wire::ResetRequest ResetOf(const SessionOptions& options, const ResetOptions& reset);
// The key that the item's chunk follows: its own word, or the item before it if that has a key that
// can be stored. Of PutItem and ReserveItem.
template <typename Item>
std::string_view AfterOf(std::span<const Item> items, std::size_t i, const CallOptions& options) {
  if (!items[i].after.empty()) return items[i].after;
  if (i == 0) return options.after;
  return CheckKey(items[i - 1].key) ? items[i - 1].key : std::string_view();
}
// The end of a hold that begins now, as segment::Event has it; 0 for none.
std::int64_t HoldEnd(std::chrono::milliseconds hold, std::int64_t now_ns);
std::int64_t DeadlineOf(const Clock& clock, std::chrono::milliseconds timeout);
ItemResult Miss(MissReason reason);
// The failure of a call that asked several owners counts only where an item still shows it.
Status FailureShown(const Status& failed, std::span<const ItemResult> results);
// Why nothing was found when the authority did not answer: kTimeout (there was no time to; asking
// again may help), kLimited (it is busy, and the deadline comes before it may be asked again),
// kDenied or kUnavailable.
MissReason UnansweredReason(const Error& error);
std::uint64_t SizeOf(std::span<const ConstBuffer> pieces);
std::uint64_t SizeOf(std::span<const MutableBuffer> pieces);
// Is there a piece with bytes and no address?
bool HasNull(std::span<const ConstBuffer> pieces);
bool HasNull(std::span<const MutableBuffer> pieces);

}  // namespace kvcove::requester
