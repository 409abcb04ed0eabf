// SPDX-License-Identifier: Apache-2.0
// The file `control` and the mirror of its durable facts: the disk's side of `FileStore`, without
// queue, thread or time. See docs/control-store.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kvcove/master/store/control_store.h"
#include "kvcove/master/store/file_system.h"
#include "kvcove/master/store/generation_log.h"

namespace kvcove::master {

// The contents of the directory at a start.
struct Opened {
  Facts facts;
  std::uint64_t revision = 0;
  // The directory never had a control store, or a file of an older kvcove.
  bool found_nothing = false;
  // The directory had facts that cannot be read. The file is kept aside, `facts` is empty. True
  // again at each start until the first commit.
  bool damaged = false;
  // Records of an older kvcove: the caller commits these as facts, in its first transaction, and
  // then calls FileStore::RetireV1.
  std::optional<Restored> from_v1;
};

// Belongs to one thread at a time.
class ControlFile {
 public:
  using Transactions = std::vector<std::vector<FactChange>>;

  explicit ControlFile(std::unique_ptr<FileSystem> disk) : disk_(std::move(disk)) {}

  // Reads the facts; call it first, and once. Writes nothing, but renames a damaged file. Errors:
  // the disk's, and kIncompatible for a file of another format version.
  Status Load(Opened& opened);

  // Returns FileSystem::Ready.
  bool Ready() { return disk_->Ready(); }
  // Returns true while the file is still where it was opened (FileSystem::Keeps).
  Result<bool> Keeps() { return disk_->Keeps("control"); }
  // Makes the file unknown, so that the next write is a Rewrite.
  void Lose() { known_ = false; }
  // Returns true while the file holds exactly the mirror and the appended transactions. False at
  // first, and after an append or sync that failed, until a Rewrite.
  bool known() const { return known_; }
  // Replaces the file by one with the mirror. After an error the file is still known if the old one
  // is untouched.
  Status Rewrite();
  // Appends transactions to a known file. After an error the file is not known any more.
  Status Append(const Transactions& transactions);
  // Makes the appended transactions durable and applies them to the mirror. Returns the revision of
  // the first. After an error the file is not known any more.
  Result<std::uint64_t> Sync(Transactions transactions);
  // Renames `generations`, if it is there, to `generations.v1`.
  Status RetireV1();

  const Facts& facts() const { return facts_; }
  std::uint64_t revision() const { return revision_; }
  std::uint64_t file_bytes() const { return file_bytes_; }
  // Returns the file's size after a rewrite, in bytes.
  std::uint64_t live_bytes() const;
  std::string path() const { return disk_->PathOf("control"); }

 private:
  // Fills `opened` for a directory without a fact: damaged before, of format 1, or new.
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
