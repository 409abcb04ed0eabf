// SPDX-License-Identifier: Apache-2.0
// The masters of a cluster, of which one leads: their addresses, and the choice of the one to ask.
#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/rpc/address.h"

namespace kvcove::rpc {

// Names the leader to clients that have no list of masters: etcd does (server/etcd_masters.h).
// Thread-safe; no call waits.
class LeaderSource {
 public:
  virtual ~LeaderSource() = default;
  // Returns the master that led when the source looked last.
  virtual Address Current() const = 0;
  // Notes that `asked` did not answer as a leader does, so that the source soon looks again.
  virtual void Doubt(const Address& asked) = 0;
  virtual std::string ToString() const = 0;
};

// A list of masters, such as "10.0.0.1:7400,10.0.0.2:7400", or a source that names the leader.
// Empty only if default-constructed. Immutable.
class Addresses {
 public:
  Addresses() = default;
  Addresses(Address one) : list_{std::move(one)} {}  // NOLINT(*-explicit-*): most have one
  explicit Addresses(std::vector<Address> list) : list_(std::move(list)) {}
  explicit Addresses(std::shared_ptr<LeaderSource> source)
      : list_{source->Current()}, source_(std::move(source)) {}
  // Returns the list; with a source, the master that led when this was made.
  const std::vector<Address>& list() const { return list_; }
  const Address& front() const { return list_.front(); }
  LeaderSource* source() const { return source_.get(); }  // null: the list is all that is known
  bool several() const { return list_.size() > 1 || source_ != nullptr; }
  std::string ToString() const;
  bool operator==(const Addresses&) const = default;

 private:
  std::vector<Address> list_;
  std::shared_ptr<LeaderSource> source_;
};

// Reads addresses that are separated by commas; equal ones count once. Errors: kInvalid.
Result<Addresses> ParseAddresses(std::string_view text, std::uint16_t default_port);

// Returns the answer of a master that does not lead: kUnavailable, which older clients understand,
// too. `leader`: empty where nobody leads.
Error NotTheLeader(const std::string& leader);
// Returns the leader that such an answer names; empty: nobody leads. Nothing: it is another error.
std::optional<std::string> LeaderIn(const Error& error);

// Chooses the master to ask, for all calls of a process to a cluster. Thread-safe, under one mutex
// that is taken last. With a list it tries the masters in turn; with a source it asks that one.
class LeaderFinder {
 public:
  explicit LeaderFinder(Addresses addresses, const Clock& clock = SystemClock::Instance())
      : addresses_(std::move(addresses)), clock_(clock) {}

  Address Current() const;
  const Addresses& addresses() const { return addresses_; }
  // Notes how a call to `asked` ended, after `waited_ns`. True: another master is to be asked now,
  // and calls that still wait at `asked` wait in vain. A call with little time says nothing about a
  // frozen master. A leader that an answer names is followed if it is one of the addresses and left
  // no call without an answer within the last second: it may be frozen, and the others do not know
  // yet. When as many answers in a row as there are masters name it, it is asked all the same,
  // because it may only have been slow. A source decides alone: an answer could name any address.
  bool Note(const Address& asked, const Error& error, std::int64_t waited_ns);

 private:
  bool Silent(std::size_t i, std::int64_t now_ns) const KVCOVE_REQUIRES(mutex_);

  const Addresses addresses_;
  const Clock& clock_;
  mutable Mutex mutex_;
  std::size_t current_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::map<std::size_t, std::int64_t> silent_until_ns_ KVCOVE_GUARDED_BY(mutex_);
  std::size_t not_followed_ KVCOVE_GUARDED_BY(mutex_) = 0;  // named leaders in a row
};

}  // namespace kvcove::rpc
