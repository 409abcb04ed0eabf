// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/tcp/parts.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>

namespace kvcove::transport::tcp {

void Parts::Clear() {
  // Frees a long list: a connection that is silent between exchanges keeps little memory.
  if (parts_.capacity() > 64) parts_ = {};
  parts_.clear();
  at_ = 0;
  within_ = 0;
}

void Parts::Add(const void* data, std::uint64_t size) {
  if (size == 0) return;
  parts_.push_back({.iov_base = const_cast<void*>(data), .iov_len = size});
}

void Parts::Add(std::span<const Piece> pieces) {
  parts_.reserve(parts_.size() + pieces.size());
  for (const Piece& piece : pieces) Add(piece.data, piece.size);
}

void Parts::Add(std::span<const ConstPiece> pieces) {
  parts_.reserve(parts_.size() + pieces.size());
  for (const ConstPiece& piece : pieces) Add(piece.data, piece.size);
}

std::size_t Parts::Fill(std::span<iovec> batch, std::byte* discard) const {
  std::size_t count = 0;
  std::uint64_t bytes = 0;
  std::uint64_t skip = within_;
  for (std::size_t i = at_; i < parts_.size() && count < batch.size() && bytes < kMaxMove; ++i) {
    const bool unwanted = parts_[i].iov_base == nullptr;
    std::uint64_t size = std::min(parts_[i].iov_len - skip, kMaxMove - bytes);
    if (unwanted) size = std::min(size, kDiscard);
    std::byte* const from = unwanted ? discard : static_cast<std::byte*>(parts_[i].iov_base) + skip;
    batch[count++] = {.iov_base = from, .iov_len = size};
    bytes += size;
    // A part that does not fit whole must be the last one of this call: bytes move in order.
    if (size < parts_[i].iov_len - skip) break;
    skip = 0;
  }
  return count;
}

void Parts::Consume(std::uint64_t bytes) {
  bytes += within_;
  while (at_ < parts_.size() && bytes >= parts_[at_].iov_len) bytes -= parts_[at_++].iov_len;
  within_ = bytes;
}

ssize_t Parts::Send(int fd) {
  std::array<iovec, kBatch> batch;
  msghdr message{};
  message.msg_iov = batch.data();
  message.msg_iovlen = Fill(batch, nullptr);
  const ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent > 0) Consume(static_cast<std::uint64_t>(sent));
  return sent;
}

ssize_t Parts::Receive(int fd, std::byte* discard) {
  std::array<iovec, kBatch> batch;
  msghdr message{};
  message.msg_iov = batch.data();
  message.msg_iovlen = Fill(batch, discard);
  const ssize_t got = recvmsg(fd, &message, MSG_DONTWAIT);
  if (got > 0) Consume(static_cast<std::uint64_t>(got));
  return got;
}

}  // namespace kvcove::transport::tcp
