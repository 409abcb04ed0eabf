// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/pages.h"

#include <fmt/core.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

namespace kvcove {
namespace {

// Since Linux 5.14. Asked about no bytes, a kernel that knows the advice agrees.
bool KernelPopulates() {
  static const bool populates = madvise(nullptr, 0, MADV_POPULATE_READ) == 0;
  return populates;
}

// What older kernels need. Others may write to these bytes meanwhile: what is added is 0,
// atomically.
void Touch(std::byte* data, std::size_t size, Populate how) {
  for (std::size_t at = 0; at < size; at += SystemPageBytes()) {
    const std::atomic_ref<std::uint8_t> byte(reinterpret_cast<std::uint8_t&>(data[at]));
    if (how == Populate::kWrite) {
      byte.fetch_add(0, std::memory_order_relaxed);
    } else {
      (void)byte.load(std::memory_order_relaxed);
    }
  }
}

}  // namespace

std::uint64_t SystemPageBytes() {
  static const auto bytes = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

std::uint64_t PageBytesOf(int fd) {
  struct statfs system{};
  if (fstatfs(fd, &system) != 0 || system.f_type != HUGETLBFS_MAGIC) return SystemPageBytes();
  return static_cast<std::uint64_t>(system.f_bsize);
}

// One entry of 8 bytes a page, and the tables of tables above them.
std::uint64_t PageTableBytes(std::uint64_t mapped_bytes, std::uint64_t page_bytes) {
  const std::uint64_t entries_a_table = SystemPageBytes() / 8;
  std::uint64_t total = 0;
  std::uint64_t entries = (mapped_bytes + page_bytes - 1) / page_bytes;
  while (entries > 1) {
    const std::uint64_t tables = (entries + entries_a_table - 1) / entries_a_table;
    total += tables * SystemPageBytes();
    entries = tables;
  }
  return total;
}

Status PopulatePages(std::byte* data, std::size_t size, Populate how) {
  if (!KernelPopulates()) {
    Touch(data, size, how);
    return {};
  }
  const int advice = how == Populate::kWrite ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
  while (madvise(data, size, advice) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    return FailErrno(Code::kUnavailable, fmt::format("populating {} bytes of memory", size));
  }
  return {};
}

std::vector<std::pair<std::size_t, std::size_t>> PresentRuns(std::byte* data, std::size_t size) {
  const std::size_t page = SystemPageBytes();
  std::vector<unsigned char> present((size + page - 1) / page);
  std::vector<std::pair<std::size_t, std::size_t>> runs;
  if (mincore(data, size, present.data()) != 0) return runs;
  for (std::size_t i = 0; i < present.size(); ++i) {
    if ((present[i] & 1) == 0) continue;
    const std::size_t offset = i * page;
    const std::size_t bytes = std::min(page, size - offset);
    if (!runs.empty() && runs.back().first + runs.back().second == offset) {
      runs.back().second += bytes;
    } else {
      runs.emplace_back(offset, bytes);
    }
  }
  return runs;
}

}  // namespace kvcove
