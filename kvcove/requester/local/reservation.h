// SPDX-License-Identifier: Apache-2.0
// The implementation of Reserved: the reservations of a batch at their owners, and their end. One
// thread at a time.
//
//   open -> committed | aborted        (the destructor aborts)
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "kvcove/requester/borrow.h"
#include "kvcove/requester/calls.h"
#include "kvcove/requester/local/attachment.h"

namespace kvcove::requester {

// Returns the result of a put. kNotListed becomes kOk, with `listed` false: the value is stored.
ItemResult Stored(Code code, std::uint64_t bytes);

// Ends reservations at one owner: item k of `items` is that of results[which[k]], whose `bytes` are
// its size. If the call fails, the reservations are noted as given up, and the owner is notified
// later; that has no effect on a commit that did arrive. Errors: the call's, also in its items.
Status FinishReserved(Attachment& attachment, std::span<const wire::FinishItem> items,
                      std::span<const std::size_t> which, std::span<ItemResult> results,
                      std::int64_t deadline_ns);

// An item of a reservation, and its number in the caller's batch.
struct ReserveKey {
  ReserveItem item;
  std::size_t number = 0;
};

class Reservation {
 public:
  // `keep`: null, or destroyed after all other members. `closed`: ResetKeeper::closed_flag.
  Reservation(std::size_t items, const Clock& clock, std::shared_ptr<void> keep,
              std::shared_ptr<const std::atomic<bool>> closed);
  ~Reservation();
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  // ---- while it is made
  // Begins the part of an owner's life; Add adds to the last part. Keeps `host`, as a loan does.
  void AddPart(std::shared_ptr<OwnerTie> host, std::shared_ptr<Attachment> attachment);
  // Adds an item. False: the grant is outside the owner's segment; the reservation is given up.
  bool Add(std::size_t number, const wire::PutResult& grant, std::uint64_t size_bytes);
  void SetResult(std::size_t number, const ItemResult& result) { items_[number].result = result; }

  // ---- what Reserved offers
  bool Here() const;  // false in a forked child
  bool aborted() const { return state_ == State::kAborted; }
  std::size_t size() const { return items_.size(); }
  const ItemResult& result(std::size_t i) const { return items_[i].result; }
  std::span<const MutableBuffer> pieces(std::size_t i) const;
  std::uint64_t bytes() const;
  void Drop(std::size_t i) { items_[i].dropped = true; }
  Status Commit(std::span<ItemResult> results, std::chrono::milliseconds timeout);
  void Abort(std::chrono::milliseconds timeout);

 private:
  enum class State { kOpen, kCommitted, kAborted };
  struct Part {
    std::shared_ptr<OwnerTie> host;
    std::shared_ptr<Attachment> attachment;
  };
  struct Item {
    ItemResult result;
    std::uint64_t reservation = 0;
    std::size_t part = 0;   // 1 + index in parts_; 0: not reserved
    std::size_t first = 0;  // range of pieces_
    std::size_t count = 0;
    bool dropped = false;
  };
  // Commits or gives up each item of one part.
  Status FinishPart(std::size_t part, bool closed, std::span<ItemResult> results,
                    std::int64_t deadline_ns);

  const unsigned forks_;
  const Clock& clock_;
  const std::shared_ptr<void> keep_;
  const std::shared_ptr<const std::atomic<bool>> closed_;
  std::vector<Item> items_;
  std::vector<MutableBuffer> pieces_;
  std::vector<Part> parts_;
  State state_ = State::kOpen;
  Status committed_;  // result of Commit, for a repeated call
};

// Implements Session::Reserve; `ask(reservation, items, results)` reserves the items. Errors:
// kInvalid of `ask`.
template <typename Ask>
Result<Reserved> ReserveBy(std::unique_ptr<Reservation> reservation,
                           std::span<const ReserveItem> items, const CallOptions& options,
                           Ask&& ask) {
  std::vector<ReserveKey> wanted(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    wanted[i] = {.item = items[i], .number = i};
    wanted[i].item.after = AfterOf(items, i, options);
  }
  std::vector<ItemResult> results(items.size());
  // Other errors of the call are in its items.
  const Status asked = ask(*reservation, wanted, results);
  if (!asked && asked.error().code == Code::kInvalid) return std::unexpected(asked.error());
  for (std::size_t i = 0; i < items.size(); ++i) reservation->SetResult(i, results[i]);
  return Reserved(std::move(reservation));
}

}  // namespace kvcove::requester
