// SPDX-License-Identifier: Apache-2.0
// Hands an owner's memory over to another process (docs/upgrade.md). The giving process is frozen:
// only the lease changes, which it renews until the other one does. Readers notice none of it.
#include "kvcove/base/posix.h"
#include "kvcove/owner/owner.h"
#include "kvcove/wire/carry_fields.h"

namespace kvcove::owner {
namespace {

// The successor would have to empty a disk that is closed before it has proven a removal, and a
// walk for a pattern takes longer than a pause may. A pause writes the note, and nothing is served
// meanwhile: it must not begin behind a thread that hangs there.
Status NoneIsBusy(const OwnerDisks& disks) {
  if (disks.set().Patterns() > 0) {
    return Fail(Code::kInProgress, "its disk is being walked for a removal by pattern; try again");
  }
  if (!disks.AwaitNote()) {
    return Fail(Code::kInProgress, "the note of its disks is being written; try again");
  }
  return {};
}

}  // namespace

// ---- the process that gives

void Owner::Freeze() {
  {
    const MutexLock lock(stop_mutex_);
    frozen_ = true;
    stop_changed_.NotifyAll();
  }
  memory_->EndRest();
  if (janitor_.joinable()) janitor_.join();
  // Requesters ask nobody about saves while nobody answers, nor a successor of an earlier build,
  // which would close their connections.
  memory_->PublishSavesUntil(0);
}

void Owner::Thaw() {
  outbox_.ResumeWaits();
  removals_.waits().Resume();
  link_ends_ = false;
  opening_.Resume();
  {
    const MutexLock lock(stop_mutex_);
    if (!frozen_) return;
    frozen_ = false;
    lease_over_ = false;
  }
  PublishTakesSaves();
  if (disks_.TakePaused()) StartAgain([this] { return StartPausedDisks(); });
  StartAgain([this] { return StartThreads(); });
}

void Owner::StopLease() {
  {
    const MutexLock lock(stop_mutex_);
    lease_over_ = true;
    stop_changed_.NotifyAll();
  }
  if (lease_.joinable()) lease_.join();
  // After the join, so that no later renewal follows: the giver derives the successor's deadline
  // from this one (server/upgrade.cc).
  memory_->SetLease(clock_.NowNs() + options_.lease_ns);
}

Status Owner::Save(StateWriter& ar, StateWriter& policies) {
  std::vector<std::uint64_t> tenants = link_side_.SlotTenants();
  std::uint64_t applied = link_side_.applied();
  HandedDisks disks = disks_.HandOver();
  opening_.HandOver(disks);
  CarryAll(ar, tenants, applied, disks);
  for (std::size_t i = 0; i < disks.shares.size(); ++i) CarryOne(ar, disks_.set()[i].inventory());
  const MutexLock lock(memory_->mutex);
  // A transfer here reads memory that the successor, which does not know the loan, might reuse.
  if (memory_->core().lent())
    return Fail(Code::kInProgress, "a transfer to another host is under way");
  memory_->core().Save(ar, policies);
  return {};
}

Result<Owner::Files> Owner::CopyFiles() {
  Files files;
  KVCOVE_ASSIGN(files.memory, memory_->CopyFiles());
  KVCOVE_ASSIGN(files.disk_lock, opening_.CopyLock());
  return files;
}

// ---- the process that takes

Result<std::unique_ptr<Owner>> Owner::Map(const OwnerOptions& options, Memory::Files files,
                                          const Clock& clock) {
  KVCOVE_ASSIGN(auto memory, Memory::Map(MemoryOf(options), std::move(files), clock));
  std::unique_ptr<Owner> owner(new Owner(options, std::move(memory), clock));
  KVCOVE_TRY(owner->OpenCore());
  return owner;
}

Result<bool> Owner::Restore(StateReader& ar, StateReader& policies, Files files) {
  std::vector<std::uint64_t> tenants;
  std::uint64_t applied = 0;
  CarryAll(ar, tenants, applied, handed_);
  if (handed_.shares.size() != options_.disks.size()) {
    return Fail(Code::kIncompatible, "the running owner has another number of disks");
  }
  for (std::size_t i = 0; i < handed_.shares.size(); ++i) CarryOne(ar, disks_.set()[i].inventory());
  opening_.SetLock(std::move(files.disk_lock));
  link_side_.Restore(tenants, applied);
  KVCOVE_ASSIGN(const bool kept, memory_->Restore(ar, policies, std::move(files.memory.pages)));
  promotions_.Adopt();
  MakeReport();
  return kept;
}

// ---- disks

// The successor would not know the values that are stored while a disk is being opened or its
// inventory is being reported, and would have to empty the disk.
Status Owner::MayPauseDisks() const {
  const DiskSet& set = disks_.set();
  const bool settled = opening_.settled() && !opening_.saving() && !set.Any(&DiskState::opening) &&
                       !set.Any(&DiskState::reporting);
  if (!settled) {
    return Fail(Code::kInProgress,
                "its disk is still being opened, or its facts are being written; try again");
  }
  return NoneIsBusy(disks_);
}

// Looks once more: a removal may have begun since MayPauseDisks, and none can any more; and another
// opening may have been drawn.
Status Owner::PauseDisks() {
  if (!disks_.open()) return {};
  KVCOVE_TRY(NoneIsBusy(disks_));
  // Else this process could write older facts over the successor's.
  KVCOVE_TRY(opening_.Pause());
  // Zones may move while the disks are paused, so a walk over them begins anew.
  inventory_.Reread();
  return disks_.Pause();
}

// In a cluster the master may have voided the disks' objects while the disks were paused.
Status Owner::StartPausedDisks() {
  if (!options_.cluster) return disks_.StartPaused(disk_place_, promotions_, /*voids=*/false);
  return disks_.StartPaused(opening_.Place(), promotions_, opening_.voids());
}

Status Owner::ResumeDisks(const TierPlace& place) {
  if (disks_.none()) return {};
  disk_place_ = place;
  disks_.SetNote(place.known);
  disks_.Adopt(handed_);
  return StartPausedDisks();
}

// Brings DiskOpening and the disks to the state in which this process's own opener leaves them.
Status Owner::ResumeClusterDisks() {
  if (disks_.none()) return {};
  KVCOVE_TRY(opening_.Adopt(handed_));
  inventory_.Reread();
  disks_.Adopt(handed_);
  return StartPausedDisks();
}

// ---- in a cluster

void Owner::EnqueueWaiting(const std::set<std::uint64_t>& asked) {
  std::vector<Pending> pending;
  {
    const MutexLock lock(memory_->mutex);
    pending = memory_->core().TakePending();
  }
  for (const Pending& one : pending) {
    if (!asked.contains(one.reservation)) outbox_.Add({one}, [](std::span<const Code>) {});
  }
}

}  // namespace kvcove::owner
