// SPDX-License-Identifier: Apache-2.0
// How much a server takes on at a time: calls a second and bytes in flight, of a connection, of a
// tenant and of all together, and connections of a tenant. A call beyond a limit is answered "busy,
// ask again after N ms" (rpc/busy.h), and costs nobody else anything. docs/security.md has the
// options.
//
//   connection   ---> tenant ---> all others together ------+
//                                                           |  the server's whole
//   owners' control calls, admin ---> their reserve, then --+
//
// A call of an owner that keeps leases, or of a caller that administers, draws from a reserve that
// the others cannot use, and no tenant's limit stops it. A connection's own limit holds for all.
//
// A rate is one number (the "theoretical arrival time" of GCRA): the moment at which the bucket is
// full again. A call moves it on by the time that one call may take; a bucket that is more than
// `kBurstNs` behind has none left. Refused callers are told different moments, at the rate's pace,
// so that those that were refused together do not come back together.
//
// No I/O and no clock: time is passed in, in nanoseconds of one clock. A call takes a fixed number
// of steps, whatever else is there, and no lock. A tenant's entry goes when its last connection has
// ended and its rate is whole again, so that a new connection gains it no calls. So the table has
// no more entries than the credentials have tenants.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/base/mutex.h"

namespace kvcove::rpc {

// What a call draws from.
enum class Traffic : std::uint8_t {
  kOther,  // engines: look-ups, puts, gets, resets, ...
  kOwner,  // keeps an owner's lease, generations, removals and listings
  kAdmin,  // of a caller that may administer, and does nothing else
};

// Which limit a call met.
enum class Refusal : std::uint8_t {
  kNone,
  kConnectionCalls,
  kTenantCalls,
  kAllCalls,
  kConnectionBytes,
  kTenantBytes,
  kAllBytes,
  kTenantConnections,
  kAllConnections,
};
inline constexpr std::size_t kRefusals = 9;
// "connection calls", ...; for metrics and messages.
std::string_view RefusalName(Refusal refusal);

// 0: no limit.
struct CallLimit {
  std::uint64_t calls_per_second = 0;
  std::uint64_t bytes = 0;        // in flight
  std::uint64_t connections = 0;  // of a tenant
  bool operator==(const CallLimit&) const = default;
};

struct CallLimitsOptions {
  // Its bytes count only where a call comes beside others: most connections have one at a time.
  CallLimit connection{.calls_per_second = 100'000};
  // Of a tenant that has none of its own. Callers without a tenant are not one, and have none.
  CallLimit tenant;
  CallLimit all;
  // Of `all`: what only owners' control calls and admin may use.
  double reserve = 0.125;
};

// Whose a connection is.
struct LimitedCaller {
  std::string tenant;        // empty: nobody asked
  bool may_own = false;      // may be an owner: its control calls are kOwner
  bool administers = false;  // all its calls are kAdmin
  CallLimit own;             // of the tenant; what is 0 is CallLimitsOptions::tenant's
};

// Thread-safe. Outlives its accounts.
class CallLimits {
 public:
  static constexpr std::int64_t kBurstNs = 1'000'000'000;
  static constexpr std::int64_t kLeastRetryMs = 10;
  static constexpr std::int64_t kMostRetryMs = 1000;

  // `retry_after_ms`: at least kLeastRetryMs where it is a refusal.
  struct Verdict {
    Refusal refusal = Refusal::kNone;
    std::uint32_t retry_after_ms = 0;
    bool close = false;  // one connection too many: it ends with the answer
    bool admitted() const { return refusal == Refusal::kNone; }
  };

  class Account;

  explicit CallLimits(const CallLimitsOptions& options);
  ~CallLimits();
  CallLimits(const CallLimits&) = delete;
  CallLimits& operator=(const CallLimits&) = delete;

  // A connection that was let in. Never null: one too many learns so with its first call.
  std::unique_ptr<Account> Enter(const LimitedCaller& caller);
  // How many connections the server may have; all but the reserve may be others'.
  void SetConnections(std::uint64_t most);

  struct TenantStat {
    std::string tenant;
    std::uint64_t connections = 0;
    std::uint64_t bytes = 0;    // in flight
    std::uint64_t refused = 0;  // since its first connection
    bool limited = false;       // some were refused within the last second
    CallLimit limit;
  };
  struct Stat {
    std::array<std::uint64_t, kRefusals> refused{};  // by Refusal, of all
    std::uint64_t bytes = 0;                         // in flight
    std::uint64_t reserved_calls = 0;                // of owners and admin, admitted
    std::vector<TenantStat> tenants;                 // those with connections
  };
  Stat Count(std::int64_t now_ns) const;

