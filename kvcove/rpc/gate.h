// SPDX-License-Identifier: Apache-2.0
// What a connection must say before anything else, on both sides. The token never crosses the wire:
//
//   client -> kHello  {tenant, key id, nonce c}
//   server -> {nonce s, HMAC(token, "kvcove server" c s tenant)}   the server has the token, too
//   client -> kProve  {HMAC(token, "kvcove client" c s tenant)}
//   server -> ok, or `denied`
//
// A tenant that is not known gets a challenge like any other, so that nobody learns names. A server
// without credentials takes an empty kHello, and refuses a client that insists on a proof.
#pragma once

#include <atomic>
#include <memory>
#include <span>

#include "kvcove/base/clock.h"
#include "kvcove/base/log.h"
#include "kvcove/rpc/credentials.h"
#include "kvcove/rpc/server.h"

namespace kvcove::rpc {

// Whose calls come over a connection.
struct Caller {
  std::string tenant;     // empty: nobody asked
  std::uint64_t tag = 0;  // TenantTag of it
  Scopes scopes = kAllScopes;
  bool Has(Scope scope) const { return (scopes & static_cast<Scopes>(scope)) != 0; }
  // May it touch what belongs to the tenant with this tag?
  bool MayTouch(std::uint64_t other) const { return tag == other || Has(Scope::kOwner); }
  // An owner, or the master: of all tenants, or of its own.
  bool IsOwner() const { return Has(Scope::kOwner) || Has(Scope::kTenantOwner); }
  // May it be, or act for, an owner that serves the tenant with this tag alone (0: all tenants)?
  bool MayOwn(std::uint64_t served) const {
    return Has(Scope::kOwner) || (Has(Scope::kTenantOwner) && tag == served && tag != 0);
  }
};

// The hello of a wrong token is answered so much later. One source has at most
// `UnprovenOptions::max_each` guesses under way, so it makes no more than 640 a second. Shorter
// than any client's time for a connection: a wrong token is no server that hangs.
inline constexpr std::int64_t kRefusalDelayNs = 100'000'000;

// Thread-safe.
class Gate {
 public:
  // One connection's state; belongs to its loop.
  struct Guest {
    std::shared_ptr<const Caller> caller;  // null: not let in yet
    wire::AuthHello hello;
    wire::AuthBytes nonce{};
    bool challenged = false;
    std::uint64_t version = 0;  // of the credentials that let it in
  };

  // Null: every caller may do everything.
  explicit Gate(std::shared_ptr<Credentials> credentials);

  static bool IsGreeting(wire::Method method) {
    return method == wire::Method::kHello || method == wire::Method::kProve;
  }
  // Looks at the credentials' file, at most once a second. Reads it: call it without a lock.
  void Refresh() {
    if (credentials_ != nullptr) credentials_->Refresh();
  }
  // Answers a greeting. May read the credentials' file.
  Reply Greet(Guest& guest, wire::Method method, std::span<const std::byte> body);
  // Whose limits count for one that is let in.
  LimitedCaller Describe(const Guest& guest) const;
  // Let in, and not struck off the file since.
  bool Admitted(Guest& guest) const;
  std::uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  void NoteRefused(const std::string& tenant);

  const std::shared_ptr<Credentials> credentials_;
  const std::string decoy_;  // stands for the token of an unknown tenant
  std::atomic<std::uint64_t> refused_{0};
  LogLimit refusals_{kSecond};
};

// The answer to a call over a connection that the gate has not let in, or whose token was struck
// off since. The server closes the connection behind it.
Reply SayHelloFirst();
// True for that answer: the same call may go over a new connection.
bool IsSayHelloFirst(const Error& error);

// The client's half. `challenge`: the reply to kHello. Errors: kDenied when the server does not
// have the token.
wire::AuthHello Greeting(const Credential& credential);
Result<wire::AuthBytes> Prove(const Credential& credential, const wire::AuthHello& hello,
                              const wire::AuthChallenge& challenge);

}  // namespace kvcove::rpc
