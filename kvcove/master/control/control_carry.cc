// SPDX-License-Identifier: Apache-2.0
// Members, leases, generations and removals on their way to a successor's process
// (docs/upgrade.md). Watches, proofs and hellos do not go: they are answered before.
#include "kvcove/master/control/control.h"

namespace kvcove::master {

void Control::BeginPause() {
  Deferred deferred(commits_);
  const MutexLock lock(mutex_);
  paused_ = true;
  AnswerWatches(deferred);
  AnswerRemovals(deferred);
}

void Control::EndPause() {
  const MutexLock lock(mutex_);
  paused_ = false;
}

bool Control::Idle() const {
  const MutexLock lock(mutex_);
  return proofs_.empty() && barring_.empty() && joining_.empty() && !adopting_;
}

std::optional<std::int64_t> Control::FirstLeaseEndNs() const {
  const MutexLock lock(mutex_);
  return members_.FirstLeaseEndNs(clock_.NowNs());
}

Leadership Control::leadership() const {
  const MutexLock lock(mutex_);
  return leadership_;
}

template <typename Ar>
void Control::CarryMembers(Ar& ar) {
  CarryAll(ar, leadership_, started_ns_, incarnation_, former_pool_, know_former_pool_, lost_,
           members_, table_, removals_, unknown_leases_until_ns_, naming_, unnamed_,
           lease_connections_, matches_, buckets_, removals_refused_, swept_ns_);
}

void Control::Save(StateWriter& ar) {
  const MutexLock lock(mutex_);
  CarryMembers(ar);
}

void Control::Load(StateReader& ar) {
  const MutexLock lock(mutex_);
  CarryMembers(ar);
  for (OwnerNumber number = 0; number < members_.numbers(); ++number) {
    standings_.SetHidden(number, members_.HiddenOf(number));
  }
}

void Control::KeepConnections(const std::set<std::uint64_t>& connections) {
  const MutexLock lock(mutex_);
  std::erase_if(lease_connections_,
                [&](const auto& entry) { return !connections.contains(entry.first); });
}

}  // namespace kvcove::master
