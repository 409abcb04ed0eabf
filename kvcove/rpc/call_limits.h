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
// full again. A call moves that moment by the interval of one call; a bucket whose moment is more
// than `kBurstNs` ahead is empty. Refused callers get different moments, at the rate's pace, so
// that callers that were refused together do not ask together again.
//
// No I/O and no clock: time is passed in, in nanoseconds of one clock. A call takes a fixed number
// of steps, whatever else is there, and no lock. A tenant's entry is erased when its last
// connection has ended and its rate is whole again, so that a tenant gains no calls by connecting
// anew. So the table has no more entries than the credentials have tenants.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/base/mutex.h"

namespace kvcove::rpc {

// The share of a limit from which a call draws.
enum class Traffic : std::uint8_t {
  kOther,  // engines: look-ups, puts, gets, resets, ...
  kOwner,  // keeps an owner's lease, generations, removals and listings
  kAdmin,  // of a caller that may administer, and does nothing else
};

// The limit that a call has met.
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
// Returns "connection calls", ...; for metrics and messages.
std::string_view RefusalName(Refusal refusal);

// 0: no limit.
struct CallLimit {
  std::uint64_t calls_per_second = 0;
  std::uint64_t bytes = 0;        // in flight
  std::uint64_t connections = 0;  // of a tenant
  bool operator==(const CallLimit&) const = default;
};

struct CallLimitsOptions {
  // Limit of each connection. Its bytes count only for a call beside others: most connections have
  // one at a time.
  CallLimit connection{.calls_per_second = 100'000};
  // Limit of each tenant without one of its own. Callers without a tenant have no such limit.
  CallLimit tenant;
  CallLimit all;
  // Part of `all` that only owners' control calls and admin may use.
  double reserve = 0.125;
};

// The caller behind a connection.
struct LimitedCaller {
  std::string tenant;        // empty: the server asks for no credentials
  bool may_own = false;      // may be an owner: its control calls are kOwner
  bool administers = false;  // all its calls are kAdmin
  CallLimit own;             // the tenant's own; a field that is 0: CallLimitsOptions::tenant's
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

  // Adds a connection that was let in. Never null: one too many is refused with its first call.
  std::unique_ptr<Account> Enter(const LimitedCaller& caller);
  // Sets how many connections the server may have. All but the reserve may be those of others.
  void SetConnections(std::uint64_t most);

  struct TenantStat {
    std::string tenant;
    std::uint64_t connections = 0;
    std::uint64_t bytes = 0;    // in flight
    std::uint64_t refused = 0;  // since its first connection
    bool limited = false;       // calls were refused within the last second
    CallLimit limit;
  };
  struct Stat {
    std::array<std::uint64_t, kRefusals> refused{};  // by Refusal, of all
    std::uint64_t bytes = 0;                         // in flight
    std::uint64_t reserved_calls = 0;                // of owners and admin, admitted
    std::vector<TenantStat> tenants;                 // those with connections
  };
  // Returns the use of the limits now.
  Stat Count(std::int64_t now_ns) const;

 private:
  // One rate. Thread-safe.
  class Rate {
   public:
    void Set(std::uint64_t per_second);
    // Takes one call. False: none is left; RetryAfterNs says when to ask again.
    bool Take(std::int64_t now_ns);
    // Gives back a call that another limit has refused.
    void PutBack();
    // Returns whether the bucket is full.
    bool Whole(std::int64_t now_ns) const;
    // Returns how long a refused caller should wait, each caller one interval longer than the last.
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
    // Takes bytes. `mine`: those in flight of the taker. Bytes pass where no other caller has any
    // in flight, whatever their number: a large value could never be sent else. False: too many.
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
    bool departed = false;  // it has an entry in `departed_`
  };

  void SetLimit(Tenant& tenant, const CallLimit& own) const KVCOVE_REQUIRES(mutex_);
  // Removes a connection of the tenant. `last_ns`: time of its last call.
  void Leave(const std::string& tenant, std::int64_t last_ns) KVCOVE_EXCLUDES(mutex_);
  // Erases tenants without connections whose rate is whole again.
  void Forget(std::int64_t now_ns) const KVCOVE_REQUIRES(mutex_);
  // Counts a connection that may not use the reserve. False: there are as many as may be.
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
  // Mutable, because Count() erases tenants that have departed.
  mutable std::map<std::string, std::shared_ptr<Tenant>> tenants_ KVCOVE_GUARDED_BY(mutex_);
  struct Departed {
    std::int64_t at_ns = 0;
    std::string tenant;
  };
  mutable std::deque<Departed> departed_ KVCOVE_GUARDED_BY(mutex_);
};

// The calls and bytes that one connection has under way. Belongs to the connection's thread.
// Destruction returns all of them.
class CallLimits::Account {
 public:
  ~Account();
  Account(const Account&) = delete;
  Account& operator=(const Account&) = delete;

  // Begins a call with a request of so many bytes. Where it is admitted, End(bytes) must follow.
  Verdict Begin(Traffic traffic, std::uint64_t bytes, std::int64_t now_ns);
  // Takes more bytes for the call that is under way, such as its payload, without the connection's
  // own limit. Where they are admitted, End(bytes) must follow.
  Verdict More(std::uint64_t bytes, std::int64_t now_ns);
  // Counts bytes that exist already, such as an answer that waits for its reader. End must follow.
  void Hold(std::uint64_t bytes);
  // Gives back bytes of Begin, More or Hold.
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
  bool counted_ = false;       // counted in others_
  bool one_too_many_ = false;  // beyond the tenant's limit of connections
  bool reserved_ = false;      // the bytes in flight are taken from the reserve
  std::uint64_t in_flight_ = 0;
  std::int64_t last_ns_ = 0;  // time of the last call
  Rate calls_;
};

}  // namespace kvcove::rpc
