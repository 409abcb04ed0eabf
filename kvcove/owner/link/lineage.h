// SPDX-License-Identifier: Apache-2.0
// Proves that an earlier owner at this place has ended, so that no process may read its memory any
// more.
//
// An owner keeps an empty file, PLACE.IDENTITY.owner, open and locked (flock(2)), and hands the
// descriptor out with its segment. The lock belongs to the open file, which all of them share. So
// the kernel releases it when the owner and every process that mapped the segment have ended or
// have closed it, and not before: no pid is compared, so reused pids and pid namespaces do not
// matter. A successor that gets the lock has the proof that this identity has ended
// (docs/control-plane.md, Members). A killed owner leaves its file; an owner whose goodbye the
// master has answered removes it. A child that an engine forks without exec keeps the lock, too:
// then the identity lasts until the child ends.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/base/posix.h"
#include "kvcove/base/random.h"
#include "kvcove/base/result.h"

namespace kvcove::owner {

// Thread-safe, but for Rename and Remove: the link calls them one after the other.
class Lineage {
 public:
  // Creates and locks the file of `identity` at `place`, a path in a directory of this user's own.
  // Errors: kUnavailable.
  static Result<std::unique_ptr<Lineage>> Open(const std::string& place, const Id128& identity);
  // Takes the identity over in a successor's process: `fd` has the lock, which all descriptors of
  // the open file share.
  static std::unique_ptr<Lineage> Adopt(const std::string& place, const Id128& identity,
                                        UniqueFd fd);
  ~Lineage();

  // Returns the locked descriptor. Processes get it with the segment, and keep it open while they
  // map that.
  int fd() const { return fd_.get(); }

  // Starts a thread that calls `report` for each identity that has ended, until no file of another
  // owner is left. `report` returns true once the master has noted the identity; false: try again.
  // Errors: those of StartThread.
  Status Watch(std::function<bool(const Id128&)> report);
  // Joins the thread: waits for a call of `report` that runs.
  void Stop();

  // Renames the file: the master has forgotten the former identity, and this owner's memory gets
  // another one.
  void Rename(const Id128& identity);
  // Removes the file: the master knows that the identity has ended, or never knew it.
  void Remove();

 private:
  struct Ended {
    Id128 identity;
    std::string path;
    UniqueFd lock;  // keeps other owners at this place from reporting the same identity
  };

  Lineage(std::string place, std::string path, UniqueFd fd);
  void Run();
  // Returns the identities that have ended; `others` counts those that have not.
  std::vector<Ended> Look(std::size_t& others) const;

  const std::string place_;
  const UniqueFd fd_;
  std::function<bool(const Id128&)> report_;
  std::string path_;  // of this owner's file; only Rename and Remove use it

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace kvcove::owner
