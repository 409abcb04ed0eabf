// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/credentials.h"

#include <fmt/core.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <iterator>

#include "kvcove/base/clock.h"
#include "kvcove/base/directory.h"
#include "kvcove/base/keys.h"
#include "kvcove/base/log.h"
#include "kvcove/base/size.h"
#include "kvcove/model/ids.h"
#include "kvcove/rpc/toml.h"

namespace kvcove::rpc {
namespace {

constexpr std::size_t kMinTokenBytes = 32;
constexpr std::size_t kMaxFileBytes = 4U << 20;
constexpr std::array<std::string_view, 6> kScopeNames = {"read",  "write", "reset",
                                                         "admin", "owner", "metrics"};
constexpr std::array<Scope, kScopeNames.size()> kScopesByName = {
    Scope::kRead, Scope::kWrite, Scope::kReset, Scope::kAdmin, Scope::kOwner, Scope::kMetrics};
constexpr std::array<std::string_view, 7> kTenantKeys = {
    "tokens",           "scopes",          "maximum",    "guaranteed",
    "calls_per_second", "bytes_in_flight", "connections"};

std::string Hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

// Checks that no other user but root can read or write the file.
Status CheckPrivate(const std::string& path) {
  struct stat status{};
  if (stat(path.c_str(), &status) != 0) {
    return FailErrno(Code::kInvalid, fmt::format("the credentials file '{}'", path));
  }
  if (!S_ISREG(status.st_mode)) {
    return Fail(Code::kInvalid, fmt::format("'{}' is no file", path));
  }
  if (!IsClosedToOthers(status) || (status.st_uid != geteuid() && status.st_uid != 0)) {
    const bool own = status.st_uid == geteuid();
    return Fail(Code::kDenied,
                fmt::format("the credentials file '{}' must belong to this user and be closed to "
                            "all others; {}",
                            path,
                            own ? fmt::format("run: chmod 600 '{}'", path)
                                : std::string("name one of this user's")));
  }
  return {};
}

using NamedText = std::pair<std::string_view, std::string*>;

// Reads a file with these keys only, each a text. `kind` names the kind of file in messages.
Status ReadTexts(std::string_view text, const std::string& path, std::string_view kind,
                 const std::array<NamedText, 2>& wanted) {
  KVCOVE_ASSIGN(const toml::table table, ParseToml(text, path));
  const std::array<std::string_view, 2> keys = {wanted[0].first, wanted[1].first};
  for (const auto& [key, value] : table) {
    const auto known = std::ranges::find(wanted, key.str(), &NamedText::first);
    if (known == wanted.end()) {
      return UnknownKey(fmt::format("key of the {} file '{}'", kind, path), key.str(), keys);
    }
    if (!value.is_string()) {
      return Fail(Code::kInvalid, fmt::format("{}: '{}' is no text", path, key.str()));
    }
    *known->second = value.as_string()->get();
  }
  return {};
}

Status CheckToken(const std::string& token, const std::string& where) {
  if (token.size() >= kMinTokenBytes) return {};
  return Fail(Code::kInvalid,
              fmt::format("{}: a token needs at least {} characters; 'kvcove token NAME' makes one",
                          where, kMinTokenBytes));
}

Status CheckTenantName(const std::string& name, const std::string& where) {
  const bool plain = !name.empty() && name.size() <= 64 &&
                     name.find_first_not_of(
                         "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                         "0123456789_.-") == std::string::npos;
  if (plain) return {};
  return Fail(Code::kInvalid, fmt::format("{}: '{}' is no tenant's name: 1 to 64 letters, digits, "
                                          "'_', '.' and '-'",
                                          where, name));
}

Result<Share> ParseShare(std::string_view text, const std::string& where) {
  if (text.ends_with('%')) {
    double percent = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size() - 1, percent);
    if (error != std::errc() || end != text.data() + text.size() - 1 || percent <= 0 ||
        percent > 100) {
      return Fail(Code::kInvalid, fmt::format("{}: '{}' is no share such as 25%", where, text));
    }
    return Share{.fraction = percent / 100};
  }
  Result<std::uint64_t> bytes = ParseSize(text);
  if (!bytes) return Fail(Code::kInvalid, fmt::format("{}: {}", where, bytes.error().detail));
  return Share{.bytes = *bytes};
}

Result<std::vector<std::string>> Texts(const toml::node& node, const std::string& where) {
  std::vector<std::string> texts;
  const toml::array* list = node.as_array();
  if (list == nullptr) {
    return Fail(Code::kInvalid, fmt::format("{}: write a list of texts, such as [\"a\"]", where));
  }
  for (const toml::node& item : *list) {
    if (!item.is_string()) return Fail(Code::kInvalid, fmt::format("{}: not a text", where));
    texts.push_back(item.as_string()->get());
  }
  return texts;
}

// Reads one of the keys of a tenant's limits.
Status ParseLimit(CallLimit& limit, std::string_view key, const toml::node& value,
                  const std::string& at) {
  if (key == "bytes_in_flight") {
    if (!value.is_string()) {
      return Fail(Code::kInvalid, fmt::format("{}: write a text such as \"256MiB\"", at));
    }
    const Result<std::uint64_t> bytes = ParseSize(value.as_string()->get());
    if (!bytes) return Fail(Code::kInvalid, fmt::format("{}: {}", at, bytes.error().detail));
    limit.bytes = *bytes;
    return {};
  }
  const std::optional<std::int64_t> number = value.value_exact<std::int64_t>();
  if (!number || *number <= 0) {
    return Fail(Code::kInvalid, fmt::format("{}: write a number above 0, such as 5000", at));
  }
  (key == "connections" ? limit.connections : limit.calls_per_second) =
      static_cast<std::uint64_t>(*number);
  return {};
}

Result<Tenant> ParseTenant(const toml::table& table, const std::string& where) {
  Tenant tenant;
  for (const auto& [key, value] : table) {
    const std::string at = fmt::format("{}.{}", where, key.str());
    if (key == "tokens") {
      KVCOVE_ASSIGN(tenant.tokens, Texts(value, at));
      for (const std::string& token : tenant.tokens) KVCOVE_TRY(CheckToken(token, at));
    } else if (key == "scopes") {
      KVCOVE_ASSIGN(const std::vector<std::string> names, Texts(value, at));
      KVCOVE_ASSIGN(const Scopes named, ParseScopes(names));
      tenant.scopes = ScopesOf(named);
    } else if (key == "maximum" || key == "guaranteed") {
      if (!value.is_string()) {
        return Fail(Code::kInvalid, fmt::format("{}: write a text such as \"4GiB\"", at));
      }
      KVCOVE_ASSIGN(const Share share, ParseShare(value.as_string()->get(), at));
      (key == "maximum" ? tenant.maximum : tenant.guaranteed) = share;
    } else if (key == "calls_per_second" || key == "bytes_in_flight" || key == "connections") {
      KVCOVE_TRY(ParseLimit(tenant.limit, key.str(), value, at));
    } else {
      return UnknownKey(fmt::format("key of {}", where), key.str(), kTenantKeys);
    }
  }
  if (tenant.tokens.empty()) {
    return Fail(Code::kInvalid, fmt::format("{}: 'tokens' is missing or empty", where));
  }
  if (tenant.scopes == 0) {
    return Fail(Code::kInvalid, fmt::format("{}: 'scopes' is missing or empty; such as "
                                            "[\"read\", \"write\", \"reset\"]",
                                            where));
  }
  return tenant;
}

std::vector<Credential> Shown(const std::string& name, const Tenant& tenant,
                              const std::string& path) {
  std::vector<Credential> shown;
  for (const std::string& token : tenant.tokens) {
    shown.push_back({.tenant = name, .token = token, .file = path});
  }
  return shown;
}

struct CredentialOfFile {
  Mutex mutex;
  Credential last KVCOVE_GUARDED_BY(mutex);
  std::string said KVCOVE_GUARDED_BY(mutex);  // the error that was logged last
};

}  // namespace

Result<std::string> ReadPrivateFile(const std::string& path) {
  KVCOVE_TRY(CheckPrivate(path));
  std::ifstream file(path);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad() || text.size() > kMaxFileBytes) {
    return Fail(Code::kInvalid, fmt::format("the credentials file '{}' cannot be read", path));
  }
  return text;
}

