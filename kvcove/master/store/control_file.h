// SPDX-License-Identifier: Apache-2.0
// The file `control` and the mirror of its durable facts: what `FileStore` does with its disk,
// without queue, thread or time. docs/control-store.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kvcove/master/store/control_store.h"
#include "kvcove/master/store/file_system.h"
#include "kvcove/master/store/generation_log.h"

namespace kvcove::master {

// What a start finds in the directory.
struct Opened {
  Facts facts;
  std::uint64_t revision = 0;
  // Neither a control store nor anything of an older kvcove was ever here.
  bool found_nothing = false;
  // Facts were here and cannot be read. The file is kept aside, `facts` is empty. True again at
  // each start until the first commit.
  bool damaged = false;
  // The directory of an older kvcove: the caller commits these as facts, in its first transaction,
  // and then calls FileStore::RetireV1.
  std::optional<Restored> from_v1;
};

// Belongs to one thread at a time.
class ControlFile {
 public:
  using Transactions = std::vector<std::vector<FactChange>>;

  explicit ControlFile(std::unique_ptr<FileSystem> disk) : disk_(std::move(disk)) {}

  // First, and once. Writes nothing, but keeps a damaged file aside. Errors: the disk's, and
  // kIncompatible for a file of another format version.
  Status Load(Opened& opened);

  // The disk's.
  bool Ready() { return disk_->Ready(); }
  // Whether the file is still where it was opened, as FileSystem::Keeps has it.
  Result<bool> Keeps() { return disk_->Keeps("control"); }
  // It is not known any more: Rewrite helps.
  void Lose() { known_ = false; }
  // Whether the file holds the mirror and nothing else. Not at first, and not after an append or
  // sync that failed; Rewrite helps.
  bool known() const { return known_; }
  // Replaces the file by one with the mirror. After an error the file may still be known: the old
  // one is untouched then.
  Status Rewrite();
  // Only a known file. After an error it is not known any more.
  Status Append(const Transactions& transactions);
  // Makes the appended transactions durable and applies them to the mirror. Returns the revision of
  // the first. After an error the file is not known any more.
  Result<std::uint64_t> Sync(Transactions transactions);
  // `generations` becomes `generations.v1`.
  Status RetireV1();

  const Facts& facts() const { return facts_; }
  std::uint64_t revision() const { return revision_; }
  std::uint64_t file_bytes() const { return file_bytes_; }
  // The file's size after a rewrite.
  std::uint64_t live_bytes() const;
  std::string path() const { return disk_->PathOf("control"); }

 private:
  // There is no fact: says whether there ever was one.
  Status LoadOlder(Opened& opened);
  void Apply(std::vector<FactChange> changes);
  Status KeepAside(const std::string& name, const std::string& why);

  const std::unique_ptr<FileSystem> disk_;
  Facts facts_;                    // durable, once the file was known
  std::uint64_t facts_bytes_ = 0;  // in a snapshot
  std::uint64_t revision_ = 0;
  std::uint64_t file_number_ = 0;
  std::uint64_t file_bytes_ = 0;
  bool known_ = false;
};

}  // namespace kvcove::master
