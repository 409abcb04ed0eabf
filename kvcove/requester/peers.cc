// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/peers.h"

#include <algorithm>
#include <set>

namespace kvcove::requester {
namespace {

constexpr std::int64_t kRefreshNs = 250 * kMillisecond;

}  // namespace

Peers::Peers(Ask ask, const rpc::Access& access, const Clock& clock)
    : ask_(std::move(ask)), access_(access), clock_(clock) {
  Refresh();
  thread_ = StartThread("kvcove-peers", [this] { Run(); });
}

Peers::~Peers() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void Peers::Refresh() {
  auto owners = ask_(Broken());
  if (!owners) return;
  const MutexLock lock(mutex_);
  owners_ = std::move(*owners);
  std::set<std::string> named;
  for (const wire::OwnerStat& owner : owners_) {
    named.insert(owner.address);
    if (peers_.contains(owner.address)) continue;
    const auto address = rpc::ParseAddress(owner.address, 0);
    if (address) peers_[owner.address] = std::make_shared<rpc::DataPeer>(*address, access_, clock_);
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

std::shared_ptr<rpc::DataPeer> Peers::Get(wire::OwnerNumber number) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    {
      const MutexLock lock(mutex_);
      const auto owner = std::ranges::find(owners_, number, &wire::OwnerStat::number);
      if (owner != owners_.end()) {
        const auto peer = peers_.find(owner->address);
        return peer == peers_.end() ? nullptr : peer->second;
      }
    }
    if (attempt == 0) Refresh();  // it joined a moment ago
  }
  return nullptr;
}

void Peers::Run() {
  while (true) {
    std::vector<std::shared_ptr<rpc::DataPeer>> broken;
    {
      const MutexLock lock(mutex_);
      if (!stopping_) changed_.WaitFor(mutex_, std::chrono::nanoseconds(kRefreshNs));
      if (stopping_) return;
      for (const auto& [address, peer] : peers_) {
        if (peer->broken()) broken.push_back(peer);
      }
    }
    Refresh();
    for (const auto& peer : broken) peer->Probe();
  }
}

}  // namespace kvcove::requester
