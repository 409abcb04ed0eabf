// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/unproven.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "kvcove/base/clock.h"

namespace kvcove::rpc {
namespace {

constexpr std::uint32_t kMostUnproven = 4096;

// Returns whether bytes have arrived that were not read yet: a busy server must not take their
// sender for a silent one.
bool HasUnread(int fd) {
  char byte = 0;
  return fd >= 0 && recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

}  // namespace

Source SourceOf(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  if (address.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(&address)->sin_addr.s_addr;
  }
  if (address.ss_family == AF_INET6) {
    const auto* six = reinterpret_cast<const sockaddr_in6*>(&address);
    std::uint32_t four = 0;
    std::memcpy(&four, six->sin6_addr.s6_addr + 12, sizeof(four));
    if (IN6_IS_ADDR_V4MAPPED(&six->sin6_addr)) return four;
    Source network = 0;
    std::memcpy(&network, six->sin6_addr.s6_addr, sizeof(network));
    return network;
  }
  ucred peer{};
  length = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return 0;
  return static_cast<Source>(peer.pid);
}

std::unique_ptr<Unproven::Ticket> Unproven::Enter(Source source, int fd,
                                                  std::function<void()> close) {
  std::function<void()> displaced;
  std::uint64_t turn = 0;
  {
    const MutexLock lock(mutex_);
    const auto mine = each_.find(source);
    const bool share_used = mine != each_.end() && mine->second.size() >= options_.max_each;
    if (share_used || entries_.size() >= options_.max) {
      const auto at = share_used ? ChooseOf(mine->second) : Choose();
      displaced = std::move(at->second.close);
      Erase(at);
      ++displaced_;
    }
    turn = ++last_turn_;
    entries_.emplace(turn, Entry{.source = source, .fd = fd, .close = std::move(close)});
    silent_.insert(turn);
    each_[source].insert(turn);
  }
  if (displaced) {
    displaced();
    if (lines_.Due(SystemClock::Instance().NowNs()) > 0) {
      LogWarn(
          "{}: more connections that have proven nothing than there is room for ({}, {} of one "
          "address); the oldest give way",
          options_.name, options_.max, options_.max_each);
    }
  }
  return std::make_unique<Ticket>(shared_from_this(), turn);
}

// A connection is looked at until it has sent something, and never after that. So a crowd of which
// all have sent something costs each newer one no look at the others.
Unproven::Entries::iterator Unproven::Choose() {
  while (!silent_.empty()) {
    const auto at = entries_.find(*silent_.begin());
    if (!HasUnread(at->second.fd)) return at;
    silent_.erase(silent_.begin());
  }
  return entries_.begin();
}

Unproven::Entries::iterator Unproven::ChooseOf(const std::set<std::uint64_t>& turns) {
  for (const std::uint64_t turn : turns) {
    const auto at = entries_.find(turn);
    if (!silent_.contains(turn)) continue;
    if (!HasUnread(at->second.fd)) return at;
    silent_.erase(turn);
  }
  return entries_.find(*turns.begin());
}

void Unproven::Erase(Entries::iterator at) {
  const auto mine = each_.find(at->second.source);
  mine->second.erase(at->first);
  if (mine->second.empty()) each_.erase(mine);
  silent_.erase(at->first);
  entries_.erase(at);
}

void Unproven::Heard(std::uint64_t turn) {
  const MutexLock lock(mutex_);
  silent_.erase(turn);
}

void Unproven::Replace(std::uint64_t turn, int fd, std::function<void()> close) {
  {
    const MutexLock lock(mutex_);
    if (const auto at = entries_.find(turn); at != entries_.end()) {
      at->second.fd = fd;
      at->second.close.swap(close);
      return;
    }
  }
  close();  // it was displaced before the new way to end it was known
}

void Unproven::Leave(std::uint64_t turn) {
  const MutexLock lock(mutex_);
  if (const auto at = entries_.find(turn); at != entries_.end()) Erase(at);
}

std::uint32_t Unproven::open() const {
  const MutexLock lock(mutex_);
  return static_cast<std::uint32_t>(entries_.size());
}

std::uint64_t Unproven::displaced() const {
  const MutexLock lock(mutex_);
  return displaced_;
}

std::shared_ptr<Unproven> UnprovenOf(const std::string& name, std::uint32_t max_connections) {
  UnprovenOptions options{.name = name};
  // Large servers have room for many: when their network fails, all clients connect again at once.
  options.max = std::max(std::clamp(max_connections / 2, 1U, options.max),
                         std::min(max_connections / 8, kMostUnproven));
  options.max_each = std::min(options.max_each, options.max);
  return std::make_shared<Unproven>(options);
}

}  // namespace kvcove::rpc