 private:
  // One rate. Thread-safe.
  class Rate {
   public:
    void Set(std::uint64_t per_second);
    // False: none is left; then RetryAfterNs says when to come again.
    bool Take(std::int64_t now_ns);
    void PutBack();
    bool Whole(std::int64_t now_ns) const;  // nothing of it is used
    std::int64_t RetryAfterNs(std::int64_t now_ns);

   private:
    std::atomic<std::int64_t> interval_ns_{0};  // of one call; 0: no limit
    std::atomic<std::int64_t> full_at_ns_{0};
    std::atomic<std::int64_t> next_retry_ns_{0};
  };
  // Bytes of one kind. Thread-safe.
  struct Bytes {
    std::atomic<std::uint64_t> most{0};  // 0: no limit
    std::atomic<std::uint64_t> in_flight{0};
    // `mine`: of what is in flight, the taker's. What is alone passes, whatever its size.
    bool Take(std::uint64_t bytes, std::uint64_t mine);
    void Add(std::uint64_t bytes) { in_flight.fetch_add(bytes, std::memory_order_relaxed); }
    void Give(std::uint64_t bytes) { in_flight.fetch_sub(bytes, std::memory_order_relaxed); }
  };
  struct Tenant {
    Rate calls;
    Bytes bytes;
    std::atomic<std::uint64_t> connections{0};
    std::atomic<std::uint64_t> most_connections{0};
    std::atomic<std::uint64_t> refused{0};
    std::atomic<std::int64_t> refused_at_ns{0};
    // Guarded by CallLimits::mutex_:
    CallLimit limit;
    bool departed = false;  // it is in `departed_`
  };

  void SetLimit(Tenant& tenant, const CallLimit& own) const KVCOVE_REQUIRES(mutex_);
  // `last_ns`: of the connection's last call.
  void Leave(const std::string& tenant, std::int64_t last_ns) KVCOVE_EXCLUDES(mutex_);
  void Forget(std::int64_t now_ns) const KVCOVE_REQUIRES(mutex_);
  // Of `connections_`: false when the others have all that they may have.
  bool CountOther();

  const CallLimitsOptions options_;
  Rate others_calls_;
  Rate reserve_calls_;
  Bytes others_bytes_;
  Bytes reserve_bytes_;
  std::atomic<std::uint64_t> most_others_{0};  // connections; 0: no limit
  std::atomic<std::uint64_t> others_{0};
  std::atomic<std::uint64_t> reserved_calls_{0};
  std::array<std::atomic<std::uint64_t>, kRefusals> refused_{};
  mutable Mutex mutex_;
  // Those without connections go with a later look: `mutable`.
  mutable std::map<std::string, std::shared_ptr<Tenant>> tenants_ KVCOVE_GUARDED_BY(mutex_);
  struct Departed {
    std::int64_t at_ns = 0;
    std::string tenant;
  };
  mutable std::deque<Departed> departed_ KVCOVE_GUARDED_BY(mutex_);
};

// What one connection has under way. Belongs to its thread. Destruction gives all of it back.
class CallLimits::Account {
 public:
  ~Account();
  Account(const Account&) = delete;
  Account& operator=(const Account&) = delete;

  // A call of `bytes` begins; where it is admitted, End(bytes) must follow.
  Verdict Begin(Traffic traffic, std::uint64_t bytes, std::int64_t now_ns);
  // More bytes for the call that is under way, such as its payload; no connection's limit stops
  // them. Where they are admitted, End(bytes) must follow.
  Verdict More(std::uint64_t bytes, std::int64_t now_ns);
  // Bytes that are there already, such as an answer that waits for its reader.
  void Hold(std::uint64_t bytes);
  void End(std::uint64_t bytes);

 private:
  friend class CallLimits;
  Account(CallLimits& all, std::string name, std::shared_ptr<Tenant> tenant)
      : all_(all), name_(std::move(name)), tenant_(std::move(tenant)) {}
  Verdict Refuse(Refusal refusal, std::int64_t retry_ns, std::int64_t now_ns);
  Verdict TakeCall(Traffic traffic, std::int64_t now_ns);
  Verdict TakeBytes(std::uint64_t bytes, std::int64_t now_ns);
  Traffic Drawn(Traffic traffic) const;
  Bytes& Pot() { return reserved_ ? all_.reserve_bytes_ : all_.others_bytes_; }

  CallLimits& all_;
  const std::string name_;
  const std::shared_ptr<Tenant> tenant_;
  bool may_own_ = false;
  bool administers_ = false;
  bool counted_ = false;       // as a connection of others
  bool one_too_many_ = false;  // of its tenant
  bool reserved_ = false;      // what is in flight is the reserve's
  std::uint64_t in_flight_ = 0;
  std::int64_t last_ns_ = 0;  // of a call
  Rate calls_;
};

}  // namespace kvcove::rpc
