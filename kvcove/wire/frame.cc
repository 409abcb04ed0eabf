// SPDX-License-Identifier: Apache-2.0
#include "kvcove/wire/frame.h"

#include <fmt/core.h>

#include <algorithm>

#include "kvcove/base/clock.h"

namespace kvcove::wire {
namespace {

// The hosts that kvcove runs on are little-endian; the fields are coded one by one all the same.
template <typename T>
void Store(std::byte* at, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) at[i] = static_cast<std::byte>(value >> (8 * i));
}

template <typename T>
T Load(const std::byte* at) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) value |= std::uint64_t(at[i]) << (8 * i);
  return static_cast<T>(value);
}

}  // namespace

std::uint16_t BudgetMs(std::int64_t left_ns) {
  return static_cast<std::uint16_t>(
      std::clamp<std::int64_t>(left_ns, kMillisecond, kMaxFrameBudgetNs) / kMillisecond);
}

std::int64_t DeadlineOf(const FrameHeader& request, std::int64_t now_ns) {
  return request.budget_ms == 0 ? 0 : now_ns + request.budget_ms * kMillisecond;
}

std::array<std::byte, kFrameHeaderBytes> EncodeFrameHeader(const FrameHeader& header) {
  std::array<std::byte, kFrameHeaderBytes> bytes{};
  Store(bytes.data(), kFrameMagic);
  Store(bytes.data() + 4, header.version);
  Store(bytes.data() + 6, header.method);
  Store(bytes.data() + 8, header.body_bytes);
  Store(bytes.data() + 12, static_cast<std::uint16_t>(header.code));
  Store(bytes.data() + 14, header.budget_ms);
  Store(bytes.data() + 16, header.call);
  return bytes;
}

Result<FrameHeader> DecodeFrameHeader(std::span<const std::byte, kFrameHeaderBytes> bytes,
                                      std::uint32_t max_bytes) {
  if (Load<std::uint32_t>(bytes.data()) != kFrameMagic) {
    return Fail(Code::kCorrupt, "not a kvcove frame");
  }
  FrameHeader header;
  header.version = Load<std::uint16_t>(bytes.data() + 4);
  header.method = Load<std::uint16_t>(bytes.data() + 6);
  header.body_bytes = Load<std::uint32_t>(bytes.data() + 8);
  const auto code = Load<std::uint16_t>(bytes.data() + 12);
  header.budget_ms = Load<std::uint16_t>(bytes.data() + 14);
  header.call = Load<std::uint64_t>(bytes.data() + 16);
  if (header.version != kProtocolVersion) {
    return Fail(Code::kIncompatible,
                fmt::format("the peer speaks protocol version {}, this build {}; use the same "
                            "kvcove on both sides",
                            header.version, kProtocolVersion));
  }
  if (header.body_bytes > max_bytes) {
    return Fail(Code::kCorrupt, fmt::format("a frame of {} bytes; at most {} are allowed here",
                                            header.body_bytes, max_bytes));
  }
  const std::uint16_t method = header.method & ~kReplyBit;
  if (method == 0 || method > kMaxMethod || code > kMaxCode) {
    return Fail(Code::kCorrupt, "a frame with an unknown method or code");
  }
  header.code = static_cast<Code>(code);
  return header;
}

}  // namespace kvcove::wire
