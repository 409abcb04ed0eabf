// SPDX-License-Identifier: Apache-2.0
// Memory files with huge pages where the host has them.
//
//   hugetlb      pages that the administrator set aside (vm.nr_hugepages). They are allocated, all
//                of them, before anybody maps the file: a page that is missing at its first touch
//                would be a SIGBUS. The file is a whole number of them; a capacity need not be.
//   transparent  the kernel's own choice, page by page, where shmem_enabled allows it
//   base         4 KiB on most machines
//
// A process that maps a file of base pages pays 2 MiB of page tables a GiB; with huge pages of
// 2 MiB it is 4 KiB, and big copies miss the TLB less often.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kvcove/base/posix.h"
#include "kvcove/base/result.h"

namespace kvcove {

enum class HugePages {
  kAuto,     // hugetlb where enough pages are free, else transparent, else base; never fails
  kRequire,  // hugetlb, or an error that names the sysctl
  kOff,      // base
};
// "auto", "require", "off". Errors: kInvalid; `what` names the setting.
Result<HugePages> ParseHugePages(std::string_view what, std::string_view text);

// What a host has, from /proc/meminfo and /sys/kernel/mm below `root`.
struct HugePageHost {
  std::uint64_t page_bytes = 0;  // of hugetlb by default; 0: the kernel has none
  std::uint64_t set_aside = 0;   // vm.nr_hugepages
  std::uint64_t free = 0;        // neither used nor promised, with what may be added on demand
  std::string shmem;             // the chosen word of shmem_enabled; empty: unknown

  static HugePageHost Read(const std::string& root = "");
  // Pages for `bytes`.
  std::uint64_t Needed(std::uint64_t bytes) const {
    return page_bytes == 0 ? 0 : (bytes + page_bytes - 1) / page_bytes;
  }
  bool Transparent() const {
    return shmem == "always" || shmem == "within_size" || shmem == "advise" || shmem == "force";
  }
  // The command that sets enough of them aside: "sysctl -w vm.nr_hugepages=2048".
  std::string Sysctl(std::uint64_t bytes) const;
};

struct MemoryFile {
  enum class Pages { kBase, kTransparent, kHugetlb };

  UniqueFd fd;
  std::uint64_t file_bytes = 0;  // what was asked for, rounded up to whole pages
  Pages pages = Pages::kBase;
  std::uint64_t page_bytes = 0;
  std::string why;  // not hugetlb; empty for hugetlb

  // "huge pages of 2MiB, page tables of 8KiB in each process that maps all of it".
  std::string Describe() const;
};

// A sealed memory file of at least `size` bytes. With hugetlb it returns when all pages are
// allocated, some 10 s for 100 GiB. Errors: kUnavailable for kRequire; kInternal.
Result<MemoryFile> CreateMemoryFile(const char* name, std::uint64_t size, HugePages wanted,
                                    const HugePageHost& host);

// Asks for transparent huge pages in a mapping of the file, or refuses them.
void AdvisePages(const Mapping& mapping, MemoryFile::Pages pages);

}  // namespace kvcove
