// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/host_session.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "kvcove/base/log.h"
#include "kvcove/base/size.h"

namespace kvcove::requester {
namespace {

constexpr std::size_t kFindChunk = segment::HeaderView::kFindMany;
constexpr std::uint64_t kCopyPiece = kMiB;                // between two looks at the deadline
constexpr std::uint64_t kInlineFrameBytes = kMiB;         // of values in one request
constexpr std::uint64_t kReserveWindowBytes = 64 * kMiB;  // reserved at a time
constexpr std::size_t kReserveWindowItems = 1024;
constexpr std::int64_t kAskAgainNs = 50 * kMillisecond;

template <typename Buffers>
bool HasNull(const Buffers& pieces) {
  return std::any_of(pieces.begin(), pieces.end(),
                     [](const auto& piece) { return piece.data == nullptr && piece.size > 0; });
}

MissReason AbsentReason(const segment::HeaderView& view, SlotId slot, std::string_view key) {
  return view.GhostReason(view.HashKey(slot, key));
}

// What a put's code says: stored although the master has not listed it is a success, too.
ItemResult Stored(Code code, std::uint64_t bytes) {
  if (code == Code::kNotListed) return {.code = Code::kOk, .bytes = bytes, .listed = false};
  return {.code = code, .bytes = bytes};
}

segment::Event EventOf(segment::EventKind kind, const segment::Found& found,
                       std::chrono::milliseconds hold) {
  return {
      .kind = kind,
      .hold_ms = static_cast<std::uint32_t>(std::clamp<std::int64_t>(hold.count(), 0, 0xFFFFFF)),
      .place = found.place,
      .version = found.version};
}

}  // namespace

HostSession::HostSession(std::shared_ptr<Host> host, SessionOptions options, const Clock& clock)
    : host_(std::move(host)),
      options_(std::move(options)),
      clock_(clock),
      resets_(
          options_.name,
          [this](const wire::ResetRequest& request, std::int64_t deadline_ns) {
            return TryReset(request, deadline_ns);
          },
          clock) {
  host_->AddSession(options_.name, options_.engine);
}

HostSession::~HostSession() {
  resets_.Stop();
  if (!host_->DropSession(options_.name, options_.engine)) return;
  const std::shared_ptr<Attachment> attachment = host_->Current();
  if (attachment != nullptr && attachment->connected()) {
    (void)attachment->service().EndEngine(options_.name, options_.engine,
                                          clock_.NowNs() + 100 * kMillisecond);
  }
}

// ---- binding

Result<HostSession::Binding> HostSession::Bind(Attachment& attachment, std::string_view version,
                                               std::int64_t deadline_ns) {
  wire::RegisterRequest request;
  {
    const MutexLock lock(bindings_mutex_);
    request = RegistrationOf(options_, version, reset_to_);
    if (const Binding* known = bindings_.Find(version); known != nullptr) {
      const Binding& binding = *known;
      if (binding.attachment == attachment.number() &&
          binding.generation == attachment.header().generation(binding.slot) &&
          (binding.open || clock_.NowNs() < binding.ask_again_ns)) {
        return binding;
      }
      if (binding.attachment != attachment.number() && binding.open) {
        request.last_incarnation = binding.incarnation;
        request.last_generation = binding.generation;
      }
    }
  }
  KVCOVE_ASSIGN(const wire::Registration registration,
                attachment.service().Register(request, deadline_ns));
  const Binding binding{.attachment = attachment.number(),
                        .incarnation = registration.incarnation,
                        .slot = registration.slot,
                        .generation = registration.generation,
                        .open = registration.open,
                        .ask_again_ns = clock_.NowNs() + kAskAgainNs};
  const MutexLock lock(bindings_mutex_);
  bindings_.Set(version, binding);
  return binding;
}

Result<HostSession::Scope> HostSession::Enter(const CallOptions& options,
                                              std::int64_t deadline_ns) {
  Scope scope;
  if (closed()) {
    scope.refused = MissReason::kClosed;
    return scope;
  }
  scope.attachment = host_->Current();
  if (scope.attachment == nullptr || !scope.attachment->connected()) {
    scope.refused = MissReason::kUnavailable;
    return scope;
  }
  // An owner that is frozen would not answer a registration, either.
  if (!scope.attachment->header().LeaseHolds(clock_.NowNs())) {
    scope.refused = MissReason::kLease;
    return scope;
  }
  const Result<Binding> binding = Bind(*scope.attachment, options.version, deadline_ns);
  if (!binding) {
    if (binding.error().code == Code::kInvalid || binding.error().code == Code::kLimit) {
      return std::unexpected(binding.error());
    }
    scope.refused = UnansweredReason(binding.error());
    return scope;
  }
  scope.read = {.slot = binding->slot, .generation = binding->generation};
  if (!binding->open) scope.refused = MissReason::kClosed;
  return scope;
}

Result<Token> HostSession::Capture(const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(0, 0));
  if (closed()) return Fail(Code::kClosed, "a reset of this session has not been proven yet");
  const std::shared_ptr<Attachment> attachment = host_->Current();
  if (attachment == nullptr || !attachment->connected()) {
    return Fail(Code::kUnavailable, "not connected to the pool; connecting again");
  }
  KVCOVE_ASSIGN(const Binding binding,
                Bind(*attachment, options.version, DeadlineOf(clock_, options.timeout)));
  if (!binding.open) {
    return Fail(Code::kClosed,
                "another engine has reset this namespace: nothing says that this "
                "engine has the new weights until it resets, too");
  }
  return Token{
      .incarnation = binding.incarnation, .generation = binding.generation, .slot = binding.slot};
}

