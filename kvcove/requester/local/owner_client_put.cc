// SPDX-License-Identifier: Apache-2.0
// Puts at one owner: small values are sent with the request, others are written into memory that
// the owner has reserved.
#include <algorithm>
#include <functional>
#include <iterator>

#include "kvcove/base/copy.h"
#include "kvcove/base/interrupt.h"
#include "kvcove/base/size.h"
#include "kvcove/requester/local/owner_client.h"

namespace kvcove::requester {
namespace {

constexpr std::uint64_t kInlineFrameBytes = kMiB;         // values in one request
constexpr std::uint64_t kReserveWindowBytes = 64 * kMiB;  // reserved at a time
constexpr std::size_t kReserveWindowItems = 1024;
// If one request cannot carry a batch, values above this size are reserved: two calls for all of
// them end sooner than several requests, each of which waits for the previous one.
constexpr std::uint64_t kInlineOfManyBytes = 4 * kKiB;

struct PutWindow {
  std::uint64_t bytes = 0;
  std::size_t items = 0;
};

// Numbers of the values that are sent with requests, and of those that are reserved.
struct Division {
  std::vector<std::size_t> small;
  std::vector<std::size_t> large;
  std::uint64_t small_bytes = 0;

  void Add(std::size_t i, std::uint64_t size) {
    (size <= kInlineBytes ? small : large).push_back(i);
    if (size <= kInlineBytes) small_bytes += size;
  }
  void KeepOneRequest(std::span<const ItemResult> results) {
    if (small_bytes < kInlineFrameBytes) return;
    const auto travels = [&](std::size_t i) { return results[i].bytes <= kInlineOfManyBytes; };
    std::ranges::copy_if(small, std::back_inserter(large), std::not_fn(travels));
    std::erase_if(small, std::not_fn(travels));
  }
};

// Calls `ask` for windows of items, so that no request and no session's reservation grows without
// bound. After a failure the other items get its code.
template <typename Ask>
Status InWindows(std::span<const std::size_t> which, std::span<const wire::PutItem> requests,
                 std::span<ItemResult> results, const PutWindow& window, const Ask& ask) {
  Status failed;
  while (!which.empty() && failed) {
    std::uint64_t bytes = 0;
    std::size_t count = 0;
    while (count < which.size() && count < window.items) {
      const wire::PutItem& next = requests[which[count]];
      const std::uint64_t size = next.size_bytes + next.key.size() + next.after.size();
      if (count > 0 && bytes + size > window.bytes) break;
      bytes += size;
      ++count;
    }
    failed = ask(which.first(count));
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
  return failed;
}

PutWindow ReserveWindow(const Attachment& attachment) {
  return {.bytes = std::min(kReserveWindowBytes, attachment.payload_bytes() / 8),
          .items = kReserveWindowItems};
}

}  // namespace

bool OwnerClient::CopyIn(Attachment& attachment, const PutItem& item,
                         std::span<const Extent> extents, std::int64_t deadline_ns) const {
  // Each extent is checked: a grant of a faulty owner must not make this thread write elsewhere.
  // The deadline is looked at each MiB; later the owner may have given the key to another writer.
  segment::OwnerOrders();
  auto extent = extents.begin();
  std::uint64_t extent_at = 0;
  std::uint64_t since_look = 0;
  for (const ConstBuffer& piece : item.value) {
    for (std::uint64_t at = 0; at < piece.size;) {
      if (extent == extents.end()) return false;
      if (!attachment.Holds(*extent)) return false;
      const std::span<std::byte> room = attachment.payload().At(*extent);
      const std::uint64_t count = std::min({piece.size - at, room.size() - extent_at, kCopyPiece});
      CopyPastCaches(room.data() + extent_at, static_cast<const std::byte*>(piece.data) + at,
                     count);
      at += count;
      extent_at += count;
      since_look += count;
      if (extent_at == room.size()) {
        ++extent;
        extent_at = 0;
      }
      if (since_look >= kCopyPiece) {
        since_look = 0;
        if (LeftNs(deadline_ns, clock_) <= 0) return false;
      }
    }
  }
  return true;
}

Result<std::shared_ptr<Attachment>> OwnerClient::BeginPut(const Token& token,
                                                          std::span<ItemResult> results) {
  Result<std::shared_ptr<Attachment>> attachment = Attached();
  if (attachment && token.slot >= kMaxSlots) {
    attachment = Fail(Code::kInvalid, "the token does not come from Capture");
  }
  if (!attachment) std::ranges::fill(results, ItemResult{.code = attachment.error().code});
  return attachment;
}

std::vector<std::size_t> OwnerClient::FindNew(Attachment& attachment, const Token& token,
                                              std::span<const wire::PutItem> requests,
                                              std::span<ItemResult> results) {
  const segment::HeaderView& view = attachment.header();
  const bool current = view.generation(token.slot) == token.generation;
  std::vector<std::size_t> fresh;
  std::vector<segment::Event> hits;
  for (std::size_t from = 0; from < requests.size(); from += kFindChunk) {
    const std::size_t end = std::min(requests.size(), from + kFindChunk);
    std::string_view keys[kFindChunk];
    segment::Found found[kFindChunk] = {};
    for (std::size_t i = from; i < end; ++i) keys[i - from] = requests[i].key;
    if (current && view.LeaseHolds(clock_.NowNs())) {
      view.FindMany(token.slot, {keys, end - from}, found);
    }
    for (std::size_t i = from; i < end; ++i) {
      if (results[i].code == Code::kInvalid || !CheckKey(requests[i].key) ||
          !CheckObjectSize(results[i].bytes) || requests[i].after.size() > kMaxKeyBytes) {
        results[i].code = Code::kInvalid;
      } else if (found[i - from] && found[i - from].generation == token.generation) {
        // A value that is stored already needs no call.
        results[i].code = Code::kExists;
        hits.push_back(EventOf(segment::EventKind::kHit, found[i - from], 0));
      } else {
        fresh.push_back(i);
      }
    }
  }
  attachment.PushEvents(hits);
  return fresh;
}

// Puts small values with one request: in the staging area if that is free, else in the request.
Status OwnerClient::PutInline(Attachment& attachment, const Token& token,
                              std::span<const PutItem> items,
                              std::span<const wire::PutItem> requests,
                              std::span<const std::size_t> which, std::span<ItemResult> results,
                              std::int64_t deadline_ns) {
  StagedValues staged(attachment);
  std::vector<std::vector<std::byte>> joined;  // values of several pieces
  std::vector<wire::PutItem> request;
  request.reserve(which.size());
  for (const std::size_t i : which) {
    const PutItem& item = items[i];
    wire::PutItem& put = request.emplace_back(requests[i]);
    put.staged = staged.Add(item.value, put.size_bytes);
    if (put.staged.sequence != 0) continue;
    if (item.value.size() == 1) {
      put.value = {static_cast<const std::byte*>(item.value[0].data), item.value[0].size};
      continue;
    }
    std::vector<std::byte>& whole = joined.emplace_back();
    whole.reserve(put.size_bytes);
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

Result<std::vector<wire::PutResult>> OwnerClient::AskForMemory(
    Attachment& attachment, const Token& token, std::span<const wire::PutItem> requests,
    std::span<const std::size_t> which, std::span<ItemResult> results, std::int64_t deadline_ns) {
  std::vector<wire::PutItem> request;
  request.reserve(which.size());
  for (const std::size_t i : which) request.push_back(requests[i]);
  KVCOVE_ASSIGN(std::vector<wire::PutResult> grants,
                attachment.service().Put(token, request, deadline_ns));
  for (std::size_t k = 0; k < which.size(); ++k) {
    results[which[k]] = {.code = grants[k].code, .bytes = request[k].size_bytes};
  }
  return grants;
}

// Puts larger values: reserves, copies straight into the segment, commits.
Status OwnerClient::PutReserved(Attachment& attachment, const Token& token,
                                std::span<const PutItem> items,
                                std::span<const wire::PutItem> requests,
                                std::span<const std::size_t> which, std::span<ItemResult> results,
                                std::int64_t deadline_ns) {
  KVCOVE_ASSIGN(const std::vector<wire::PutResult> grants,
                AskForMemory(attachment, token, requests, which, results, deadline_ns));
  std::vector<wire::FinishItem> commits;
  std::vector<std::size_t> committed;
  bool late = false;
  for (std::size_t k = 0; k < which.size(); ++k) {
    ItemResult& result = results[which[k]];
    if (!result.ok()) continue;
    if (!late && CopyIn(attachment, items[which[k]], grants[k].extents, deadline_ns)) {
      commits.push_back({.reservation = grants[k].reservation, .commit = true});
      committed.push_back(which[k]);
      continue;
    }
    // Only the owner may reuse the memory, and this thread does not write there any more. The end
    // is reported to the owner by FlushAbandoned, as there is no time for a call now.
    late = true;
    result.code = Code::kTimeout;
    attachment.Abandon(grants[k].reservation);
  }
  return FinishReserved(attachment, commits, committed, results, deadline_ns);
}

Status OwnerClient::Put(const Token& token, std::span<const PutItem> items,
                        std::span<ItemResult> results, const CallOptions& options) {
  results = results.first(items.size());
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  KVCOVE_ASSIGN(const std::shared_ptr<Attachment> attachment, BeginPut(token, results));
  std::vector<wire::PutItem> requests(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::uint64_t size = SizeOf(items[i].value);
    results[i] = {.code = HasNull(items[i].value) ? Code::kInvalid : Code::kUnavailable,
                  .bytes = size};
    requests[i] = {.key = items[i].key,
                   .size_bytes = static_cast<std::uint32_t>(size),
                   .value = {},
                   .after = AfterOf(items, i, options),
                   .hints = items[i].hints};
  }
  Division division;
  for (const std::size_t i : FindNew(*attachment, token, requests, results)) {
    division.Add(i, results[i].bytes);
  }
  division.KeepOneRequest(results);
  // Earlier reservations first: they count against this process's bound, and may hold these keys.
  attachment->FlushAbandoned(deadline_ns);
  Status put = InWindows(
      division.small, requests, results, {.bytes = kInlineFrameBytes, .items = 4096},
      [&](std::span<const std::size_t> which) {
        return PutInline(*attachment, token, items, requests, which, results, deadline_ns);
      });
  if (!put) {
    for (const std::size_t i : division.large) results[i].code = put.error().code;
    return put;
  }
  return InWindows(division.large, requests, results, ReserveWindow(*attachment),
                   [&](std::span<const std::size_t> which) {
                     return PutReserved(*attachment, token, items, requests, which, results,
                                        deadline_ns);
                   });
}

// ---- puts whose copy is made by the caller, or a device

Status OwnerClient::ReserveInto(Reservation& reservation, const Token& token,
                                std::span<const ReserveKey> items, std::span<ItemResult> results,
                                const CallOptions& options) {
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  KVCOVE_ASSIGN(const std::shared_ptr<Attachment> attachment, BeginPut(token, results));
  std::vector<wire::PutItem> requests(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const ReserveItem& item = items[i].item;
    results[i] = {.code = Code::kUnavailable, .bytes = item.size_bytes};
    requests[i] = {.key = item.key,
                   .size_bytes = static_cast<std::uint32_t>(item.size_bytes),
                   .value = {},
                   .after = item.after,
                   .hints = item.hints};
  }
  const std::vector<std::size_t> fresh = FindNew(*attachment, token, requests, results);
  attachment->FlushAbandoned(deadline_ns);
  reservation.AddPart(host_, attachment);
  return InWindows(
      fresh, requests, results, ReserveWindow(*attachment),
      [&](std::span<const std::size_t> which) -> Status {
        KVCOVE_ASSIGN(const std::vector<wire::PutResult> grants,
                      AskForMemory(*attachment, token, requests, which, results, deadline_ns));
        segment::OwnerOrders();
        for (std::size_t k = 0; k < which.size(); ++k) {
          const std::size_t i = which[k];
          if (results[i].ok() && !reservation.Add(items[i].number, grants[k], results[i].bytes)) {
            results[i].code = Code::kInternal;
          }
        }
        return {};
      });
}

}  // namespace kvcove::requester
