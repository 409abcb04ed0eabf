// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/cluster/peers.h"

#include <algorithm>
#include <set>

#include "kvcove/base/posix.h"
#include "kvcove/base/random.h"

namespace kvcove::requester {
namespace {

// How often the owners are asked for. An answer names all of them, and thousands of requesters ask:
// so with more owners each asks less often. One that is not known is asked for at once, and one
// that does not answer shows itself.
constexpr std::int64_t kRefreshNs = 250 * kMillisecond;
constexpr std::int64_t kMostRefreshNs = 5 * kSecond;
constexpr std::size_t kOftenOwners = 64;

// Between three quarters of it and all, so that requesters that began together do not ask together.
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
  auto owners = ask_(asker, Broken(), deadline_ns);
  if (!owners) return;
  const MutexLock lock(mutex_);
  owners_ = std::move(*owners);
  std::set<std::string> named;
  for (const wire::OwnerStat& owner : owners_) {
    named.insert(owner.address);
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
    if (attempt == 0) Refresh(deadline_ns);  // it joined a moment ago
  }
  return nullptr;
}

std::vector<std::shared_ptr<transport::Peer>> Peers::All() const {
  std::vector<std::shared_ptr<transport::Peer>> all;
  const MutexLock lock(mutex_);
  for (const auto& [address, peer] : peers_) all.push_back(peer);
  return all;
}

// Who is due when is asked without the lock. A wake-up in between is not missed: it is written
// down.
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
