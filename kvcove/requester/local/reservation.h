// SPDX-License-Identifier: Apache-2.0
// What is behind a Reserved: which owners reserved what, and how that ends. One thread at a time.
//
//   open -> committed | aborted        (the end, and so a session's that dropped it, aborts)
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "kvcove/requester/borrow.h"
#include "kvcove/requester/calls.h"
#include "kvcove/requester/local/attachment.h"

namespace kvcove::requester {

// What a put's code says: stored although the master has not listed it is a success, too.
ItemResult Stored(Code code, std::uint64_t bytes);

// Ends reservations of one owner: item k of `items` is that of results[which[k]], whose `bytes` are
// its size. What the owner could not be told in time it is told later, as given up: no harm if the
// commit arrived. Errors: the call's, shown by its items, too.
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
  // `keep`, if anything, ends after everything else of it. `closed`: of the session.
  Reservation(std::size_t items, const Clock& clock, std::shared_ptr<void> keep,
              std::shared_ptr<const std::atomic<bool>> closed);
  ~Reservation();
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  // ---- while it is made
  // From here on Add is about this owner's life. `host` is kept, as of a loan.
  void AddPart(std::shared_ptr<OwnerTie> host, std::shared_ptr<Attachment> attachment);
  // False: the owner named memory that is not of its segment; it is told so.
  bool Add(std::size_t number, const wire::PutResult& grant, std::uint64_t size_bytes);
  void SetResult(std::size_t number, const ItemResult& result) { items_[number].result = result; }

  // ---- what Reserved offers
  bool Here() const;  // no forked child
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
    std::size_t part = 0;  // 1 + its number; 0: nothing is reserved
    std::size_t first = 0;
    std::size_t count = 0;
    bool dropped = false;
  };
  // How each item of one part ends.
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
  Status committed_;  // what a repeated Commit answers
};

// Session::Reserve with what `ask(reservation, items, results)` is given. Errors: those of `ask`.
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
  // What else a call fails with, its items show.
  const Status asked = ask(*reservation, wanted, results);
  if (!asked && asked.error().code == Code::kInvalid) return std::unexpected(asked.error());
  for (std::size_t i = 0; i < items.size(); ++i) reservation->SetResult(i, results[i]);
  return Reserved(std::move(reservation));
}

}  // namespace kvcove::requester