Result<Scopes> ParseScopes(const std::vector<std::string>& names) {
  Scopes scopes = 0;
  for (const std::string& name : names) {
    const auto known = std::ranges::find(kScopeNames, name);
    if (known == kScopeNames.end()) return UnknownKey("scope", name, kScopeNames);
    scopes |= static_cast<Scopes>(kScopesByName[known - kScopeNames.begin()]);
  }
  return scopes;
}

Scopes ScopesOf(Scopes named) {
  const auto has = [named](Scope scope) { return (named & static_cast<Scopes>(scope)) != 0; };
  const bool stores = has(Scope::kRead) || has(Scope::kWrite) || has(Scope::kReset);
  if (!has(Scope::kOwner) || has(Scope::kAdmin) || !stores) return named;
  return static_cast<Scopes>((named & ~static_cast<unsigned>(Scope::kOwner)) |
                             static_cast<unsigned>(Scope::kTenantOwner));
}

std::vector<std::string> ScopeNames(Scopes scopes) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kScopeNames.size(); ++i) {
    if ((scopes & static_cast<Scopes>(kScopesByName[i])) != 0) names.emplace_back(kScopeNames[i]);
  }
  return names;
}

Result<Credential> LoadCredential(const std::string& path) {
  KVCOVE_ASSIGN(const std::string text, ReadPrivateFile(path));
  return ParseCredential(text, path);
}

