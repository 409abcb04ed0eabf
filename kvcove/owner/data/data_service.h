// SPDX-License-Identifier: Apache-2.0
// What an owner does for other hosts, without I/O: whole batches of gets and puts, whose payload a
// transport moves (transport/service.h). Authorisation, leases, loans, reservations and checksums
// are decided here.
//
//   get   may it read? does the lease hold? -> lend -> wait for what a lower tier has, and lend it
//         -> checksums that are missing, in slices -> the lease once more -> reply with the values
//         -> return the loans
//   put   wait for its generation, if that is not known here yet -> may it write? -> reserve
//         -> receive, and hash what has arrived -> commit what has its checksum -> wait for the
//         master's listing, but not for a master that is away -> reply
//
// What happens when the transfer fails in between: a get's loans are returned with the exchange,
// and nobody learns more. A put's reservations are given up with the visit's session: the transport
// ends the visit, because the rest of the payload would be taken for the next request. Nothing of a
// batch is committed before all of it has arrived. A put whose visit ends while it waits for the
// master is committed: it is listed or not, as if its answer had been lost.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <optional>

#include "kvcove/base/clock.h"
#include "kvcove/base/metrics.h"
#include "kvcove/owner/core/data_store.h"
#include "kvcove/transport/service.h"

namespace kvcove::owner {

struct DataServiceOptions {
  bool checksum = true;       // checks what arrives, and sends checksums along
  std::uint64_t own_tag = 0;  // TenantTag of the only tenant that is served; 0: all
  std::uint64_t max_batch_bytes = 512ULL << 20;  // of one call's values
};

// Counted by all threads.
struct DataCounters {
  std::atomic<std::uint64_t> sent_bytes{0};
  std::atomic<std::uint64_t> received_bytes{0};
  std::atomic<std::uint64_t> corrupt{0};
  std::atomic<std::uint64_t> hashed_bytes{0};
  std::array<std::atomic<std::uint64_t>, kMissReasons> misses{};
  Histogram get_time;  // of whole exchanges
  Histogram put_time;
};

// Thread-safe.
class DataService {
 public:
  // Bytes that are hashed at most before others have their turn.
  static constexpr std::uint64_t kSliceBytes = 1 << 20;
  // Of one batch, whatever the options say.
  static constexpr std::uint64_t kMaxBatchBytes = 512ULL << 20;

  DataService(DataStore& store, const DataServiceOptions& options, const Clock& clock)
      : store_(store), options_(options), clock_(clock) {}

  // A peer's session, with its first put. Belongs to one visit.
  class Session {
   public:
    explicit Session(DataStore& store) : store_(store) {}
    ~Session() {
      if (number_ != 0) store_.EndSession(number_);
    }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
    // See transport::Visit.
    void SetPermit(transport::Visit::Permit permit) { permit_ = std::move(permit); }
    Status MayMove(std::uint64_t bytes) const { return permit_ ? permit_(bytes) : Status(); }
    // 0 when there can be no more.
    SessionNumber Number() {
      if (number_ == 0) number_ = store_.AddRemoteSession();
      return number_;
    }

   private:
    DataStore& store_;
    SessionNumber number_ = 0;
    transport::Visit::Permit permit_;
  };

  // kDataGet or kDataPut. Null for garbage.
  std::unique_ptr<transport::Served> Begin(Session& session, const rpc::Caller& caller,
                                           wire::Method method, std::span<const std::byte> head,
                                           std::int64_t deadline_ns, transport::Visit::Wake wake);
  // Of a put's values, which follow its request. Nothing: garbage.
  static std::optional<std::uint64_t> PayloadOf(std::span<const std::byte> head);
  const DataCounters& counters() const { return counters_; }

 private:
  class Get;
  class Put;
  // May this caller store or find there? The slot's tenant is what the master says.
  bool May(const rpc::Caller& caller, SlotId slot, rpc::Scope scope) const;

  std::uint64_t MaxBatchBytes() const { return std::min(options_.max_batch_bytes, kMaxBatchBytes); }

  DataStore& store_;
  const DataServiceOptions options_;
  const Clock& clock_;
  DataCounters counters_;
};

}  // namespace kvcove::owner
