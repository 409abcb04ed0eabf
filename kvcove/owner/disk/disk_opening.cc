// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/disk/disk_opening.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <utility>

#include "kvcove/base/directory.h"
#include "kvcove/base/posix.h"

namespace kvcove::owner {
namespace {

constexpr std::int64_t kEndNs = 500 * kMillisecond;  // for the write of the clean end's opening
// An opener that a stop ends waits for reads under way for 2 s (disk_thread.cc).
constexpr std::chrono::seconds kStop{3};
// At most this time counts between two ticks: this process may have been stopped.
constexpr std::int64_t kLongestLookNs = 100 * kMillisecond;

// Returns true if a disk that could not be opened has failed: its path is right, its file may be
// opened, and no other process uses it.
bool DeviceFails(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.valid()) return errno == EIO || errno == ENXIO || errno == ENODEV;
  return flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
}

}  // namespace

// Checks the paths of the disks before a pool is known, so that errors end the start; an empty disk
// is formatted for no pool. A device that fails ends no start: OpenTiers sets it aside. Returns the
// pool of the disks, zero if none has one.
Result<Id128> DiskOpening::CheckDisks(const std::string& directory) const {
  Id128 pool;
  for (const disklog::DiskSpec& spec : disks_.options().disks) {
    const Result<FoundDisk> found =
        FindDisk(spec, {.pool = pool, .incarnation = {}, .data_directory = directory},
                 disks_.options().tier.open);
    if (found) {
      if (found->super.pool != Id128{}) pool = found->super.pool;
    } else if (found.error().code != Code::kUnavailable ||
               !DeviceFails(disklog::DiskFileOf(spec.path))) {
      return std::unexpected(found.error());
    }
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
  KVCOVE_TRY(OpenNote(directory));
  if (!facts) {
    // Deletes the note before there is a new identity: after a crash in between, a new identity
    // would find a note that names the disks of another one.
    KVCOVE_TRY(disks_.ForgetAll());
    facts = OwnerFacts{.identity = RandomId()};
    KVCOVE_TRY(disks_.options().tier.write_facts(directory, *facts));
  } else if (pool != Id128{} && facts->pool != Id128{} && pool != facts->pool) {
    return Fail(
        Code::kIncompatible,
        fmt::format("the disk {} belongs to pool {}, but '{}' to pool {}; start with that "
                    "pool's data, or use another path",
                    DiskPaths(disks_.options().disks), ToHex(pool), directory, ToHex(facts->pool)));
  }
  directory_ = directory;
  KVCOVE_TRY(StartWriter());
  {
    const MutexLock lock(memory_.mutex);
    holds_back_ = true;
  }
  const MutexLock lock(mutex_);
  state_ = State::kWaits;
  facts_ = saved_ = *facts;
  opening_.Read(*facts);
  return *facts;
}

Status DiskOpening::OpenNote(const std::string& directory) {
  KVCOVE_ASSIGN(UniqueFd lock, CopyLock());
  known_ = std::make_shared<KnownDisks>(directory, /*owner=*/0, std::move(lock));
  disks_.SetNote(known_);
  return {};
}

// Each of the writer's calls holds the note, and so the lock of the directory: a thread that Stop
// left behind in a write may finish late, and must not overwrite the file of another process.
Status DiskOpening::StartWriter() {
  return writer_.Start(
      {.strike = [known = known_] { return known->Write({}); },
       .write = [known = known_, write = disks_.options().tier.write_facts](
                    const OwnerFacts& facts) { return write(known->directory(), facts); }});
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
  if (state_ == State::kWaits) state_ = State::kMayOpen;
}

bool DiskOpening::MayOpen() const {
  return state_ == State::kMayOpen && !stops_ && !Voids() && !opening_.awaits(clock_.NowNs()) &&
         saved_.identity == facts_.identity && saved_.pool == facts_.pool &&
         saved_.incarnation == facts_.incarnation;
}

// Starts the thread here and not in TableKnown, which the link calls under a lock of its own.
void DiskOpening::Tick() {
  TakeSaved();
  GiveUpIfItHangs();
  {
    const MutexLock lock(mutex_);
    // While nothing has changed, a copy of the directory with its disks equals them. The count is
    // read before the number is drawn: a later change counts for the next one.
    const std::uint64_t changes = disks_.changes();
    if (changes != drawn_changes_ && opening_.DrawAgain(clock_.NowNs())) {
      drawn_changes_ = changes;
      SaveOpening();
    }
    if (!MayOpen()) return;
    state_ = State::kOpens;
    starts_opener_ = true;
  }
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

// kWaits lasts as long as the master sends generations, which no file delays.
bool DiskOpening::Hangs() {
  const std::int64_t now_ns = clock_.NowNs();
  const std::int64_t elapsed_ns =
      std::clamp<std::int64_t>(now_ns - std::exchange(looked_ns_, now_ns), 0, kLongestLookNs);
  const bool unsaved = state_ == State::kMayOpen && !opening_.awaits(now_ns);
  unsaved_ns_ = unsaved ? unsaved_ns_ + elapsed_ns : 0;
  return state_ == State::kOpens ? disks_.opening_hangs()
                                 : unsaved_ns_ > disks_.options().tier.hang_ns;
}

// The next process would use the disks by the note, which cannot be written, so this waits for the
// master's store. Then values may be stored over what the disks hold, and removals that the disks
// miss are proven (OwnerDisks::AwaitStruck). This process empties the disks, too: before the opener
// has divided the keys among them, none of them remembers which of its keys are stored or removed.
void DiskOpening::GiveUpIfItHangs() {
  bool hangs = false;
  {
    const MutexLock lock(mutex_);
    if (gave_up_ || known_ == nullptr) return;
    hangs = Hangs();
  }
  known_->SetOpeningHangs(hangs);
  if (!hangs || !known_->is_void()) return;
  constexpr const char* kWhy = "a file system hung while the disks were opened";
  // Before the generations: a value that is put once these are known must find each disk set aside,
  // and no disk that may be used with what it holds.
  for (std::size_t i = 0; i < disks_.set().size(); ++i) {
    (void)disks_.set()[i].use().SetAside(kWhy);
    (void)disks_.set()[i].use().MissAll(kWhy);
  }
  ReleaseGenerations();
  LogError(
      "the file system of '{}' or of a disk hangs: memory serves alone, and the disks start empty "
      "once it answers",
      directory_);
  const MutexLock lock(mutex_);
  gave_up_ = true;
  changed_.NotifyAll();
}

void DiskOpening::ReleaseGenerations() {
  const MutexLock lock(memory_.mutex);
  if (!std::exchange(holds_back_, false)) return;
  std::vector<SlotUpdate> updates;
  for (const auto& [slot, update] : held_) updates.push_back(update);
  held_.clear();
  memory_.SetSlots(held_incarnation_, updates);
}

void DiskOpening::Stop() {
  {
    const MutexLock lock(mutex_);
    stops_ = true;
    // Tick may be starting the opener: the join below needs the thread.
    while (starts_opener_) changed_.Wait(mutex_);
    const auto until = std::chrono::steady_clock::now() + kStop;
    while (state_ == State::kOpens && std::chrono::steady_clock::now() < until) {
      changed_.WaitUntil(mutex_, until);
    }
    if (state_ == State::kOpens) {
      LogWarn(
          "the file system of '{}' or of a disk hangs while the disks are opened: this process "
          "does not end before it answers",
          directory_);
    }
  }
  if (opener_.joinable()) opener_.join();
  if (!writer_.Stop()) {
    LogWarn(
        "'{}' does not answer: the owner's facts are not written, and this process does not end "
        "before that file system answers",
        directory_);
  }
}

TierPlace DiskOpening::Place() const {
  const MutexLock lock(mutex_);
  return {
      .pool = facts_.pool, .incarnation = facts_.incarnation, .known = known_, .stopping = &stops_};
}

// Gives the core its generations only now: the shared table has the keys of all disks, so a put of
// such a key is answered `exists`.
void DiskOpening::Run() {
  disks_.OpenEach(Place(), promoter_, stops_);
  ReleaseGenerations();
  const MutexLock lock(mutex_);
  state_ = State::kSettled;
  if (Voids()) Save();
  changed_.NotifyAll();
}

bool DiskOpening::settled() const {
  const MutexLock lock(mutex_);
  return state_ == State::kSettled;
}

bool DiskOpening::waits() const {
  const MutexLock lock(mutex_);
  return Waits();
}

bool DiskOpening::AwaitSettled() {
  const MutexLock lock(mutex_);
  while (Waits()) {
    if (link_ends_) return false;
    // Polls, because no call notifies `changed_` when the link ends.
    changed_.WaitFor(mutex_, std::chrono::nanoseconds(kDiskLookNs));
  }
  return true;
}

// ---- the facts

void DiskOpening::Follow(const OwnerFacts& from_link) {
  if (disks_.none()) return;
  OwnerFacts facts = from_link;
  bool voids = false;
  bool misses = false;
  bool other = false;
  bool other_master = false;
  {
    const MutexLock lock(mutex_);
    if (facts.identity != facts_.identity) opening_.Forget();
    opening_.Set(facts);
    if (facts == facts_) return;
    const auto differs = [](const Id128& before, const Id128& now) {
      return before != Id128{} && before != now;
    };
    other = differs(facts_.identity, facts.identity) || differs(facts_.pool, facts.pool) ||
            differs(facts_.incarnation, facts.incarnation);
    if (other) ++voided_;
    // A disk that is not being opened yet opens empty anyway: MayOpen waits until the note names
    // none.
    voids = other && (state_ == State::kOpens || state_ == State::kSettled);
    other_master = facts.seen.term != facts_.seen.term || facts.seen.tag != facts_.seen.tag;
    misses = !Waits() && other_master;
    facts_ = facts;
  }
  // The current master has not confirmed that the disks of the current identity are void.
  if (other || other_master) SetVoid(false);
  // Before the note is struck, so that no disk is named in it again.
  DiskSet& set = disks_.set();
  for (std::size_t i = 0; voids && i < set.size(); ++i) {
    set[i].use().Void("the master has forgotten this owner, so the disk's contents are void");
  }
  for (std::size_t i = 0; misses && i < set.size(); ++i) {
    (void)set[i].use().MissAll("another master leads, and does not know what the disk has missed");
  }
  const MutexLock lock(mutex_);
  Save();
}

// Writes the newest facts. If they void the disks while the opener runs, Run calls this once more:
// the opener still writes the note, and would name the disks after the strike. A process that ends
// before that returns under its former facts, and the master voids them again.
void DiskOpening::Save() {
  if (Voids() && state_ == State::kOpens) return;
  writer_.Write({.facts = facts_, .voided = voided_});
}

void DiskOpening::TakeSaved() {
  const std::optional<FactsWriter::Ended> ended = writer_.TakeEnded();
  if (!ended) return;
  TierPlace place;
  bool anew = false;
  bool voids = false;
  {
    const MutexLock lock(mutex_);
    saved_ = ended->facts;
    if (ended->outcome) opening_.Written(saved_);
    anew = struck_ != ended->struck;
    struck_ = ended->struck;
    voids = Voids();
    // Newer facts have voided the disks again: their write strikes the disks once more.
    anew = anew && !voids;
    place.pool = facts_.pool;
    place.incarnation = facts_.incarnation;
  }
  for (std::size_t i = 0; anew && i < disks_.set().size(); ++i) {
    disks_.set()[i].use().Struck();
    DiskThread* const thread = disks_.ThreadOf(i);
    if (thread != nullptr) thread->BeginAnew(place.pool, place.incarnation);
  }
  if (ended->outcome || unsaved_.Due(clock_.NowNs()) == 0) return;
  LogError("{}; {}", ended->outcome.error().detail,
           voids ? "the disks are not used before that is done"
                 : "a later start may not notice that the master has lost facts");
}

// ---- the openings of the data directory

DirectoryOpening::Named DiskOpening::NamedOpenings() const {
  const MutexLock lock(mutex_);
  return opening_.named();
}

void DiskOpening::Welcomed(const std::optional<Id128>& opening) {
  if (disks_.none()) return;
  const MutexLock lock(mutex_);
  if (opening_.Welcomed(opening, clock_.NowNs())) SaveOpening();
}

void DiskOpening::OpeningStored(const Id128& opening) {
  const MutexLock lock(mutex_);
  opening_.Stored(opening);
}

Id128 DiskOpening::ToldOpening() const {
  const MutexLock lock(mutex_);
  return opening_.Told();
}

bool DiskOpening::AwaitsOpening() const {
  const MutexLock lock(mutex_);
  return opening_.hurries(clock_.NowNs());
}

void DiskOpening::EndOpening() {
  const std::int64_t until_ns = clock_.NowNs() + kEndNs;
  const MutexLock lock(mutex_);
  if (!opening_.DrawLast()) return;
  SaveOpening();
  // The janitor notes the write.
  while (opening_.Told() == Id128{} && clock_.NowNs() < until_ns) {
    changed_.WaitFor(mutex_, std::chrono::nanoseconds(kMillisecond));
  }
}

void DiskOpening::SaveOpening() {
  opening_.Set(facts_);
  Save();
}

// ---- an upgrade

void DiskOpening::HandOver(HandedDisks& handed) const {
  if (directory_.empty()) return;
  handed.directory = directory_;
  const MutexLock lock(mutex_);
  handed.facts = facts_;
}

Status DiskOpening::Pause() {
  if (writer_.Pause()) return {};
  return Fail(
      Code::kInProgress,
      fmt::format("'{}' does not answer: a write is under way there; try again", directory_));
}

// Writes the facts again: the former process may have handed over some that it had not written.
Status DiskOpening::Adopt(const HandedDisks& handed) {
  directory_ = handed.directory;
  KVCOVE_TRY(OpenNote(directory_));
  KVCOVE_TRY(StartWriter());
  const MutexLock lock(mutex_);
  facts_ = saved_ = handed.facts;
  opening_.Adopt(facts_);
  Save();
  return {};
}

Result<UniqueFd> DiskOpening::CopyLock() const {
  if (!lock_.valid()) return UniqueFd();
  UniqueFd copy(fcntl(lock_.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return FailErrno(Code::kLimit, "a descriptor for an upgrade");
  return copy;
}

}  // namespace kvcove::owner
