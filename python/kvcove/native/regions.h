// SPDX-License-Identifier: Apache-2.0
// The memory that a caller has registered, and what else of its addresses may be touched.
// Thread-safe.
#pragma once

#include <map>
#include <vector>

#include "device.h"
#include "kvcove/base/mutex.h"

namespace kvcove::python {

class Regions {
 public:
  // Errors: kInvalid for null, no size, a range that wraps, is not mapped as a whole, or of which a
  // part is registered; kInternal for GPU memory that cannot be copied.
  Status Add(std::uintptr_t address, std::size_t size);
  Status Remove(std::uintptr_t address);
  // From an address to the end of the registered buffer that it lies in; 0 if it lies in none.
  std::size_t Room(std::uintptr_t address) const;

  enum class Kind : std::uint8_t { kNone, kHost, kDevice };
  // Answers for the pieces of one call. A piece lies in one registered buffer, or it touches none
  // and the process has it mapped. A piece that leaves a buffer is refused, whatever lies behind
  // that: its caller has said where its memory ends.
  class Lookup {
   public:
    Lookup(const Regions& regions, bool writable) : regions_(regions), writable_(writable) {}
    Kind Of(std::uintptr_t address, std::size_t size);

   private:
    bool Mapped(std::uintptr_t address, std::size_t size);

    const Regions& regions_;
    const bool writable_;
    struct Range {
      std::uintptr_t begin;
      std::uintptr_t end;
    };
    Range last_{0, 0};  // the one that was found before
    Kind last_kind_ = Kind::kNone;
    std::vector<Range> mapped_;  // read when it is first needed
    bool read_maps_ = false;
  };

 private:
  struct Region {
    std::size_t size = 0;
    Kind kind = Kind::kNone;
  };
  using Map = std::map<std::uintptr_t, Region>;
  // The last buffer of which a byte is in the range, or the end.
  Map::const_iterator Touched(std::uintptr_t address, std::size_t size) const
      KVCOVE_REQUIRES(mutex_);

  mutable Mutex mutex_;
  Map regions_ KVCOVE_GUARDED_BY(mutex_);  // by their addresses; no two have a byte in common
};

}  // namespace kvcove::python
