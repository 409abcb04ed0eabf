// SPDX-License-Identifier: Apache-2.0
// The connections of one listener that have proven nothing yet. Their number is small, and none of
// them keeps another out: when a new one comes and there is no room, an older one is closed
// (displaced). So strangers take no connection from peers that are let in, and a peer that says
// hello at once is served.
//
// Each source (an IPv4 address, an IPv6 network of 64 bits, on a Unix socket a process) has a
// share. The displaced connection is of the same source where that has used its share up, else of
// any source. It is the oldest that has sent nothing; where all have sent something, the oldest.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>

#include "kvcove/base/log.h"
#include "kvcove/base/mutex.h"

namespace kvcove::rpc {

struct UnprovenOptions {
  std::string name = "a listener";  // of the connections, in the log
  std::uint32_t max = 256;
  std::uint32_t max_each = 64;  // of one source
};

using Source = std::uint64_t;
// Returns the source of a connected socket; 0: unknown.
Source SourceOf(int fd);

// Thread-safe, under one mutex that is taken alone; `close` is called without it.
class Unproven : public std::enable_shared_from_this<Unproven> {
 public:
  // The entry of one connection, which is removed with it. Belongs to that connection.
  class Ticket {
   public:
    Ticket(std::shared_ptr<Unproven> all, std::uint64_t turn) : all_(std::move(all)), turn_(turn) {}
    ~Ticket() { all_->Leave(turn_); }
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;

    // Notes that the connection has sent something.
    void Heard() { all_->Heard(turn_); }
    // Sets another way to end the connection; calls it at once where it was displaced already.
    void Replace(int fd, std::function<void()> close) {
      all_->Replace(turn_, fd, std::move(close));
    }

   private:
    const std::shared_ptr<Unproven> all_;
    const std::uint64_t turn_;
  };

  explicit Unproven(const UnprovenOptions& options) : options_(options) {}

  // Adds a connection. `close` is called once, without a lock, when it is displaced: on any thread,
  // perhaps while the connection is being let in, so it must check that the ticket is still held,
  // and must not wait. `fd` (or -1) is only used to see whether unread bytes have arrived.
  std::unique_ptr<Ticket> Enter(Source source, int fd, std::function<void()> close);

  // Return how many there are and may be.
  std::uint32_t open() const;
  std::uint32_t max() const { return options_.max; }
  // Returns how many were displaced since the start.
  std::uint64_t displaced() const;

 private:
  struct Entry {
    Source source = 0;
    int fd = -1;
    std::function<void()> close;
  };
  using Entries = std::map<std::uint64_t, Entry>;  // by turn, the oldest first

  void Heard(std::uint64_t turn);
  void Replace(std::uint64_t turn, int fd, std::function<void()> close);
  void Leave(std::uint64_t turn);
  void Erase(Entries::iterator at) KVCOVE_REQUIRES(mutex_);
  // Return the connection to displace, of all or of these turns. There must be one.
  Entries::iterator Choose() KVCOVE_REQUIRES(mutex_);
  Entries::iterator ChooseOf(const std::set<std::uint64_t>& turns) KVCOVE_REQUIRES(mutex_);

  const UnprovenOptions options_;
  mutable Mutex mutex_;
  Entries entries_ KVCOVE_GUARDED_BY(mutex_);
  std::set<std::uint64_t> silent_ KVCOVE_GUARDED_BY(mutex_);  // turns; the oldest first
  std::unordered_map<Source, std::set<std::uint64_t>> each_ KVCOVE_GUARDED_BY(mutex_);  // turns
  std::uint64_t last_turn_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t displaced_ KVCOVE_GUARDED_BY(mutex_) = 0;
  LogLimit lines_;
};

// Returns the object for a listener that may have `max_connections`. It has room for an eighth of
// them, 4,096 at most. Where an eighth is less than 256, it has room for 256, or for half of the
// connections if that is less.
std::shared_ptr<Unproven> UnprovenOf(const std::string& name, std::uint32_t max_connections);

}  // namespace kvcove::rpc
