// SPDX-License-Identifier: Apache-2.0
// Look-ups in a directory whose parts are served by several masters: asks each for its own keys,
// all at the same time and within one deadline, and puts the answers into the order of the keys. A
// key whose shard does not answer is a miss with a reason of its own (kShardAway). Threads: the
// caller's asks for one part, and four workers, which start with the first map of several shards,
// for the others. One lock guards map and connections; no call is made under it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/rpc/breaker.h"
#include "kvcove/rpc/channel.h"
#include "kvcove/rpc/link.h"
#include "kvcove/rpc/workers.h"
#include "kvcove/wire/master_stub.h"

namespace kvcove::requester {

// Thread-safe.
class ShardLookup {
 public:
  using Ask = std::function<Result<std::vector<wire::Place>>(
      const Token& token, std::span<const Id128> hashes, std::int64_t deadline_ns,
      SaveNotice notice)>;
  // `leader` looks up the leader's part. `refresh` asks the leader for its map until the given
  // deadline, and passes it to SetMap.
  ShardLookup(rpc::Access access, Ask leader, std::function<void(std::int64_t)> refresh,
              const Clock& clock)
      : access_(std::move(access)),
        leader_(std::move(leader)),
        refresh_(std::move(refresh)),
        clock_(clock) {}

  // Uses this map from now on, unless a later one is known. Null: the leader has all slices.
  void SetMap(std::shared_ptr<const wire::ShardMap> map);
  // Returns a place for each hash, in their order. While slices move, asks again with a newer map,
  // five times in all. Each shard learns of the `notice` about its keys. Errors: kStale from any
  // shard; another error only if no shard has answered.
  Result<std::vector<wire::Place>> Lookup(const Token& token, std::span<const Id128> hashes,
                                          std::int64_t deadline_ns,
                                          SaveNotice notice = SaveNotice::kNone);

 private:
  // A master that serves a shard. Calls share its ownership, so a new map may drop it meanwhile.
  struct Peer {
    Peer(const rpc::Address& address, const rpc::Access& access, const Clock& clock)
        : link(address, access, {.peer = "a shard of the directory"}, clock),
          stub(link.channel(rpc::kGuarded)) {}
    rpc::Link link;
    wire::MasterStub stub;
  };
  // The keys of one shard.
  struct Part {
    wire::ShardNumber shard = 0;
    std::shared_ptr<Peer> peer;      // null: the leader's, or the shard's address is not valid
    std::vector<std::size_t> which;  // indices of the keys
    std::vector<Id128> hashes;
    SaveNotice notice = SaveNotice::kNone;
    Result<std::vector<wire::Place>> answer = std::vector<wire::Place>();
  };
  struct Round;
  // Groups the keys at `which` by shard; the leader's part, if any, is the first one.
  std::vector<Part> Split(std::span<const Id128> hashes, const std::vector<std::size_t>& which);
  // Returns the answer to one part.
  Result<std::vector<wire::Place>> AskPart(const Token& token, const Part& part,
                                           std::int64_t deadline_ns) const;
  // Asks for all parts at the same time. Returns when each has its answer, or at the deadline: the
  // answer of a part that a worker has not ended by then is kTimeout.
  void AskAll(const Token& token, std::vector<Part>& parts, std::int64_t deadline_ns);
  std::shared_ptr<const wire::ShardMap> map() const;

  const rpc::Access access_;
  const Ask leader_;
  const std::function<void(std::int64_t)> refresh_;
  const Clock& clock_;
  mutable Mutex mutex_;
  std::shared_ptr<const wire::ShardMap> map_ KVCOVE_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<Peer>> peers_ KVCOVE_GUARDED_BY(mutex_);  // by address
  std::shared_ptr<rpc::Workers> workers_ KVCOVE_GUARDED_BY(mutex_);  // from the first map on
};

}  // namespace kvcove::requester
