// SPDX-License-Identifier: Apache-2.0
// What a session can do, whatever its pool is: one host's (session.h) or a cluster's
// (cluster_session.h).
#pragma once

#include <map>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/requester/types.h"

namespace kvcove::requester {

// Thread-safe. Every call ends by its timeout. The returned Status is about the call as a whole
// (kInvalid for a batch that no item of which was looked at, kUnavailable, kTimeout); `results` is
// filled in any case.
class SessionApi {
 public:
  virtual ~SessionApi() = default;

  // What a put must carry: the namespace with weight version, and its generation now. Errors:
  // kClosed when this engine must reset first, kUnavailable, kTimeout, kInvalid, kLimit.
  virtual Result<Token> Capture(std::string_view version, std::chrono::milliseconds timeout) = 0;

  // Items: kOk, kExists (the old value stays), kInProgress, kStale, kClosed, kNoSpace, kLimit,
  // kInvalid, kTimeout, kUnavailable.
  virtual Status Put(const Token& token, std::span<const PutItem> items,
                     std::span<ItemResult> results, const CallOptions& options) = 0;
  // Items: kOk, kMiss with its reason, kBufferTooSmall (bytes = what the value needs), kInvalid,
  // kTimeout.
  virtual Status Get(std::span<const GetItem> items, std::span<ItemResult> results,
                     const CallOptions& options) = 0;
  // Items: kOk, kMiss, kInvalid. A hint: the get checks again.
  virtual Status Exists(std::span<const std::string_view> keys, std::span<ItemResult> results,
                        const CallOptions& options) = 0;
  // The length of the leading run of keys that are there. Stops at the first miss.
  virtual Result<std::size_t> LongestPrefix(std::span<const std::string_view> keys,
                                            const CallOptions& options) = 0;
  // Keeps what is there from being evicted for up to `duration` (at most 60 s, at most 10 % of the
  // segment a process, the oldest gives way). A held object may still be a miss: reset, removed, or
  // no other room. In a cluster only what lies on this host is held.
  virtual Status Hold(std::span<const std::string_view> keys, std::chrono::milliseconds duration,
                      std::span<ItemResult> results, const CallOptions& options) = 0;
  // Soft: evicted only when nothing else can be, for `duration`. Hard: never evicted; at most half
  // of the segment (kLimit). A reset voids both.
  virtual Status Pin(std::span<const std::string_view> keys, PinKind kind,
                     std::chrono::milliseconds duration, std::span<ItemResult> results,
                     const CallOptions& options) = 0;
  virtual Status Unpin(std::span<const std::string_view> keys, std::span<ItemResult> results,
                       const CallOptions& options) = 0;
  // Puts of the key that are under way fail with kStale.
  virtual Status Remove(std::span<const std::string_view> keys, std::span<ItemResult> results,
                        const CallOptions& options) = 0;
  // `pattern`: `*` any bytes, `?` one. A prefix is "prefix*". Linear in the number of objects.
  virtual Result<std::uint64_t> RemoveMatching(std::string_view pattern,
                                               const CallOptions& options) = 0;
  virtual Result<std::vector<std::optional<ObjectStat>>> StatObjects(
      std::span<const std::string_view> keys, const CallOptions& options) = 0;

  // What is stored under keys that start with `prefix`, each once, in no order. Walks over all
  // objects of all owners that answer: for people and for rare calls. Errors: kLimit beyond
  // kMaxListed keys.
  virtual Result<std::vector<StoredObject>> List(std::string_view prefix,
                                                 const CallOptions& options) = 0;
  // O(1) an owner. Each owner counts for itself: an object on two counts twice.
  virtual Result<ObjectCount> Count(const CallOptions& options) = 0;
  // The owners (host:port) that hold each key, none for a miss; "local" in a pool of one host.
  virtual Result<std::vector<std::vector<std::string>>> Where(
      std::span<const std::string_view> keys, const CallOptions& options) = 0;

  // Ok: proven; no look-up or get that begins anywhere from now on finds what was begun before.
  // kNotProven: this session neither finds nor stores until the reset, repeated in the background,
  // is proven.
  virtual Status Reset(const ResetOptions& options) = 0;
  // The versions that this engine still uses; others are reclaimed first.
  virtual Status NameVersions(std::span<const std::string> versions,
                              std::chrono::milliseconds timeout) = 0;
  // True while an unproven reset keeps this session from finding and storing.
  virtual bool closed() const = 0;
};

inline constexpr std::size_t kMaxListed = 1 << 20;
// Adds all pages of one service to `objects`.
Status ListFrom(wire::HostService& service, SlotId slot, std::string_view prefix,
                std::int64_t deadline_ns, std::map<std::string, StoredObject>& objects);
Result<ObjectCount> CountFrom(wire::HostService& service, SlotId slot, std::int64_t deadline_ns);
std::vector<StoredObject> ValuesOf(std::map<std::string, StoredObject> objects);
// kUnavailable in a forked child, kInvalid when there is no room for the results, or too many
// items.
Status CheckBatch(unsigned forks, std::size_t items, std::size_t results);
// What sessions with these options ask the master.
// `reset`: the session's last one that was proven. What it bound the engine to is told to the
// master, as long as the caller knows of nothing newer.
wire::RegisterRequest RegistrationOf(const SessionOptions& options, std::string_view version,
                                     const wire::ResetOutcome& reset);
wire::ResetRequest ResetOf(const SessionOptions& options, const ResetOptions& reset);
// The key that the item's chunk follows: its own word, or the item before it if that has a key that
// can be stored.
std::string_view AfterOf(std::span<const PutItem> items, std::size_t i, const CallOptions& options);
std::int64_t DeadlineOf(const Clock& clock, std::chrono::milliseconds timeout);
ItemResult Miss(MissReason reason);
// Why nothing was found when the authority did not answer: kTimeout (there was no time to; asking
// again may help) or kUnavailable.
MissReason UnansweredReason(const Error& error);
std::uint64_t SizeOf(std::span<const ConstBuffer> pieces);
std::uint64_t SizeOf(std::span<const MutableBuffer> pieces);

}  // namespace kvcove::requester
