// SPDX-License-Identifier: Apache-2.0
// Pieces of memory on their way through a socket: what is left of them, in order.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <vector>

#include "kvcove/transport/endpoint.h"

namespace kvcove::transport::tcp {

// Belongs to one thread.
class Parts {
 public:
  // One system call moves at most so much: a loop that moves more at once keeps others waiting, and
  // what is checked right behind it is no longer in the processor's cache.
  static constexpr std::uint64_t kMaxMove = 1 << 20;
  // Where unwanted bytes go. Shared by all connections: nobody reads it.
  static constexpr std::uint64_t kDiscard = 64 << 10;

  void Clear();
  void Add(const void* data, std::uint64_t size);
  void Add(std::span<const Piece> pieces);
  void Add(std::span<const ConstPiece> pieces);
  bool empty() const { return at_ == parts_.size(); }

  // One sendmsg or recvmsg that does not wait: its result, errno with it. A receive of nothing, the
  // peer's end, is 0.
  ssize_t Send(int fd);
  ssize_t Receive(int fd, std::byte* discard);

 private:
  // The next parts, as many as fit in one call. They are put together in `batch`.
  static constexpr std::size_t kBatch = 256;
  std::size_t Fill(std::span<iovec> batch, std::byte* discard) const;
  void Consume(std::uint64_t bytes);

  std::vector<iovec> parts_;
  std::size_t at_ = 0;
  std::uint64_t within_ = 0;  // bytes of the first one that have moved
};

}  // namespace kvcove::transport::tcp
