// SPDX-License-Identifier: Apache-2.0
// Look-ups and gets, which need no call: they read the mapped segment.
#include <algorithm>
#include <cstring>

#include "kvcove/base/copy.h"
#include "kvcove/base/interrupt.h"
#include "kvcove/base/size.h"
#include "kvcove/requester/local/owner_client.h"

namespace kvcove::requester {
namespace {

constexpr std::uint64_t kBeyondCaches = 32 * kMiB;  // more than a processor's caches hold
constexpr std::size_t kFetchedBytes = 512;          // prefetched of the value that is copied next

void AddMisses(Attachment& attachment, std::span<const ItemResult> results) {
  std::uint64_t counts[kMissReasons] = {};
  for (const ItemResult& result : results) {
    if (result.code == Code::kMiss) ++counts[static_cast<std::size_t>(result.reason)];
  }
  for (std::size_t i = 0; i < kMissReasons; ++i) {
    if (counts[i] > 0) {
      attachment.page().misses[i].fetch_add(counts[i], std::memory_order_relaxed);
    }
  }
}

}  // namespace

MissReason OwnerClient::AbsentReason(const segment::HeaderView& view, SlotId slot,
                                     std::string_view key) {
  return view.GhostReason(view.HashKey(slot, key));
}

segment::Event OwnerClient::EventOf(segment::EventKind kind, const segment::Found& found,
                                    std::int64_t hold_until_ms) {
  return {
      .kind = kind, .hold_until_ms = hold_until_ms, .place = found.place, .version = found.version};
}

bool OwnerClient::Refused(const Result<Scope>& scope, std::span<ItemResult> results) {
  if (scope && scope->refused == MissReason::kNone) return false;
  std::ranges::fill(results, scope ? Miss(scope->refused) : ItemResult{.code = scope.error().code});
  return true;
}

// ---- look-ups

Status OwnerClient::Exists(std::span<const std::string_view> keys, std::span<ItemResult> results,
                           const CallOptions& options) {
  const Result<Scope> scope = Enter(options, DeadlineOf(clock_, options.timeout));
  if (Refused(scope, results.first(keys.size()))) {
    if (!scope) return std::unexpected(scope.error());
    if (scope->attachment != nullptr) CountMisses(*scope->attachment, results.first(keys.size()));
    return {};
  }
  const segment::HeaderView& view = scope->attachment->header();
  segment::Found found[kFindChunk];
  bool missed = false;
  const std::int64_t hold_until_ms = HoldEnd(options.hold, clock_.NowNs());
  std::vector<segment::Event> holds;
  std::vector<std::string_view> on_disk;  // keys to promote and hold
  if (options.hold.count() > 0) holds.reserve(keys.size());
  for (std::size_t from = 0; from < keys.size(); from += kFindChunk) {
    const auto part = keys.subspan(from, std::min(kFindChunk, keys.size() - from));
    view.FindMany(scope->read.slot, part, found);
    // Generation and deadline are read once a chunk, after its entries: a reset that was proven
    // before this call is then seen for all of them.
    const MissReason voided = CheckScope(view, scope->read, scope->read.generation, clock_.NowNs());
    for (std::size_t i = 0; i < part.size(); ++i) {
      ItemResult& result = results[from + i];
      if (found[i]) {
        const MissReason reason = voided != MissReason::kNone ? voided
                                  : found[i].generation == scope->read.generation
                                      ? MissReason::kNone
                                      : MissReason::kReset;
        result = {.code = reason == MissReason::kNone ? Code::kOk : Code::kMiss,
                  .reason = reason,
                  .bytes = found[i].meta.size_bytes(),
                  .tier = reason == MissReason::kNone ? Tier::kMemory : Tier::kUnknown};
        missed = missed || reason != MissReason::kNone;
        if (options.hold.count() > 0 && result.ok()) {
          holds.push_back(EventOf(segment::EventKind::kHold, found[i], hold_until_ms));
        }
        continue;
      }
      if (view.tier().Holds(scope->read.slot, scope->read.generation, part[i])) {
        missed = missed || voided != MissReason::kNone;
        result = voided == MissReason::kNone ? ItemResult{.code = Code::kOk, .tier = Tier::kDisk}
                                             : Miss(voided);
        if (options.hold.count() > 0 && result.ok()) on_disk.push_back(part[i]);
        continue;
      }
      missed = true;
      result = CheckKey(part[i]) ? Miss(AbsentReason(view, scope->read.slot, part[i]))
                                 : ItemResult{.code = Code::kInvalid};
    }
  }
  if (!on_disk.empty())
    Prefetch(*scope, on_disk, options.hold, DeadlineOf(clock_, options.timeout));
  CountAsked(*scope->attachment, Asked::kLookups, results.first(keys.size()));
  if (!holds.empty()) scope->attachment->PushEvents(holds);
  if (missed) CountMisses(*scope->attachment, results.first(keys.size()));
  if (missed && options.under_way) {
    FindUnderWay(*scope, keys, results.first(keys.size()), DeadlineOf(clock_, options.timeout));
  }
  return {};
}

void OwnerClient::FindUnderWay(const Scope& scope, std::span<const std::string_view> keys,
                               std::span<ItemResult> results, std::int64_t deadline_ns) const {
  // Relaxed: a hint, as PublishSavesUntil.
  const auto& until_ns = scope.attachment->header().header().saves_until_ns;
  if (until_ns.load(std::memory_order_relaxed) <= clock_.NowNs()) return;
  std::vector<std::size_t> which;
  std::vector<Id128> hashes;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (results[i].code != Code::kMiss) continue;
    which.push_back(i);
    hashes.push_back(DirectoryHash(scope.read.slot, keys[i]));
  }
  const auto codes =
      scope.attachment->service().NoteSaves(TokenOf(scope), hashes, SaveNotice::kNone, deadline_ns);
  // An owner that a save keeps busy is late with its answer. "No" would end the look-up while the
  // value is being stored; its caller bounds the wait.
  const bool late = !codes && codes.error().code == Code::kTimeout;
  if (!codes && !late) return;
  for (std::size_t k = 0; k < which.size(); ++k) {
    results[which[k]].under_way = late || (*codes)[k] == Code::kInProgress;
  }
}

