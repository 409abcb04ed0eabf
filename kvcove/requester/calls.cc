// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/calls.h"

#include <fmt/core.h>

#include <algorithm>

#include "kvcove/base/clock.h"
#include "kvcove/base/interrupt.h"
#include "kvcove/base/random.h"
#include "kvcove/rpc/busy.h"
#include "kvcove/segment/reader.h"

namespace kvcove::requester {

wire::RegisterRequest RegistrationOf(const SessionOptions& options, std::string_view version,
                                     const wire::ResetOutcome& reset) {
  wire::RegisterRequest request{.name = options.name,
                                .version = std::string(version),
                                .engine = options.engine,
                                .follow_always = options.follow_always,
                                .assume_weights = options.assume_weights};
  if (version.empty()) {
    request.last_incarnation = reset.incarnation;
    request.last_generation = reset.generation;
  }
  return request;
}

wire::ResetRequest ResetOf(const SessionOptions& options, const ResetOptions& reset) {
  wire::ResetRequest request{
      .name = options.name, .engine = {}, .version = reset.version, .id = RandomId()};
  if (!reset.all_void) request.engine = options.engine;
  return request;
}

Result<wire::ResetOutcome> AttemptReset(wire::GenerationService& authority,
                                        const SessionOptions& options,
                                        const wire::ResetRequest& request, bool known,
                                        std::int64_t deadline_ns) {
  if (known) {
    const auto registered =
        authority.Register(RegistrationOf(options, *request.version, {}), deadline_ns);
    // An authority that has no room for a registration either has given the version's slot away, so
    // that nothing is left to void, or has no registration of this engine, and then takes the
    // reset for one of the current version. A busy one has answered nothing about it.
    const bool full =
        !registered && registered.error().code == Code::kLimit && !rpc::BusyIn(registered.error());
    // One that denies it has lost the version, or given its slot away, and this token may not make
    // it anew (it does not write). Nothing is left to void then, and whether the token may reset is
    // the answer to the reset.
    const bool denied = !registered && registered.error().code == Code::kDenied;
    if (!registered && !full && !denied) return std::unexpected(registered.error());
  }
  wire::ResetRequest marked = request;
  marked.registered = known;
  return authority.Reset(marked, deadline_ns);
}

Result<std::uint64_t> PruneUntil(const Clock& clock, std::int64_t deadline_ns,
                                 const AskPrune& ask) {
  constexpr std::int64_t kPauseNs = 50 * kMillisecond;
  while (true) {
    const Result<wire::PruneOutcome> outcome = ask(deadline_ns);
    if (outcome) return outcome->versions;
    const std::int64_t left_ns = LeftNs(deadline_ns, clock);
    if (outcome.error().code != Code::kUnavailable || left_ns <= kPauseNs) {
      return std::unexpected(outcome.error());
    }
    SleepNs(kPauseNs);
  }
}

std::int64_t HoldEnd(std::chrono::milliseconds hold, std::int64_t now_ns) {
  if (hold.count() <= 0) return 0;
  return now_ns / kMillisecond + std::min(hold, segment::kLongestHold).count();
}

std::int64_t DeadlineOf(const Clock& clock, std::chrono::milliseconds timeout) {
  return clock.NowNs() + std::clamp<std::int64_t>(timeout.count(), 0, 3'600'000) * kMillisecond;
}

ItemResult Miss(MissReason reason) { return {.code = Code::kMiss, .reason = reason}; }

Status CheckKeys(std::span<const std::string_view> keys) {
  for (const std::string_view key : keys) KVCOVE_TRY(CheckKey(key));
  return {};
}

LocatedPrefix LocatedOf(const PrefixShares& shares,
                        const std::map<std::uint16_t, std::string>& names) {
  LocatedPrefix located{.keys = shares.keys, .reason = shares.reason};
  for (const PrefixShare& share : shares.owners) {
    const auto name = names.find(share.owner);
    if (name == names.end()) continue;
    located.owners.push_back({.owner = name->second,
                              .prefix = share.prefix,
                              .memory_prefix = share.memory_prefix,
                              .memory = share.memory,
                              .disk = share.disk});
  }
  return located;
}

Status CheckPin(PinKind kind, std::chrono::milliseconds duration, std::span<ItemResult> results) {
  if (kind != PinKind::kHard) return {};
  if (duration.count() >= 0 && duration <= kLongestHardPin) return {};
  std::ranges::fill(results, ItemResult{.code = Code::kInvalid});
  return Fail(Code::kInvalid,
              "a hard pin's time to live is at most 24 hours; 0 stands for a pin without an end");
}

std::int64_t PinNs(std::chrono::milliseconds duration) {
  return std::clamp(duration, std::chrono::milliseconds(0), kLongestSoftPin).count() * kMillisecond;
}

Status FailureShown(const Status& failed, std::span<const ItemResult> results) {
  if (failed) return {};
  const bool shown = std::ranges::any_of(
      results, [&](const ItemResult& result) { return result.code == failed.error().code; });
  return shown ? failed : Status();
}

MissReason UnansweredReason(const Error& error) {
  if (rpc::BusyIn(error)) return MissReason::kLimited;
  if (error.code == Code::kDenied) return MissReason::kDenied;
  return error.code == Code::kTimeout ? MissReason::kTimeout : MissReason::kUnavailable;
}

std::uint64_t SizeOf(std::span<const ConstBuffer> pieces) {
  std::uint64_t size = 0;
  for (const ConstBuffer& piece : pieces) size += piece.size;
  return size;
}

std::uint64_t SizeOf(std::span<const MutableBuffer> pieces) {
  std::uint64_t size = 0;
  for (const MutableBuffer& piece : pieces) size += piece.size;
  return size;
}

bool HasNull(std::span<const ConstBuffer> pieces) {
  return std::ranges::any_of(
      pieces, [](const ConstBuffer& piece) { return piece.data == nullptr && piece.size > 0; });
}

bool HasNull(std::span<const MutableBuffer> pieces) {
  return std::ranges::any_of(
      pieces, [](const MutableBuffer& piece) { return piece.data == nullptr && piece.size > 0; });
}

std::unexpected<Error> NotConnected() {
  return Fail(Code::kUnavailable, "not connected to the pool; connecting again");
}

std::unexpected<Error> NotProven() {
  return Fail(Code::kClosed, "a reset of this session has not been proven yet");
}

std::unexpected<Error> MustReset() {
  return Fail(Code::kClosed,
              "this namespace has been reset by another engine, or with the pool, which lost its "
              "store: nothing says that this engine has the new weights until it resets, too");
}

Status ListFrom(wire::ObjectService& service, SlotId slot, std::string_view prefix,
                std::int64_t deadline_ns, std::map<std::string, StoredObject>& objects) {
  wire::InventoryRequest request{.at_most = wire::kMaxPage,
                                 .slot = slot,
                                 .prefix = std::string(prefix),
                                 .with_keys = true,
                                 .disks = true};
  while (request.cursor != wire::kInventoryDone) {
    KVCOVE_ASSIGN(const wire::InventoryReply page, service.Page(request, deadline_ns));
    for (const wire::HeldObject& object : page.objects) {
      // An object may be listed twice, once for each tier, or as it moves during the walk.
      const auto [at, fresh] = objects.try_emplace(object.key);
      StoredObject& stored = at->second;
      stored.key = object.key;
      if (fresh || object.tier == Tier::kMemory) stored.tier = object.tier;
      stored.size_bytes = object.size_bytes;
      stored.hard_pinned = stored.hard_pinned || object.hard_pinned;
      stored.soft_pinned = stored.soft_pinned || object.soft_pinned;
      stored.held = stored.held || object.held;
    }
    if (objects.size() > kMaxListed) {
      return Fail(Code::kLimit, fmt::format("more than {} keys; name a longer prefix", kMaxListed));
    }
    request.cursor = page.cursor;
    request.within = page.within;
    request.since = page.since;
  }
  return {};
}

Result<ObjectCount> CountFrom(wire::ObjectService& service, SlotId slot, std::int64_t deadline_ns) {
  KVCOVE_ASSIGN(
      const wire::InventoryReply page,
      service.Page({.cursor = wire::kInventoryDone, .at_most = 1, .slot = slot}, deadline_ns));
  return ObjectCount{.generation = page.generation, .objects = page.live, .voided = page.voided};
}

std::vector<StoredObject> ValuesOf(std::map<std::string, StoredObject> objects) {
  std::vector<StoredObject> values;
  values.reserve(objects.size());
  for (auto& [key, object] : objects) values.push_back(std::move(object));
  return values;
}

}  // namespace kvcove::requester
