// SPDX-License-Identifier: Apache-2.0
// How a host's session puts: small values travel with the request, others are written into memory
// that the owner has reserved.
#include <algorithm>
#include <functional>
#include <iterator>

#include "kvcove/base/copy.h"
#include "kvcove/base/size.h"
#include "kvcove/requester/host_session.h"

namespace kvcove::requester {
namespace {

constexpr std::uint64_t kInlineFrameBytes = kMiB;         // of values in one request
constexpr std::uint64_t kReserveWindowBytes = 64 * kMiB;  // reserved at a time
constexpr std::size_t kReserveWindowItems = 1024;
// Of a batch that one request cannot carry, values above this are reserved: two calls for all of
// them end sooner than several requests, each of which waits for the one before it.
constexpr std::uint64_t kInlineOfManyBytes = 4 * kKiB;

// What a put's code says: stored although the master has not listed it is a success, too.
ItemResult Stored(Code code, std::uint64_t bytes) {
  if (code == Code::kNotListed) return {.code = Code::kOk, .bytes = bytes, .listed = false};
  return {.code = code, .bytes = bytes};
}

// Values that travel with requests, and values that are reserved, by their numbers.
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

}  // namespace

bool HostSession::CopyIn(Attachment& attachment, const PutItem& item,
                         std::span<const Extent> extents, std::int64_t deadline_ns) const {
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
  Division division;
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
        hits.push_back(EventOf(segment::EventKind::kHit, found[i - from], 0));
      } else {
        division.Add(i, size);
      }
    }
  }
  division.KeepOneRequest(results);
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
  windows(division.small, kInlineFrameBytes, 4096, [&](std::span<const std::size_t> which) {
    return PutInline(*attachment, token, items, afters, which, results, deadline_ns);
  });
  windows(division.large, std::min(kReserveWindowBytes, attachment->payload_bytes() / 8),
          kReserveWindowItems, [&](std::span<const std::size_t> which) {
            return PutReserved(*attachment, token, items, afters, which, results, deadline_ns);
          });
  return failed;
}

}  // namespace kvcove::requester