void HostSession::CountMisses(Attachment& attachment, std::span<const ItemResult> results) const {
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

// ---- look-ups

Status HostSession::Exists(std::span<const std::string_view> keys, std::span<ItemResult> results,
                           const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(keys.size(), results.size()));
  const Result<Scope> scope = Enter(options, DeadlineOf(clock_, options.timeout));
  if (!scope || scope->refused != MissReason::kNone) {
    const ItemResult none = scope ? Miss(scope->refused) : ItemResult{.code = scope.error().code};
    std::fill_n(results.begin(), keys.size(), none);
    if (!scope) return std::unexpected(scope.error());
    if (scope->attachment != nullptr) CountMisses(*scope->attachment, results.first(keys.size()));
    return {};
  }
  const segment::HeaderView& view = scope->attachment->header();
  segment::Found found[kFindChunk];
  bool missed = false;
  std::vector<segment::Event> holds;
  if (options.hold.count() > 0) holds.reserve(keys.size());
  for (std::size_t from = 0; from < keys.size(); from += kFindChunk) {
    const auto part = keys.subspan(from, std::min(kFindChunk, keys.size() - from));
    view.FindMany(scope->read.slot, part, found);
    // One look at generation and deadline a chunk, after the entries were read.
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
          holds.push_back(EventOf(segment::EventKind::kHold, found[i], options.hold));
        }
        continue;
      }
      missed = true;
      result = CheckKey(part[i]) ? Miss(AbsentReason(view, scope->read.slot, part[i]))
                                 : ItemResult{.code = Code::kInvalid};
    }
  }
  scope->attachment->page().lookups.fetch_add(keys.size(), std::memory_order_relaxed);
  if (!holds.empty()) scope->attachment->PushEvents(holds);
  if (missed) CountMisses(*scope->attachment, results.first(keys.size()));
  return {};
}

