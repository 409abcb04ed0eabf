// SPDX-License-Identifier: Apache-2.0
// Calls of etcd's JSON gateway (etcd 3.4 or later, HTTP/1.1): endpoints in turn, TLS, users, and
// errors that say whether etcd may have done what it was asked. docs/ha.md has the prose.
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
// Errors: kInvalid.
Result<EtcdPlace> ParseEtcdPlace(std::string_view text);

// Which cluster the endpoints belong to: that of the first answer. Shared by the clients of a
// process. Thread-safe.
class EtcdCluster {
 public:
  // Errors: kIncompatible where another endpoint belongs to another cluster.
  Status Check(const std::string& id, const rpc::Address& endpoint);

 private:
  Mutex mutex_;
  std::string id_ KVCOVE_GUARDED_BY(mutex_);
  std::string from_ KVCOVE_GUARDED_BY(mutex_);
};

struct EtcdOptions {
  EtcdPlace place;
  std::shared_ptr<rpc::Tls> tls;  // null: in the clear
  rpc::UserPassword user;         // empty: etcd asks nobody who he is
  std::shared_ptr<EtcdCluster> cluster = std::make_shared<EtcdCluster>();
};

// What etcd is reached with, as files.
struct EtcdFiles {
  std::string user;  // `user = "..."`, `password = "..."`
  rpc::TlsFiles tls;
};
// `place` as ParseEtcdPlace takes it. Errors: kInvalid, kDenied for a file that others may read.
Result<EtcdOptions> LoadEtcd(std::string_view place, const EtcdFiles& files);

// Belongs to one thread at a time.
class EtcdClient {
 public:
  EtcdClient(EtcdOptions options, const Clock& clock)
      : options_(std::move(options)), clock_(clock) {}

  // The answer of the first endpoint that gives one; each is asked once, for `attempt_ns` at most.
  // Errors:
  //   kUnavailable, kTimeout  nobody knows whether it was done; it may still be done later
  //   others                  it was not done: kDenied, kInvalid, kLimit, kNoSpace (etcd's quota),
  //                           kMiss (no such lease), kStale (a revision that was compacted),
  //                           kIncompatible (another cluster, no gateway)
  Result<nlohmann::json> Call(std::string_view path, const nlohmann::json& body,
                              std::int64_t deadline_ns, std::int64_t attempt_ns = kSecond);
  // Asks every endpoint who it is. Ok when one answers and all that do belong to one cluster that
  // has a leader.
  Status CheckEndpoints(std::int64_t deadline_ns);
  // Says more than an error of Call where etcd answers and has no quorum.
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
  bool unsure_ = false;  // an attempt of this call went out and had no answer
};

// What the gateway takes and gives for bytes.
std::string ToBase64(std::string_view bytes);
std::optional<std::string> FromBase64(std::string_view text);
// Integers of 64 bits are texts in the gateway's JSON, and zeros are left out.
std::int64_t EtcdNumber(const nlohmann::json& object, const char* field);
// Parts of a transaction, with keys and values as bytes.
nlohmann::json EtcdCompareCreated(std::string_view key, std::int64_t revision);
nlohmann::json EtcdCompareModified(std::string_view key, std::int64_t revision);
nlohmann::json EtcdPut(std::string_view key, std::string_view value, const std::string& lease = {});
nlohmann::json EtcdGet(std::string_view key);
nlohmann::json EtcdDelete(std::string_view key);
nlohmann::json EtcdDeletePrefix(const std::string& prefix);
// The range that the request with this place was answered with.
nlohmann::json EtcdRangeOf(const nlohmann::json& answer, std::size_t place);
// The first key behind all that begin with `prefix`.
std::string EndOfPrefix(std::string prefix);

}  // namespace kvcove::master
