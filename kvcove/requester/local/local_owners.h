// SPDX-License-Identifier: Apache-2.0
// The owners of this host whose memory a process maps: mostly one, or one for each NUMA node. Each
// ends and restarts by itself (SocketOwner); an owner that starts later is found and added.
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

// A list that only grows, so that sessions read it without a lock. Thread-safe.
class LocalOwners {
 public:
  static constexpr std::size_t kMost = 64;
  struct One {
    std::string socket;
    std::shared_ptr<OwnerTie> host;
  };

  std::size_t count() const { return count_.load(std::memory_order_acquire); }
  // Returns an owner. `i` must be below a count() that this thread has read before.
  const One& at(std::size_t i) const { return owners_[i]; }
  bool Has(const std::string& socket) const;
  // Returns the number of the owner at this socket, if its memory can be mapped.
  std::optional<std::size_t> Usable(const std::string& socket) const;
  // True if the memory of any owner can be mapped.
  bool AnyUsable() const;
  // Adds an owner. False: there are kMost already.
  bool Add(One owner);

 private:
  std::array<One, kMost> owners_;
  std::atomic<std::size_t> count_{0};  // published after its element; pairs with count()
  Mutex add_mutex_;
};

// Returns the name of a sibling. Owners that form one pool of this host have sockets with one stem
// in one directory: `kvcove.sock`, `kvcove.node1.sock`, or with other words than node1.
std::string SiblingSocket(const std::string& socket, const std::string& word);
// Returns the socket after which this one is named, if it is a sibling: `kvcove.sock` of
// `kvcove.node1.sock`; empty: it is named after none.
std::string SocketOfPool(const std::string& socket);
// Returns the socket of the admin interface of a process that serves `socket`, its first one:
// `admin-kvcove.sock` beside `kvcove.sock`, which is no sibling's name.
std::string AdminSocket(const std::string& socket);
// Returns `socket` and its siblings, as far as they are sockets now; `socket` first, the others in
// natural order. Who may not list the directory finds the siblings of NUMA nodes alone.
std::vector<std::string> SocketsOf(const std::string& socket);

// The owners at one socket and its siblings. A thread looks for new ones once a second.
// Thread-safe.
//
// All must have the same authority over generations (wire::Welcome): values of an owner with
// another authority would survive this pool's resets. While one owner is connected, owners with
// another authority are refused at each attempt; the refusal is logged once.
class SocketOwners {
 public:
  // Connects to all owners. Errors: those of SocketOwner for the first socket that fails, if no
  // owner can be used.
  static Result<std::shared_ptr<SocketOwners>> Connect(const std::string& socket,
                                                       std::int64_t deadline_ns, const Clock& clock,
                                                       const WarmOptions& warm = {});
  ~SocketOwners();
  LocalOwners& owners() { return owners_; }

 private:
  SocketOwners(std::string socket, const Clock& clock, const WarmOptions& warm)
      : socket_(std::move(socket)), clock_(clock), warm_(warm) {}
  // Connects to owners that are not known yet.
  Status Look(std::int64_t deadline_ns);
  Status Accept(const std::string& socket, const std::string& authority);
  void Watch();

  const std::string socket_;
  const Clock& clock_;
  const WarmOptions warm_;
  Mutex mutex_;  // taken before the locks of owners
  CondVar changed_;
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::map<std::string, std::string> authorities_ KVCOVE_GUARDED_BY(mutex_);  // by socket
  bool logged_refused_ KVCOVE_GUARDED_BY(mutex_) = false;
  // Ends before the members above: its owners' monitors call Accept until they end.
  LocalOwners owners_;
  std::thread thread_;
};

}  // namespace kvcove::requester
