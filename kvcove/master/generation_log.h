// SPDX-License-Identifier: Apache-2.0
// Where the records of `Generations` survive. docs/generations.md describes the file, byte by byte.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kvcove/base/posix.h"
#include "kvcove/master/generations.h"

namespace kvcove::master {

// Needs a lock.
class GenerationLog {
 public:
  virtual ~GenerationLog() = default;
  // Returns when the records are durable. After an error nothing is known about them.
  virtual Status Append(const std::vector<Record>& records) = 0;
  // Replaces everything, durably and at once.
  virtual Status Rewrite(Id128 incarnation, const std::vector<Record>& records) = 0;
  // A clean end: no lease is running. One sync.
  virtual Status Close() = 0;
};

// Forgets everything with the process: for the embedded pool.
class MemoryLog final : public GenerationLog {
 public:
  Status Append(const std::vector<Record>&) override { return {}; }
  Status Rewrite(Id128, const std::vector<Record>&) override { return {}; }
  Status Close() override { return {}; }
};

// What a start finds.
struct Restored {
  Id128 incarnation;
  std::vector<Record> records;
  // The longest lease that an earlier process may still have out; 0 after a clean end or on a first
  // start.
  std::int64_t running_lease_ns = 0;
};

// One file `generations` in a directory that this process alone uses (lock file `lock`), and that
// no other user may write to. Appends are one fdatasync each.
class FileLog final : public GenerationLog {
 public:
  // Creates the directory (0700) if need be. `lease_ns` is the longest lease that will be given.
  // A file whose middle is damaged counts as missing: a new incarnation, and the damaged one is
  // kept aside. Errors: kUnavailable when another process uses the directory, kDenied when other
  // users may write to it or to the file (base/directory.h), kIncompatible for another version's
  // file, kInternal for what the file system refuses.
  static Result<std::unique_ptr<FileLog>> Open(const std::string& directory, std::int64_t lease_ns,
                                               Restored& restored);

  Status Append(const std::vector<Record>& records) override;
  Status Rewrite(Id128 incarnation, const std::vector<Record>& records) override;
  Status Close() override;

 private:
  FileLog(UniqueFd directory, std::string path, std::int64_t lease_ns)
      : directory_(std::move(directory)), path_(std::move(path)), lease_ns_(lease_ns) {}

  const UniqueFd directory_;  // files are opened in it, not by its path: that may be exchanged
  const std::string path_;    // for messages
  const std::int64_t lease_ns_;
  UniqueFd lock_;
  UniqueFd file_;
};

// The file's bytes, for tests and the fuzzer. Parse errors: kIncompatible, kCorrupt.
std::string EncodeHeader(Id128 incarnation, std::int64_t lease_ns);
std::string EncodeRecord(const Record& record);
std::string EncodeCleanEnd();
Result<Restored> ParseLog(std::string_view bytes);

}  // namespace kvcove::master
