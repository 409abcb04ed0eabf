// SPDX-License-Identifier: Apache-2.0
// The masters of a cluster, of which one leads: their addresses, and which of them to ask.
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
  // The one that led when the source looked last.
  virtual Address Current() const = 0;
  // It did not answer as the leader does: the source looks again, soon.
  virtual void Doubt(const Address& asked) = 0;
  virtual std::string ToString() const = 0;
};

// "10.0.0.1:7400,10.0.0.2:7400", or a source that names the leader. Empty only as long as nobody
// has set it.
class Addresses {
 public:
  Addresses() = default;
  Addresses(Address one) : list_{std::move(one)} {}  // NOLINT(*-explicit-*): most have one
  explicit Addresses(std::vector<Address> list) : list_(std::move(list)) {}
  explicit Addresses(std::shared_ptr<LeaderSource> source)
      : list_{source->Current()}, source_(std::move(source)) {}
  // With a source: the one that led when this was made.
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

// Separated by commas. Errors: kInvalid.
Result<Addresses> ParseAddresses(std::string_view text, std::uint16_t default_port);

// What a master says that does not lead: kUnavailable, so that older clients understand it, too.
// `leader`: empty where nobody leads.
Error NotTheLeader(const std::string& leader);
// Nothing: the error says something else. Empty: nobody leads.
std::optional<std::string> LeaderIn(const Error& error);

// Which one to ask now. Thread-safe.
class LeaderFinder {
 public:
  explicit LeaderFinder(Addresses addresses, const Clock& clock = SystemClock::Instance())
      : addresses_(std::move(addresses)), clock_(clock) {}

  Address Current() const;
  const Addresses& addresses() const { return addresses_; }
  // A call of `asked` ended so, after that time. True: another one is to be asked now, and what
  // still waits there waits in vain. A call that was given little time says nothing about who is
  // frozen. A leader that the answer names is followed if it is one of the addresses and did not
  // leave somebody without an answer a moment ago: it may be frozen, and others not know yet. When
  // all others insist, it is asked again all the same: it may only have been slow. A source decides
  // alone: what a stranger's answer names could be anybody.
  bool Note(const Address& asked, const Error& error, std::int64_t waited_ns);

 private:
  bool Silent(std::size_t i, std::int64_t now_ns) const KVCOVE_REQUIRES(mutex_);

  const Addresses addresses_;
  const Clock& clock_;
  mutable Mutex mutex_;
  std::size_t current_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::map<std::size_t, std::int64_t> silent_until_ns_ KVCOVE_GUARDED_BY(mutex_);
  std::size_t not_followed_ KVCOVE_GUARDED_BY(mutex_) = 0;  // in a row
};

}  // namespace kvcove::rpc
