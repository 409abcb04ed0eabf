// SPDX-License-Identifier: Apache-2.0
// Loans of one owner's values, in place, under the readers' protocol as long as a loan lives; and
// the range of the memory in which they are.
#include <algorithm>

#include "kvcove/base/interrupt.h"
#include "kvcove/requester/local/owner_client.h"

namespace kvcove::requester {
namespace {

constexpr std::size_t kBorrowsAtOnce = segment::kLaneSlots;

// Slots of one window; each is returned, or becomes part of the loan.
struct Taken {
  std::size_t keys[kBorrowsAtOnce];  // numbers within the window
  ReaderSlots::LoanSlot slots[kBorrowsAtOnce];
  std::size_t count = 0;
};

}  // namespace

Status OwnerClient::BorrowInto(Loan& loan, std::span<const BorrowKey> keys,
                               std::span<ItemResult> results, const CallOptions& options) {
  const Window window{.hold = options.hold, .deadline_ns = DeadlineOf(clock_, options.timeout)};
  const Result<Scope> scope = Enter(options, window.deadline_ns);
  if (Refused(scope, results)) {
    if (!scope) return std::unexpected(scope.error());
    if (scope->attachment != nullptr) CountMisses(*scope->attachment, results);
    return {};
  }
  loan.AddPart({host_, scope->attachment, scope->read, borrow_budget_});
  for (std::size_t from = 0; from < keys.size(); from += kBorrowsAtOnce) {
    const std::size_t count = std::min(kBorrowsAtOnce, keys.size() - from);
    BorrowWindow(*scope, loan, keys.subspan(from, count), results.subspan(from, count), window);
  }
  if (scope->attachment->header().tier().on()) BorrowFromDisk(*scope, loan, keys, results, window);
  loan.DropEmptyPart();
  std::uint64_t bytes = 0;
  for (const ItemResult& result : results) bytes += result.ok() ? result.bytes : 0;
  scope->attachment->page().bytes_read.fetch_add(bytes, std::memory_order_relaxed);
  CountAsked(*scope->attachment, Asked::kGets, results);
  CountMisses(*scope->attachment, results);
  return {};
}

// The readers' protocol as in GetWindow, but with slots that stay announced: announce all, pass one
// fence, confirm each. Bytes are added to the budgets first, so that a refusal announces nothing.
void OwnerClient::BorrowWindow(const Scope& scope, Loan& loan, std::span<const BorrowKey> keys,
                               std::span<ItemResult> results, const Window& window) {
  const segment::HeaderView& view = scope.attachment->header();
  ReaderSlots& readers = scope.attachment->readers();
  Loan::Part& part = loan.last_part();
  segment::Found found[kBorrowsAtOnce];
  std::string_view names[kBorrowsAtOnce];
  for (std::size_t i = 0; i < keys.size(); ++i) names[i] = keys[i].key;
  view.FindMany(scope.read.slot, {names, keys.size()}, found);
  Taken taken;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::uint64_t size = found[i].meta.size_bytes();
    if (!found[i]) {
      results[i] = CheckKey(names[i]) ? Miss(AbsentReason(view, scope.read.slot, names[i]))
                                      : ItemResult{.code = Code::kInvalid};
    } else if (part.AddBytes(size, window.deadline_ns, clock_)) {
      taken.keys[taken.count++] = i;
    } else {
      results[i] = {.code = Code::kLimit, .bytes = size};
    }
  }
  const std::size_t announced =
      readers.TakeSlots({taken.slots, taken.count}, window.deadline_ns, clock_);
  for (std::size_t k = 0; k < announced; ++k) {
    segment::Announce(readers.At(taken.slots[k]), found[taken.keys[k]]);
  }
  // Between the announcements and Confirm; pairs with the owner's fence (owner/core/withdrawn.cc).
  segment::FullFence();
  const std::int64_t now = clock_.NowNs();
  std::vector<segment::Event> hits;
  hits.reserve(announced);
  for (std::size_t k = 0; k < taken.count; ++k) {
    const std::size_t i = taken.keys[k];
    const std::uint64_t size = found[i].meta.size_bytes();
    if (k >= announced) {
      results[i] = {.code = Code::kLimit, .bytes = size};
      part.SubBytes(size);
      continue;
    }
    const MissReason reason = segment::Confirm(view, found[i], scope.read, now);
    if (reason != MissReason::kNone) {
      results[i] = Miss(reason);
      segment::ClearSlot(readers.At(taken.slots[k]));
      readers.GiveBack({&taken.slots[k], 1});
      part.SubBytes(size);
      continue;
    }
    Extent extents[segment::kMaxExtents];
    const std::uint32_t count = view.Extents(found[i], extents);
    part.Keep(taken.slots[k]);
    loan.AddValue(keys[i].number, {extents, count}, size, scope.attachment->payload());
    results[i] = {.code = Code::kOk, .bytes = size, .tier = Tier::kMemory};
    hits.push_back(EventOf(segment::EventKind::kHit, found[i], HoldEnd(window.hold, now)));
  }
  scope.attachment->PushEvents(hits);
}

