// SPDX-License-Identifier: Apache-2.0
// What is behind a Borrowed: which owners lent which values, and in which slots they are announced.
// One thread at a time. Its protection ends with it.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "kvcove/requester/borrow.h"
#include "kvcove/requester/local/attachment.h"

namespace kvcove::requester {

// What the loans of one session may protect at one owner. Thread-safe.
class BorrowBudget {
 public:
  // 0: the process's bounds (ReaderSlots) are the only ones.
  explicit BorrowBudget(std::uint64_t bound_bytes) : bound_bytes_(bound_bytes) {}
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

class Loan {
 public:
  // What one life of one owner lent under one scope.
  class Part {
   public:
    // `host` is kept: when the last one who keeps it ends, it says goodbye to the owner, which then
    // takes back what its session protects.
    Part(std::shared_ptr<OwnerTie> host, std::shared_ptr<Attachment> attachment,
         const segment::ReadScope& scope, std::shared_ptr<BorrowBudget> budget)
        : host_(std::move(host)),
          attachment_(std::move(attachment)),
          scope_(scope),
          budget_(std::move(budget)) {}

    // Room for so many bytes more. False: the session or the process has borrowed all that it may,
    // or gets protect the room until the deadline.
    bool AddBytes(std::uint64_t bytes, std::int64_t deadline_ns, const Clock& clock);
    void SubBytes(std::uint64_t bytes);
    void Keep(ReaderSlots::LoanSlot slot) { slots_.push_back(slot); }
    bool empty() const { return slots_.empty(); }
    std::uint64_t bytes() const { return bytes_; }
    // Why what is read here is not valid any more; kNone while it is.
    MissReason Voided(std::int64_t now_ns) const;
    // Nobody reads any more.
    void End();

   private:
    std::shared_ptr<OwnerTie> host_;
    std::shared_ptr<Attachment> attachment_;
    segment::ReadScope scope_;
    std::shared_ptr<BorrowBudget> budget_;
    std::vector<ReaderSlots::LoanSlot> slots_;
    std::uint64_t bytes_ = 0;
  };

  // `keep`, if anything, ends after everything else of it. `closed`: of the session.
  Loan(std::size_t keys, const Clock& clock, std::shared_ptr<void> keep,
       std::shared_ptr<const std::atomic<bool>> closed);
  ~Loan();
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;

  // ---- while it is made
  void AddPart(Part part) { parts_.push_back(std::move(part)); }
  Part& last_part() { return parts_.back(); }
  // Of the last part, if nothing came of it.
  void DropEmptyPart();
  // Key `number` lies in these pieces of the last part's owner.
  void AddValue(std::size_t number, std::span<const Extent> extents, std::uint64_t size_bytes,
                const segment::Payload& payload);
  void SetResult(std::size_t number, const ItemResult& result) { items_[number].result = result; }

  // ---- what Borrowed offers
  bool Here() const;  // no forked child
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
    std::size_t part = 0;  // 1 + its number; 0: nothing is lent
    std::size_t first = 0;
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

// Session::Borrow with the keys that `ask(loan, keys, results)` finds. Errors: those of `ask`.
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
