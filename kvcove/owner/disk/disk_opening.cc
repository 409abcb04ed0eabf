// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/disk/disk_opening.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>

#include <chrono>
#include <optional>
#include <utility>

#include "kvcove/base/directory.h"
#include "kvcove/base/posix.h"

namespace kvcove::owner {

// What can be wrong with their paths is told here, before a pool is known: what is empty is
// formatted for no pool. The pool that they belong to; zero: none yet.
Result<Id128> DiskOpening::CheckDisks(const std::string& directory) const {
  Id128 pool;
  for (const disklog::DiskSpec& spec : disks_.options().disks) {
    KVCOVE_ASSIGN(const FoundDisk found,
                  FindDisk(spec, {.pool = pool, .incarnation = {}, .data_directory = directory},
                           TierOptions().open));
    if (found.super.pool != Id128{}) pool = found.super.pool;
  }
  return pool;
}

Result<OwnerFacts> DiskOpening::Prepare(const std::string& directory) {
  KVCOVE_ASSIGN(lock_, OpenOwnDirectory(directory, DirectoryUse::kData));
  if (flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    return Fail(
        Code::kUnavailable,
        fmt::format("another process uses '{}'; give each owner a --data of its own", directory));
  }
  KVCOVE_ASSIGN(const Id128 pool, CheckDisks(directory));
  KVCOVE_ASSIGN(std::optional<OwnerFacts> facts, ReadOwnerFacts(directory));
  known_ = std::make_shared<KnownDisks>(directory);
  disks_.SetNote(known_);
  if (!facts) {
    // Before there is an identity, so that no identity without a past has a disk with one.
    KVCOVE_TRY(disks_.ForgetAll());
    facts = OwnerFacts{.identity = RandomId()};
    KVCOVE_TRY(WriteOwnerFacts(directory, *facts));
  } else if (pool != Id128{} && facts->pool != Id128{} && pool != facts->pool) {
    return Fail(
        Code::kIncompatible,
        fmt::format("the disk {} belongs to pool {}, but '{}' to pool {}; start with that "
                    "pool's data, or use another path",
                    DiskPaths(disks_.options().disks), ToHex(pool), directory, ToHex(facts->pool)));
  }
  directory_ = directory;
  {
    const MutexLock lock(memory_.mutex);
    holds_back_ = true;
  }
  const MutexLock lock(mutex_);
  state_ = State::kWaits;
  facts_ = *facts;
  return *facts;
}

bool DiskOpening::HoldBack(const Id128& incarnation, const std::vector<SlotUpdate>& updates) {
  memory_.mutex.AssertHeld();
  if (!holds_back_) return false;
  held_incarnation_ = incarnation;
  for (const SlotUpdate& update : updates) held_[update.slot] = update;
  return true;
}

void DiskOpening::TableKnown() {
  const MutexLock lock(mutex_);
  if (state_ == State::kWaits && !voids_) state_ = State::kMayOpen;
}

// The thread starts here and not in TableKnown, which the link calls with a lock of its own.
void DiskOpening::Tick() {
  std::string error;
  bool opens = false;
  {
    const MutexLock lock(mutex_);
    error.swap(error_);
    if (state_ == State::kMayOpen && !stops_) {
      state_ = State::kOpens;
      opens = starts_opener_ = true;
    }
  }
  if (!error.empty()) LogError("{}", error);
  if (!opens) return;
  auto opener = StartThread("kvcove-opener", [this] { Run(); });
  if (!opener && refused_.Due(clock_.NowNs()) > 0) {
    LogError("the disks are not opened yet: {}", opener.error().detail);
  }
  const MutexLock lock(mutex_);
  if (opener) opener_ = std::move(*opener);
  if (!opener) state_ = State::kMayOpen;  // the next tick tries again
  starts_opener_ = false;
  changed_.NotifyAll();
}

void DiskOpening::Stop() {
  {
    const MutexLock lock(mutex_);
    stops_ = true;
    while (starts_opener_) changed_.Wait(mutex_);
  }
  if (opener_.joinable()) opener_.join();
}

TierPlace DiskOpening::Place() const {
  const MutexLock lock(mutex_);
  return {
      .pool = facts_.pool, .incarnation = facts_.incarnation, .known = known_, .stopping = &stops_};
}

bool DiskOpening::voids() const {
  const MutexLock lock(mutex_);
  return voids_;
}

void DiskOpening::Run() {
  disks_.OpenEach(Place(), promoter_, stops_);
  {
    const MutexLock lock(memory_.mutex);
    std::vector<SlotUpdate> updates;
    for (const auto& [slot, update] : held_) updates.push_back(update);
    held_.clear();
    holds_back_ = false;
    memory_.SetSlots(held_incarnation_, updates);
  }
  const MutexLock lock(mutex_);
  state_ = State::kSettled;
  changed_.NotifyAll();
}

bool DiskOpening::settled() const {
  const MutexLock lock(mutex_);
  return state_ == State::kSettled;
}

bool DiskOpening::AwaitSettled() {
  const MutexLock lock(mutex_);
  while (state_ != State::kSettled) {
    if (link_ends_) return false;
    changed_.WaitFor(mutex_, std::chrono::nanoseconds(kDiskLookNs));
  }
  return true;
}

// ---- what it follows

void DiskOpening::Follow(const OwnerFacts& facts) {
  if (disks_.none()) return;
  bool other = false;
  bool settled = false;
  bool held = false;
  bool other_master = false;
  {
    const MutexLock lock(mutex_);
    if (facts == facts_ && !voids_) return;
    other_master = facts.seen.term != facts_.seen.term || facts.seen.tag != facts_.seen.tag;
    const auto differs = [](const Id128& before, const Id128& now) {
      return before != Id128{} && before != now;
    };
    voids_ = voids_ || differs(facts_.identity, facts.identity) ||
             differs(facts_.pool, facts.pool) || differs(facts_.incarnation, facts.incarnation);
    other = voids_;
    while (other && state_ == State::kOpens) {
      // The opener notes its disks yet. Under the identity of before the master says it again.
      if (link_ends_) return;
      changed_.WaitFor(mutex_, std::chrono::nanoseconds(kDiskLookNs));
    }
    // Nor is the note read before it is struck.
    held = other && state_ == State::kMayOpen;
    if (held) state_ = State::kWaits;
    facts_ = facts;
    settled = state_ == State::kSettled;
  }
  DiskSet& set = disks_.set();
  // What is not settled opens empty.
  for (std::size_t i = 0; other && settled && i < set.size(); ++i) {
    set[i].Void("the master does not know this owner any more, so what it holds is void");
  }
  // Behind that, so that no disk is noted again; before the facts are written: a process that ends
  // in between comes back with the old identity, and is told again.
  const Status forgotten = other ? disks_.ForgetAll() : Status();
  // Where the note still names a disk, a process that comes back as what is written here now would
  // use what it holds. So nothing is written, and the next change of the facts tries it again.
  for (std::size_t i = 0; other_master && settled && i < set.size(); ++i) {
    (void)set[i].MissAll("another master leads, and does not know what it has missed");
  }
  const Status written = forgotten ? WriteOwnerFacts(directory_, facts) : forgotten;
  for (std::size_t i = 0; other && forgotten && settled && i < set.size(); ++i) {
    DiskThread* const thread = disks_.ThreadOf(i);
    if (thread != nullptr) thread->BeginAnew(facts.pool, facts.incarnation);
  }
  const MutexLock lock(mutex_);
  if (held && forgotten && state_ == State::kWaits) state_ = State::kMayOpen;
  voids_ = voids_ && !forgotten;
  if (forgotten && written) return;
  error_ = forgotten ? written.error().detail +
                           "; a later start may not notice that the master has lost facts"
                     : forgotten.error().detail + "; the disks are not used before that is done";
}

// ---- an upgrade

void DiskOpening::HandOver(HandedDisks& handed) const {
  if (directory_.empty()) return;
  handed.directory = directory_;
  const MutexLock lock(mutex_);
  handed.facts = facts_;
}

void DiskOpening::Adopt(const HandedDisks& handed) {
  directory_ = handed.directory;
  known_ = std::make_shared<KnownDisks>(directory_);
  disks_.SetNote(known_);
  const MutexLock lock(mutex_);
  facts_ = handed.facts;
}

Result<UniqueFd> DiskOpening::CopyLock() const {
  if (!lock_.valid()) return UniqueFd();
  UniqueFd copy(fcntl(lock_.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return FailErrno(Code::kLimit, "a descriptor for an upgrade");
  return copy;
}

}  // namespace kvcove::owner
