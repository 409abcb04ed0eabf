// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/local/loan.h"

#include <algorithm>

#include "kvcove/base/interrupt.h"
#include "kvcove/base/posix.h"
#include "kvcove/requester/calls.h"

namespace kvcove {
namespace requester {

bool BorrowBudget::Add(std::uint64_t bytes) {
  // Relaxed: the sum orders no other memory. A refused value may briefly make others be refused.
  const std::uint64_t before = bytes_.fetch_add(bytes, std::memory_order_relaxed);
  if (bound_bytes_ == 0 || before == 0 || before + bytes <= bound_bytes_) return true;
  Sub(bytes);
  return false;
}

// ---- one owner's part

bool Loan::Part::AddBytes(std::uint64_t bytes, std::int64_t deadline_ns, const Clock& clock) {
  if (!budget_->Add(bytes)) return false;
  while (true) {
    const ReaderSlots::Added added = attachment_->readers().AddBorrowed(bytes);
    if (added == ReaderSlots::Added::kYes) break;
    if (added == ReaderSlots::Added::kTooMuch || LeftNs(deadline_ns, clock) <= 0) {
      budget_->Sub(bytes);
      return false;
    }
    // Gets of this process protect the room. They end by themselves, so this waits for them.
    SleepNs(50 * kMicrosecond);
  }
  bytes_ += bytes;
  return true;
}

void Loan::Part::SubBytes(std::uint64_t bytes) {
  bytes_ -= bytes;
  attachment_->readers().SubBorrowed(bytes);
  budget_->Sub(bytes);
}

MissReason Loan::Part::Voided(std::int64_t now_ns) const {
  if (!attachment_->connected()) return MissReason::kUnavailable;
  return CheckScope(attachment_->header(), scope_, scope_.generation, now_ns);
}

// Clears the slots before they are returned: from then on another loan may announce in them.
void Loan::Part::End() {
  segment::OwnerOrders();
  ReaderSlots& readers = attachment_->readers();
  for (const ReaderSlots::LoanSlot slot : slots_) segment::ClearSlot(readers.At(slot));
  readers.GiveBack(slots_);
  slots_.clear();
  SubBytes(bytes_);
}

// ---- the loan

Loan::Loan(std::size_t keys, const Clock& clock, std::shared_ptr<void> keep,
           std::shared_ptr<const std::atomic<bool>> closed)
    : forks_(ForkCount()),
      clock_(clock),
      keep_(std::move(keep)),
      closed_(std::move(closed)),
      items_(keys) {}

Loan::~Loan() { End(); }

bool Loan::Here() const { return forks_ == ForkCount(); }

void Loan::DropEmptyPart() {
  if (parts_.back().empty()) parts_.pop_back();
}

void Loan::AddValue(std::size_t number, std::span<const Extent> extents, std::uint64_t size_bytes,
                    const segment::Payload& payload) {
  Item& item = items_[number];
  item.part = parts_.size();
  item.first = pieces_.size();
  for (const Extent& extent : extents) {
    const std::span<const std::byte> room = payload.At(extent);
    const std::size_t count = std::min<std::uint64_t>(room.size(), size_bytes);
    if (count == 0) break;
    pieces_.push_back({.data = room.data(), .size = count});
    size_bytes -= count;
  }
  item.count = pieces_.size() - item.first;
}

std::span<const ConstBuffer> Loan::pieces(std::size_t i) const {
  if (released_) return {};
  return std::span(pieces_).subspan(items_[i].first, items_[i].count);
}

std::uint64_t Loan::bytes() const {
  std::uint64_t bytes = 0;
  for (const Part& part : parts_) bytes += part.bytes();
  return bytes;
}

void Loan::Revalidate(std::span<ItemResult> results) const {
  // Orders the copies before the loads of generation and deadline. The owner publishes a generation
  // before it answers the reset, so a copy that began after a proven reset is not taken for valid.
  segment::FullFence();
  const std::int64_t now = clock_.NowNs();
  std::vector<MissReason> voided(parts_.size());
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    voided[p] = closed_ != nullptr && closed_->load(std::memory_order_acquire)
                    ? MissReason::kClosed
                    : parts_[p].Voided(now);
  }
  for (std::size_t i = 0; i < items_.size(); ++i) {
    const Item& item = items_[i];
    results[i] = item.result;
    if (item.part == 0 || voided[item.part - 1] == MissReason::kNone) continue;
    results[i] = Miss(voided[item.part - 1]);
    results[i].bytes = item.result.bytes;
  }
}

void Loan::End() {
  for (Part& part : parts_) part.End();
  parts_.clear();
  released_ = true;
}

}  // namespace requester

// ---- Borrowed

Borrowed::Borrowed() = default;
Borrowed::Borrowed(std::unique_ptr<requester::Loan> loan) : loan_(std::move(loan)) {}
Borrowed::Borrowed(Borrowed&& other) noexcept = default;

Borrowed& Borrowed::operator=(Borrowed&& other) noexcept {
  if (this != &other) {
    if (loan_ != nullptr && !loan_->Here()) (void)loan_.release();
    loan_ = std::move(other.loan_);
  }
  return *this;
}

// A forked child has neither the mappings nor the threads that may hold locks, so it leaks the
// loan.
Borrowed::~Borrowed() {
  if (loan_ != nullptr && !loan_->Here()) (void)loan_.release();
}

std::size_t Borrowed::size() const { return loan_ == nullptr ? 0 : loan_->size(); }
const ItemResult& Borrowed::result(std::size_t i) const { return loan_->result(i); }
std::span<const ConstBuffer> Borrowed::pieces(std::size_t i) const { return loan_->pieces(i); }
std::uint64_t Borrowed::bytes() const { return loan_ == nullptr ? 0 : loan_->bytes(); }

Status Borrowed::Revalidate(std::span<ItemResult> results) const {
  if (loan_ == nullptr) return {};
  if (!loan_->Here()) return Fail(Code::kUnavailable, "this process was forked after the borrow");
  if (loan_->released()) return Fail(Code::kInvalid, "what was borrowed has been released");
  if (results.size() < loan_->size()) {
    return Fail(Code::kInvalid, "less room for results than keys were borrowed");
  }
  loan_->Revalidate(results);
  return {};
}

Status Borrowed::Release(std::span<ItemResult> results) {
  KVCOVE_TRY(Revalidate(results));
  Release();
  return {};
}

void Borrowed::Release() {
  if (loan_ != nullptr && loan_->Here()) loan_->End();
}

}  // namespace kvcove