Status OwnerClient::Announce(const Token& token, std::span<const std::string_view> keys,
                             SaveNotice notice, const CallOptions& options) {
  if (token.slot >= kMaxSlots) return Fail(Code::kInvalid, "the token does not come from Capture");
  KVCOVE_ASSIGN(const std::shared_ptr<Attachment> attachment, Attached());
  if (attachment->header().header().saves_until_ns.load(std::memory_order_relaxed) == 0) {
    return Fail(Code::kUnavailable, "the owner takes no announcements");
  }
  std::vector<Id128> hashes;
  hashes.reserve(keys.size());
  for (const std::string_view key : keys) hashes.push_back(DirectoryHash(token.slot, key));
  const auto codes =
      attachment->service().NoteSaves(token, hashes, notice, DeadlineOf(clock_, options.timeout));
  if (!codes) return std::unexpected(codes.error());
  return {};
}

Result<std::size_t> OwnerClient::LongestPrefix(std::span<const std::string_view> keys,
                                               const CallOptions& options) {
  KVCOVE_ASSIGN(const Scope scope, Enter(options, DeadlineOf(clock_, options.timeout)));
  if (scope.refused != MissReason::kNone) return std::size_t{0};
  const segment::HeaderView& view = scope.attachment->header();
  segment::Found found[kFindChunk];
  std::size_t length = 0;
  std::size_t chunk = 4;  // most calls miss at one of the first keys
  scope.attachment->page().lookups.fetch_add(1, std::memory_order_relaxed);
  while (length < keys.size()) {
    const auto part = keys.subspan(length, std::min(chunk, keys.size() - length));
    view.FindMany(scope.read.slot, part, found);
    const std::int64_t now = clock_.NowNs();
    for (std::size_t i = 0; i < part.size(); ++i, ++length) {
      MissReason reason =
          CheckScope(view, scope.read, found[i] ? found[i].generation : scope.read.generation, now);
      const bool there =
          found[i] || view.tier().Holds(scope.read.slot, scope.read.generation, part[i]);
      if (reason == MissReason::kNone && there) continue;
      if (!there) reason = AbsentReason(view, scope.read.slot, part[i]);
      scope.attachment->page().misses[static_cast<std::size_t>(reason)].fetch_add(
          1, std::memory_order_relaxed);
      return length;
    }
    chunk = std::min(chunk * 4, kFindChunk);
  }
  return length;
}

// ---- gets

// Copies protected objects out, piece by piece, until done or the deadline.
class OwnerClient::Copier {
 public:
  // `bytes`: an upper bound of the bytes that are copied.
  Copier(const Attachment& attachment, const Clock& clock, std::int64_t deadline_ns,
         std::uint64_t bytes)
      : payload_(attachment.payload()),
        clock_(clock),
        deadline_ns_(deadline_ns),
        past_caches_(bytes >= kBeyondCaches) {}

