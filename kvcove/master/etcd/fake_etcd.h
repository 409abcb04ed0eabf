// SPDX-License-Identifier: Apache-2.0
// For tests: as much of etcd's gateway as the control store uses, in this process, with faults that
// a real one does not show on demand.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <boost/beast/http.hpp>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>

#include "kvcove/master/etcd/etcd_client.h"

namespace kvcove::master {

class FakeEtcd {
 public:
  enum class Fault {
    kNone,
    kEndBefore,  // the connection ends, and nothing was done
    kEndAfter,   // it is done, and the connection ends
    kHang,       // nothing is done until Release, and the answer is lost
    kSayFailed,  // it is done, and the answer says "request timed out"
    kSayDone,    // nothing is done, and the answer says that it was
    kNoSpace,    // refused
  };
  struct Value {
    std::string value;
    std::int64_t created = 0;
    std::int64_t modified = 0;
    std::string lease;
  };

  explicit FakeEtcd(std::string cluster = "77") : cluster_(std::move(cluster)) {
    address_ = rpc::LoopbackAddress(0);
    listener_ = std::move(*rpc::ListenTcp(address_));
    thread_ = std::thread([this] { Accept(); });
  }
  ~FakeEtcd() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      released_ = true;
      for (const int fd : open_) shutdown(fd, SHUT_RDWR);
      changed_.notify_all();
    }
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
    for (std::thread& thread : threads_) thread.join();
  }
  FakeEtcd(const FakeEtcd&) = delete;
  FakeEtcd& operator=(const FakeEtcd&) = delete;

  const rpc::Address& address() const { return address_; }
  EtcdOptions Options(const std::string& prefix = "/pool/") const {
    EtcdOptions options;
    options.place = {.endpoints = {address_}, .prefix = prefix};
    return options;
  }
  // What happens to the next transactions, in order.
  void Faults(std::vector<Fault> faults) {
    const std::lock_guard lock(mutex_);
    faults_.assign(faults.begin(), faults.end());
  }
  // Does what hangs.
  void Release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }
  void EndLeases() {
    const std::lock_guard lock(mutex_);
    for (const std::string& lease : leases_) EndLease(lease);
    leases_.clear();
  }
  // How long it takes until a client has its token, which any password gets.
  void CheckPasswordsFor(std::chrono::milliseconds time) {
    const std::lock_guard lock(mutex_);
    password_time_ = time;
  }
  // Keep-alives are not answered.
  void Silence(bool silent) {
    const std::lock_guard lock(mutex_);
    silent_ = silent;
  }
  std::map<std::string, Value> keys() const {
    const std::lock_guard lock(mutex_);
    return keys_;
  }
  void Set(const std::string& key, const std::string& value) {
    const std::lock_guard lock(mutex_);
    ++revision_;
    Put(key, value, "");
  }
  void Remove(const std::string& key) {
    const std::lock_guard lock(mutex_);
    keys_.erase(key);
    ++revision_;
  }
  std::size_t transactions() const {
    const std::lock_guard lock(mutex_);
    return transactions_;
  }
  std::size_t reads() const {
    const std::lock_guard lock(mutex_);
    return reads_;
  }
  // Requests that came while it was silent.
  std::size_t unanswered() const {
    const std::lock_guard lock(mutex_);
    return unanswered_;
  }
  std::size_t max_operations = 128;

 private:
  using json = nlohmann::json;

  void Accept() {
    while (true) {
      const int fd = accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
      const std::lock_guard lock(mutex_);
      if (stopping_) {
        if (fd >= 0) close(fd);
        return;
      }
      if (fd < 0) continue;
      open_.insert(fd);
      threads_.emplace_back([this, fd] { Serve(fd); });
    }
  }

  void Serve(int fd) {
    namespace http = boost::beast::http;
    std::string input;
    while (true) {
      http::request_parser<http::string_body> parser;
      parser.eager(true);
      parser.body_limit(64U << 20);
      bool ended = false;
      while (!parser.is_done() && !ended) {
        boost::beast::error_code error;
        input.erase(0, parser.put(boost::asio::buffer(input), error));
        if (parser.is_done()) break;
        char buffer[65536];
        const ssize_t got = recv(fd, buffer, sizeof(buffer), 0);
        if (got <= 0) ended = true;
        if (got > 0) input.append(buffer, static_cast<std::size_t>(got));
      }
      if (ended) break;
      const auto target = parser.get().target();
      const std::optional<std::string> answer =
          Answer(std::string(target.data(), target.size()), json::parse(parser.get().body()));
      if (!answer) break;
      const bool failed = answer->find("\"error\"") != std::string::npos;
      const std::string response =
          (failed ? "HTTP/1.1 503 No\r\nContent-Length: " : "HTTP/1.1 200 OK\r\nContent-Length: ") +
          std::to_string(answer->size()) + "\r\n\r\n" + *answer;
      if (send(fd, response.data(), response.size(), MSG_NOSIGNAL) < 0) break;
    }
    const std::lock_guard lock(mutex_);
    open_.erase(fd);
    close(fd);
  }

  json Header() const {
    return {{"cluster_id", cluster_}, {"revision", std::to_string(revision_)}};
  }
  static std::string Error(const std::string& text, int code) {
    return json{{"error", text}, {"message", text}, {"code", code}}.dump();
  }

  // Nothing: the connection ends.
  std::optional<std::string> Answer(const std::string& path, const json& body) {
    std::unique_lock lock(mutex_);
    if (path == "/v3/kv/txn") return AnswerTransaction(body, lock);
    if (silent_) {
      ++unanswered_;
      changed_.wait(lock, [&] { return stopping_ || !silent_; });
      return std::nullopt;
    }
    json answer{{"header", Header()}};
    if (path == "/v3/auth/authenticate") {
      changed_.wait_for(lock, password_time_, [&] { return stopping_; });
      answer["token"] = "a token";
    } else if (path == "/v3/kv/range") {
      ++reads_;
      answer.update(Range(body));
    } else if (path == "/v3/lease/grant") {
      answer["ID"] = std::to_string(++last_lease_);
      answer["TTL"] = body["TTL"];
      leases_.insert(answer["ID"].get<std::string>());
    } else if (path == "/v3/lease/keepalive") {
      json result{{"header", Header()}, {"ID", body["ID"]}};
      if (leases_.contains(body["ID"].get<std::string>())) result["TTL"] = "2";
      answer = json{{"result", result}};
    } else if (path == "/v3/lease/revoke") {
      EndLease(body["ID"].get<std::string>());
      leases_.erase(body["ID"].get<std::string>());
    } else if (path == "/v3/maintenance/status") {
      answer["leader"] = "1";
    } else {
      return Error("not a path of the fake: " + path, 12);
    }
    return answer.dump();
  }

  std::optional<std::string> AnswerTransaction(const json& body,
                                               std::unique_lock<std::mutex>& lock) {
    ++transactions_;
    Fault fault = Fault::kNone;
    if (!faults_.empty()) {
      fault = faults_.front();
      faults_.pop_front();
    }
    if (fault == Fault::kEndBefore) return std::nullopt;
    if (fault == Fault::kNoSpace) return Error("etcdserver: mvcc: database space exceeded", 8);
    if (fault == Fault::kSayDone) {
      ++revision_;
      return json{{"header", Header()}, {"succeeded", true}}.dump();
    }
    if (fault == Fault::kHang) {
      changed_.wait(lock, [&] { return released_; });
      released_ = stopping_;
      (void)Transact(body);
      changed_.notify_all();
      return std::nullopt;
    }
    const std::string answer = Transact(body);
    if (fault == Fault::kEndAfter) return std::nullopt;
    if (fault == Fault::kSayFailed) return Error("etcdserver: request timed out", 14);
    return answer;
  }

  std::string Transact(const json& body) {
    bool holds = true;
    for (const json& compare : body.value("compare", json::array())) {
      const auto at = keys_.find(*FromBase64(compare["key"].get<std::string>()));
      const std::string target = compare["target"];
      if (target == "CREATE") {
        holds = holds && (at == keys_.end() ? 0 : at->second.created) ==
                             EtcdNumber(compare, "createRevision");
      } else if (target == "MOD") {
        holds = holds &&
                (at == keys_.end() ? 0 : at->second.modified) == EtcdNumber(compare, "modRevision");
      } else {
        holds = false;
      }
    }
    const json operations = body.value(holds ? "success" : "failure", json::array());
    if (operations.size() > max_operations) {
      return Error("etcdserver: too many operations in txn request", 3);
    }
    json responses = json::array();
    if (holds) ++revision_;
    for (const json& operation : operations) {
      json response = json::object();
      if (const auto put = operation.find("requestPut"); put != operation.end()) {
        Put(*FromBase64((*put)["key"].get<std::string>()),
            *FromBase64((*put)["value"].get<std::string>()), put->value("lease", ""));
      } else if (const auto gone = operation.find("requestDeleteRange"); gone != operation.end()) {
        const std::string from = *FromBase64((*gone)["key"].get<std::string>());
        const std::string end = gone->contains("range_end")
                                    ? *FromBase64((*gone)["range_end"].get<std::string>())
                                    : from + '\0';
        keys_.erase(keys_.lower_bound(from), keys_.lower_bound(end));
      } else {
        response["response_range"] = Range(operation["requestRange"]);
      }
      responses.push_back(std::move(response));
    }
    json answer{{"header", Header()}, {"responses", responses}};
    if (holds) answer["succeeded"] = true;
    return answer.dump();
  }

  void Put(const std::string& key, const std::string& value, const std::string& lease) {
    Value& entry = keys_[key];
    if (entry.created == 0) entry.created = revision_;
    entry.value = value;
    entry.modified = revision_;
    entry.lease = lease;
  }

  json Range(const json& request) const {
    const std::string from = *FromBase64(request["key"].get<std::string>());
    const std::string end = request.contains("range_end")
                                ? *FromBase64(request["range_end"].get<std::string>())
                                : from + '\0';
    const std::int64_t limit = EtcdNumber(request, "limit");
    json kvs = json::array();
    bool more = false;
    for (auto at = keys_.lower_bound(from); at != keys_.end() && at->first < end; ++at) {
      if (limit > 0 && static_cast<std::int64_t>(kvs.size()) == limit) {
        more = true;
        break;
      }
      kvs.push_back({{"key", ToBase64(at->first)},
                     {"value", ToBase64(at->second.value)},
                     {"create_revision", std::to_string(at->second.created)},
                     {"mod_revision", std::to_string(at->second.modified)}});
    }
    json answer{{"kvs", kvs}, {"count", std::to_string(kvs.size())}};
    if (more) answer["more"] = true;
    return answer;
  }

  void EndLease(const std::string& lease) {
    std::erase_if(keys_, [&](const auto& entry) { return entry.second.lease == lease; });
    ++revision_;
  }

  const std::string cluster_;
  rpc::Address address_;
  UniqueFd listener_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  bool released_ = false;
  bool silent_ = false;
  std::chrono::milliseconds password_time_{0};
  std::set<int> open_;
  std::list<Fault> faults_;
  std::map<std::string, Value> keys_;
  std::set<std::string> leases_;
  std::int64_t revision_ = 1;
  std::int64_t last_lease_ = 100;
  std::size_t transactions_ = 0;
  std::size_t reads_ = 0;  // beside those of transactions
  std::size_t unanswered_ = 0;
  std::list<std::thread> threads_;
  std::thread thread_;
};

}  // namespace kvcove::master
