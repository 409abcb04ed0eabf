// SPDX-License-Identifier: Apache-2.0
// Who may do what: the tokens of tenants, read from a file that only this user can read.
// docs/security.md has the form of the files and the threats.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/base/result.h"
#include "kvcove/rpc/admission.h"
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
};
using Scopes = std::uint8_t;
inline constexpr Scopes kAllScopes = 31;

// What a client proves to have.
struct Credential {
  std::string tenant;
  std::string token;
};

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
  AdmissionLimit limit;  // at each server; 0: what that gives every tenant
};

using TenantTable = std::map<std::string, Tenant>;

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

// A server's file: a table `[tenants.NAME]` each. Thread-safe. It is read again when it changed; a
// file with a mistake changes nothing and is logged.
class Credentials {
 public:
  static Result<std::shared_ptr<Credentials>> Load(const std::string& path);

  std::optional<Tenant> Find(const std::string& tenant) const;
  TenantTable All() const;
  // What this process proves to other servers: the first entry with the scope `owner` of all
  // tenants. Errors: kInvalid when there is none.
  Result<Credential> OfCluster() const;
  // What an owner proves that serves `tenant` alone, and what others prove to it: the token of the
  // tenant where that may have an owner, else the cluster's. For an empty name OfCluster().
  Result<Credential> OfOwner(const std::string& tenant) const;
  // The same by the tenant's tag (TenantTag), if it may have an owner of its own.
  std::optional<Credential> OfTenantOwner(std::uint64_t tag) const;
  // Looks at the file at most once a second.
  void Refresh();
  // Another number after each change.
  std::uint64_t version() const { return version_.load(std::memory_order_acquire); }

 private:
  explicit Credentials(std::string path) : path_(std::move(path)) {}
  static std::string StampOf(const std::string& path);

  const std::string path_;
  std::atomic<std::uint64_t> version_{1};
  mutable Mutex mutex_;
  std::shared_ptr<const TenantTable> table_ KVCOVE_GUARDED_BY(mutex_);
  std::string stamp_ KVCOVE_GUARDED_BY(mutex_);
  std::int64_t looked_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
};

// HMAC-SHA256 of `text` with `token`; equality in constant time.
wire::AuthBytes Mac(const std::string& token, std::string_view text);
bool EqualBytes(const wire::AuthBytes& a, const wire::AuthBytes& b);
wire::AuthBytes RandomAuthBytes();
std::uint64_t KeyIdOf(const std::string& token);
// What a token stands for at the admin port: derived, so that the token itself goes nowhere.
std::string BearerOf(const Credential& credential);
// The value of an Authorization header: true if it is the bearer of a tenant with the scope
// `admin`.
bool MayAdminister(Credentials& credentials, const std::string& authorization);
// What the names in a tenant's entry stand for: kTenantOwner for kOwner where the entry is one of a
// tenant that stores and loads.
Scopes ScopesOf(Scopes named);
// 32 random bytes in hex.
std::string NewToken();
// "read,write". Errors: kInvalid with the nearest right name.
Result<Scopes> ParseScopes(const std::vector<std::string>& names);
std::vector<std::string> ScopeNames(Scopes scopes);

}  // namespace kvcove::rpc
