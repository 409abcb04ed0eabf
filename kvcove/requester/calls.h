// SPDX-License-Identifier: Apache-2.0
// Helpers that sessions and their clients of owners share. All are thread-safe.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/model/prefix_count.h"
#include "kvcove/requester/types.h"
#include "kvcove/wire/messages.h"

namespace kvcove::requester {

// Return the error of a call that could not be made.
std::unexpected<Error> NotConnected();
std::unexpected<Error> NotProven();
std::unexpected<Error> MustReset();

inline constexpr std::size_t kMaxListed = 1 << 20;
// Adds the objects of one owner, page by page, to `objects`. Errors: kLimit beyond kMaxListed, and
// those of the calls.
Status ListFrom(wire::ObjectService& service, SlotId slot, std::string_view prefix,
                std::int64_t deadline_ns, std::map<std::string, StoredObject>& objects);
Result<ObjectCount> CountFrom(wire::ObjectService& service, SlotId slot, std::int64_t deadline_ns);
std::vector<StoredObject> ValuesOf(std::map<std::string, StoredObject> objects);
// Return the requests of a session with these options. `reset`: the session's last proven reset; a
// registration without a version reports its generation to the master, which may have restarted.
wire::RegisterRequest RegistrationOf(const SessionOptions& options, std::string_view version,
                                     const wire::ResetOutcome& reset);
wire::ResetRequest ResetOf(const SessionOptions& options, const ResetOptions& reset);
// Makes one attempt of a reset at the authority over generations: the master, or an owner of a host
// that is a pool of its own. `known`: the session has registered for the request's version, and may
// have returned to it without a call. The authority takes a reset to another version than the last
// registered one for a change of version, which voids nothing, unless the request says that the
// engine has registered for it. Authorities of earlier builds do not read that. So a known version
// is registered first, too, and if that fails the reset is not sent: alone it would be answered as
// proven, and void nothing. An authority that has no room for the registration, or denies it, has
// nothing to void.
Result<wire::ResetOutcome> AttemptReset(wire::GenerationService& authority,
                                        const SessionOptions& options,
                                        const wire::ResetRequest& request, bool known,
                                        std::int64_t deadline_ns);
// Prunes, and repeats the call until the deadline while nobody answers it (kUnavailable: masters
// elect a leader, or one starts again). Returns the number of versions that have died.
using AskPrune = std::function<Result<wire::PruneOutcome>(std::int64_t deadline_ns)>;
Result<std::uint64_t> PruneUntil(const Clock& clock, std::int64_t deadline_ns, const AskPrune& ask);
// Returns the key of the chunk before item `i` of a batch of PutItem or ReserveItem: its `after`,
// or else the key of the item before it, if that is a valid key.
template <typename Item>
std::string_view AfterOf(std::span<const Item> items, std::size_t i, const CallOptions& options) {
  if (!items[i].after.empty()) return items[i].after;
  if (i == 0) return options.after;
  return CheckKey(items[i - 1].key) ? items[i - 1].key : std::string_view();
}
// Returns the end of a hold that begins now, as segment::Event has it; 0 for none.
std::int64_t HoldEnd(std::chrono::milliseconds hold, std::int64_t now_ns);
// Returns now plus `timeout`, which is bounded to one hour.
std::int64_t DeadlineOf(const Clock& clock, std::chrono::milliseconds timeout);
ItemResult Miss(MissReason reason);
// Checks each key. Errors: those of CheckKey, for the first key that is not valid.
Status CheckKeys(std::span<const std::string_view> keys);
// Returns the answer of Session::Locate. `names`: of the owners, by number; a part of an owner
// without a name is left out.
LocatedPrefix LocatedOf(const PrefixShares& shares,
                        const std::map<std::uint16_t, std::string>& names);
// Checks the duration of a pin, and fills `results` if it is refused. Errors: kInvalid for a hard
// pin whose time to live is negative or beyond kLongestHardPin.
Status CheckPin(PinKind kind, std::chrono::milliseconds duration, std::span<ItemResult> results);
// Returns a pin's duration as owners take it: 0 to kLongestSoftPin.
std::int64_t PinNs(std::chrono::milliseconds duration);
// Returns `failed` if an item still has its code; otherwise another owner has answered for all
// items, and the call succeeded.
Status FailureShown(const Status& failed, std::span<const ItemResult> results);
// Returns the reason of misses if the authority did not answer: kTimeout (a later call may
// succeed), kLimited (the authority is busy, and may not be asked again before the deadline),
// kDenied or kUnavailable.
MissReason UnansweredReason(const Error& error);
std::uint64_t SizeOf(std::span<const ConstBuffer> pieces);
std::uint64_t SizeOf(std::span<const MutableBuffer> pieces);
// True if a piece has bytes but no address.
bool HasNull(std::span<const ConstBuffer> pieces);
bool HasNull(std::span<const MutableBuffer> pieces);

}  // namespace kvcove::requester
