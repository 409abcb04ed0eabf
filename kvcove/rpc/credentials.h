// SPDX-License-Identifier: Apache-2.0
// Who may do what: the tokens of tenants, read from a file that only this user can read.
// docs/security.md has the form of the files and the threats.
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

// What a tenant may do. Each is a scope of its own.
enum class Scope : std::uint8_t {
  kRead = 1,    // get, exists
  kWrite = 2,   // put, pin, remove
  kReset = 4,   // of its own namespaces
  kAdmin = 8,   // the admin endpoints, all tenants
  kOwner = 16,  // be an owner of all tenants, or the master towards owners
  // Be an owner that serves this tenant alone. It has no name: `owner` beside read, write or reset,
  // and without admin, stands for it (ScopesOf).
  kTenantOwner = 32,
  kMetrics = 64,  // GET /metrics
};
using Scopes = std::uint8_t;
inline constexpr Scopes kAllScopes = 31;

// What a client proves to have.
struct Credential {
  std::string tenant;
  std::string token;
  std::string file;  // that it was read from, for messages; empty: none
};

// What a client shows at a new connection: the first one that the server takes. It has several
// while a token is exchanged, and others once the file behind it has changed. Thread-safe. Errors:
// kInvalid where the file has none any more.
using CredentialSource = std::function<Result<std::vector<Credential>>()>;

// Bytes, or a share of each owner's memory.
struct Share {
  std::uint64_t bytes = 0;
  double fraction = 0;  // if not 0
  std::uint64_t Of(std::uint64_t memory_bytes) const {
    return fraction > 0 ? static_cast<std::uint64_t>(fraction * static_cast<double>(memory_bytes))
                        : bytes;
  }
};

struct Tenant {
  std::vector<std::string> tokens;  // several while they are being exchanged
  Scopes scopes = 0;
  std::optional<Share> maximum;
  std::optional<Share> guaranteed;
  CallLimit limit;  // at each server; 0: what that gives every tenant
};

using TenantTable = std::map<std::string, Tenant>;

// A file with secrets. Errors: kInvalid, kDenied when it is another user's or others may read it.
Result<std::string> ReadPrivateFile(const std::string& path);
// A file of a client: `tenant = "..."`, `token = "..."`. Errors: kInvalid, kDenied when others may
// read it.
Result<Credential> LoadCredential(const std::string& path);
// Their text; `path` names it in messages. Errors: kInvalid, with the line or the key.
Result<Credential> ParseCredential(std::string_view text, const std::string& path);
Result<TenantTable> ParseTenants(std::string_view text, const std::string& path);

// Of a service that is not kvcove's, such as etcd.
struct UserPassword {
  std::string user;
  std::string password;
};
// A file `user = "..."`, `password = "..."`. Errors: as LoadCredential.
Result<UserPassword> LoadUserPassword(const std::string& path);

// A client's file, read for each connection. A file that cannot be read then is logged, and the
// credential is that of before. Errors: as LoadCredential.
Result<CredentialSource> CredentialFile(const std::string& path);

// A server's file: a table `[tenants.NAME]` each. Thread-safe. It is read again when it changed; a
// file with a mistake changes nothing and is logged.
class Credentials {
 public:
  static Result<std::shared_ptr<Credentials>> Load(const std::string& path);

  std::optional<Tenant> Find(const std::string& tenant) const;
  TenantTable All() const;
  // All tokens of a tenant. Errors: kInvalid for one that has no entry.
  Result<std::vector<Credential>> OfTenant(const std::string& tenant) const;
  // What this process proves to other servers: the first entry with the scope `owner` of all
  // tenants. Errors: kInvalid when there is none.
  Result<std::vector<Credential>> OfCluster() const;
  // What an owner proves that serves `tenant` alone, and what others prove to it: the tokens of the
  // tenant where that may have an owner, else the cluster's. For an empty name OfCluster().
  Result<std::vector<Credential>> OfOwner(const std::string& tenant) const;
  // The tenant with this tag (TenantTag), if it may have an owner of its own.
  std::optional<std::string> TenantWithOwner(std::uint64_t tag) const;
  // Reads the file again if it has changed. Looks at it at most once a second, or `now`.
  void Refresh(bool now = false);
  // Another number after each change.
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

// HMAC-SHA256 of `text` with `token`; equality in constant time.
wire::AuthBytes Mac(const std::string& token, std::string_view text);
bool EqualBytes(const wire::AuthBytes& a, const wire::AuthBytes& b);
wire::AuthBytes RandomAuthBytes();
std::uint64_t KeyIdOf(const std::string& token);
// What a token stands for at the admin port: derived, so that the token itself goes nowhere.
std::string BearerOf(const Credential& credential);
// The value of an Authorization header: true if it is the bearer of a tenant with the scope
// `admin`, or, for `metrics`, with that one.
bool MayAsk(Credentials& credentials, const std::string& authorization, bool metrics);
// No scope but `metrics`: it is none of the pool's users, owners or operators.
constexpr bool OnlyMetrics(Scopes scopes) { return scopes == static_cast<Scopes>(Scope::kMetrics); }
// What the names in a tenant's entry stand for: kTenantOwner for kOwner where the entry is one of a
// tenant that stores and loads.
Scopes ScopesOf(Scopes named);
// 32 random bytes in hex.
std::string NewToken();
// "read,write". Errors: kInvalid with the nearest right name.
Result<Scopes> ParseScopes(const std::vector<std::string>& names);
std::vector<std::string> ScopeNames(Scopes scopes);

}  // namespace kvcove::rpc
