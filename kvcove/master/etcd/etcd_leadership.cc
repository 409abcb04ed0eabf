// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/etcd/etcd_leadership.h"

#include <fmt/core.h>

#include <algorithm>

#include "kvcove/base/log.h"

namespace kvcove::master {
namespace {

using nlohmann::json;

constexpr std::int64_t kAttemptNs = 400 * kMillisecond;
constexpr std::int64_t kRetryNs = 50 * kMillisecond;
constexpr std::int64_t kResignNs = 500 * kMillisecond;

// Returns how long the process may lead after it sent a keep-alive. The rest of the lease is a
// margin for clocks that drift.
std::int64_t HoldsNs(std::int64_t ttl_ns) { return ttl_ns / 10 * 8; }

std::string LeaderKey(const EtcdOptions& etcd) { return etcd.place.prefix + "leader"; }

Result<std::optional<EtcdLeader>> LeaderIn(const json& range) {
  const auto kvs = range.find("kvs");
  if (kvs == range.end() || kvs->empty()) return std::optional<EtcdLeader>();
  const auto value = FromBase64(kvs->at(0).value("value", std::string()));
  KVCOVE_ASSIGN(EtcdLeader leader, DecodeLeader(value.value_or("")));
  return std::optional(std::move(leader));
}

Error MayOnlyRead(const EtcdOptions& etcd, const Error& error) {
  if (error.code != Code::kDenied || error.detail.find("permission denied") == std::string::npos) {
    return error;
  }
  return {Code::kDenied,
          fmt::format("{}: the user '{}' may not write below '{}'; grant it a role with the "
                      "permission readwrite for this prefix",
                      error.detail, etcd.user.user, etcd.place.prefix)};
}

}  // namespace

Result<std::optional<EtcdLeader>> FindLeader(EtcdClient& client, std::int64_t deadline_ns) {
  KVCOVE_ASSIGN(
      const json range,
      client.Call("/v3/kv/range", {{"key", ToBase64(LeaderKey(client.options()))}}, deadline_ns));
  return LeaderIn(range);
}

Result<std::shared_ptr<EtcdLeadership>> EtcdLeadership::Campaign(
    EtcdClient& client, EtcdLeader self, const LeadershipOptions& options, const Clock& clock,
    std::int64_t deadline_ns, std::optional<EtcdLeader>& leader) {
  const EtcdOptions& etcd = client.options();
  self.candidate = RandomId();
  const std::int64_t sent_ns = clock.NowNs();
  KVCOVE_ASSIGN(const json grant,
                client.Call("/v3/lease/grant", {{"TTL", std::to_string(options.ttl_ns / kSecond)}},
                            deadline_ns));
  const std::string lease = grant.value("ID", std::string());
  const std::int64_t granted_s = EtcdNumber(grant, "TTL");
  // A shorter lease could end before the deadline that Extend computes.
  if (lease.empty() || granted_s < options.ttl_ns / kSecond) {
    return Fail(Code::kUnavailable, "etcd gave no lease");
  }
  const std::string key = LeaderKey(etcd);
  const json transaction = {{"compare", json::array({EtcdCompareCreated(key, 0)})},
                            {"success", json::array({EtcdPut(key, Encode(self), lease)})},
                            {"failure", json::array({EtcdGet(key)})}};
  // Repeated when the answer was lost: if the first attempt was made, the else branch now finds
  // this very candidate.
  Result<json> answer = client.Call("/v3/kv/txn", transaction, deadline_ns);
  for (int again = 0; !answer && !answer.error().answered && again < 3; ++again) {
    answer = client.Call("/v3/kv/txn", transaction, deadline_ns);
  }
  if (!answer) return std::unexpected(MayOnlyRead(etcd, answer.error()));
  std::int64_t created = 0;
  if (answer->value("succeeded", false)) {
    created = EtcdNumber(answer->at("header"), "revision");
  } else {
    const json range = EtcdRangeOf(*answer, 0);
    KVCOVE_ASSIGN(leader, LeaderIn(range));
    if (leader && leader->candidate == self.candidate) {
      created = EtcdNumber(range["kvs"][0], "create_revision");
    }
  }
  if (created == 0) {
    (void)client.Call("/v3/lease/revoke", {{"ID", lease}}, deadline_ns);  // else it runs out
    return std::shared_ptr<EtcdLeadership>();
  }
  leader = self;
  std::shared_ptr<EtcdLeadership> leadership(
      new EtcdLeadership(etcd, options, clock, lease, created));
  // From before the grant was sent: etcd counts from later, so the deadline is not too late.
  leadership->Extend(sent_ns);
  KVCOVE_ASSIGN(leadership->thread_,
                StartThread("kvcove-leader", [raw = leadership.get()] { raw->Run(); }));
  return leadership;
}

EtcdLeadership::EtcdLeadership(EtcdOptions etcd, const LeadershipOptions& options,
                               const Clock& clock, std::string lease, std::int64_t create_revision)
    : etcd_(std::move(etcd)),
      options_(options),
      clock_(clock),
      lease_(std::move(lease)),
      create_revision_(create_revision) {}

EtcdLeadership::~EtcdLeadership() {
  const bool holds = !lost();
  Lose("this master has stopped");
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
  if (!holds) return;
  // Revokes only after the thread has ended and Leads() is false: another process may lead at once.
  EtcdClient client(etcd_, clock_);
  const auto revoked =
      client.Call("/v3/lease/revoke", {{"ID", lease_}}, clock_.NowNs() + kResignNs, kResignNs);
  if (!revoked) LogDebug("the leader's lease is left to run out: {}", revoked.error().ToString());
}

void EtcdLeadership::Lose(const std::string& why) {
  {
    const MutexLock lock(mutex_);
    if (lost_.exchange(true, std::memory_order_acq_rel)) return;
    deadline_ns_.store(0, std::memory_order_release);
    why_ = why;
    changed_.NotifyAll();
  }
}

// Under the lock of Lose: otherwise an answer could move the deadline after a loss at the same
// moment.
void EtcdLeadership::Extend(std::int64_t sent_ns) {
  const MutexLock lock(mutex_);
  if (lost_.load(std::memory_order_relaxed)) return;
  extended_until_ns_ = sent_ns + HoldsNs(options_.ttl_ns);
  deadline_ns_.store(extended_until_ns_, std::memory_order_release);
}

bool EtcdLeadership::WaitLost(std::int64_t duration_ns) {
  const MutexLock lock(mutex_);
  if (!lost()) changed_.WaitFor(mutex_, std::chrono::nanoseconds(duration_ns));
  return lost();
}

std::string EtcdLeadership::why_lost() const {
  const MutexLock lock(mutex_);
  return why_;
}

void EtcdLeadership::Note(const Result<json>& answer, std::int64_t sent_ns) {
  const std::int64_t now = clock_.NowNs();
  if (answer) {
    const json result = answer->value("result", json::object());
    if (EtcdNumber(result, "TTL") <= 0) {
      return Lose("its lease in etcd has run out, and another master may lead");
    }
    latency_ns_.store(now - sent_ns, std::memory_order_relaxed);
    Extend(sent_ns);
    if (std::exchange(cut_off_, false)) {
      LogInfo("etcd answers again and nobody else has led: this master goes on as the leader");
    }
    return;
  }
  if (answer.error().code == Code::kMiss) {
    return Lose("its lease in etcd is gone, and another master may lead");
  }
  if (now < extended_until_ns_) return;
  if (now >= extended_until_ns_ + options_.give_up_ns) {
    return Lose(fmt::format("etcd has not answered for {} s ({})",
                            (options_.give_up_ns + HoldsNs(options_.ttl_ns)) / kSecond,
                            answer.error().detail));
  }
  if (std::exchange(cut_off_, true)) return;
  LogWarn(
      "this master has stepped down: etcd has not answered for {} ms ({}). It grants no lease and "
      "proves nothing until etcd says that nobody else has led",
      HoldsNs(options_.ttl_ns) / kMillisecond, answer.error().detail);
}

void EtcdLeadership::Run() {
  EtcdClient client(etcd_, clock_);
  while (!lost()) {
    const std::int64_t sent_ns = clock_.NowNs();
    // Gives up shortly after the deadline of the leadership, so that Note logs the cut-off in time;
    // later only while etcd is slow to check the password.
    const std::int64_t until_ns =
        std::max(extended_until_ns_, sent_ns + client.AttemptNs(kAttemptNs));
    const Result<json> answer =
        client.Call("/v3/lease/keepalive", {{"ID", lease_}}, until_ns, kAttemptNs);
    Note(answer, sent_ns);
    const MutexLock lock(mutex_);
    if (stopping_ || lost()) return;
    changed_.WaitFor(mutex_, std::chrono::nanoseconds(answer ? options_.ttl_ns / 5 : kRetryNs));
    if (stopping_) return;
  }
}

}  // namespace kvcove::master
