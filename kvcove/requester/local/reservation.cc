// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/local/reservation.h"

#include <algorithm>

#include "kvcove/base/posix.h"
#include "kvcove/requester/calls.h"

namespace kvcove {
namespace requester {
namespace {

constexpr std::chrono::milliseconds kEnd{100};  // time that a destructor may wait for owners

}  // namespace

ItemResult Stored(Code code, std::uint64_t bytes) {
  if (code == Code::kNotListed) return {.code = Code::kOk, .bytes = bytes, .listed = false};
  return {.code = code, .bytes = bytes};
}

Status FinishReserved(Attachment& attachment, std::span<const wire::FinishItem> items,
                      std::span<const std::size_t> which, std::span<ItemResult> results,
                      std::int64_t deadline_ns) {
  if (items.empty()) return {};
  // The owner publishes the values, and threads of this process may read them then.
  segment::OwnerOrders();
  const Result<std::vector<Code>> codes = attachment.service().Finish(items, deadline_ns);
  for (std::size_t k = 0; k < items.size(); ++k) {
    ItemResult& result = results[which[k]];
    if (!codes) attachment.Abandon(items[k].reservation);
    if (!items[k].commit) continue;  // its result has the reason already
    result = codes ? Stored((*codes)[k], result.bytes)
                   : ItemResult{.code = codes.error().code, .bytes = result.bytes};
  }
  if (!codes) return std::unexpected(codes.error());
  return {};
}

Reservation::Reservation(std::size_t items, const Clock& clock, std::shared_ptr<void> keep,
                         std::shared_ptr<const std::atomic<bool>> closed)
    : forks_(ForkCount()),
      clock_(clock),
      keep_(std::move(keep)),
      closed_(std::move(closed)),
      items_(items) {}

Reservation::~Reservation() { Abort(kEnd); }

bool Reservation::Here() const { return forks_ == ForkCount(); }

void Reservation::AddPart(std::shared_ptr<OwnerTie> host, std::shared_ptr<Attachment> attachment) {
  parts_.push_back({std::move(host), std::move(attachment)});
}

bool Reservation::Add(std::size_t number, const wire::PutResult& grant, std::uint64_t size_bytes) {
  Attachment& attachment = *parts_.back().attachment;
  Item& item = items_[number];
  item.first = pieces_.size();
  for (const Extent& extent : grant.extents) {
    if (size_bytes == 0 || !attachment.Holds(extent)) break;
    const std::span<std::byte> room = attachment.payload().At(extent);
    const std::size_t count = std::min<std::uint64_t>(room.size(), size_bytes);
    pieces_.push_back({.data = room.data(), .size = count});
    size_bytes -= count;
  }
  if (size_bytes > 0) {
    pieces_.resize(item.first);
    attachment.Abandon(grant.reservation);
    return false;
  }
  item.count = pieces_.size() - item.first;
  item.reservation = grant.reservation;
  item.part = parts_.size();
  return true;
}

std::span<const MutableBuffer> Reservation::pieces(std::size_t i) const {
  if (state_ != State::kOpen) return {};
  return std::span(pieces_).subspan(items_[i].first, items_[i].count);
}

std::uint64_t Reservation::bytes() const {
  std::uint64_t bytes = 0;
  if (state_ != State::kOpen) return bytes;
  for (const Item& item : items_) bytes += item.part == 0 ? 0 : item.result.bytes;
  return bytes;
}

Status Reservation::FinishPart(std::size_t part, bool closed, std::span<ItemResult> results,
                               std::int64_t deadline_ns) {
  std::vector<wire::FinishItem> ends;
  std::vector<std::size_t> which;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    const Item& item = items_[i];
    if (item.part != part + 1) continue;
    if (closed || item.dropped) results[i].code = closed ? Code::kClosed : Code::kCorrupt;
    ends.push_back({.reservation = item.reservation, .commit = !closed && !item.dropped});
    which.push_back(i);
  }
  return FinishReserved(*parts_[part].attachment, ends, which, results, deadline_ns);
}

Status Reservation::Commit(std::span<ItemResult> results, std::chrono::milliseconds timeout) {
  std::vector<ItemResult> ended;
  // Committed before the calls, whatever they return: after a timeout the owner may have published
  // the values, so the caller must not write to the memory any more, nor may Abort end them.
  if (state_ == State::kOpen) {
    state_ = State::kCommitted;
    for (const Item& item : items_) ended.push_back(item.result);
    const std::int64_t deadline_ns = DeadlineOf(clock_, timeout);
    // While a reset of this session is not proven, it stores nothing, however old the token is. The
    // reset may have failed after the reservation, so the owner alone could still accept the
    // commit.
    const bool closed = closed_ != nullptr && closed_->load(std::memory_order_acquire);
    for (std::size_t part = 0; part < parts_.size(); ++part) {
      const Status finished = FinishPart(part, closed, ended, deadline_ns);
      if (!finished) committed_ = finished;
    }
    for (std::size_t i = 0; i < items_.size(); ++i) items_[i].result = ended[i];
    parts_.clear();
  }
  for (std::size_t i = 0; i < items_.size(); ++i) results[i] = items_[i].result;
  return committed_;
}

void Reservation::Abort(std::chrono::milliseconds timeout) {
  if (state_ != State::kOpen) return;
  state_ = State::kAborted;
  const std::int64_t deadline_ns = DeadlineOf(clock_, timeout);
  // Noted first and then reported, so that the monitor reports them later if the call fails.
  for (const Item& item : items_) {
    if (item.part != 0) parts_[item.part - 1].attachment->Abandon(item.reservation);
  }
  for (const Part& part : parts_) part.attachment->FlushAbandoned(deadline_ns);
  parts_.clear();
}

}  // namespace requester

