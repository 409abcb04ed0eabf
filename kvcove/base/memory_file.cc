// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/memory_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "kvcove/base/pages.h"
#include "kvcove/base/size.h"
#include "kvcove/base/text.h"

namespace kvcove {
namespace {

constexpr std::uint64_t kAllocateStep = 256 * kMiB;  // a signal waits for one

std::uint64_t NumberIn(const std::string& path) {
  std::uint64_t value = 0;
  std::ifstream(path) >> value;
  return value;
}

// "always [madvise] never": madvise.
std::string ChosenIn(const std::string& path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  const std::size_t begin = line.find('[');
  const std::size_t end = line.find(']');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return {};
  return line.substr(begin + 1, end - begin - 1);
}

Result<UniqueFd> Sealed(const char* name, std::uint64_t size, unsigned flags) {
  UniqueFd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
  if (!fd.valid()) return FailErrno(Code::kInternal, "memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(size)) != 0) {
    return FailErrno(Code::kInternal, fmt::format("ftruncate of a memory file to {} bytes", size));
  }
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return FailErrno(Code::kInternal, "F_ADD_SEALS");
  }
  return fd;
}

// Of hugetlb. Errors: kUnavailable, what the host lacks.
Result<MemoryFile> CreateHuge(const char* name, std::uint64_t size, const HugePageHost& host) {
  if (host.page_bytes == 0) {
    return Fail(Code::kUnavailable, "this kernel has no huge pages (hugetlbfs)");
  }
  const std::uint64_t needed = host.Needed(size);
  if (needed > host.free) {
    return Fail(Code::kUnavailable, fmt::format("{} of {} huge pages of {} are free", host.free,
                                                needed, FormatSize(host.page_bytes)));
  }
  MemoryFile file{.fd = {},
                  .file_bytes = needed * host.page_bytes,
                  .pages = MemoryFile::Pages::kHugetlb,
                  .page_bytes = host.page_bytes,
                  .why = {}};
  auto fd = Sealed(name, file.file_bytes, MFD_HUGETLB);
  if (!fd) return Fail(Code::kUnavailable, fd.error().detail);
  for (std::uint64_t done = 0; done < file.file_bytes;) {
    const std::uint64_t step =
        std::min(std::max(kAllocateStep, host.page_bytes), file.file_bytes - done);
    if (fallocate(fd->get(), 0, static_cast<off_t>(done), static_cast<off_t>(step)) == 0) {
      done += step;
    } else if (errno != EINTR) {
      // A control group's limit (hugetlb.*.max), or pages of other NUMA nodes than this process may
      // use. What was allocated goes with the file.
      return Fail(Code::kUnavailable,
                  fmt::format("after {} of {} in huge pages the kernel answered: {}",
                              FormatSize(done), FormatSize(file.file_bytes), std::strerror(errno)));
    }
  }
  file.fd = std::move(*fd);
  return file;
}

}  // namespace

Result<HugePages> ParseHugePages(std::string_view what, std::string_view text) {
  if (text == "auto") return HugePages::kAuto;
  if (text == "require") return HugePages::kRequire;
  if (text == "off") return HugePages::kOff;
  return Fail(Code::kInvalid, fmt::format("{}='{}': give auto, require or off", what, text));
}

HugePageHost HugePageHost::Read(const std::string& root) {
  HugePageHost host;
  std::ifstream meminfo(root + "/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    constexpr std::string_view kName = "Hugepagesize:";
    if (line.starts_with(kName)) {
      host.page_bytes = LeadingNumber(std::string_view(line).substr(kName.size())) * kKiB;
    }
  }
  const std::string mm = root + "/sys/kernel/mm/";
  const std::string pool = fmt::format("{}hugepages/hugepages-{}kB/", mm, host.page_bytes / kKiB);
  host.set_aside = NumberIn(pool + "nr_hugepages");
  const std::uint64_t free = NumberIn(pool + "free_hugepages");
  const std::uint64_t promised = NumberIn(pool + "resv_hugepages");
  const std::uint64_t on_demand = NumberIn(pool + "nr_overcommit_hugepages");
  const std::uint64_t surplus = NumberIn(pool + "surplus_hugepages");
  host.free =
      (free > promised ? free - promised : 0) + (on_demand > surplus ? on_demand - surplus : 0);
  // Newer kernels decide by size; "inherit" leaves it to the common file.
  host.shmem = ChosenIn(fmt::format("{}transparent_hugepage/hugepages-{}kB/shmem_enabled", mm,
                                    host.page_bytes / kKiB));
  if (host.shmem.empty() || host.shmem == "inherit") {
    host.shmem = ChosenIn(mm + "transparent_hugepage/shmem_enabled");
  }
  return host;
}

std::string HugePageHost::Sysctl(std::uint64_t bytes) const {
  const std::uint64_t needed = Needed(bytes);
  const std::uint64_t missing = needed > free ? needed - free : 0;
  return fmt::format("sysctl -w vm.nr_hugepages={}", set_aside + missing);
}

Result<MemoryFile> CreateMemoryFile(const char* name, std::uint64_t size, HugePages wanted,
                                    const HugePageHost& host) {
  std::string why = "huge pages are off";
  if (wanted != HugePages::kOff) {
    auto huge = CreateHuge(name, size, host);
    if (huge) return huge;
    if (wanted == HugePages::kRequire) {
      return Fail(
          Code::kUnavailable,
          fmt::format("huge pages are required, but {}; run '{}'{}", huge.error().detail,
                      host.Sysctl(size),
                      host.page_bytes == 0 ? " on a kernel with CONFIG_HUGETLBFS"
                                           : ", best soon after boot, or set huge pages to auto"));
    }
    why = fmt::format("{}; shmem_enabled is '{}'", huge.error().detail,
                      host.shmem.empty() ? "unknown" : host.shmem);
  }
  const bool transparent = wanted != HugePages::kOff && host.Transparent() && host.page_bytes > 0;
  KVCOVE_ASSIGN(UniqueFd fd, Sealed(name, size, 0));
  return MemoryFile{
      .fd = std::move(fd),
      .file_bytes = size,
      .pages = transparent ? MemoryFile::Pages::kTransparent : MemoryFile::Pages::kBase,
      .page_bytes = transparent ? host.page_bytes : SystemPageBytes(),
      .why = why};
}

std::string MemoryFile::Describe() const {
  std::string text =
      pages == Pages::kBase
          ? fmt::format("pages of {} ({})", FormatSize(page_bytes), why)
          : fmt::format("{}huge pages of {}{}", pages == Pages::kTransparent ? "transparent " : "",
                        FormatSize(page_bytes),
                        why.empty() ? "" : " as far as the kernel has them (" + why + ")");
  return text + fmt::format(", page tables of {} in each process that maps all of it",
                            FormatSize(PageTableBytes(file_bytes, page_bytes)));
}

void AdvisePages(const Mapping& mapping, MemoryFile::Pages pages) {
  if (pages == MemoryFile::Pages::kHugetlb) return;
  madvise(mapping.data(), mapping.size(),
          pages == MemoryFile::Pages::kTransparent ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
}

}  // namespace kvcove
