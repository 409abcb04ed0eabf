// SPDX-License-Identifier: Apache-2.0
// A disk in memory that fails, fills up, hangs, and forgets what was not synced when its power is
// cut. Everything random comes from its seed.
//
//   FakeDisk disk(seed);
//   auto store = FileStore::Open(disk.Attach(), ...);
//   disk.CutPowerAfter(1000);      // steps: bytes written, syncs, renames
//   ... store->Work() ...          // at some point every operation fails
//   disk.CutPower(Loss::kSome);    // the power is back, unsynced bytes are lost
//   store = FileStore::Open(disk.Attach(), ...);
//
// A hang: `Disk::Ready` says false, and a store that is asked to work does nothing. An operation
// that is called all the same works, so a hang begins between two operations, never inside one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/base/random.h"
#include "kvcove/master/store/file_system.h"

namespace kvcove::sim {

// What becomes of bytes and names that were not synced when the power goes.
enum class Loss {
  kAll,
  kSome,   // a random part of the bytes from their begin on stays; names by chance
  kZeros,  // as kSome, but the file has grown already: whole sectors stay, then zeros follow
  kNone,   // only the process is gone
};

// Thread-safe. Outlives the disks that it hands out.
class FakeDisk {
 public:
  explicit FakeDisk(std::uint64_t seed) : random_(seed) {}

  // What a process opens. Disks of earlier calls refuse every operation from then on.
  std::unique_ptr<master::FileSystem> Attach();

  // Faults. The power goes after so many steps: a byte written, a file made, a sync, a rename, a
  // sync of the directory. Then each operation fails until CutPower.
  void CutPowerAfter(std::uint64_t steps);
  void CutPower(Loss loss);
  // Of the operations that write, the first `after` work and the next ones fail: an append after a
  // random part of its bytes; a sync loses for ever what the file has unsynced then and gets later,
  // as Linux may. A Write is one of them.
  void FailNext(std::uint64_t operations, std::uint64_t after = 0);
  // Appends and writes fail after a random part of their bytes.
  void SetFull(bool full);
  void SetHanging(bool hanging);
  // Hangs after so many operations that write.
  void HangAfter(std::uint64_t operations);
  // The file as it was `versions` syncs ago. False when that is not known any more.
  bool RollBack(const std::string& name, std::size_t versions);
  void FlipBit(const std::string& name, std::uint64_t bit);
  // A synced file.
  void Put(const std::string& name, std::string bytes);

  std::optional<std::string> Content(const std::string& name) const;
  std::vector<std::string> Names() const;
  struct Counts {
    std::uint64_t appends = 0, syncs = 0, writes = 0, renames = 0, steps = 0;
  };
  Counts counts() const;

 private:
  class Attached;
  struct File {
    std::string content;
    std::size_t synced = 0;  // bytes
    bool lost = false;       // a sync failed: no later one helps
  };
  using NameMap = std::map<std::string, std::shared_ptr<File>>;

  Status CheckLocked(std::uint64_t process) const KVCOVE_REQUIRES(mutex_);
  // Before an operation that writes. True: it is to fail.
  bool FailsLocked() KVCOVE_REQUIRES(mutex_);
  // Steps that happen before the power goes, of those wanted.
  std::uint64_t StepLocked(std::uint64_t wanted) KVCOVE_REQUIRES(mutex_);
  Status AppendLocked(File& file, std::string_view bytes, bool fails) KVCOVE_REQUIRES(mutex_);
  Status SyncLocked(const std::string& name, File& file, bool fails) KVCOVE_REQUIRES(mutex_);
  Status RenameLocked(const std::string& from, const std::string& to) KVCOVE_REQUIRES(mutex_);
  void LoseLocked(File& file, Loss loss) KVCOVE_REQUIRES(mutex_);

  mutable Mutex mutex_;
  Random random_ KVCOVE_GUARDED_BY(mutex_);
  std::uint64_t process_ KVCOVE_GUARDED_BY(mutex_) = 0;
  NameMap names_ KVCOVE_GUARDED_BY(mutex_);
  NameMap synced_names_ KVCOVE_GUARDED_BY(mutex_);
  std::map<std::string, std::vector<std::string>> history_ KVCOVE_GUARDED_BY(mutex_);
  std::optional<std::uint64_t> steps_left_ KVCOVE_GUARDED_BY(mutex_);
  std::uint64_t fails_after_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t failures_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::optional<std::uint64_t> hangs_after_ KVCOVE_GUARDED_BY(mutex_);
  bool full_ KVCOVE_GUARDED_BY(mutex_) = false;
  Counts counts_ KVCOVE_GUARDED_BY(mutex_);
};

}  // namespace kvcove::sim
