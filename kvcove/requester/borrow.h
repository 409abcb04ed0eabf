// SPDX-License-Identifier: Apache-2.0
// Memory of the pool in place, from Session::Borrow and Session::Reserve. A GPU, or the caller,
// copies straight out of an owner's segment and into it, with no buffer in between.
//
//   auto loan = *session->Borrow(keys, {});        // no call: a few hundred ns a key
//   ... copy loan.pieces(i) of each i with loan.result(i).ok(), wait for the device ...
//   loan.Release(results);                         // ok: these bytes were valid all the time
//
//   auto space = *session->Reserve(token, items, {});
//   ... fill space.pieces(i), wait for the device ...
//   space.Commit(results);                         // from here on readers find the values
//
// Rules for both:
// - One thread at a time uses such an object; it may move from thread to thread.
// - The memory belongs to the caller's copies until Release, Commit or Abort *begins*; by then all
//   copies must have ended, also those of a device. No timer ends this earlier, and the owner
//   reuses the memory for nothing else, whatever it evicts, removes or resets meanwhile. So a
//   device that hangs keeps memory, and that memory counts against the bounds of Borrow and
//   Reserve.
// - The memory stays mapped as long as the object lives, also if its owner dies, or if session and
//   pool end first. When the process dies, the owner takes all of it back at once.
// - In a forked child the object is dead: its calls fail, and its destruction has no effect.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "kvcove/base/export.h"
#include "kvcove/base/result.h"
#include "kvcove/requester/types.h"

namespace kvcove {

namespace requester {
class Loan;
class Reservation;
}  // namespace requester

// Values that are protected in place. Its destructor releases them.
class KVCOVE_API Borrowed {
 public:
  Borrowed();  // without keys
  ~Borrowed();
  Borrowed(Borrowed&& other) noexcept;
  Borrowed& operator=(Borrowed&& other) noexcept;

  // Returns the number of keys of the call. `i` below counts them in the call's order.
  std::size_t size() const;
  // Returns the outcome of Borrow for a key; Session::Borrow has the codes.
  const ItemResult& result(std::size_t i) const;
  // Returns the pieces of the value, in order, at most 64; none if it is not ok, and after Release.
  // Read them only.
  std::span<const ConstBuffer> pieces(std::size_t i) const;
  // Returns the bytes of all values that are protected now.
  std::uint64_t bytes() const;

  // Checks that the copies so far were valid at each moment until now. For each key that was ok:
  // kOk; or kMiss with kReset (a reset was published meanwhile), kLease (the owner's lease ran out,
  // so a reset may have been published), kClosed (this session's own reset is not proven) or
  // kUnavailable (the owner has ended). Discard the copy of a miss. Keys that were not ok keep
  // their result. A value that was evicted or removed meanwhile is ok: its bytes do not change, and
  // the borrow began before, as with a get that was under way. Makes no call. Errors: kInvalid for
  // less room than keys, or after Release; kUnavailable in a forked child.
  Status Revalidate(std::span<ItemResult> results) const;
  // Revalidates, and ends the protection. All copies must have ended. The second time: kInvalid.
  Status Release(std::span<ItemResult> results);
  // Ends the protection without results; has no effect if nothing is left to release.
  void Release();

  // For the implementation only.
  KVCOVE_INTERNAL explicit Borrowed(std::unique_ptr<requester::Loan> loan);

 private:
  std::unique_ptr<requester::Loan> loan_;
};

// A value that is to be stored.
struct ReserveItem {
  std::string_view key{};
  std::uint64_t size_bytes = 0;  // 1 B to 256 MiB
  std::string_view after{};      // as in PutItem
  Hints hints{};
};

// Memory that becomes values. Its destructor aborts, and waits at most 100 ms for an owner that
// does not answer; such an owner is notified later.
class KVCOVE_API Reserved {
 public:
  Reserved();  // without items
  ~Reserved();
  Reserved(Reserved&& other) noexcept;
  Reserved& operator=(Reserved&& other) noexcept;

  std::size_t size() const;
  // Returns the outcome of Reserve for an item, after Commit that of Commit. Session::Reserve has
  // the codes.
  const ItemResult& result(std::size_t i) const;
  // Returns the pieces to write the value to, in order, together its size; none if it is not ok,
  // and after Commit or Abort.
  std::span<const MutableBuffer> pieces(std::size_t i) const;
  std::uint64_t bytes() const;  // not committed yet

  // Marks an item whose copy failed: Commit discards it with kCorrupt.
  void Drop(std::size_t i);
  // Ends the batch: each item that was ok, and was not dropped, becomes a value. Items: kOk
  // (ItemResult::listed as for puts), kExists, kStale (a reset or a removal came after the token),
  // kTimeout (the key's second was over: another writer may have the key now), kNoSpace,
  // kUnavailable; others keep their result. The memory is the owner's as soon as this call begins,
  // whatever the outcome. A second call returns the same, without a call to the owner. One call for
  // each owner.
  // Errors: those of the call that failed, shown by its items, too; kInvalid for less room than
  // items, or after Abort; kUnavailable in a forked child.
  Status Commit(std::span<ItemResult> results,
                std::chrono::milliseconds timeout = std::chrono::milliseconds(1000));
  // Returns all memory to its owners. Has no effect after Commit.
  void Abort(std::chrono::milliseconds timeout = std::chrono::milliseconds(1000));

  // For the implementation only.
  KVCOVE_INTERNAL explicit Reserved(std::unique_ptr<requester::Reservation> reservation);

 private:
  std::unique_ptr<requester::Reservation> reservation_;
};

// The payload of one owner of this host, as this process maps it. A device registers (pins) the
// range, so that it reads and writes borrowed and reserved memory by itself.
struct SegmentRange {
  // Number of this mapping, never used again in this process: an owner that has restarted has
  // another.
  std::uint64_t number = 0;
  void* data = nullptr;
  std::uint64_t size_bytes = 0;
  // Bytes from `data` on that the owner has populated, which grow to size_bytes. Pinning memory
  // beyond them would allocate it, at this process's cost.
  std::uint64_t populated_bytes = 0;
  int node = -1;  // NUMA node of the memory; -1: bound to none
  // The range stays mapped while a copy of this is kept: keep one until the device has unpinned it.
  std::shared_ptr<const void> mapping{};
};

}  // namespace kvcove
