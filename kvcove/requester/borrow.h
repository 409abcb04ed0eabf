// SPDX-License-Identifier: Apache-2.0
// Memory of the pool in place: what Session::Borrow and Session::Reserve give. A GPU, or the
// caller, copies straight out of an owner's segment and into it, without a buffer in between.
//
//   auto loan = *session->Borrow(keys, {});        // no call: a few hundred ns a key
//   ... copy loan.pieces(i) of each i with loan.result(i).ok(), wait for the device ...
//   loan.Release(results);                         // ok: these bytes were valid all the time
//
//   auto space = *session->Reserve(token, items, {});
//   ... fill space.pieces(i), wait for the device ...
//   space.Commit(results);                         // from here on readers find the values
//
// What holds for both:
// - One thread at a time uses such an object; it may move from thread to thread.
// - The memory belongs to the caller's copies until Release, Commit or Abort *begins*; all of them
//   must have ended then, those of a device too. No timer takes it away earlier, and the owner
//   gives it to nobody else, whatever it evicts, removes or resets meanwhile. So a device that
//   hangs keeps memory, and what it keeps counts (below).
// - The memory stays mapped as long as the object lives, also when its owner dies or the session
// and
//   the pool end first. When the process dies, everything comes back at once.
// - In a forked child the object is dead: it is dropped without effect on the parent's.
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

// Values that are protected where they lie. Destruction releases.
class KVCOVE_API Borrowed {
 public:
  Borrowed();  // of no keys
  ~Borrowed();
  Borrowed(Borrowed&& other) noexcept;
  Borrowed& operator=(Borrowed&& other) noexcept;

  // The keys of the call, in its order.
  std::size_t size() const;
  // What Borrow found; Session::Borrow has the codes. `i` < size().
  const ItemResult& result(std::size_t i) const;
  // Where the value lies, in order, at most 64 pieces; none for what is not ok, and after Release.
  // To be read only.
  std::span<const ConstBuffer> pieces(std::size_t i) const;
  // That are protected now: of values.
  std::uint64_t bytes() const;

  // Whether what was copied so far was valid at each moment until now. For each key that was ok:
  // kOk; or kMiss with kReset (a reset came meanwhile), kLease (the owner's lease ran out, so one
  // may have come), kClosed (this session's own reset is not proven) or kUnavailable (the owner is
  // gone). The copy of a miss is to be thrown away. Keys that were not ok keep their result.
  // A value that was evicted or removed meanwhile is ok: its bytes stay what they are, and the
  // borrow began before, like a get that was under way. Makes no call.
  // Errors: kInvalid for less room than keys, or after Release; kUnavailable in a forked child.
  Status Revalidate(std::span<ItemResult> results) const;
  // Revalidates, and ends the protection. Each copy must have ended. The second time: kInvalid.
  Status Release(std::span<ItemResult> results);
  // The same for who wants no results; harmless when nothing is left to release.
  void Release();

  // From here on: of the implementation.
  KVCOVE_INTERNAL explicit Borrowed(std::unique_ptr<requester::Loan> loan);

 private:
  std::unique_ptr<requester::Loan> loan_;
};

// A value to come.
struct ReserveItem {
  std::string_view key{};
  std::uint64_t size_bytes = 0;  // 1 B to 256 MiB
  std::string_view after{};      // as PutItem has it
  Hints hints{};
};

// Memory that becomes values. Destruction aborts, waiting 100 ms at most for an owner that does not
// answer, which is told later.
class KVCOVE_API Reserved {
 public:
  Reserved();  // of no items
  ~Reserved();
  Reserved(Reserved&& other) noexcept;
  Reserved& operator=(Reserved&& other) noexcept;

  std::size_t size() const;
  // What Reserve answered, then what Commit did. Session::Reserve has the codes.
  const ItemResult& result(std::size_t i) const;
  // Where the value is to be written, in order, together its size; none for what is not ok, and
  // after Commit or Abort.
  std::span<const MutableBuffer> pieces(std::size_t i) const;
  std::uint64_t bytes() const;  // that wait to be committed

  // Its copy failed: Commit gives it up, and answers kCorrupt for it.
  void Drop(std::size_t i);
  // Ends the batch: each item that was ok, and was not dropped, becomes a value. Items: kOk
  // (ItemResult::listed as for puts), kExists, kStale (a reset or a removal came after the token),
  // kTimeout (the key's second was over: others may have it now), kNoSpace, kUnavailable; others
  // keep their result. Whatever it answers, the memory is the owner's from here on. A repeat
  // answers the same and makes no call. One call an owner.
  // Errors: those of the call that failed, shown by its items, too; kInvalid for less room than
  // items, or after Abort; kUnavailable in a forked child.
  Status Commit(std::span<ItemResult> results,
                std::chrono::milliseconds timeout = std::chrono::milliseconds(1000));
  // Gives everything back. Harmless after Commit.
  void Abort(std::chrono::milliseconds timeout = std::chrono::milliseconds(1000));

  // From here on: of the implementation.
  KVCOVE_INTERNAL explicit Reserved(std::unique_ptr<requester::Reservation> reservation);

 private:
  std::unique_ptr<requester::Reservation> reservation_;
};

// The payload of one owner of this host, as this process maps it: what a device registers (pins),
// so that it reads and writes borrowed and reserved memory by itself.
struct SegmentRange {
  // Of this mapping, never used again in this process: an owner that has started anew has another.
  std::uint64_t number = 0;
  void* data = nullptr;
  std::uint64_t size_bytes = 0;
  // From `data` on. Beyond it the owner has not populated its memory yet; pinning that would
  // allocate it, at this process's cost. It grows to size_bytes.
  std::uint64_t populated_bytes = 0;
  int node = -1;  // NUMA, of the memory; -1: it is bound to none
  // The range stays mapped while a copy of this is kept: keep one until the device has let go.
  std::shared_ptr<const void> mapping{};
};

}  // namespace kvcove
