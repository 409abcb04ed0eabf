// SPDX-License-Identifier: Apache-2.0
// The logins of operators' browsers. A page cannot keep a bearer as safely as a browser keeps a
// cookie that no script can read, so the page shows its bearer once, and a cookie names the login
// from then on. A login keeps the bearer: each request is checked as if it had shown that again, so
// a token that is struck off ends its logins. Logins are in memory only and end with the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvcove::http {

// Belongs to one thread, the server's loop.
class Logins {
 public:
  // From the login on; pages that remain open do not extend it.
  static constexpr std::int64_t kLifetimeNs = 8 * 3600 * std::int64_t{1'000'000'000};
  // At the limit a new login ends the oldest one.
  static constexpr std::size_t kMax = 64;

  // Begins a login with this value of the header Authorization. Returns the cookie's value.
  std::string Begin(std::string authorization, std::int64_t now_ns);
  struct Found {
    std::string authorization;  // empty: there is no such login, or it has expired
    std::int64_t left_ns = 0;
  };
  // Compares in constant time.
  Found Find(std::string_view value, std::int64_t now_ns) const;
  void End(std::string_view value);

 private:
  struct Login {
    std::string value;
    std::string authorization;
    std::int64_t until_ns = 0;
  };
  std::vector<Login> logins_;  // the oldest first
};

// Returns the name of the cookie for a server that is asked as `host`, the header's value. Cookies
// know no ports, so two pools of one host need two names.
std::string CookieName(std::string_view host);
// Returns the value of a cookie in the header Cookie; empty: it has none of this name.
std::string_view CookieIn(std::string_view header, std::string_view name);
// Returns the header Set-Cookie: out of reach for scripts, and sent with no request that another
// site makes. `secure`: never sent in the clear. An empty value deletes the cookie.
std::string SetCookie(std::string_view name, std::string_view value, bool secure);

}  // namespace kvcove::http
