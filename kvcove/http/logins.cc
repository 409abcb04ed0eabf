// SPDX-License-Identifier: Apache-2.0
#include "kvcove/http/logins.h"

#include <fmt/core.h>

#include <algorithm>

#include "kvcove/base/random.h"

namespace kvcove::http {
namespace {

bool EqualInConstantTime(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace

std::string Logins::Begin(std::string authorization, std::int64_t now_ns) {
  std::erase_if(logins_, [now_ns](const Login& login) { return login.until_ns <= now_ns; });
  if (logins_.size() >= kMax) logins_.erase(logins_.begin());
  logins_.push_back({.value = ToHex(RandomId()) + ToHex(RandomId()),
                     .authorization = std::move(authorization),
                     .until_ns = now_ns + kLifetimeNs});
  return logins_.back().value;
}

Logins::Found Logins::Find(std::string_view value, std::int64_t now_ns) const {
  Found found;
  for (const Login& login : logins_) {
    if (EqualInConstantTime(login.value, value) && login.until_ns > now_ns) {
      found = {.authorization = login.authorization, .left_ns = login.until_ns - now_ns};
    }
  }
  return found;
}

void Logins::End(std::string_view value) {
  std::erase_if(logins_,
                [&](const Login& login) { return EqualInConstantTime(login.value, value); });
}

std::string CookieName(std::string_view host) {
  // The colons of an IPv6 address are within brackets.
  const std::size_t colon = host.find(':', host.starts_with('[') ? host.find(']') : 0);
  const std::string_view port =
      colon == std::string_view::npos ? std::string_view("80") : host.substr(colon + 1);
  return fmt::format("kvcove_login_{}", port);
}

std::string_view CookieIn(std::string_view header, std::string_view name) {
  while (!header.empty()) {
    const std::size_t end = std::min(header.find(';'), header.size());
    std::string_view cookie = header.substr(0, end);
    header.remove_prefix(std::min(end + 1, header.size()));
    while (cookie.starts_with(' ')) cookie.remove_prefix(1);
    if (cookie.starts_with(name) && cookie.substr(name.size()).starts_with('=')) {
      return cookie.substr(name.size() + 1);
    }
  }
  return {};
}

std::string SetCookie(std::string_view name, std::string_view value, bool secure) {
  return fmt::format("{}={}; Path=/; Max-Age={}; HttpOnly; SameSite=Strict{}", name, value,
                     value.empty() ? 0 : Logins::kLifetimeNs / 1'000'000'000,
                     secure ? "; Secure" : "");
}

}  // namespace kvcove::http