  // Prefetches the beginning of the value that is copied next. The processor prefetches the rest by
  // itself, but only once a copy has begun, and page by page.
  void Fetch(const Extent& first) const {
    const std::span<const std::byte> room = payload_.At(first);
    const std::size_t bytes = std::min<std::size_t>(room.size(), kFetchedBytes);
    for (std::size_t at = 0; at < bytes; at += 64) __builtin_prefetch(room.data() + at);
  }

  bool Out(std::span<const Extent> extents, std::uint64_t size,
           std::span<const MutableBuffer> into) {
    auto extent = extents.begin();
    std::uint64_t extent_at = 0;
    for (auto buffer = into.begin(); buffer != into.end() && size > 0; ++buffer) {
      for (std::uint64_t at = 0; at < buffer->size && size > 0;) {
        const std::span<const std::byte> room = payload_.At(*extent);
        const std::uint64_t count =
            std::min({buffer->size - at, room.size() - extent_at, size, kCopyPiece});
        if (!InTime(count)) return false;
        Copy(static_cast<std::byte*>(buffer->data) + at, room.data() + extent_at, count);
        at += count;
        size -= count;
        extent_at += count;
        if (extent_at == room.size()) {
          ++extent;
          extent_at = 0;
        }
      }
    }
    return true;
  }

 private:
  bool InTime(std::uint64_t count) {
    copied_ += count;
    if (copied_ < kCopyPiece) return true;
    copied_ = 0;
    return LeftNs(deadline_ns_, clock_) > 0;
  }

  // Copies through the caches if all of the call fits there, because the engine reads it next.
  void Copy(std::byte* to, const std::byte* from, std::uint64_t count) const {
    if (past_caches_) {
      CopyPastCaches(to, from, count);
    } else {
      std::memcpy(to, from, count);
    }
  }

  const segment::Payload payload_;
  const Clock& clock_;
  const std::int64_t deadline_ns_;
  const bool past_caches_;
  std::uint64_t copied_ = 0;
};

// Reads up to kLaneSlots items, under one lane and one fence for as many as may be protected at
// once (segment/reader.h has the protocol).
void OwnerClient::GetWindow(const Scope& scope, std::span<const GetItem> items,
                            std::span<ItemResult> results, const Window& call) {
  Attachment& attachment = *scope.attachment;
  const segment::HeaderView& view = attachment.header();
  segment::Found found[kFindChunk];
  std::string_view keys[kFindChunk];
  for (std::size_t i = 0; i < items.size(); ++i) keys[i] = items[i].key;
  view.FindMany(scope.read.slot, {keys, items.size()}, found);
  std::size_t done = 0;
  std::vector<segment::Event> hits;
  hits.reserve(items.size());
  while (done < items.size()) {
    // Looked at while nothing is protected, because the handler of an interrupt may take long.
    if (done > 0) Interrupt::LookIfDue();
    const int lane = attachment.readers().AcquireLane(call.deadline_ns, clock_);
    if (lane < 0) {
      std::fill(results.begin() + static_cast<std::ptrdiff_t>(done), results.end(),
                ItemResult{.code = Code::kTimeout});
      break;
    }
    // Announces as many as this process may protect at a time, but at least one.
    std::uint64_t protected_bytes = 0;
    std::size_t end = done;
    {
      segment::ReadWindow window(view, attachment.page().lanes[lane]);
      for (; end < items.size(); ++end) {
        if (!found[end]) continue;
        if (!attachment.readers().AddProtected(found[end].meta.size_bytes())) break;
        protected_bytes += found[end].meta.size_bytes();
        window.Announce(found[end]);
      }
      window.Fence();
      const std::int64_t now = clock_.NowNs();
      Copier copier(attachment, clock_, call.deadline_ns, std::max(call.bytes, protected_bytes));
      for (std::size_t i = done; i < end; ++i) {
        const GetItem& item = items[i];
        ItemResult& result = results[i];
        if (!found[i]) {
          result = CheckKey(item.key) ? Miss(AbsentReason(view, scope.read.slot, item.key))
                                      : ItemResult{.code = Code::kInvalid};
          continue;
        }
        const std::uint64_t size = found[i].meta.size_bytes();
        // Confirmed after the fence, and before any byte is copied.
        if (const MissReason reason = window.Confirm(found[i], scope.read, now);
            reason != MissReason::kNone) {
          result = Miss(reason);
        } else if (HasNull(item.into)) {
          result = {.code = Code::kInvalid};
        } else if (SizeOf(item.into) < size) {
          result = {.code = Code::kBufferTooSmall, .bytes = size};
        } else {
          if (i + 1 < end && found[i + 1]) {
            Extent next[segment::kMaxExtents];
            if (view.Extents(found[i + 1], next) > 0) copier.Fetch(next[0]);
          }
          Extent extents[segment::kMaxExtents];
          const std::uint32_t count = view.Extents(found[i], extents);
          if (copier.Out({extents, count}, size, item.into)) {
            result = {.code = Code::kOk, .bytes = size, .tier = Tier::kMemory};
            hits.push_back(EventOf(segment::EventKind::kHit, found[i], HoldEnd(call.hold, now)));
          } else {
            result = {.code = Code::kTimeout};
          }
        }
      }
    }
    // After the window has cleared its slots: the next user of the lane starts with slot 0.
    attachment.readers().SubProtected(protected_bytes);
    attachment.readers().ReleaseLane(lane);
    if (end == done) {
      // Other threads of this process protect all that it may. Their copies end by themselves, so
      // this waits for them; without a lane, as other threads may wait for one.
      if (LeftNs(call.deadline_ns, clock_) <= 0) {
        results[end++] = Miss(MissReason::kLimited);
      } else {
        SleepNs(50 * kMicrosecond);
      }
    }
    done = end;
  }
  attachment.PushEvents(hits);
}