// Promotes and lends window by window: a promoted value is lent before the next window is promoted,
// which could evict it.
void OwnerClient::BorrowFromDisk(const Scope& scope, Loan& loan, std::span<const BorrowKey> keys,
                                 std::span<ItemResult> results, const Window& window) {
  std::vector<std::size_t> which;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (results[i].code == Code::kMiss && OnDisk(scope, keys[i].key)) which.push_back(i);
  }
  std::size_t at = 0;
  bool goes_on = true;
  bool full = false;  // a bound of loans is reached: further promotions would be in vain
  std::vector<std::string_view> names;
  std::vector<ItemResult> answers;
  std::vector<std::size_t> again;
  while (at < which.size() && goes_on && !full && LeftNs(window.deadline_ns, clock_) > 0) {
    const std::size_t count = std::min(kBorrowsAtOnce, which.size() - at);
    names.clear();
    for (std::size_t k = 0; k < count; ++k) names.push_back(keys[which[at + k]].key);
    answers.assign(count, {});
    goes_on = LoadSome(
        scope, names, answers, window,
        [&](std::span<const std::size_t> there, std::span<ItemResult> lent) {
          BorrowKey wanted[kBorrowsAtOnce];
          for (std::size_t k = 0; k < there.size(); ++k) wanted[k] = keys[which[at + there[k]]];
          BorrowWindow(scope, loan, {wanted, there.size()}, lent, window);
          full = std::ranges::count(lent, Code::kLimit, &ItemResult::code) > 0;
        },
        again);
    for (const std::size_t k : again) which.push_back(which[at + k]);
    for (const ItemResult& answer : answers) results[which[at++]] = answer;
  }
  for (; at < which.size(); ++at) {
    results[which[at]] = full ? ItemResult{.code = Code::kLimit} : Miss(MissReason::kDiskTimeout);
    results[which[at]].tier = Tier::kDisk;
  }
}

// ---- the memory itself

void OwnerClient::AddSegment(std::vector<SegmentRange>& ranges, const CallOptions& options) {
  const std::shared_ptr<Attachment> attachment = host_->Current();
  if (attachment == nullptr || !attachment->connected()) return;
  const auto stat = attachment->service().Stat(DeadlineOf(clock_, options.timeout));
  if (!stat) return;
  // The mapping ends with its attachment. The tie is kept, too: its destructor says goodbye, which
  // promises the owner that no thread of this process uses the segment any more.
  struct Kept {
    std::shared_ptr<OwnerTie> host;
    std::shared_ptr<Attachment> attachment;
  };
  ranges.push_back({.number = attachment->number(),
                    .data = attachment->payload().data,
                    .size_bytes = attachment->payload_bytes(),
                    .populated_bytes = std::min(stat->populated_bytes, attachment->payload_bytes()),
                    .node = attachment->node(),
                    .mapping = std::make_shared<Kept>(host_, attachment)});
}

}  // namespace kvcove::requester
