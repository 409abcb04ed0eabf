// SPDX-License-Identifier: Apache-2.0
// Pages of shared mappings: making them present, and seeing which are.
//
// A page of a memory file is charged to the control group of the process that touches it first,
// also if it only reads. So an owner populates what it gives out (kWrite), and everybody else maps
// only what is there already (PresentRuns, then kRead).
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kvcove/base/result.h"

namespace kvcove {

enum class Populate {
  kWrite,  // allocates what is missing, and maps it writable; contents do not change
  kRead,   // maps it
};

std::uint64_t SystemPageBytes();
// Of a memory file: larger than the system's where it lies in hugetlbfs.
std::uint64_t PageBytesOf(int fd);

// What one process's page tables take when all of `mapped_bytes` are mapped by pages of
// `page_bytes`.
std::uint64_t PageTableBytes(std::uint64_t mapped_bytes, std::uint64_t page_bytes);

// Returns when the pages at `data` (aligned to pages) are mapped. Never a signal, unlike a touch:
// memory that cannot be had is an error (from Linux 5.14 on). Errors: kUnavailable, with errno's
// text.
Status PopulatePages(std::byte* data, std::size_t size, Populate how);

// The parts of the range, as (offset, size), that have memory already. An upper bound for memory
// that this process may not ask about. Not for huge pages of hugetlbfs: there the kernel only says
// what this process has mapped.
std::vector<std::pair<std::size_t, std::size_t>> PresentRuns(std::byte* data, std::size_t size);

}  // namespace kvcove
