// SPDX-License-Identifier: Apache-2.0
// The pieces of memory that a socket has still to send or to receive, in order. Null pieces of a
// receive are discarded.
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
  // Most bytes of one system call. A loop that moves more at once delays its other connections, and
  // the bytes have left the processor's cache before they are hashed.
  static constexpr std::uint64_t kMaxMove = 1 << 20;
  // Size of the buffer for unwanted bytes. Connections share it: its content is never read.
  static constexpr std::uint64_t kDiscard = 64 << 10;

  void Clear();
  void Add(const void* data, std::uint64_t size);
  void Add(std::span<const Piece> pieces);
  void Add(std::span<const ConstPiece> pieces);
  bool empty() const { return at_ == parts_.size(); }

  // Calls sendmsg(2) once, without waiting, and removes the bytes that were sent. Returns its
  // result; errno is valid below 0. Must not be empty().
  ssize_t Send(int fd);
  // Calls recvmsg(2) once, likewise. 0: the peer has closed the connection. `discard`: kDiscard
  // bytes, for null pieces.
  ssize_t Receive(int fd, std::byte* discard);

 private:
  // Fills `batch` with the next parts, as many as fit in one call, and returns their number.
  static constexpr std::size_t kBatch = 256;
  std::size_t Fill(std::span<iovec> batch, std::byte* discard) const;
  void Consume(std::uint64_t bytes);

  std::vector<iovec> parts_;
  std::size_t at_ = 0;
  std::uint64_t within_ = 0;  // bytes of part `at_` that have moved
};

}  // namespace kvcove::transport::tcp
