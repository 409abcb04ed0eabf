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
  // Errors: kInvalid for null, no size, or what is registered; kInternal for GPU memory that cannot
  // be copied.
  Status Add(std::uintptr_t address, std::size_t size);
  Status Remove(std::uintptr_t address);

  enum class Kind : std::uint8_t { kNone, kHost, kDevice };
  // Answers for the pieces of one call: what is not registered counts if the process has it mapped.
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
  mutable Mutex mutex_;
  std::map<std::uintptr_t, Region> regions_ KVCOVE_GUARDED_BY(mutex_);
};

}  // namespace kvcove::python