Result<CredentialSource> CredentialFile(const std::string& path) {
  KVCOVE_ASSIGN(Credential first, LoadCredential(path));
  const auto of_file = std::make_shared<CredentialOfFile>();
  {
    const MutexLock lock(of_file->mutex);
    of_file->last = std::move(first);
  }
  return [path, of_file]() -> Result<std::vector<Credential>> {
    Result<Credential> read = LoadCredential(path);
    const std::string error = read ? std::string() : read.error().ToString();
    bool news = false;
    std::vector<Credential> shown;
    {
      const MutexLock lock(of_file->mutex);
      if (read) of_file->last = std::move(*read);
      news = std::exchange(of_file->said, error) != error;
      shown.push_back(of_file->last);
    }
    if (news && !error.empty()) LogError("the token is that of before: {}", error);
    return shown;
  };
}

Result<Credential> ParseCredential(std::string_view text, const std::string& path) {
  Credential credential{.tenant = "", .token = "", .file = path};
  KVCOVE_TRY(ReadTexts(text, path, "token",
                       {{{"tenant", &credential.tenant}, {"token", &credential.token}}}));
  KVCOVE_TRY(CheckTenantName(credential.tenant, path));
  KVCOVE_TRY(CheckToken(credential.token, path));
  return credential;
}

Result<UserPassword> LoadUserPassword(const std::string& path) {
  KVCOVE_ASSIGN(const std::string text, ReadPrivateFile(path));
  UserPassword found;
  KVCOVE_TRY(
      ReadTexts(text, path, "password", {{{"user", &found.user}, {"password", &found.password}}}));
  if (found.user.empty() || found.password.empty()) {
    return Fail(Code::kInvalid, fmt::format("'{}' needs both: user = \"...\" and password = "
                                            "\"...\"",
                                            path));
  }
  return found;
}

Result<TenantTable> ParseTenants(std::string_view text, const std::string& path) {
  KVCOVE_ASSIGN(const toml::table file, ParseToml(text, path));
  static constexpr std::array<std::string_view, 1> kKeys = {"tenants"};
  TenantTable table;
  for (const auto& [key, value] : file) {
    if (key != "tenants" || !value.is_table()) {
      return UnknownKey(fmt::format("table of the credentials file '{}'", path), key.str(), kKeys);
    }
    for (const auto& [name, entry] : *value.as_table()) {
      const std::string where = fmt::format("{}: tenants.{}", path, name.str());
      KVCOVE_TRY(CheckTenantName(std::string(name.str()), where));
      if (!entry.is_table()) return Fail(Code::kInvalid, fmt::format("{} is no table", where));
      KVCOVE_ASSIGN(table[std::string(name.str())], ParseTenant(*entry.as_table(), where));
    }
  }
  if (table.empty()) {
    return Fail(Code::kInvalid,
                fmt::format("'{}' names no tenant; write a table [tenants.NAME]", path));
  }
  return table;
}

Status Credentials::Read() {
  KVCOVE_ASSIGN(const std::string text, ReadPrivateFile(path_));
  KVCOVE_ASSIGN(TenantTable table, ParseTenants(text, path_));
  const MutexLock lock(mutex_);
  table_ = std::make_shared<const TenantTable>(std::move(table));
  return {};
}

Result<std::shared_ptr<Credentials>> Credentials::Load(const std::string& path) {
  std::shared_ptr<Credentials> credentials(new Credentials(path));
  KVCOVE_TRY(credentials->file_.Open([&] { return credentials->Read(); }));
  return credentials;
}

void Credentials::Refresh(bool now) {
  if (file_.Refresh(now, [this] { return Read(); }) != WatchedFiles::Look::kRead) return;
  version_.fetch_add(1, std::memory_order_release);
  LogInfo("read '{}' again: {} tenants", path_, All().size());
}

