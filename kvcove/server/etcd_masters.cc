// SPDX-License-Identifier: Apache-2.0
#include "kvcove/server/etcd_masters.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "kvcove/base/interrupt.h"
#include "kvcove/base/log.h"
#include "kvcove/base/mutex.h"
#include "kvcove/base/posix.h"
#include "kvcove/base/random.h"
#include "kvcove/master/etcd/etcd_leadership.h"
#include "kvcove/pool/masters.h"

namespace kvcove::server {
namespace {

using master::EtcdClient;
using master::EtcdOptions;

constexpr std::int64_t kLeaderAskNs = kSecond;
constexpr std::int64_t kLeaderAgainNs = 100 * kMillisecond;
// All clients lose a leader at the same moment, and must neither ask in step nor keep etcd from
// electing the next one.
constexpr std::int64_t kLeaderLookNs = 300 * kMillisecond;
constexpr std::int64_t kDoubtNs = 5 * kSecond;

class EtcdSource final : public rpc::LeaderSource {
 public:
  EtcdSource(EtcdOptions etcd, rpc::Address leader, const Clock& clock)
      : etcd_(std::move(etcd)), clock_(clock), current_(std::move(leader)) {}
  ~EtcdSource() override {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    if (thread_.joinable()) thread_.join();
  }
  Status Start() {
    KVCOVE_ASSIGN(thread_, StartThread("kvcove-masters", [this] { Run(); }));
    return {};
  }

  rpc::Address Current() const override {
    const MutexLock lock(mutex_);
    return current_;
  }
  void Doubt(const rpc::Address& asked) override {
    const std::int64_t now = clock_.NowNs();
    const MutexLock lock(mutex_);
    if (asked != current_) return;
    if (doubted_until_ns_ <= now) changed_.NotifyAll();
    doubted_until_ns_ = now + kDoubtNs;
  }
  std::string ToString() const override { return etcd_.place.ToString(); }

 private:
  // False: it is to end.
  bool AwaitDoubt() {
    const MutexLock lock(mutex_);
    while (!stopping_ && doubted_until_ns_ <= clock_.NowNs()) changed_.Wait(mutex_);
    const auto wait_ns =
        static_cast<std::int64_t>(RandomU64() % (kLeaderLookNs / 2)) + kLeaderLookNs / 2;
    if (!stopping_) changed_.WaitFor(mutex_, std::chrono::nanoseconds(wait_ns));
    return !stopping_;
  }

  void Run() {
    EtcdClient client(etcd_, clock_);
    bool said = false;
    while (AwaitDoubt()) {
      const auto leader =
          master::FindLeader(client, clock_.NowNs() + client.AttemptNs(kLeaderAskNs));
      if (!leader && !std::exchange(said, true)) {
        LogWarn("{} does not say who leads ({}); until it does, the master at {} is asked",
                ToString(), leader.error().detail, Current().ToString());
      }
      if (!leader) continue;
      said = false;
      if (*leader) Follow((*leader)->address);
    }
  }

  void Follow(const std::string& named) {
    const auto leader = rpc::ParseAddress(named, pool::kDefaultMasterPort);
    {
      const MutexLock lock(mutex_);
      if (!leader || *leader == current_) return;
      current_ = *leader;
      doubted_until_ns_ = 0;
    }
    LogInfo("the master at {} leads now, as {} says", named, ToString());
  }

  const EtcdOptions etcd_;
  const Clock& clock_;
  mutable Mutex mutex_;
  CondVar changed_;
  rpc::Address current_ KVCOVE_GUARDED_BY(mutex_);
  std::int64_t doubted_until_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Tells a prefix that no pool has from a pool without a leader. Nothing: etcd does not answer.
std::optional<std::string> WhyNobodyLeads(EtcdClient& client, std::int64_t deadline_ns) {
  const std::string head = master::ToBase64(client.options().place.prefix + "head");
  const auto answer =
      client.Call("/v3/kv/range", {{"key", head}, {"count_only", true}}, deadline_ns);
  if (!answer) return std::nullopt;
  if (master::EtcdNumber(*answer, "count") == 0) {
    return "no pool is there: no master with this --store has led yet, or the masters have another "
           "prefix";
  }
  return "a pool is there, and none of its masters leads: start one, or see in the logs of those "
         "that run why they do not";
}

Result<rpc::Addresses> FindInEtcd(EtcdOptions etcd, std::int64_t deadline_ns, const Clock& clock) {
  const std::string place = etcd.place.ToString();
  EtcdClient client(etcd, clock);
  Error why{.code = Code::kUnavailable, .detail = "nobody leads, or it did not answer in time"};
  bool answers = false;
  bool said = false;
  while (LeftNs(deadline_ns, clock) > 0) {
    const auto until_ns = [&] {
      return std::min(clock.NowNs() + client.AttemptNs(kLeaderAskNs), deadline_ns);
    };
    auto leader = master::FindLeader(client, until_ns());
    if (leader && *leader) {
      KVCOVE_ASSIGN(rpc::Address address,
                    rpc::ParseAddress((*leader)->address, pool::kDefaultMasterPort));
      auto source = std::make_shared<EtcdSource>(std::move(etcd), std::move(address), clock);
      KVCOVE_TRY(source->Start());
      return rpc::Addresses(std::move(source));
    }
    if (leader) {
      answers = true;
      if (auto reason = WhyNobodyLeads(client, until_ns())) {
        why = {.code = Code::kUnavailable, .detail = std::move(*reason)};
      }
    } else if (!answers || leader.error().code != Code::kTimeout) {  // the deadline's, as a rule
      why = client.Explain(leader.error(), until_ns());
      if (why.code != Code::kUnavailable && why.code != Code::kTimeout) break;
    }
    if (!std::exchange(said, true)) LogInfo("{}: waiting for a leader: {}", place, why.detail);
    SleepNs(std::min(kLeaderAgainNs, LeftNs(deadline_ns, clock)));
  }
  why.detail = fmt::format("{} names no leader: {}", place, why.detail);
  if (why.code == Code::kTimeout) why.code = Code::kUnavailable;
  return std::unexpected(std::move(why));
}

// As etcd_masters.h says of opening a pool.
Result<rpc::Addresses> FindLeader(std::string_view text, std::int64_t deadline_ns,
                                  const Clock& clock) {
  const auto named = [](const char* variable) {
    const char* value = std::getenv(variable);
    return std::string(value == nullptr ? "" : value);
  };
  KVCOVE_ASSIGN(
      EtcdOptions etcd,
      master::LoadEtcd(text, {.user = named("KVCOVE_STORE_USER_FILE"),
                              .tls = {.authority = named("KVCOVE_STORE_TLS_AUTHORITY"),
                                      .certificate = named("KVCOVE_STORE_TLS_CERTIFICATE"),
                                      .key = named("KVCOVE_STORE_TLS_KEY")}}));
  return FindInEtcd(std::move(etcd), deadline_ns, clock);
}

}  // namespace

void UseEtcd() { pool::UseMastersFinder(&FindLeader); }

}  // namespace kvcove::server
