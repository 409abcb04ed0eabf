// SPDX-License-Identifier: Apache-2.0
// A batch of gets from other hosts' owners, as exchanges for transport::Run(): splits the items by
// owner, names the memory for their bytes, and checks that the bytes are those that were put. No
// sockets: the simulation drives these classes as they are. No lock: one thread runs the batch.
//
//   RemoteRead read(token, checksum, items, results);
//   for (...) read.Add(index, *owner, name);
//   transport::Run(read.Exchanges(), deadline_ns, clock);
//   read.Finish();
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "kvcove/base/hash.h"
#include "kvcove/requester/types.h"
#include "kvcove/transport/endpoint.h"
#include "kvcove/wire/cluster.h"

namespace kvcove::requester {

// Limits of one exchange. More bytes or items of one owner are several exchanges, side by side.
inline constexpr std::uint64_t kPartBytes = 64ULL << 20;
inline constexpr std::size_t kPartItems = 2048;
// Values on an owner's disk have exchanges of their own, with smaller limits: a reply waits for all
// values of its exchange, and while one reply travels the disk reads for the next. Each exchange
// that is under way uses a connection, so after kDiskParts of them the limit is the usual one.
inline constexpr std::uint64_t kDiskPartBytes = 8ULL << 20;
inline constexpr std::size_t kDiskParts = 8;

// Computes the checksums of values as their bytes arrive, while these are still in the processor's
// cache and the rest is on its way. Values arrive one after the other, each into the pieces of its
// item. Belongs to one thread.
class ValueVerifier {
 public:
  // One value. Its size is at most that of its pieces.
  struct Value {
    std::span<const MutableBuffer> into;
    std::uint64_t size = 0;
    std::uint64_t checksum = 0;
  };
  // Called once for each value, in order, when it is there as a whole. `sound`: it has its
  // checksum.
  using OnValue = std::function<void(std::size_t index, bool sound)>;

  ValueVerifier(std::vector<Value> values, bool checks, OnValue on_value)
      : values_(std::move(values)), checks_(checks), on_value_(std::move(on_value)) {}
  // Notes that the first `bytes` of all values together have arrived.
  void Arrived(std::uint64_t bytes);

 private:
  // Returns whether the next value is there as a whole, in one piece.
  bool Whole(std::uint64_t bytes) const;
  // Adds bytes of the current piece to the stream.
  void Add(std::uint64_t bytes);

  const std::vector<Value> values_;
  const bool checks_;
  const OnValue on_value_;
  std::size_t at_ = 0;          // the value that is arriving
  std::uint64_t seen_ = 0;      // bytes that were added, of all values
  std::uint64_t value_at_ = 0;  // bytes that were added, of this value
  std::size_t piece_ = 0;       // of this value
  std::uint64_t piece_at_ = 0;  // bytes that were added, of this piece
  Hash64Stream stream_;
};

// Belongs to one thread.
class RemoteRead {
 public:
  // `items` and `results` outlive this object, and so do the buffers (transport/endpoint.h says
  // until when). `results` has the size and the tier of each item, as the look-up found them.
  RemoteRead(const Token& token, bool checksum, std::span<const GetItem> items,
             std::span<ItemResult> results)
      : token_(token), checksum_(checksum), items_(items), results_(results) {}
  RemoteRead(const RemoteRead&) = delete;
  RemoteRead& operator=(const RemoteRead&) = delete;

  // Assigns item `index` to this owner, which outlives this object; `name` is its name in the log.
  void Add(std::size_t index, transport::Endpoint& owner, std::string_view name);
  // Makes the exchanges of all items that were added; call it once. They point into this object.
  std::span<transport::Exchange> Exchanges();
  // Completes `results` after the exchanges have ended: kOk; a miss with its reason; kCorrupt;
  // kBufferBusy while bytes may still land; kLimit for an item to ask its owner for again.
  void Finish();
  // Returns, after Finish, the milliseconds after which a busy owner may be asked again; 0: none is
  // busy.
  std::uint32_t retry_after_ms() const { return retry_after_ms_; }

 private:
  struct Part {
    transport::Endpoint* owner = nullptr;
    std::string name;
    std::vector<std::size_t> which;
    std::uint64_t bytes = 0;
    std::vector<wire::DataValue> values;
    std::vector<bool> ended;  // by position in `which`: the result is final
    std::unique_ptr<ValueVerifier> verifier;
  };
  // The parts of one owner to which items are added.
  struct Filling {
    Part* memory = nullptr;
    Part* disk = nullptr;
    std::size_t disk_parts = 0;
  };
  transport::Exchange ExchangeOf(Part& part);
  // Takes a reply's head: sets the results of its misses, and returns the memory for its values.
  // Errors: kCorrupt.
  Result<std::vector<transport::Piece>> OnReply(Part& part, std::span<const std::byte> head);

  const Token token_;
  const bool checksum_;
  const std::span<const GetItem> items_;
  const std::span<ItemResult> results_;
  std::vector<std::unique_ptr<Part>> parts_;
  std::map<transport::Endpoint*, Filling> filling_;
  std::vector<transport::Exchange> exchanges_;
  std::uint32_t retry_after_ms_ = 0;
};

}  // namespace kvcove::requester