TenantTable Credentials::All() const {
  const MutexLock lock(mutex_);
  return *table_;
}

std::optional<Tenant> Credentials::Find(const std::string& tenant) const {
  const MutexLock lock(mutex_);
  const auto at = table_->find(tenant);
  if (at == table_->end()) return std::nullopt;
  return at->second;
}

Result<std::vector<Credential>> Credentials::OfTenant(const std::string& tenant) const {
  const std::optional<Tenant> found = Find(tenant);
  if (!found) {
    return Fail(Code::kInvalid, fmt::format("'{}' does not name the tenant '{}'", path_, tenant));
  }
  return Shown(tenant, *found, path_);
}

Result<std::vector<Credential>> Credentials::OfCluster() const {
  for (const auto& [name, tenant] : All()) {
    if ((tenant.scopes & static_cast<Scopes>(Scope::kOwner)) != 0)
      return Shown(name, tenant, path_);
  }
  return Fail(
      Code::kInvalid,
      fmt::format("'{}' has no entry for the cluster: owners and master prove themselves to "
                  "each other with one whose scopes are \"owner\" and not \"read\", "
                  "\"write\" or \"reset\" (or also \"admin\")",
                  path_));
}

Result<std::vector<Credential>> Credentials::OfOwner(const std::string& tenant) const {
  if (tenant.empty()) return OfCluster();
  const std::optional<Tenant> found = Find(tenant);
  if (!found) return OfTenant(tenant);
  if ((found->scopes & static_cast<Scopes>(Scope::kTenantOwner)) != 0) {
    return Shown(tenant, *found, path_);
  }
  Result<std::vector<Credential>> cluster = OfCluster();
  if (cluster) return cluster;
  return Fail(Code::kInvalid,
              fmt::format("'{}': an owner of tenant '{}' alone needs the scope \"owner\" in "
                          "[tenants.{}], here and at the master, or the cluster's entry",
                          path_, tenant, tenant));
}

std::optional<std::string> Credentials::TenantWithOwner(std::uint64_t tag) const {
  for (const auto& [name, tenant] : All()) {
    if (TenantTag(name) == tag && (tenant.scopes & static_cast<Scopes>(Scope::kTenantOwner)) != 0) {
      return name;
    }
  }
  return std::nullopt;
}

wire::AuthBytes Mac(const std::string& token, std::string_view text) {
  wire::AuthBytes out;
  unsigned length = out.size();
  HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(),
       reinterpret_cast<unsigned char*>(out.data()), &length);
  return out;
}

bool EqualBytes(const wire::AuthBytes& a, const wire::AuthBytes& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

wire::AuthBytes RandomAuthBytes() {
  wire::AuthBytes bytes;
  // Fails only where the kernel gives no random bytes. A predictable nonce would let an old proof
  // be used again, so the process ends.
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), bytes.size()) != 1) std::abort();
  return bytes;
}

std::uint64_t KeyIdOf(const std::string& token) {
  const wire::AuthBytes mac = Mac(token, "kvcove key id");
  std::uint64_t id = 0;
  for (std::size_t i = 0; i < sizeof(id); ++i) id = id << 8 | static_cast<std::uint64_t>(mac[i]);
  return id;
}

std::string BearerOf(const Credential& credential) {
  return credential.tenant + "." + Hex(Mac(credential.token, "kvcove admin bearer"));
}

bool MayAsk(Credentials& credentials, const std::string& authorization, bool metrics) {
  constexpr std::string_view kBearer = "Bearer ";
  if (!authorization.starts_with(kBearer)) return false;
  const std::string given = authorization.substr(kBearer.size());
  const std::size_t dot = given.rfind('.');
  if (dot == std::string::npos) return false;
  credentials.Refresh();
  const std::optional<Tenant> tenant = credentials.Find(given.substr(0, dot));
  const auto enough = static_cast<Scopes>(static_cast<Scopes>(Scope::kAdmin) |
                                          (metrics ? static_cast<Scopes>(Scope::kMetrics) : 0));
  if (!tenant || (tenant->scopes & enough) == 0) return false;
  return std::ranges::any_of(tenant->tokens, [&](const std::string& token) {
    const std::string right = BearerOf({.tenant = given.substr(0, dot), .token = token});
    return right.size() == given.size() &&
           CRYPTO_memcmp(right.data(), given.data(), right.size()) == 0;
  });
}

std::string NewToken() { return Hex(RandomAuthBytes()); }

}  // namespace kvcove::rpc
