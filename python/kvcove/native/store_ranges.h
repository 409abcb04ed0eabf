// SPDX-License-Identifier: Apache-2.0
// Parts of values: between addresses and values that Python holds, and from the pool straight to
// where they are wanted.
#pragma once

#include <vector>

#include "regions.h"
#include "store_arguments.h"

namespace kvcove::python {

// Copies what lies at an address to host memory, which is as large. False: it may not be read, or a
// device failed. Needs no GIL.
bool CopyPiece(const Regions& regions, const Piece& from, std::byte* to);

struct RangeArguments {
  nb::handle values;     // buffers, None for what is not there
  nb::handle offsets;    // in them: a list a value
  nb::handle addresses;  // a list a value
  nb::handle sizes;      // a list a value
};
// Copies between values and addresses. Per value the bytes of all its ranges, or a code; nothing of
// a value is copied unless everything can be. `out`: to the addresses. With the GIL, which it gives
// up while it copies.
nb::list CopyRanges(const Regions& regions, const RangeArguments& arguments, bool out);

// Fragments of values for one registered buffer. What lies between the fragments of a value goes to
// memory that is thrown away; the fragments themselves are written once. Fragments of one value
// that have bytes in common, there or in the buffer, are copied from a whole one instead.
class RangeRead {
 public:
  struct Lists {
    nb::handle to;    // offsets in the buffer: a list a key
    nb::handle from;  // offsets in the value
    nb::handle sizes;
  };
  // With the GIL. The keys outlive it.
  RangeRead(const Regions& regions, std::uintptr_t buffer, const StoredKeys& keys,
            const Lists& lists);
  // What the call may have to move, as far as its arguments say.
  std::uint64_t largest_bytes() const { return asked_bytes_; }
  // Without the GIL.
  void Run(Session& session, const CallOptions& options, std::int64_t patience_ns);
  // With the GIL.
  nb::list Answers() const;
  std::uint64_t from_disk() const { return from_disk_; }  // how many values a disk had

 private:
  struct Fragment {
    std::uint64_t to = 0;
    std::uint64_t from = 0;
    std::uint64_t size = 0;
  };
  struct Item {
    std::vector<Fragment> fragments;
    std::vector<std::int64_t> codes;
    std::vector<std::size_t> direct;  // by where they begin in the value
    bool copies = false;              // from a whole value
    std::vector<std::byte> scratch;
    std::vector<MutableBuffer> into;
  };

  // Which fragments of a value with this size fit, and where its bytes go.
  void Plan(Item& item, std::uint64_t size);
  static bool Overlap(const Item& item);
  void Finish(Item& item, const ItemResult& result);

  const std::uintptr_t buffer_;
  const StoredKeys& keys_;
  // From the address to the end of the registered buffer; 0: there is none that may be written.
  std::size_t room_;
  Regions::Kind kind_ = Regions::Kind::kNone;
  std::vector<Item> items_;
  std::uint64_t asked_bytes_ = 0;
  std::uint64_t from_disk_ = 0;
};

}  // namespace kvcove::python
