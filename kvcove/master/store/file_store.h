// SPDX-License-Identifier: Apache-2.0
// The control store of one master: facts in the file `control` of its data directory.
// docs/control-store.md has the states, the faults and the format.
//
//   opened --first commit: rewrite--> working --append or sync fails--> refusing --rewrite-->
//   working
//
// A simulation drives `Work` itself, with a fake disk and a fake clock:
//
//   Opened opened;
//   auto store = *FileStore::Open(disk.Attach(), {.clock = &clock}, opened);
//   store->Commit(changes, done);
//   while (store->Work()) {}
#pragma once

#include <memory>
#include <thread>

#include "kvcove/base/clock.h"
#include "kvcove/master/store/control_file.h"
#include "kvcove/master/store/control_store.h"
#include "kvcove/master/store/file_system.h"

namespace kvcove::master {

struct FileStoreOptions {
  // Commits that wait for the disk; beyond either, kUnavailable at once.
  std::size_t max_queued = 4096;
  std::size_t max_queued_bytes = 16 << 20;
  // All facts in the file; beyond, kLimit at once.
  std::uint64_t max_facts_bytes = 256 << 20;
  // The store rewrites the file when its dead bytes exceed both this and twice the live ones.
  std::uint64_t min_dead_bytes = 64 << 10;
  const Clock* clock = &SystemClock::Instance();  // outlives the store
};

struct FileStoreStat {
  std::uint64_t revision = 0;  // of the last durable transaction
  std::uint64_t facts = 0;
  std::uint64_t file_bytes = 0;
  std::uint64_t live_bytes = 0;  // the file's size after a rewrite
  std::uint64_t batches = 0;     // appends that became durable
  std::uint64_t rewrites = 0;
  std::size_t queued = 0;
  std::string refuses;  // why commits fail now; empty: the store accepts them
};

// Thread-safe, but for Work, Start and Close.
class FileStore final : public ControlStore {
 public:
  // Reads the facts and writes nothing. The file may still be in the page cache only, and is
  // certainly durable once the first commit is: act on no fact before. Errors: the disk's, and
  // kIncompatible for a file of another version.
  static Result<std::unique_ptr<FileStore>> Open(std::unique_ptr<FileSystem> disk,
                                                 const FileStoreOptions& options, Opened& opened);
  // Closes within 2 s if Start was called. Else fails the waiting commits and does
  // not touch the disk: this is how a simulation kills a process.
  ~FileStore() override;

  // Commits as ControlStore says; never waits for the disk.
  void Commit(std::vector<FactChange> changes, Done done) override;

  // Starts the thread that calls Work. If it is not started, the caller calls Work. Errors: as
  // StartThread.
  Status Start();
  // Writes one batch of commits, or tries once to recover from a fault; calls their `done`. Returns
  // false if there was nothing to do, or the disk is not ready. Only if Start was not called.
  bool Work();
  // Renames the file of format version 1 once the commits so far are done and one is durable. The
  // next start repeats this when it fails.
  void RetireV1();
  // Refuses later commits, waits for the earlier ones, and ends the thread. kTimeout: the disk
  // hangs or is too slow; the remaining commits have failed, and the thread is left behind and
  // keeps the directory locked until the disk answers. Must not be called from a `done`.
  Status Close(std::int64_t deadline_ns);

  FileStoreStat stat() const;

 private:
  class Core;
  FileStore(std::shared_ptr<Core> core, const FileStoreOptions& options)
      : clock_(*options.clock), core_(std::move(core)) {}

  const Clock& clock_;
  const std::shared_ptr<Core> core_;  // shared with the thread, which may have to be left behind
  std::thread thread_;
};

}  // namespace kvcove::master
