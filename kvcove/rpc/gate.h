// SPDX-License-Identifier: Apache-2.0
// The greeting of a connection, on both sides: each proves to the other that it has the tenant's
// token. The token never crosses the wire:
//
//   client -> kHello  {tenant, key id, nonce c}
//   server -> {nonce s, HMAC(token, "kvcove server" c s tenant)}   the server has the token, too
//   client -> kProve  {HMAC(token, "kvcove client" c s tenant)}
//   server -> ok, or `denied`
//
// An unknown tenant gets a challenge like any other, so that nobody learns the names of tenants. A
// server without credentials takes an empty kHello, and refuses a client that insists on a proof.
#pragma once

#include <atomic>
#include <memory>
#include <span>

#include "kvcove/base/clock.h"
#include "kvcove/base/log.h"
#include "kvcove/rpc/credentials.h"
#include "kvcove/rpc/server.h"

namespace kvcove::rpc {

// The caller behind a connection, and its rights.
struct Caller {
  std::string tenant;     // empty: the server asks for no credentials
  std::uint64_t tag = 0;  // TenantTag of the tenant
  Scopes scopes = kAllScopes;
  bool Has(Scope scope) const { return (scopes & static_cast<Scopes>(scope)) != 0; }
  // Returns whether it may use objects and namespaces of the tenant with this tag.
  bool MayTouch(std::uint64_t other) const { return tag == other || Has(Scope::kOwner); }
  // Returns whether it is an owner or a master, of all tenants or of its own.
  bool IsOwner() const { return Has(Scope::kOwner) || Has(Scope::kTenantOwner); }
  // Returns whether it may be, or act for, an owner that serves only the tenant with this tag (0:
  // all tenants).
  bool MayOwn(std::uint64_t served) const {
    return Has(Scope::kOwner) || (Has(Scope::kTenantOwner) && tag == served && tag != 0);
  }
};

// Delay of the answer to a hello with a wrong token, in nanoseconds. One source has at most
// `UnprovenOptions::max_each` guesses under way, so it makes at most 640 a second. The delay is
// shorter than any client's time for a connection, so a wrong token does not look like a server
// that hangs.
inline constexpr std::int64_t kRefusalDelayNs = 100'000'000;

// The server's half. Thread-safe.
class Gate {
 public:
  // State of one connection; belongs to its loop.
  struct Guest {
    std::shared_ptr<const Caller> caller;  // null: not let in yet
    wire::AuthHello hello;
    wire::AuthBytes nonce{};
    bool challenged = false;
    std::uint64_t version = 0;  // of the credentials that let it in
  };

  // `credentials` null: every caller may do everything.
  explicit Gate(std::shared_ptr<Credentials> credentials);

  static bool IsGreeting(wire::Method method) {
    return method == wire::Method::kHello || method == wire::Method::kProve;
  }
  // Reads the credentials' file if it has changed; looks at it at most once a second. Call it
  // without a lock.
  void Refresh() {
    if (credentials_ != nullptr) credentials_->Refresh();
  }
  // Answers a greeting. May read the credentials' file.
  Reply Greet(Guest& guest, wire::Method method, std::span<const std::byte> body);
  // Returns the caller whose limits count for a guest that is let in.
  LimitedCaller Describe(const Guest& guest) const;
  // Returns whether the guest was let in and its token is still in the file. Updates its scopes.
  bool Admitted(Guest& guest) const;
  // Returns how many connections were refused.
  std::uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  void NoteRefused(const std::string& tenant);

  const std::shared_ptr<Credentials> credentials_;
  const std::string decoy_;  // stands for the token of an unknown tenant
  std::atomic<std::uint64_t> refused_{0};
  LogLimit refusals_{kSecond};
};

// Returns the answer to a call over a connection that the gate has not let in, or whose token was
// removed since. The server closes the connection after it.
Reply SayHelloFirst();
// Returns whether the error is that answer: the same call may be made over a new connection.
bool IsSayHelloFirst(const Error& error);

// The client's half: Greeting makes the kHello, Prove checks the server's answer `challenge` and
// makes the kProve. Errors: kDenied when the server does not have the token.
wire::AuthHello Greeting(const Credential& credential);
Result<wire::AuthBytes> Prove(const Credential& credential, const wire::AuthHello& hello,
                              const wire::AuthChallenge& challenge);

}  // namespace kvcove::rpc
