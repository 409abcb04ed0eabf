// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/verbs/memory.h"

#include <algorithm>
#include <utility>

namespace kvcove::transport::verbs {

Memory::Memory(std::shared_ptr<Context> context, std::span<std::byte> memory, Access access,
               std::uint64_t piece_bytes)
    : context_(std::move(context)),
      memory_(memory),
      access_(access),
      piece_bytes_(piece_bytes),
      regions_((memory.size() + piece_bytes - 1) / piece_bytes) {}

std::uint64_t Memory::BytesOf(std::size_t piece) const {
  return std::min<std::uint64_t>(piece_bytes_, memory_.size() - piece * piece_bytes_);
}

Result<bool> Memory::RegisterNext() {
  const std::size_t piece = registered_.load(std::memory_order_relaxed);  // only this thread stores
  if (piece == regions_.size()) return true;
  if (regions_[piece] != nullptr) {
    return Fail(Code::kInvalid, "an earlier registration of this memory has not ended yet");
  }
  KVCOVE_ASSIGN(regions_[piece],
                context_->Register(memory_.subspan(piece * piece_bytes_, BytesOf(piece)), access_));
  // Behind the region: Cover() reads regions_ without a lock, up to the number that it loads.
  registered_.store(piece + 1, std::memory_order_release);
  return piece + 1 == regions_.size();
}

std::uint64_t Memory::registered_bytes() const {
  return std::min<std::uint64_t>(registered_.load(std::memory_order_acquire) * piece_bytes_,
                                 memory_.size());
}

Status Memory::Cover(const std::byte* data, std::uint64_t bytes, std::vector<Keyed>& parts) const {
  const auto offset = reinterpret_cast<std::uintptr_t>(data) -
                      reinterpret_cast<std::uintptr_t>(memory_.data());  // huge for one before it
  if (offset > memory_.size() || bytes > memory_.size() - offset) {
    return Fail(Code::kInvalid, "not in this memory");
  }
  // This load (acquire) pairs with the store of RegisterNext(): the regions below it are complete.
  if (offset + bytes > registered_bytes()) {
    return Fail(Code::kUnavailable, "not registered yet");
  }
  for (std::uint64_t at = offset; at < offset + bytes;) {
    const std::size_t piece = at / piece_bytes_;
    const std::uint64_t in_piece = std::min(offset + bytes, (piece + 1) * piece_bytes_) - at;
    const MemoryRegion& region = *regions_[piece];
    parts.push_back({.data = memory_.data() + at,
                     .bytes = in_piece,
                     .local_key = region.local_key(),
                     .remote_key = access_ == Access::kRemote ? region.remote_key() : 0});
    at += in_piece;
  }
  return {};
}

Status Memory::Deregister() {
  // First, and also where the device then refuses: no key to memory that is about to be unmapped
  // may be handed out. A region that it refuses remains, and the next call goes on there.
  registered_.store(0, std::memory_order_release);
  for (std::unique_ptr<MemoryRegion>& region : regions_) {
    if (region == nullptr) continue;
    KVCOVE_TRY(region->Deregister());
    region.reset();
  }
  return {};
}

}  // namespace kvcove::transport::verbs
