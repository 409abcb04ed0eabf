// SPDX-License-Identifier: Apache-2.0
// A batch of gets from other hosts' owners, as exchanges for transport::Run(): which item comes
// from which owner, where its bytes go, and whether they are the ones that were put. No sockets:
// the simulation drives these classes as they are.
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

// Bytes and items of one exchange. More for one owner are several exchanges, side by side.
inline constexpr std::uint64_t kPartBytes = 64ULL << 20;
inline constexpr std::size_t kPartItems = 2048;
// What an owner has on its disk goes in smaller parts, apart from what it has in memory: a reply
// waits for all that its call asks for, and while one is on its way the disk reads for the next.
// Each part that is under way has a connection, so beyond these parts have the usual size.
inline constexpr std::uint64_t kDiskPartBytes = 8ULL << 20;
inline constexpr std::size_t kDiskParts = 8;

// Checks values as their bytes arrive, while these are still in the processor's cache and the rest
// is on its way. Values come one after the other, each into the pieces of its item.
class ValueVerifier {
 public:
  // `into`, `checksum`: of the next value. Its size is at most that of its pieces.
  struct Value {
    std::span<const MutableBuffer> into;
    std::uint64_t size = 0;
    std::uint64_t checksum = 0;
  };
  // `sound`: whether the value has its checksum.
  using OnValue = std::function<void(std::size_t index, bool sound)>;

  ValueVerifier(std::vector<Value> values, bool checks, OnValue on_value)
      : values_(std::move(values)), checks_(checks), on_value_(std::move(on_value)) {}
  // So many bytes of all values together have arrived.
  void Arrived(std::uint64_t bytes);

 private:
  // The next value is there as a whole, in one piece.
  bool Whole(std::uint64_t bytes) const;
  void Add(std::uint64_t bytes);

  const std::vector<Value> values_;
  const bool checks_;
  const OnValue on_value_;
  std::size_t at_ = 0;          // the value that is arriving
  std::uint64_t seen_ = 0;      // bytes, of all values
  std::uint64_t value_at_ = 0;  // bytes of this one
  std::size_t piece_ = 0;
  std::uint64_t piece_at_ = 0;
  Hash64Stream stream_;
};

// Belongs to one thread.
class RemoteRead {
 public:
  // `items` and `results` outlive this, and so do the buffers (transport/endpoint.h says until
  // when). `results` says what is known: `bytes`, `tier`.
  RemoteRead(const Token& token, bool checksum, std::span<const GetItem> items,
             std::span<ItemResult> results)
      : token_(token), checksum_(checksum), items_(items), results_(results) {}
  RemoteRead(const RemoteRead&) = delete;
  RemoteRead& operator=(const RemoteRead&) = delete;

  // Item `index` is to come from this owner; `name` is its name in the log.
  void Add(std::size_t index, transport::Endpoint& owner, std::string_view name);
  // Made of all that was added. They point into this object.
  std::span<transport::Exchange> Exchanges();
  // After the exchanges have ended: what became of each item is in `results`; kLimit for those that
  // an owner is to be asked for again.
  void Finish();
  // After Finish: before it may be asked, where one is busy. 0: none is.
  std::uint32_t retry_after_ms() const { return retry_after_ms_; }

 private:
  struct Part {
    transport::Endpoint* owner = nullptr;
    std::string name;
    std::vector<std::size_t> which;
    std::uint64_t bytes = 0;
    std::vector<wire::DataValue> values;
    std::vector<bool> ended;  // by position in `which`: the result stands
    std::unique_ptr<ValueVerifier> verifier;
  };
  // Of one owner: the parts that are being filled.
  struct Filling {
    Part* memory = nullptr;
    Part* disk = nullptr;
    std::size_t disk_parts = 0;
  };
  transport::Exchange ExchangeOf(Part& part);
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
