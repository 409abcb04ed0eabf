// SPDX-License-Identifier: Apache-2.0
// The tokens and scopes of tenants, read from files that only this user can read; and the proofs
// that are made with tokens. docs/security.md has the form of the files and the threats. Files are
// read on the calling thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/base/result.h"
#include "kvcove/base/watched_files.h"
#include "kvcove/rpc/call_limits.h"
#include "kvcove/wire/auth.h"

namespace kvcove::rpc {

// Rights of a tenant. Each is a scope of its own.
enum class Scope : std::uint8_t {
  kRead = 1,    // get, exists
  kWrite = 2,   // put, pin, remove
  kReset = 4,   // of its own namespaces
  kAdmin = 8,   // the admin endpoints, all tenants
  kOwner = 16,  // be an owner of all tenants, or the master towards owners
  // Be an owner that serves this tenant alone. It has no name in files: `owner` beside read, write
  // or reset, and without admin, means it (ScopesOf).
  kTenantOwner = 32,
  kMetrics = 64,  // GET /metrics
};
using Scopes = std::uint8_t;
inline constexpr Scopes kAllScopes = 31;

// A token of a tenant, which a client proves to have.
struct Credential {
  std::string tenant;
  std::string token;
  std::string file;  // file that it was read from, for messages; empty: none
};

// Returns the credentials for a new connection, which shows one after the other until the server
// accepts one. There are several while a token is exchanged, and others once the file behind them
// has changed. Thread-safe. Errors: kInvalid where the file has none any more.
using CredentialSource = std::function<Result<std::vector<Credential>>()>;

// Bytes, or a share of each owner's memory.
struct Share {
  std::uint64_t bytes = 0;
  double fraction = 0;  // above 0: counts in place of `bytes`
  // Returns the share in bytes.
  std::uint64_t Of(std::uint64_t memory_bytes) const {
    return fraction > 0 ? static_cast<std::uint64_t>(fraction * static_cast<double>(memory_bytes))
                        : bytes;
  }
};

struct Tenant {
  std::vector<std::string> tokens;  // several while they are exchanged
  Scopes scopes = 0;
  std::optional<Share> maximum;     // nothing: no limit
  std::optional<Share> guaranteed;  // nothing: 0
  CallLimit limit;  // at each server; a field that is 0: the server's for all tenants
};

using TenantTable = std::map<std::string, Tenant>;

// Reads a file with secrets. Errors: kInvalid, kDenied when it is another user's or others may read
// it.
Result<std::string> ReadPrivateFile(const std::string& path);
// Reads a client's file: `tenant = "..."`, `token = "..."`. Errors: as ReadPrivateFile.
Result<Credential> LoadCredential(const std::string& path);
// Read the text of a client's and of a server's file; `path` names it in messages. Errors:
// kInvalid, with the line or the key.
Result<Credential> ParseCredential(std::string_view text, const std::string& path);
Result<TenantTable> ParseTenants(std::string_view text, const std::string& path);

// The login at a service that is not kvcove's, such as etcd.
struct UserPassword {
  std::string user;
  std::string password;
};
// Reads a file `user = "..."`, `password = "..."`. Errors: as LoadCredential.
Result<UserPassword> LoadUserPassword(const std::string& path);

// Returns a source that reads a client's file for each connection. If the file cannot be read then,
// the source logs that and returns the last credential. Errors: as LoadCredential.
Result<CredentialSource> CredentialFile(const std::string& path);

// A server's file, with a table `[tenants.NAME]` for each tenant. Thread-safe. A changed file is
// read again by Refresh; one with a mistake changes nothing and is logged.
class Credentials {
 public:
  // Reads the file. Errors: as ReadPrivateFile and ParseTenants.
  static Result<std::shared_ptr<Credentials>> Load(const std::string& path);

  // Returns the entry of a tenant; nothing: it has none.
  std::optional<Tenant> Find(const std::string& tenant) const;
  TenantTable All() const;
  // Returns all tokens of a tenant. Errors: kInvalid for a tenant without an entry.
  Result<std::vector<Credential>> OfTenant(const std::string& tenant) const;
  // Returns the credentials of this process towards other servers: those of the first entry with
  // the scope `owner` of all tenants. Errors: kInvalid when there is none.
  Result<std::vector<Credential>> OfCluster() const;
  // Returns the credentials of an owner that serves `tenant` alone, which others show to it, too:
  // the tenant's tokens where the tenant may have an owner, else the cluster's. Empty name:
  // OfCluster().
  Result<std::vector<Credential>> OfOwner(const std::string& tenant) const;
  // Returns the tenant with this tag (TenantTag), if it may have an owner of its own.
  std::optional<std::string> TenantWithOwner(std::uint64_t tag) const;
  // Reads the file again if it has changed. Looks at it at most once a second, or, with `now`, now.
  void Refresh(bool now = false);
  // Returns a number that differs after each change.
  std::uint64_t version() const { return version_.load(std::memory_order_acquire); }

 private:
  explicit Credentials(const std::string& path) : path_(path), file_("the credentials", {path}) {}
  Status Read();

  const std::string path_;
  WatchedFiles file_;
  std::atomic<std::uint64_t> version_{1};
  mutable Mutex mutex_;
  std::shared_ptr<const TenantTable> table_ KVCOVE_GUARDED_BY(mutex_);
};

// Returns HMAC-SHA256 of `text` with `token`.
wire::AuthBytes Mac(const std::string& token, std::string_view text);
// Compares in constant time, so that the time of an answer says nothing about the right bytes.
bool EqualBytes(const wire::AuthBytes& a, const wire::AuthBytes& b);
wire::AuthBytes RandomAuthBytes();
// Returns a number that names a token of a tenant, and from which the token cannot be derived.
std::uint64_t KeyIdOf(const std::string& token);
// Returns the bearer of a credential for the admin port. It is derived from the token, which is
// never sent.
std::string BearerOf(const Credential& credential);
// Returns whether the value of an Authorization header is the bearer of a tenant with the scope
// `admin` or, with `metrics`, with that scope.
bool MayAsk(Credentials& credentials, const std::string& authorization, bool metrics);
// Returns whether these scopes are `metrics` alone, with which a caller may not use the pool.
constexpr bool OnlyMetrics(Scopes scopes) { return scopes == static_cast<Scopes>(Scope::kMetrics); }
// Returns the scopes that the names in a tenant's entry mean: kTenantOwner for kOwner in the entry
// of a tenant that stores and loads.
Scopes ScopesOf(Scopes named);
// Returns 32 random bytes in hex.
std::string NewToken();
// Reads the names of scopes, such as "read" and "write". Errors: kInvalid with the nearest right
// name.
Result<Scopes> ParseScopes(const std::vector<std::string>& names);
std::vector<std::string> ScopeNames(Scopes scopes);

}  // namespace kvcove::rpc
