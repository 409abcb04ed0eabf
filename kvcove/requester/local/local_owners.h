// SPDX-License-Identifier: Apache-2.0
// The owners of this host whose memory a process maps: mostly one, or one a NUMA node. Each comes
// and goes by itself (SocketOwner); an owner that starts later is found and added.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/requester/local/socket_owner.h"

namespace kvcove::requester {

// Grows only, so that a session reads it without a lock. Thread-safe.
class LocalOwners {
 public:
  static constexpr std::size_t kMost = 64;
  struct One {
    std::string socket;
    std::shared_ptr<OwnerTie> host;
  };

  std::size_t count() const { return count_.load(std::memory_order_acquire); }
  // `i` below a count() that was read before.
  const One& at(std::size_t i) const { return owners_[i]; }
  bool Has(const std::string& socket) const;
  // Which of those that can be mapped has this socket.
  std::optional<std::size_t> Usable(const std::string& socket) const;
  bool AnyUsable() const;
  // False: there are kMost of them.
  bool Add(One owner);

 private:
  std::array<One, kMost> owners_;
  std::atomic<std::size_t> count_{0};  // published after its element; pairs with count()
  Mutex add_mutex_;
};

// Owners that form one pool of this host have sockets of one name in one directory: `kvcove.sock`,
// `kvcove.node1.sock`, or other words than node1. This is the name of such a sibling.
std::string SiblingSocket(const std::string& socket, const std::string& word);
// `socket` and its siblings that are sockets now; itself first, the others in natural order.
std::vector<std::string> SocketsOf(const std::string& socket);

// The owners at one socket and its siblings, looked for once a second, by a thread.
//
// Each must have the same authority over generations (wire::Welcome): values of an owner that
// another authority decides for would outlive this pool's resets. While one is connected, an owner
// with another authority is refused at each try, which is logged once.
class SocketOwners {
 public:
  // Errors: those of SocketOwner for `socket`, when neither it nor a sibling can be used.
  static Result<std::shared_ptr<SocketOwners>> Connect(const std::string& socket,
                                                       std::int64_t deadline_ns, const Clock& clock,
                                                       const WarmOptions& warm = {});
  ~SocketOwners();
  LocalOwners& owners() { return owners_; }

 private:
  SocketOwners(std::string socket, const Clock& clock, const WarmOptions& warm)
      : socket_(std::move(socket)), clock_(clock), warm_(warm) {}
  // Connects to those that are there and not known.
  Status Look(std::int64_t deadline_ns);
  Status Accept(const std::string& socket, const std::string& authority);
  void Watch();

  const std::string socket_;
  const Clock& clock_;
  const WarmOptions warm_;
  LocalOwners owners_;
  Mutex mutex_;  // before the locks of hosts
  CondVar changed_;
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::map<std::string, std::string> authorities_ KVCOVE_GUARDED_BY(mutex_);  // by socket
  bool logged_refused_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace kvcove::requester
