// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/carry.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace kvcove {
namespace {

constexpr std::size_t kBuffer = 256U << 10;

}  // namespace

Result<StateWriter> StateWriter::Open(std::uint64_t expected_bytes) {
  UniqueFd fd(memfd_create("kvcove-state", MFD_CLOEXEC));
  if (!fd.valid()) return FailErrno(Code::kInternal, "memfd_create");
  if (expected_bytes > 0) (void)fallocate(fd.get(), 0, 0, static_cast<off_t>(expected_bytes));
  return StateWriter(std::move(fd));
}

void StateWriter::Bytes(void* data, std::size_t size) {
  if (size >= kBuffer) {
    Flush(buffer_.data(), buffer_.size());
    buffer_.clear();
    return Flush(data, size);
  }
  const auto* bytes = static_cast<const std::byte*>(data);
  buffer_.insert(buffer_.end(), bytes, bytes + size);
  if (buffer_.size() < kBuffer) return;
  Flush(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void StateWriter::Flush(const void* data, std::size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0 && !failed_) {
    const ssize_t count = write(fd_.get(), at, size);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      failed_ = true;
      return;
    }
    at += count;
    size -= static_cast<std::size_t>(count);
    written_ += static_cast<std::uint64_t>(count);
  }
}

Result<UniqueFd> StateWriter::Finish() {
  Flush(buffer_.data(), buffer_.size());
  buffer_.clear();
  // What was allocated beyond it reads as state that is not there.
  if (failed_ || ftruncate(fd_.get(), static_cast<off_t>(written_)) != 0) {
    return kvcove::Fail(Code::kNoSpace, "no memory for the state of an upgrade");
  }
  return std::move(fd_);
}

Result<StateReader> StateReader::Open(const UniqueFd& fd) {
  struct stat status{};
  if (fstat(fd.get(), &status) != 0) return FailErrno(Code::kInternal, "the state's size");
  if (status.st_size == 0) return kvcove::Fail(Code::kCorrupt, "the state is empty");
  KVCOVE_ASSIGN(Mapping file, Mapping::Map(fd.get(), static_cast<std::size_t>(status.st_size),
                                           Mapping::Access::kReadOnly));
  // One call instead of a fault for each page; where the kernel knows it not, faults do.
  madvise(file.data(), file.size(), MADV_POPULATE_READ);
  return StateReader(std::move(file));
}

void StateReader::Bytes(void* data, std::size_t size) {
  if (failed_ || size > size_ - at_) {
    failed_ = true;
    if (size > 0) std::memset(data, 0, size);
    return;
  }
  if (size > 0) std::memcpy(data, file_.data() + at_, size);
  at_ += size;
}

}  // namespace kvcove