Status OwnerClient::Get(std::span<const GetItem> items, std::span<ItemResult> results,
                        const CallOptions& options) {
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  const Result<Scope> scope = Enter(options, deadline_ns);
  if (Refused(scope, results.first(items.size()))) {
    if (!scope) return std::unexpected(scope.error());
    if (scope->attachment != nullptr) CountMisses(*scope->attachment, results.first(items.size()));
    return {};
  }
  for (std::size_t from = 0; from < items.size(); from += segment::kLaneSlots) {
    const std::size_t count = std::min<std::size_t>(segment::kLaneSlots, items.size() - from);
    if (from > 0) Interrupt::LookIfDue();  // not for one window: it would cost a read of the clock
    GetWindow(*scope, items.subspan(from, count), results.subspan(from, count),
              {.hold = options.hold, .deadline_ns = deadline_ns});
  }
  if (scope->attachment->header().tier().on()) {
    GetFromDisk(*scope, items, results.first(items.size()), options, deadline_ns);
  }
  std::uint64_t bytes = 0;
  bool missed = false;
  bool late = false;
  for (const ItemResult& result : results.first(items.size())) {
    if (result.ok()) bytes += result.bytes;
    missed = missed || result.code == Code::kMiss;
    late = late || result.code == Code::kTimeout;
  }
  segment::SessionPage& page = scope->attachment->page();
  CountAsked(*scope->attachment, Asked::kGets, results.first(items.size()));
  page.bytes_read.fetch_add(bytes, std::memory_order_relaxed);
  if (missed) CountMisses(*scope->attachment, results.first(items.size()));
  if (late) return Fail(Code::kTimeout, "the deadline passed before everything was copied");
  return {};
}

// ---- counters of keys that were asked for, and missed

void OwnerClient::CountAsked(Attachment& attachment, Asked what,
                             std::span<const ItemResult> results) const {
  std::uint64_t count = results.size();
  if (one_of_several_.load(std::memory_order_relaxed)) {
    count -=
        static_cast<std::uint64_t>(std::ranges::count(results, Code::kMiss, &ItemResult::code));
  }
  segment::SessionPage& page = attachment.page();
  (what == Asked::kGets ? page.gets : page.lookups).fetch_add(count, std::memory_order_relaxed);
}

void OwnerClient::CountMisses(Attachment& attachment, std::span<const ItemResult> results) const {
  // With several owners a miss here may be a hit at the next one: CountMissed counts at the end.
  if (one_of_several_.load(std::memory_order_relaxed)) return;
  AddMisses(attachment, results);
}

void OwnerClient::CountMissed(Asked what, std::span<const ItemResult> results) const {
  const std::shared_ptr<Attachment> attachment = host_->Current();
  if (attachment == nullptr) return;
  const auto missed =
      static_cast<std::uint64_t>(std::ranges::count(results, Code::kMiss, &ItemResult::code));
  if (missed == 0) return;
  segment::SessionPage& page = attachment->page();
  (what == Asked::kGets ? page.gets : page.lookups).fetch_add(missed, std::memory_order_relaxed);
  AddMisses(*attachment, results);
}

}  // namespace kvcove::requester
