// SPDX-License-Identifier: Apache-2.0
// Calls of etcd's JSON gateway (etcd 3.4 or later, HTTP/1.1): endpoints in turn, TLS, users, and
// errors that say whether etcd may have carried out the call. See docs/ha.md.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/http/connection.h"
#include "kvcove/rpc/access.h"
#include "kvcove/rpc/address.h"

namespace kvcove::master {

// `etcd://H1:2379,H2:2379/prefix`, taken apart.
struct EtcdPlace {
  std::vector<rpc::Address> endpoints;
  std::string prefix;  // "/prefix/"
  std::string ToString() const;
};
inline constexpr std::string_view kEtcdScheme = "etcd://";
// Parses such a text. Errors: kInvalid.
Result<EtcdPlace> ParseEtcdPlace(std::string_view text);

// The cluster that all endpoints must belong to: that of the first answer. Shared by the clients of
// a process. Thread-safe.
class EtcdCluster {
 public:
  // Remembers the first id, and compares later ones. Errors: kIncompatible for another cluster.
  Status Check(const std::string& id, const rpc::Address& endpoint);

 private:
  Mutex mutex_;
  std::string id_ KVCOVE_GUARDED_BY(mutex_);
  std::string from_ KVCOVE_GUARDED_BY(mutex_);
};

struct EtcdOptions {
  EtcdPlace place;
  std::shared_ptr<rpc::Tls> tls;  // null: in the clear
  rpc::UserPassword user;         // empty: etcd has no authentication
  std::shared_ptr<EtcdCluster> cluster = std::make_shared<EtcdCluster>();
};

// Files with etcd's user and TLS.
struct EtcdFiles {
  std::string user;  // `user = "..."`, `password = "..."`
  rpc::TlsFiles tls;
};
// Loads the options. `place`: for ParseEtcdPlace. Errors: kInvalid, kDenied for a file that others
// may read.
Result<EtcdOptions> LoadEtcd(std::string_view place, const EtcdFiles& files);

// Belongs to one thread at a time.
class EtcdClient {
 public:
  EtcdClient(EtcdOptions options, const Clock& clock)
      : options_(std::move(options)), clock_(clock) {}

  // Returns the answer of the first endpoint that gives one; each is asked once, for
  // AttemptNs(attempt_ns) at most. Errors:
  //   kUnavailable, kTimeout  unknown: etcd may have made the call, or may make it later
  //   others                  not made: kDenied, kInvalid, kLimit, kNoSpace (etcd's quota),
  //                           kMiss (no such lease), kStale (a revision that was compacted),
  //                           kIncompatible (another cluster, no gateway)
  Result<nlohmann::json> Call(std::string_view path, const nlohmann::json& body,
                              std::int64_t deadline_ns, std::int64_t attempt_ns = kSecond);
  // Returns the time of an attempt: twice as long after each attempt in which etcd did not finish
  // checking the password, 4 times at most, until it has. etcd hashes a password for about a tenth
  // of a second of processor time, and begins again with each attempt, so on a busy host attempts
  // of a fixed time could all be in vain.
  std::int64_t AttemptNs(std::int64_t attempt_ns) const {
    return token_.empty() ? attempt_ns << late_passwords_ : attempt_ns;
  }
  // Asks every endpoint for its status. Returns Ok when one answers, and all that answer belong to
  // one cluster that has a leader.
  Status CheckEndpoints(std::int64_t deadline_ns);
  // Returns a better error for an ambiguous one of Call, for example if etcd has no quorum.
  Error Explain(const Error& error, std::int64_t deadline_ns);
  const EtcdOptions& options() const { return options_; }

 private:
  Result<nlohmann::json> CallAt(std::size_t endpoint, std::string_view path,
                                const nlohmann::json& body, std::int64_t deadline_ns);
  Result<nlohmann::json> Post(std::size_t endpoint, std::string_view path,
                              const nlohmann::json& body, std::int64_t deadline_ns);
  Status Connect(std::size_t endpoint, std::int64_t deadline_ns);
  Status Authenticate(std::size_t endpoint, std::int64_t deadline_ns);
  std::string NameOf(std::size_t endpoint) const {
    return options_.place.endpoints[endpoint].ToString();
  }

  const EtcdOptions options_;
  const Clock& clock_;
  std::size_t current_ = 0;  // the endpoint that answered last
  std::optional<http::Connection> connection_;
  std::size_t connected_to_ = 0;
  std::string token_;
  int late_passwords_ = 0;  // attempts in a row that ended before etcd had checked the password
  bool unsure_ = false;     // an attempt of this call was sent and had no answer
};

// Convert between bytes and the gateway's form of them. FromBase64 returns nothing for other text.
std::string ToBase64(std::string_view bytes);
std::optional<std::string> FromBase64(std::string_view text);
// Returns an integer field of the gateway's JSON, which writes 64 bits as text and omits zeros.
std::int64_t EtcdNumber(const nlohmann::json& object, const char* field);
// Return parts of a transaction. Keys and values are bytes.
nlohmann::json EtcdCompareCreated(std::string_view key, std::int64_t revision);
nlohmann::json EtcdCompareModified(std::string_view key, std::int64_t revision);
nlohmann::json EtcdPut(std::string_view key, std::string_view value, const std::string& lease = {});
nlohmann::json EtcdGet(std::string_view key);
nlohmann::json EtcdDelete(std::string_view key);
nlohmann::json EtcdDeletePrefix(const std::string& prefix);
// Returns the range in the answer to the request at this place of a transaction; {}: none.
nlohmann::json EtcdRangeOf(const nlohmann::json& answer, std::size_t place);
// Returns the first key after all that begin with `prefix`.
std::string EndOfPrefix(std::string prefix);

}  // namespace kvcove::master
