// SPDX-License-Identifier: Apache-2.0
// Which owners lived at this place, and whether anybody may still read their memory.
//
// An owner keeps an empty file, PLACE.IDENTITY.owner, open and locked (flock(2)), and hands the
// descriptor out with its segment. The lock belongs to the open file, which all of them share, so
// the kernel drops it when the owner and every process that mapped the segment have ended or have
// closed it, and not before: no pid is compared, none is used again, and namespaces do not matter.
// A successor that gets the lock has the proof that this identity is over (docs/control-plane.md,
// Members). A killed owner leaves its file; a goodbye that the master heard removes it. A child
// that an engine forks without exec keeps the lock, too: then the identity lasts until the child
// ends.
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
  // Takes the lock of `identity` at `place`, a path in a directory of this user's own. Errors:
  // kUnavailable.
  static Result<std::unique_ptr<Lineage>> Open(const std::string& place, const Id128& identity);
  // The same identity's, in a successor's process: `fd` has the lock, which is one for all who hold
  // the open file.
  static std::unique_ptr<Lineage> Adopt(const std::string& place, const Id128& identity,
                                        UniqueFd fd);
  ~Lineage();

  // Handed out with the segment, and kept open while it is mapped.
  int fd() const { return fd_.get(); }

  // `tell` names an identity that is over to the master, and returns when the master knows; false:
  // not now. Called again and again on a thread of its own, until no file of another owner is left.
  // Errors: as StartThread.
  Status Watch(std::function<bool(const Id128&)> tell);
  void Stop();

  // This owner's memory goes on under another identity: the master has forgotten the former one.
  void Rename(const Id128& identity);
  // The identity is over, and the master knows.
  void Remove();

 private:
  struct Ended {
    Id128 identity;
    std::string path;
    UniqueFd lock;  // nobody else tells of it meanwhile
  };

  Lineage(std::string place, std::string path, UniqueFd fd);
  void Run();
  // The identities that are over; `others`: how many are not yet.
  std::vector<Ended> Look(std::size_t& others) const;

  const std::string place_;
  const UniqueFd fd_;
  std::function<bool(const Id128&)> tell_;
  std::string path_;  // of Rename and Remove

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace kvcove::owner
