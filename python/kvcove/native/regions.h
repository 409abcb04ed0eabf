// SPDX-License-Identifier: Apache-2.0
// The memory that a caller has registered, and what else of its addresses may be touched.
// Thread-safe.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "device.h"
#include "kvcove/base/mutex.h"

namespace kvcove::python {

// What the process has mapped and may read, as it was when it was asked for.
class Mappings {
 public:
  static Mappings Read();
  // Whether every byte may be read and, with `writable`, written.
  bool Has(std::uintptr_t address, std::size_t size, bool writable) const;

 private:
  struct Mapping {
    std::uintptr_t begin;
    std::uintptr_t end;
    bool writable;
  };
  std::vector<Mapping> mappings_;  // in order
};

class Regions {
 public:
  // Errors: kInvalid for null, no size, a range that wraps, is not mapped as a whole, may not be
  // read, or of which a part is registered; kInternal for GPU memory that cannot be copied. Memory
  // that may not be written is registered for reads only.
  Status Add(std::uintptr_t address, std::size_t size);
  // Registers memory that this library has allocated for the caller. Parts of it, and all of it,
  // may be registered in turn: a part then ends where its caller has said, like any other buffer.
  Status AddAllocation(std::uintptr_t address, std::size_t size);
  // An allocation stays registered.
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
    // kNone: the piece may not be touched or, if it is to be written, only be read.
    Kind Of(std::uintptr_t address, std::size_t size);

   private:
    const Regions& regions_;
    const bool writable_;
    struct Range {
      std::uintptr_t begin;
      std::uintptr_t end;
    };
    Range last_{0, 0};  // the one that was found before
    Kind last_kind_ = Kind::kNone;
    std::optional<Mappings> mappings_;  // read when they are first needed
  };

 private:
  struct Region {
    std::size_t size = 0;
    Kind kind = Kind::kNone;
    bool writable = false;
    bool allocation = false;
    std::map<std::uintptr_t, std::size_t> parts;  // of an allocation; no two have a byte in common
  };
  using Map = std::map<std::uintptr_t, Region>;
  // The last buffer of which a byte is in the range, or the end.
  Map::const_iterator Touched(std::uintptr_t address, std::size_t size) const
      KVCOVE_REQUIRES(mutex_);
  // Where the buffer ends that an address in a region lies in: the region, or a part of it.
  static std::uintptr_t EndOf(const Map::value_type& region, std::uintptr_t address);
  static Status AddPart(std::uintptr_t at, Region& region, std::uintptr_t address,
                        std::size_t size);

  mutable Mutex mutex_;
  Map regions_ KVCOVE_GUARDED_BY(mutex_);  // by their addresses; no two have a byte in common
};

}  // namespace kvcove::python
