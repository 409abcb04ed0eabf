// SPDX-License-Identifier: Apache-2.0
#include "kvcove/model/ids.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "kvcove/base/hash.h"

namespace kvcove {
namespace {
constexpr std::size_t kTokenDigits = 52;  // 16 + 16 + 16 + 4
constexpr char kTenantEnd = '\x1f';       // in no name that a caller may give
}  // namespace

std::string Token::ToString() const {
  return fmt::format("{:016x}{:016x}{:016x}{:04x}", incarnation.high, incarnation.low, generation,
                     slot);
}

Result<Token> Token::Parse(std::string_view text) {
  const auto field = [&](std::size_t from, std::size_t digits, auto& value) {
    const char* begin = text.data() + from;
    const auto [end, error] = std::from_chars(begin, begin + digits, value, 16);
    return error == std::errc() && end == begin + digits;
  };
  Token token;
  if (text.size() != kTokenDigits || !field(0, 16, token.incarnation.high) ||
      !field(16, 16, token.incarnation.low) || !field(32, 16, token.generation) ||
      !field(48, 4, token.slot)) {
    return Fail(Code::kInvalid, fmt::format("'{}' is not a token; a token has {} hex digits, as "
                                            "Token::ToString gives them",
                                            text.substr(0, 64), kTokenDigits));
  }
  return token;
}

Id128 DirectoryHash(SlotId slot, std::string_view key) { return Hash128(key, Mix64(slot)); }

std::string_view MissReasonName(MissReason reason) {
  switch (reason) {
    case MissReason::kNone:
      return "hit";
    case MissReason::kNeverPut:
      return "never put";
    case MissReason::kEvicted:
      return "evicted";
    case MissReason::kRemoved:
      return "removed";
    case MissReason::kReset:
      return "reset";
    case MissReason::kLease:
      return "lease";
    case MissReason::kClosed:
      return "closed";
    case MissReason::kUnavailable:
      return "unavailable";
    case MissReason::kRaced:
      return "raced";
    case MissReason::kLimited:
      return "limited";
    case MissReason::kOwnerGone:
      return "owner gone";
    case MissReason::kWarmingUp:
      return "warming up";
    case MissReason::kTimeout:
      return "timeout";
    case MissReason::kDenied:
      return "denied";
    case MissReason::kDiskDamaged:
      return "disk damaged";
    case MissReason::kDiskFailed:
      return "disk failed";
    case MissReason::kDiskTimeout:
      return "disk timeout";
    case MissReason::kNoRoom:
      return "no room";
    case MissReason::kShardAway:
      return "shard away";
  }
  return "unknown";
}

std::string QualifiedName(std::string_view tenant, std::string_view name) {
  if (tenant.empty()) return std::string(name);
  return fmt::format("{}{}{}", tenant, kTenantEnd, name);
}

std::string_view TenantOf(std::string_view qualified) {
  const std::size_t end = qualified.find(kTenantEnd);
  return end == std::string_view::npos ? std::string_view() : qualified.substr(0, end);
}

std::string_view NameWithinTenant(std::string_view qualified) {
  const std::size_t end = qualified.find(kTenantEnd);
  return end == std::string_view::npos ? qualified : qualified.substr(end + 1);
}

std::string ReadableName(std::string_view qualified) {
  std::string name(qualified);
  const std::size_t end = name.find(kTenantEnd);
  if (end != std::string::npos) name[end] = ':';
  return name;
}

std::uint64_t TenantTag(std::string_view tenant) {
  return tenant.empty() ? 0 : Hash64(tenant, /*seed=*/0) | 1;
}

Status CheckKey(std::string_view key) {
  if (key.empty()) return Fail(Code::kInvalid, "the key is empty; give 1 to 1024 bytes");
  if (key.size() > kMaxKeyBytes) {
    return Fail(Code::kInvalid, fmt::format("the key '{}...' has {} bytes; at most {} are allowed, "
                                            "so use a hash of it",
                                            key.substr(0, 32), key.size(), kMaxKeyBytes));
  }
  return {};
}

Status CheckName(std::string_view name, std::string_view what) {
  if (name.size() > kMaxNameBytes) {
    return Fail(Code::kInvalid, fmt::format("the {} has {} bytes; at most {} are allowed", what,
                                            name.size(), kMaxNameBytes));
  }
  const bool control =
      std::ranges::any_of(name, [](char byte) { return static_cast<unsigned char>(byte) < 0x20; });
  if (control) return Fail(Code::kInvalid, fmt::format("the {} holds a control character", what));
  return {};
}

Status CheckObjectSize(std::uint64_t size_bytes) {
  if (size_bytes == 0) return Fail(Code::kInvalid, "the value is empty; give at least one byte");
  if (size_bytes > kMaxObjectBytes) {
    return Fail(Code::kInvalid,
                fmt::format("the value has {} bytes; at most {} (256 MiB) are allowed", size_bytes,
                            kMaxObjectBytes));
  }
  return {};
}

}  // namespace kvcove
