// SPDX-License-Identifier: Apache-2.0
// Serves gets and puts of other hosts at an owner, in whole batches and without I/O: a transport
// moves the payload (transport/service.h). This class decides about authorisation, leases, loans,
// reservations and checksums.
//
//   get   may it read? does the lease hold? -> lend -> wait for what a lower tier has, and lend it
//         -> checksums that are missing, in slices -> the lease once more -> reply with the values
//         -> return the loans
//   put   wait for its generation, if this owner does not know it yet -> may it write? -> reserve
//         -> receive, and hash the bytes that have arrived -> commit values with the right checksum
//         -> wait for the master's listing, but not for a master that is away -> reply
//
// When the transfer of a get fails, its loans are returned with the exchange. When the transfer of
// a put fails, its reservations are given up with the visit's session: the transport ends the
// visit, because the rest of the payload would be taken for the next request. No value of a batch
// is committed before the whole batch has arrived. A put whose visit ends while the put waits for
// the master is committed, and listed or not, as if its answer had been lost.
//
// The calls about one exchange come one after the other, from the transport's thread. The answers
// of a disk and of the master come from any thread; each exchange shares a small state with them,
// under a mutex that is taken alone.
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
  bool checksum = true;       // check values that arrive, and send checksums with values
  std::uint64_t own_tag = 0;  // TenantTag of the only tenant that is served; 0: all tenants
  std::uint64_t max_batch_bytes = 512ULL << 20;  // bytes of one call's values
};

// Counters since the start. Any thread counts and reads them.
struct DataCounters {
  std::atomic<std::uint64_t> sent_bytes{0};
  std::atomic<std::uint64_t> received_bytes{0};
  std::atomic<std::uint64_t> corrupt{0};
  std::atomic<std::uint64_t> hashed_bytes{0};
  std::array<std::atomic<std::uint64_t>, kMissReasons> misses{};
  Histogram get_time;  // from the request's head to the end of the exchange
  Histogram put_time;
};

// Thread-safe. Outlives its sessions and exchanges.
class DataService {
 public:
  // Most bytes that are hashed before other connections of the loop have their turn.
  static constexpr std::uint64_t kSliceBytes = 1 << 20;
  // Most bytes of one batch, whatever the options say.
  static constexpr std::uint64_t kMaxBatchBytes = 512ULL << 20;

  DataService(DataStore& store, const DataServiceOptions& options, const Clock& clock)
      : store_(store), options_(options), clock_(clock) {}

  // The session of one peer, which begins with its first put (or load). Belongs to one visit.
  class Session {
   public:
    explicit Session(DataStore& store) : store_(store) {}
    ~Session() {
      if (number_ != 0) store_.EndSession(number_);
    }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
    // Sets the transport's check of bytes that may move: see transport::Visit.
    void SetPermit(transport::Visit::Permit permit) { permit_ = std::move(permit); }
    // Asks whether so many bytes of payload may move now; they count from then on. Errors: the
    // limit that they would exceed.
    Status MayMove(std::uint64_t bytes) const { return permit_ ? permit_(bytes) : Status(); }
    // Returns the session's number, and adds the session first where there is none yet. 0: the
    // owner can have no more sessions.
    SessionNumber Number() {
      if (number_ == 0) number_ = store_.AddRemoteSession();
      return number_;
    }

   private:
    DataStore& store_;
    SessionNumber number_ = 0;
    transport::Visit::Permit permit_;
  };

  // Begins a kDataGet or kDataPut. `head` is read within the call; `session` outlives the
  // exchange. `deadline_ns`: when the caller of a get gives up; 0: unknown. Null: the head is
  // malformed, and the connection must end.
  std::unique_ptr<transport::Served> Begin(Session& session, const rpc::Caller& caller,
                                           wire::Method method, std::span<const std::byte> head,
                                           std::int64_t deadline_ns, transport::Visit::Wake wake);
  // Returns the bytes of the values that follow a put's head. Nothing: the head is malformed, or
  // the batch is larger than kMaxBatchBytes.
  static std::optional<std::uint64_t> PayloadOf(std::span<const std::byte> head);
  const DataCounters& counters() const { return counters_; }

 private:
  class Get;
  class Put;
  // Returns whether this caller may read or write objects of the slot. Owners may do both. The
  // slot's tenant is the one that the master has named.
  bool May(const rpc::Caller& caller, SlotId slot, rpc::Scope scope) const;

  std::uint64_t MaxBatchBytes() const { return std::min(options_.max_batch_bytes, kMaxBatchBytes); }

  DataStore& store_;
  const DataServiceOptions options_;
  const Clock& clock_;
  DataCounters counters_;
};

}  // namespace kvcove::owner
