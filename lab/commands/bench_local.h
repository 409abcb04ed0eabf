// SPDX-License-Identifier: Apache-2.0
// The rows of `kvcove bench local`. bench/README.md says what the figures mean.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kvcove/base/posix.h"
#include "kvcove/cli/process.h"
#include "kvcove/pool/pool.h"
#include "lab/commands/bench.h"

namespace kvcove::lab::local_bench {

// A pool of either form with one session.
struct Target {
  std::unique_ptr<cli::TemporaryDirectory> directory;
  std::unique_ptr<cli::ServeProcess> daemon;
  std::unique_ptr<Pool> pool;
  SessionPtr session;
  std::string form;

  // A daemon of its own, or embedded; its memory is populated.
  static Result<Target> Open(const std::string& form, std::uint64_t memory,
                             std::uint64_t max_objects = 0);
};

// Memory like the segment's (a shared memory file, populated) to copy from and to: the limit.
class PlainMemory {
 public:
  static Result<PlainMemory> Make(std::uint64_t bytes) {
    PlainMemory memory;
    KVCOVE_ASSIGN(const UniqueFd fd, CreateMemoryFile("kvcove-bench", bytes));
    KVCOVE_ASSIGN(memory.map_, Mapping::Map(fd.get(), bytes, Mapping::Access::kReadWrite));
    for (std::uint64_t at = 0; at < bytes; at += 4096) memory.map_.data()[at] = std::byte{1};
    return memory;
  }
  std::byte* data() const { return map_.data(); }

 private:
  Mapping map_;
};

struct Shape {
  std::uint64_t object_bytes;
  std::uint64_t batch;
  std::uint64_t memory;
};

// Each prints its rows. Errors: what failed in the pool.
Status BenchGet(const BenchOptions& options, const std::string& form, const Shape& shape);
Status BenchPut(const BenchOptions& options, const std::string& form, const Shape& shape);
// Each beside the call that copies: without a copy ("bare"), and with the caller's ("copy").
Status BenchBorrow(const BenchOptions& options, const std::string& form, const Shape& shape);
Status BenchReserve(const BenchOptions& options, const std::string& form, const Shape& shape);
Status BenchExists(const BenchOptions& options, const std::string& form, std::uint64_t objects);
Status BenchReset(const BenchOptions& options, const std::string& form, std::uint64_t objects);
Status BenchMemory(const BenchOptions& options, std::uint64_t objects);

// All rows that the options want.
Result<int> Run(const BenchOptions& options);
// The other end of a bare round trip, in a process of its own (`kvcove bench-echo`).
Result<int> RunEcho();

}  // namespace kvcove::lab::local_bench
