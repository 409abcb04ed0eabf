// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/cluster/peers.h"

#include <algorithm>
#include <set>

#include "kvcove/base/posix.h"
#include "kvcove/base/random.h"

namespace kvcove::requester {
namespace {

// Time between two lists. A list names all owners, and thousands of requesters ask for it, so each
// asks less often if there are more owners. That is enough: a number that the list lacks is asked
// for at once (Get), and an owner that does not answer is noticed by its breaker.
constexpr std::int64_t kRefreshNs = 250 * kMillisecond;
constexpr std::int64_t kMostRefreshNs = 5 * kSecond;
constexpr std::size_t kOftenOwners = 64;

// Returns between three quarters of the time and all of it, so that requesters that began together
// do not ask together.
std::int64_t RefreshNs(std::size_t owners) {
  const auto times = static_cast<std::int64_t>(std::max<std::size_t>(owners / kOftenOwners, 1));
  const std::int64_t most_ns = std::min(kRefreshNs * times, kMostRefreshNs);
  return most_ns - static_cast<std::int64_t>(RandomU64() % static_cast<std::uint64_t>(most_ns / 4));
}

}  // namespace

Peers::Peers(Ask ask, std::function<std::int64_t()> master_due, transport::Transport& transport,
             const rpc::Access& access, const Clock& clock)
    : ask_(std::move(ask)),
      master_due_(std::move(master_due)),
      transport_(transport),
      access_(access),
      clock_(clock) {
  Refresh(Asker::kBackground, rpc::Breaker::kNever);
}

Status Peers::Start() {
  KVCOVE_ASSIGN(thread_, StartThread("kvcove-peers", [this] { Run(); }));
  return {};
}

Peers::~Peers() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  JoinIfStarted(thread_);
}

void Peers::Wake() {
  const MutexLock lock(mutex_);
  woken_ = true;
  changed_.NotifyAll();
}

void Peers::Refresh(Asker asker, std::int64_t deadline_ns) {
  // Two answers may overtake each other; the older list then lasts until the next refresh.
  auto owners = ask_(asker, Broken(), deadline_ns);
  if (!owners) return;
  const MutexLock lock(mutex_);
  owners_ = std::move(*owners);
  std::set<std::string> named;
  for (const wire::OwnerStat& owner : owners_) {
    named.insert(owner.address);
    // A known peer keeps its connections, and its breaker's opinion, across lists. Connect waits
    // for nothing, so it may be called under the lock.
    if (peers_.contains(owner.address)) continue;
    const auto address = rpc::ParseAddress(owner.address, 0);
    if (!address) continue;
    peers_[owner.address] =
        transport_.Connect(*address, {.access = access_, .on_doubt = [this] { Wake(); }}, clock_);
  }
  std::erase_if(peers_, [&](const auto& peer) { return !named.contains(peer.first); });
}

std::vector<wire::OwnerStat> Peers::Owners() const {
  const MutexLock lock(mutex_);
  return owners_;
}

std::vector<wire::OwnerNumber> Peers::Broken() const {
  std::vector<wire::OwnerNumber> broken;
  const MutexLock lock(mutex_);
  for (const wire::OwnerStat& owner : owners_) {
    const auto peer = peers_.find(owner.address);
    if (peer != peers_.end() && peer->second->broken()) broken.push_back(owner.number);
  }
  return broken;
}

std::shared_ptr<transport::Peer> Peers::Get(wire::OwnerNumber number, std::int64_t deadline_ns) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    {
      const MutexLock lock(mutex_);
      const auto owner = std::ranges::find(owners_, number, &wire::OwnerStat::number);
      if (owner != owners_.end()) {
        const auto peer = peers_.find(owner->address);
        return peer == peers_.end() ? nullptr : peer->second;
      }
    }
    // The owner may have joined after the last list.
    if (attempt == 0) Refresh(deadline_ns);
  }
  return nullptr;
}

std::vector<std::shared_ptr<transport::Peer>> Peers::All() const {
  std::vector<std::shared_ptr<transport::Peer>> all;
  const MutexLock lock(mutex_);
  for (const auto& [address, peer] : peers_) all.push_back(peer);
  return all;
}

// Breakers have locks of their own, so the due times are read without this one. A Wake after
// `woken_` was cleared may come before or after a due time was read: it sets the flag again, so the
// wait is left out and the times are read once more. Clearing the flag after the reading would lose
// it.
bool Peers::Sleep(std::int64_t refresh_ns) {
  while (true) {
    {
      const MutexLock lock(mutex_);
      if (stopping_) return false;
      woken_ = false;
    }
    std::int64_t due_ns = std::min(refresh_ns, master_due_());
    for (const auto& peer : All()) due_ns = std::min(due_ns, peer->ProbeDueNs());
    const std::int64_t now = clock_.NowNs();
    if (due_ns <= now) return true;
    const MutexLock lock(mutex_);
    if (!stopping_ && !woken_) changed_.WaitFor(mutex_, std::chrono::nanoseconds(due_ns - now));
  }
}

void Peers::Run() {
  std::int64_t refresh_ns = clock_.NowNs() + RefreshNs(Owners().size());
  while (Sleep(refresh_ns)) {
    // A list is also the probe of a master in doubt.
    if (clock_.NowNs() >= std::min(refresh_ns, master_due_())) {
      Refresh(Asker::kBackground, rpc::Breaker::kNever);
      refresh_ns = clock_.NowNs() + RefreshNs(Owners().size());
    }
    for (const auto& peer : All()) {
      if (peer->ProbeDueNs() <= clock_.NowNs()) peer->Probe();
    }
  }
}

}  // namespace kvcove::requester
