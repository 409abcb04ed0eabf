// SPDX-License-Identifier: Apache-2.0
// The implementation of Borrowed: the values of a loan, their owners, and the slots in which they
// are announced. One thread at a time. The destructor ends the protection.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "kvcove/requester/borrow.h"
#include "kvcove/requester/local/attachment.h"

namespace kvcove::requester {

// The bytes that loans of one session protect at one owner, with their bound. Thread-safe.
class BorrowBudget {
 public:
  // 0: only the process's bounds (ReaderSlots) apply.
  explicit BorrowBudget(std::uint64_t bound_bytes) : bound_bytes_(bound_bytes) {}
  // Adds bytes unless that exceeds the bound; one value is always accepted.
  bool Add(std::uint64_t bytes);
  void Sub(std::uint64_t bytes) { bytes_.fetch_sub(bytes, std::memory_order_relaxed); }

 private:
  const std::uint64_t bound_bytes_;
  std::atomic<std::uint64_t> bytes_{0};
};

// A key of a borrow, and its number in the caller's batch.
struct BorrowKey {
  std::string_view key;
  std::size_t number = 0;
};

// open -> released. Revalidate before the release only.
class Loan {
 public:
  // The values of one life of one owner under one scope.
  class Part {
   public:
    // Keeps `host`: its destructor says goodbye to the owner, which then ends the protection of all
    // entries of that session.
    Part(std::shared_ptr<OwnerTie> host, std::shared_ptr<Attachment> attachment,
         const segment::ReadScope& scope, std::shared_ptr<BorrowBudget> budget)
        : host_(std::move(host)),
          attachment_(std::move(attachment)),
          scope_(scope),
          budget_(std::move(budget)) {}

    // Adds bytes to the budgets of session and process, and waits for gets until the deadline.
    // False: session or process have borrowed up to their bounds, or gets need the room until the
    // deadline.
    bool AddBytes(std::uint64_t bytes, std::int64_t deadline_ns, const Clock& clock);
    void SubBytes(std::uint64_t bytes);
    void Keep(ReaderSlots::LoanSlot slot) { slots_.push_back(slot); }
    bool empty() const { return slots_.empty(); }
    std::uint64_t bytes() const { return bytes_; }
    // Returns why these values are not valid any more; kNone while they are.
    MissReason Voided(std::int64_t now_ns) const;
    // Ends the protection. All copies must have ended.
    void End();

   private:
    std::shared_ptr<OwnerTie> host_;
    std::shared_ptr<Attachment> attachment_;
    segment::ReadScope scope_;
    std::shared_ptr<BorrowBudget> budget_;
    std::vector<ReaderSlots::LoanSlot> slots_;
    std::uint64_t bytes_ = 0;
  };

  // `keep`: null, or destroyed after all other members. `closed`: ResetKeeper::closed_flag.
  Loan(std::size_t keys, const Clock& clock, std::shared_ptr<void> keep,
       std::shared_ptr<const std::atomic<bool>> closed);
  ~Loan();
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;

  // ---- while it is made
  void AddPart(Part part) { parts_.push_back(std::move(part)); }
  Part& last_part() { return parts_.back(); }
  // Drops the last part if it protects nothing.
  void DropEmptyPart();
  // Adds the value of key `number`, in these extents of the last part's owner.
  void AddValue(std::size_t number, std::span<const Extent> extents, std::uint64_t size_bytes,
                const segment::Payload& payload);
  void SetResult(std::size_t number, const ItemResult& result) { items_[number].result = result; }

  // ---- what Borrowed offers
  bool Here() const;  // false in a forked child
  bool released() const { return released_; }
  std::size_t size() const { return items_.size(); }
  const ItemResult& result(std::size_t i) const { return items_[i].result; }
  std::span<const ConstBuffer> pieces(std::size_t i) const;
  std::uint64_t bytes() const;
  void Revalidate(std::span<ItemResult> results) const;
  void End();

 private:
  struct Item {
    ItemResult result;
    std::size_t part = 0;   // 1 + index in parts_; 0: not lent
    std::size_t first = 0;  // range of pieces_
    std::size_t count = 0;
  };

  const unsigned forks_;
  const Clock& clock_;
  const std::shared_ptr<void> keep_;
  const std::shared_ptr<const std::atomic<bool>> closed_;
  std::vector<Item> items_;
  std::vector<ConstBuffer> pieces_;
  std::vector<Part> parts_;
  bool released_ = false;
};

// Implements Session::Borrow; `ask(loan, keys, results)` finds the keys. Errors: those of `ask`.
template <typename Ask>
Result<Borrowed> BorrowBy(std::unique_ptr<Loan> loan, std::span<const std::string_view> keys,
                          Ask&& ask) {
  std::vector<BorrowKey> wanted(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) wanted[i] = {.key = keys[i], .number = i};
  std::vector<ItemResult> results(keys.size());
  KVCOVE_TRY(ask(*loan, wanted, results));
  for (std::size_t i = 0; i < keys.size(); ++i) loan->SetResult(i, results[i]);
  return Borrowed(std::move(loan));
}

}  // namespace kvcove::requester