// ---- Reserved

Reserved::Reserved() = default;
Reserved::Reserved(std::unique_ptr<requester::Reservation> reservation)
    : reservation_(std::move(reservation)) {}
Reserved::Reserved(Reserved&& other) noexcept = default;

Reserved& Reserved::operator=(Reserved&& other) noexcept {
  if (this != &other) {
    if (reservation_ != nullptr && !reservation_->Here()) (void)reservation_.release();
    reservation_ = std::move(other.reservation_);
  }
  return *this;
}

// A forked child has neither the mappings nor the threads that may hold locks, so it leaks the
// reservation; the parent's remains.
Reserved::~Reserved() {
  if (reservation_ != nullptr && !reservation_->Here()) (void)reservation_.release();
}

std::size_t Reserved::size() const { return reservation_ == nullptr ? 0 : reservation_->size(); }
const ItemResult& Reserved::result(std::size_t i) const { return reservation_->result(i); }
std::span<const MutableBuffer> Reserved::pieces(std::size_t i) const {
  return reservation_->pieces(i);
}
std::uint64_t Reserved::bytes() const {
  return reservation_ == nullptr ? 0 : reservation_->bytes();
}
void Reserved::Drop(std::size_t i) { reservation_->Drop(i); }

Status Reserved::Commit(std::span<ItemResult> results, std::chrono::milliseconds timeout) {
  if (reservation_ == nullptr) return {};
  if (!reservation_->Here()) {
    return Fail(Code::kUnavailable, "this process was forked after the reservation");
  }
  if (reservation_->aborted()) return Fail(Code::kInvalid, "the reservation was given up");
  if (results.size() < reservation_->size()) {
    return Fail(Code::kInvalid, "less room for results than items were reserved");
  }
  return reservation_->Commit(results, timeout);
}

void Reserved::Abort(std::chrono::milliseconds timeout) {
  if (reservation_ != nullptr && reservation_->Here()) reservation_->Abort(timeout);
}

}  // namespace kvcove
