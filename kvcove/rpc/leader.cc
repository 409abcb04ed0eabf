// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/leader.h"

#include <fmt/core.h>

#include <algorithm>

namespace kvcove::rpc {
namespace {

constexpr std::size_t kMaxAddresses = 16;
// How long a master is avoided that left a call without an answer.
constexpr std::int64_t kSilentNs = kSecond;
// A call that waited for less says nothing about the master.
constexpr std::int64_t kPatienceNs = 150 * kMillisecond;
constexpr std::string_view kNotTheLeader = "not the leader; ";
constexpr std::string_view kLeaderIs = "the leader is ";

}  // namespace

std::string Addresses::ToString() const {
  if (source_ != nullptr) return source_->ToString();
  std::string text;
  for (const Address& address : list_) {
    if (!text.empty()) text += ',';
    text += address.ToString();
  }
  return text;
}

Result<Addresses> ParseAddresses(std::string_view text, std::uint16_t default_port) {
  std::vector<Address> list;
  while (true) {
    const std::size_t comma = text.find(',');
    KVCOVE_ASSIGN(Address address, ParseAddress(text.substr(0, comma), default_port));
    if (std::ranges::find(list, address) == list.end()) list.push_back(std::move(address));
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  if (list.size() > kMaxAddresses) {
    return Fail(Code::kInvalid,
                fmt::format("{} masters; at most {} are asked", list.size(), kMaxAddresses));
  }
  return Addresses(std::move(list));
}

Error NotTheLeader(const std::string& leader) {
  return {.code = Code::kUnavailable,
          .detail = leader.empty() ? fmt::format("{}nobody leads yet", kNotTheLeader)
                                   : fmt::format("{}{}{}", kNotTheLeader, kLeaderIs, leader),
          .answered = true};
}

std::optional<std::string> LeaderIn(const Error& error) {
  // A greeting's error has the server's address in front.
  const std::size_t at = error.detail.find(kNotTheLeader);
  if (error.code != Code::kUnavailable || at == std::string::npos) return std::nullopt;
  const std::string_view rest = std::string_view(error.detail).substr(at + kNotTheLeader.size());
  if (!rest.starts_with(kLeaderIs)) return std::string();
  return std::string(rest.substr(kLeaderIs.size()));
}

Address LeaderFinder::Current() const {
  if (const LeaderSource* source = addresses_.source(); source != nullptr) return source->Current();
  const MutexLock lock(mutex_);
  return addresses_.list()[current_];
}

bool LeaderFinder::Silent(std::size_t i, std::int64_t now_ns) const {
  const auto at = silent_until_ns_.find(i);
  return at != silent_until_ns_.end() && now_ns < at->second;
}

bool LeaderFinder::Note(const Address& asked, const Error& error, std::int64_t waited_ns) {
  if (!addresses_.several()) return false;
  const std::optional<std::string> leader = LeaderIn(error);
  const bool silent = !error.answered && error.code == Code::kTimeout && waited_ns >= kPatienceNs;
  const bool gone = !error.answered && error.code == Code::kUnavailable;
  if (!leader && !silent && !gone) return false;
  if (LeaderSource* source = addresses_.source(); source != nullptr) {
    source->Doubt(asked);
    return source->Current() != asked;
  }
  const std::int64_t now = clock_.NowNs();
  const std::vector<Address>& list = addresses_.list();
  const MutexLock lock(mutex_);
  const auto index = static_cast<std::size_t>(std::ranges::find(list, asked) - list.begin());
  if (silent) silent_until_ns_[index] = now + kSilentNs;
  // Another caller has moved on already. Moving again would skip a master for each call that waited
  // at the same one.
  if (index != current_) return false;
  // The next master in turn that was not silent; if all were, the one before this.
  std::size_t next = (index + 1) % list.size();
  for (std::size_t i = 1; i < list.size() && Silent(next, now); ++i) {
    next = (index + i) % list.size();
  }
  if (leader) {
    const auto named = std::ranges::find(list, *leader, &Address::ToString);
    const auto at = static_cast<std::size_t>(named - list.begin());
    if (named != list.end() && at != index) {
      const bool follows = !Silent(at, now) || ++not_followed_ >= list.size();
      if (follows) {
        next = at;
        not_followed_ = 0;
      }
    }
  }
  current_ = next;
  return next != index;
}

}  // namespace kvcove::rpc