Result<std::size_t> HostSession::LongestPrefix(std::span<const std::string_view> keys,
                                               const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(keys.size(), keys.size()));
  KVCOVE_ASSIGN(const Scope scope, Enter(options, DeadlineOf(clock_, options.timeout)));
  if (scope.refused != MissReason::kNone) return std::size_t{0};
  const segment::HeaderView& view = scope.attachment->header();
  segment::Found found[kFindChunk];
  std::size_t length = 0;
  std::size_t chunk = 4;  // most misses come at once
  scope.attachment->page().lookups.fetch_add(1, std::memory_order_relaxed);
  while (length < keys.size()) {
    const auto part = keys.subspan(length, std::min(chunk, keys.size() - length));
    view.FindMany(scope.read.slot, part, found);
    const std::int64_t now = clock_.NowNs();
    for (std::size_t i = 0; i < part.size(); ++i, ++length) {
      MissReason reason = MissReason::kNone;
      if (!found[i])
        reason = AbsentReason(view, scope.read.slot, part[i]);
      else
        reason = CheckScope(view, scope.read, found[i].generation, now);
      if (reason == MissReason::kNone && found[i]) continue;
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
class HostSession::Copier {
 public:
  Copier(const Attachment& attachment, const Clock& clock, std::int64_t deadline_ns)
      : payload_(attachment.payload()), clock_(clock), deadline_ns_(deadline_ns) {}

  bool Out(std::span<const Extent> extents, std::uint64_t size,
           std::span<const MutableBuffer> into) {
    auto extent = extents.begin();
    std::uint64_t extent_at = 0;
    for (auto buffer = into.begin(); buffer != into.end() && size > 0; ++buffer) {
      for (std::uint64_t at = 0; at < buffer->size && size > 0;) {
        const std::uint64_t extent_bytes = extent->count * segment::kGranule;
        const std::uint64_t count =
            std::min({buffer->size - at, extent_bytes - extent_at, size, kCopyPiece});
        if (!InTime(count)) return false;
        std::memcpy(static_cast<std::byte*>(buffer->data) + at,
                    payload_ + extent->start * segment::kGranule + extent_at, count);
        at += count;
        size -= count;
        extent_at += count;
        if (extent_at == extent_bytes) {
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
    return clock_.NowNs() < deadline_ns_;
  }

  const std::byte* payload_;
  const Clock& clock_;
  const std::int64_t deadline_ns_;
  std::uint64_t copied_ = 0;
};

// Up to kLaneSlots items under one lane and one fence.
void HostSession::GetWindow(const Scope& scope, std::span<const GetItem> items,
                            std::span<ItemResult> results, std::chrono::milliseconds hold,
                            std::int64_t deadline_ns) {
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
    const int lane = attachment.AcquireLane(deadline_ns, clock_);
    if (lane < 0) {
      std::fill(results.begin() + static_cast<std::ptrdiff_t>(done), results.end(),
                ItemResult{.code = Code::kTimeout});
      break;
    }
    // As many as this process may protect at a time, at least one.
    std::uint64_t protected_bytes = 0;
    std::size_t end = done;
    {
      segment::ReadWindow window(view, attachment.page().lanes[lane]);
      for (; end < items.size(); ++end) {
        if (!found[end]) continue;
        if (!attachment.AddProtected(found[end].meta.size_bytes())) break;
        protected_bytes += found[end].meta.size_bytes();
        window.Announce(found[end]);
      }
      window.Fence();
      const std::int64_t now = clock_.NowNs();
      Copier copier(attachment, clock_, deadline_ns);
      for (std::size_t i = done; i < end; ++i) {
        const GetItem& item = items[i];
        ItemResult& result = results[i];
        if (!found[i]) {
          result = CheckKey(item.key) ? Miss(AbsentReason(view, scope.read.slot, item.key))
                                      : ItemResult{.code = Code::kInvalid};
          continue;
        }
        const std::uint64_t size = found[i].meta.size_bytes();
        if (const MissReason reason = window.Confirm(found[i], scope.read, now);
            reason != MissReason::kNone) {
          result = Miss(reason);
        } else if (HasNull(item.into)) {
          result = {.code = Code::kInvalid};
        } else if (SizeOf(item.into) < size) {
          result = {.code = Code::kBufferTooSmall, .bytes = size};
        } else {
          Extent extents[segment::kMaxExtents];
          const std::uint32_t count = view.Extents(found[i], extents);
          if (copier.Out({extents, count}, size, item.into)) {
            result = {.code = Code::kOk, .bytes = size, .tier = Tier::kMemory};
            hits.push_back(EventOf(segment::EventKind::kHit, found[i], hold));
          } else {
            result = {.code = Code::kTimeout};
          }
        }
      }
    }
    attachment.SubProtected(protected_bytes);
    attachment.ReleaseLane(lane);
    if (end == done) {
      // Other threads of this process protect all that it may; their copies end by themselves.
      if (clock_.NowNs() >= deadline_ns) {
        results[end++] = Miss(MissReason::kLimited);
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
    done = end;
  }
  attachment.PushEvents(hits);
}

Status HostSession::Get(std::span<const GetItem> items, std::span<ItemResult> results,
                        const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(items.size(), results.size()));
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  const Result<Scope> scope = Enter(options, deadline_ns);
  if (!scope || scope->refused != MissReason::kNone) {
    const ItemResult none = scope ? Miss(scope->refused) : ItemResult{.code = scope.error().code};
    std::fill_n(results.begin(), items.size(), none);
    if (!scope) return std::unexpected(scope.error());
    if (scope->attachment != nullptr) CountMisses(*scope->attachment, results.first(items.size()));
    return {};
  }
  for (std::size_t from = 0; from < items.size(); from += segment::kLaneSlots) {
    const std::size_t count = std::min<std::size_t>(segment::kLaneSlots, items.size() - from);
    GetWindow(*scope, items.subspan(from, count), results.subspan(from, count), options.hold,
              deadline_ns);
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
  page.gets.fetch_add(items.size(), std::memory_order_relaxed);
  page.bytes_read.fetch_add(bytes, std::memory_order_relaxed);
  if (missed) CountMisses(*scope->attachment, results.first(items.size()));
  if (late) return Fail(Code::kTimeout, "the deadline passed before everything was copied");
  return {};
}

// ---- puts

bool HostSession::CopyIn(Attachment& attachment, const PutItem& item,
                         std::span<const Extent> extents, std::int64_t deadline_ns) const {
  auto extent = extents.begin();
  std::uint64_t extent_at = 0;
  std::uint64_t since_look = 0;
  for (const ConstBuffer& piece : item.value) {
    for (std::uint64_t at = 0; at < piece.size;) {
      if (extent == extents.end()) return false;
      const std::uint64_t extent_bytes = extent->count * segment::kGranule;
      if (std::uint64_t{extent->start} * segment::kGranule + extent_bytes >
          attachment.payload_bytes()) {
        return false;  // no extent of this segment
      }
      const std::uint64_t count = std::min({piece.size - at, extent_bytes - extent_at, kCopyPiece});
      std::memcpy(attachment.payload() + extent->start * segment::kGranule + extent_at,
                  static_cast<const std::byte*>(piece.data) + at, count);
      at += count;
      extent_at += count;
      since_look += count;
      if (extent_at == extent_bytes) {
        ++extent;
        extent_at = 0;
      }
      if (since_look >= kCopyPiece) {
        since_look = 0;
        if (clock_.NowNs() >= deadline_ns) return false;
      }
    }
  }
  return true;
}

// Small values travel with the request: staged, if the attachment has a place for that which is
// free, else within it.
Status HostSession::PutInline(Attachment& attachment, const Token& token,
                              std::span<const PutItem> items,
                              std::span<const std::string_view> afters,
                              std::span<const std::size_t> which, std::span<ItemResult> results,
                              std::int64_t deadline_ns) {
  StagedValues staged(attachment);
  std::vector<std::vector<std::byte>> joined;  // values that come in several pieces
  std::vector<wire::PutItem> request;
  request.reserve(which.size());
  for (const std::size_t i : which) {
    const PutItem& item = items[i];
    const std::uint64_t bytes = results[i].bytes;
    wire::PutItem& put =
        request.emplace_back(wire::PutItem{.key = item.key,
                                           .size_bytes = static_cast<std::uint32_t>(bytes),
                                           .value = {},
                                           .after = afters[i],
                                           .staged = staged.Add(item.value, bytes),
                                           .hints = item.hints});
    if (put.staged.sequence != 0) continue;
    if (item.value.size() == 1) {
      put.value = {static_cast<const std::byte*>(item.value[0].data), item.value[0].size};
      continue;
    }
    std::vector<std::byte>& whole = joined.emplace_back();
    whole.reserve(bytes);
    for (const ConstBuffer& piece : item.value) {
      const auto* from = static_cast<const std::byte*>(piece.data);
      whole.insert(whole.end(), from, from + piece.size);
    }
    put.value = whole;
  }
  KVCOVE_ASSIGN(const std::vector<wire::PutResult> answers,
                attachment.service().Put(token, request, deadline_ns));
  for (std::size_t k = 0; k < which.size(); ++k) {
    results[which[k]] = Stored(answers[k].code, request[k].size_bytes);
  }
  return {};
}

// Larger ones: reserve, copy straight into the segment, commit.
Status HostSession::PutReserved(Attachment& attachment, const Token& token,
                                std::span<const PutItem> items,
                                std::span<const std::string_view> afters,
                                std::span<const std::size_t> which, std::span<ItemResult> results,
                                std::int64_t deadline_ns) {
  std::vector<wire::PutItem> request;
  for (const std::size_t i : which) {
    request.push_back({.key = items[i].key,
                       .size_bytes = static_cast<std::uint32_t>(SizeOf(items[i].value)),
                       .value = {},
                       .after = afters[i],
                       .hints = items[i].hints});
  }
  KVCOVE_ASSIGN(const std::vector<wire::PutResult> grants,
                attachment.service().Put(token, request, deadline_ns));
  std::vector<wire::FinishItem> commits;
  std::vector<std::size_t> committed;
  bool late = false;
  for (std::size_t k = 0; k < which.size(); ++k) {
    ItemResult& result = results[which[k]];
    result = {.code = grants[k].code, .bytes = request[k].size_bytes};
    if (grants[k].code != Code::kOk) continue;
    if (!late && CopyIn(attachment, items[which[k]], grants[k].extents, deadline_ns)) {
      commits.push_back({.reservation = grants[k].reservation, .commit = true});
      committed.push_back(which[k]);
      continue;
    }
    // This thread has stopped copying; the owner is told when there is time.
    late = true;
    result.code = Code::kTimeout;
    attachment.Abandon(grants[k].reservation);
  }
  if (commits.empty()) return {};
  const Result<std::vector<Code>> codes = attachment.service().Finish(commits, deadline_ns);
  for (std::size_t k = 0; k < commits.size(); ++k) {
    if (codes) {
      results[committed[k]] = Stored((*codes)[k], results[committed[k]].bytes);
    } else {
      results[committed[k]].code = codes.error().code;
      attachment.Abandon(commits[k].reservation);  // no harm if the commit arrived
    }
  }
  if (!codes) return std::unexpected(codes.error());
  return {};
}

Status HostSession::Put(const Token& token, std::span<const PutItem> items,
                        std::span<ItemResult> results, const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(items.size(), results.size()));
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  const auto all = [&](Code code) { std::fill_n(results.begin(), items.size(), ItemResult{code}); };
  if (closed()) {
    all(Code::kClosed);
    return {};
  }
  const std::shared_ptr<Attachment> attachment = host_->Current();
  if (attachment == nullptr || !attachment->connected()) {
    all(Code::kUnavailable);
    return Fail(Code::kUnavailable, "not connected to the pool; connecting again");
  }
  if (token.slot >= kMaxSlots) {
    all(Code::kInvalid);
    return Fail(Code::kInvalid, "the token does not come from Capture");
  }
  const segment::HeaderView& view = attachment->header();
  const bool current = view.generation(token.slot) == token.generation;

  std::vector<std::string_view> afters(items.size());
  std::vector<std::size_t> small;
  std::vector<std::size_t> large;
  std::vector<segment::Event> hits;
  for (std::size_t from = 0; from < items.size(); from += kFindChunk) {
    const std::size_t end = std::min(items.size(), from + kFindChunk);
    std::string_view keys[kFindChunk];
    segment::Found found[kFindChunk] = {};
    for (std::size_t i = from; i < end; ++i) keys[i - from] = items[i].key;
    if (current && view.LeaseHolds(clock_.NowNs())) {
      view.FindMany(token.slot, {keys, end - from}, found);
    }
    for (std::size_t i = from; i < end; ++i) {
      afters[i] = AfterOf(items, i, options);
      const std::uint64_t size = SizeOf(items[i].value);
      results[i] = {.code = Code::kUnavailable, .bytes = size};
      if (!CheckKey(items[i].key) || !CheckObjectSize(size) || HasNull(items[i].value) ||
          afters[i].size() > kMaxKeyBytes) {
        results[i].code = Code::kInvalid;
      } else if (found[i - from] && found[i - from].generation == token.generation) {
        // What is there already needs no call.
        results[i].code = Code::kExists;
        hits.push_back(EventOf(segment::EventKind::kHit, found[i - from], {}));
      } else {
        (size <= kInlineBytes ? small : large).push_back(i);
      }
    }
  }
  attachment->PushEvents(hits);
  attachment->FlushAbandoned(deadline_ns);

  // In windows, so that no request and no session's reservation grows without bound.
  Status failed;
  const auto windows = [&](std::span<const std::size_t> which, std::uint64_t bytes_limit,
                           std::size_t items_limit, auto&& put) {
    while (!which.empty() && failed) {
      std::uint64_t bytes = 0;
      std::size_t count = 0;
      while (count < which.size() && count < items_limit) {
        const std::uint64_t size = results[which[count]].bytes + items[which[count]].key.size() +
                                   afters[which[count]].size();
        if (count > 0 && bytes + size > bytes_limit) break;
        bytes += size;
        ++count;
      }
      failed = put(which.first(count));
      if (!failed) {
        for (const std::size_t i : which.first(count)) {
          if (results[i].code == Code::kUnavailable) results[i].code = failed.error().code;
        }
      }
      which = which.subspan(count);
    }
    if (!failed) {
      for (const std::size_t i : which) results[i].code = failed.error().code;
    }
  };
  windows(small, kInlineFrameBytes, 4096, [&](std::span<const std::size_t> which) {
    return PutInline(*attachment, token, items, afters, which, results, deadline_ns);
  });
  windows(large, std::min(kReserveWindowBytes, attachment->payload_bytes() / 8),
          kReserveWindowItems, [&](std::span<const std::size_t> which) {
            return PutReserved(*attachment, token, items, afters, which, results, deadline_ns);
          });
  return failed;
}

// ---- the rest

Result<Token> HostSession::TokenOf(const CallOptions& options, std::int64_t deadline_ns,
                                   std::shared_ptr<Attachment>& attachment) {
  attachment = host_->Current();
  if (attachment == nullptr || !attachment->connected()) {
    return Fail(Code::kUnavailable, "not connected to the pool; connecting again");
  }
  KVCOVE_ASSIGN(const Binding binding, Bind(*attachment, options.version, deadline_ns));
  return Token{
      .incarnation = binding.incarnation, .generation = binding.generation, .slot = binding.slot};
}

Status HostSession::CodesCall(
    std::span<const std::string_view> keys, std::span<ItemResult> results,
    const CallOptions& options,
    const std::function<Result<std::vector<Code>>(Attachment&, const Token&, std::int64_t)>& call) {
  KVCOVE_TRY(CheckBatch(keys.size(), results.size()));
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  std::shared_ptr<Attachment> attachment;
  const Result<Token> token = TokenOf(options, deadline_ns, attachment);
  Result<std::vector<Code>> codes =
      token ? call(*attachment, *token, deadline_ns) : std::unexpected(token.error());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    results[i] = {.code = codes ? (*codes)[i] : codes.error().code};
    if (results[i].code == Code::kMiss && token) {
      results[i].reason = AbsentReason(attachment->header(), token->slot, keys[i]);
    }
  }
  if (!codes) return std::unexpected(codes.error());
  return {};
}

Status HostSession::Pin(std::span<const std::string_view> keys, PinKind kind,
                        std::chrono::milliseconds duration, std::span<ItemResult> results,
                        const CallOptions& options) {
  return CodesCall(
      keys, results, options,
      [&](Attachment& attachment, const Token& token, std::int64_t deadline_ns) {
        return attachment.service().Pin(
            token, keys, kind,
            std::clamp<std::int64_t>(duration.count(), 0, 1'000'000'000) * kMillisecond,
            deadline_ns);
      });
}

Status HostSession::Unpin(std::span<const std::string_view> keys, std::span<ItemResult> results,
                          const CallOptions& options) {
  return CodesCall(keys, results, options,
                   [&](Attachment& attachment, const Token& token, std::int64_t deadline_ns) {
                     return attachment.service().Pin(token, keys, std::nullopt, 0, deadline_ns);
                   });
}

Status HostSession::Remove(std::span<const std::string_view> keys, std::span<ItemResult> results,
                           const CallOptions& options) {
  return CodesCall(keys, results, options,
                   [&](Attachment& attachment, const Token& token, std::int64_t deadline_ns) {
                     return attachment.service().Remove(token, keys, deadline_ns);
                   });
}

Result<std::uint64_t> HostSession::RemoveMatching(std::string_view pattern,
                                                  const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(0, 0));
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  std::shared_ptr<Attachment> attachment;
  KVCOVE_ASSIGN(const Token token, TokenOf(options, deadline_ns, attachment));
  return attachment->service().RemoveMatching(token, pattern, deadline_ns);
}

Result<std::vector<StoredObject>> HostSession::List(std::string_view prefix,
                                                    const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(0, 0));
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  std::shared_ptr<Attachment> attachment;
  KVCOVE_ASSIGN(const Token token, TokenOf(options, deadline_ns, attachment));
  std::map<std::string, StoredObject> objects;
  KVCOVE_TRY(ListFrom(attachment->service(), token.slot, prefix, deadline_ns, objects));
  return ValuesOf(std::move(objects));
}

Result<ObjectCount> HostSession::Count(const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(0, 0));
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  std::shared_ptr<Attachment> attachment;
  KVCOVE_ASSIGN(const Token token, TokenOf(options, deadline_ns, attachment));
  return CountFrom(attachment->service(), token.slot, deadline_ns);
}

Result<std::vector<std::vector<std::string>>> HostSession::Where(
    std::span<const std::string_view> keys, const CallOptions& options) {
  std::vector<ItemResult> results(keys.size());
  KVCOVE_TRY(Exists(keys, results, options));
  std::vector<std::vector<std::string>> owners(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (results[i].ok()) owners[i] = {"local"};
  }
  return owners;
}

Result<std::vector<std::optional<ObjectStat>>> HostSession::Stat(
    std::span<const std::string_view> keys, const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(keys.size(), keys.size()));
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  std::shared_ptr<Attachment> attachment;
  KVCOVE_ASSIGN(const Token token, TokenOf(options, deadline_ns, attachment));
  return attachment->service().StatObjects(token, keys, deadline_ns);
}

Status HostSession::NameVersions(std::span<const std::string> versions,
                                 const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(0, 0));
  const std::shared_ptr<Attachment> attachment = host_->Current();
  if (attachment == nullptr || !attachment->connected()) {
    return Fail(Code::kUnavailable, "not connected to the pool; connecting again");
  }
  return attachment->service().NameVersions(options_.name, options_.engine, versions,
                                            DeadlineOf(clock_, options.timeout));
}

// ---- reset

Status HostSession::TryReset(const wire::ResetRequest& request, std::int64_t deadline_ns) {
  const std::shared_ptr<Attachment> attachment = host_->Current();
  if (attachment == nullptr || !attachment->connected()) {
    return Fail(Code::kUnavailable, "not connected to the pool; connecting again");
  }
  KVCOVE_ASSIGN(const wire::ResetOutcome outcome,
                attachment->service().Reset(request, deadline_ns));
  ForgetBindings(outcome);
  return {};
}

void HostSession::ForgetBindings(const wire::ResetOutcome& outcome) {
  const MutexLock lock(bindings_mutex_);
  reset_to_ = outcome;
  bindings_.ForEach([](Binding& binding) {
    binding.generation = 0;
    binding.open = false;
  });
}

Status HostSession::Reset(const ResetOptions& options) {
  KVCOVE_TRY(CheckBatch(0, 0));
  return resets_.Reset(ResetOf(options_, options), options.timeout);
}

}  // namespace kvcove::requester
