// SPDX-License-Identifier: Apache-2.0
#include "kvcove/server/elected_master.h"

#include <fcntl.h>

#include <thread>

#include "kvcove/base/log.h"
#include "kvcove/base/mutex.h"
#include "kvcove/master/etcd/etcd_leadership.h"
#include "kvcove/master/server/admin.h"
#include "kvcove/master/server/standby.h"
#include "kvcove/master/store/facts.h"
#include "kvcove/rpc/inherited.h"

namespace kvcove::server {
namespace {

using master::EtcdLeader;
using master::EtcdLeadership;

constexpr std::int64_t kPollNs = 200 * kMillisecond;
constexpr std::int64_t kAskNs = 2 * kSecond;
constexpr std::int64_t kAttemptNs = 500 * kMillisecond;
constexpr std::int64_t kCheckNs = 5 * kSecond;
constexpr std::int64_t kFailedNs = 3 * kSecond;  // pause after an election that led to nothing
// A standby reads the term in every fifth poll, once a second: only status and metrics show it, and
// a new leader writes its own a moment after its key, so it could not be read with the key.
constexpr int kTermEvery = 5;

UniqueFd Copy(const UniqueFd& fd) { return UniqueFd(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0)); }

// Listens, and gives the address the numeric form by which TakeInherited finds the copies.
Result<UniqueFd> Listen(rpc::Address& address) {
  KVCOVE_ASSIGN(UniqueFd fd, rpc::ListenTcp(address));
  address = rpc::BoundAddress(fd.get());
  return fd;
}

}  // namespace

class ElectedMaster::Impl {
 public:
  Impl(const ElectedMasterOptions& options, const Clock& clock)
      : options_(options), clock_(clock), client_(options.etcd, clock) {}
  ~Impl();
  Status Open();
  const rpc::Address& address() const { return options_.server.listen; }
  const std::optional<rpc::Address>& admin() const { return options_.admin; }

 private:
  using LeadershipPtr = std::shared_ptr<EtcdLeadership>;

  void Run();
  Status OpenStandby();
  // Offers copies of the listeners to the servers that open next.
  void LendListeners();
  // Campaigns until it wins. Null: this object is being destroyed.
  LeadershipPtr AwaitLeadership();
  // Looks who leads, and campaigns if nobody does. Null: another master leads.
  Result<LeadershipPtr> TryToLead(master::StandbyView& view);
  // Reads the leader's term from the store, for the standby's answers; no change on an error.
  void ReadTerm(master::StandbyView& view);
  // Leads until the leadership is lost or this object is destroyed. Errors: it could not begin.
  Status Lead(const LeadershipPtr& leadership);
  bool stopping() const {
    const MutexLock lock(mutex_);
    return stopping_;
  }
  void Pause(std::int64_t duration_ns);

  ElectedMasterOptions options_;
  const Clock& clock_;
  // The sockets behind the ports. The servers of each role get copies (LendListeners), so that a
  // port never closes between two roles.
  UniqueFd listener_;
  UniqueFd admin_listener_;
  UniqueFd metrics_listener_;
  EtcdLeader self_;

  // Belong to kvcove-elect.
  master::EtcdClient client_;
  std::unique_ptr<master::Standby> standby_;
  int polls_ = 0;

  mutable Mutex mutex_;
  CondVar changed_;
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

Status ElectedMaster::Impl::Open() {
  Status checked = master::CheckEtcd(client_, clock_.NowNs() + kCheckNs, clock_);
  const bool away = !checked && (checked.error().code == Code::kUnavailable ||
                                 checked.error().code == Code::kTimeout);
  if (!checked && !away) return checked;
  if (away) LogWarn("this master waits for etcd: {}", checked.error().detail);
  KVCOVE_ASSIGN(listener_, Listen(options_.server.listen));
  if (options_.admin) {
    KVCOVE_ASSIGN(admin_listener_, Listen(*options_.admin));
  }
  if (options_.metrics) {
    KVCOVE_ASSIGN(metrics_listener_, Listen(*options_.metrics));
  }
  self_.address = options_.advertise.empty() ? address().ToString() : options_.advertise;
  self_.admin = options_.announced_admin;
  if (self_.admin.empty() && options_.admin) self_.admin = options_.admin->ToString();
  KVCOVE_TRY(OpenStandby());
  KVCOVE_ASSIGN(thread_, StartThread("kvcove-elect", [this] { Run(); }));
  return {};
}

ElectedMaster::Impl::~Impl() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void ElectedMaster::Impl::LendListeners() {
  std::vector<UniqueFd> copies;
  copies.push_back(Copy(listener_));
  if (options_.admin) copies.push_back(Copy(admin_listener_));
  if (options_.metrics) copies.push_back(Copy(metrics_listener_));
  rpc::InheritTcpListeners(std::move(copies));
}

Status ElectedMaster::Impl::OpenStandby() {
  LendListeners();
  const master::MasterServerOptions& server = options_.server;
  std::optional<master::ShardReplicaOptions> shard;
  if (server.master.shards) {
    shard = {.address = self_.address,
             .directory = {.inventory_batch = server.master.inventory_batch,
                           .max_entries = server.master.max_entries,
                           .tenant_entries = server.master.tenant_entries}};
  }
  KVCOVE_ASSIGN(standby_, master::Standby::Open({.listen = server.listen,
                                                 .admin = options_.admin,
                                                 .metrics = options_.metrics,
                                                 .credentials = server.credentials,
                                                 .tls = server.tls,
                                                 .shard = std::move(shard)}));
  return {};
}

void ElectedMaster::Impl::Pause(std::int64_t duration_ns) {
  const MutexLock lock(mutex_);
  if (!stopping_) changed_.WaitFor(mutex_, std::chrono::nanoseconds(duration_ns));
}

void ElectedMaster::Impl::ReadTerm(master::StandbyView& view) {
  const std::string key = client_.options().place.prefix + "fact/" + std::string(master::kTermsKey);
  const auto answer = client_.Call("/v3/kv/range", {{"key", master::ToBase64(key)}},
                                   clock_.NowNs() + kAskNs, kAttemptNs);
  if (!answer || master::EtcdNumber(*answer, "count") == 0) return;
  const auto bytes = master::FromBase64(answer->at("kvs")[0].value("value", std::string()));
  const auto fact = master::DecodeFact(master::kTermsKey, bytes.value_or(""));
  if (!fact) return;
  const auto state = master::Decode({{std::string(master::kTermsKey), *fact}});
  if (state && !state->terms.empty()) view.term = state->terms.back().term;
}

Result<ElectedMaster::Impl::LeadershipPtr> ElectedMaster::Impl::TryToLead(
    master::StandbyView& view) {
  const std::int64_t began_ns = clock_.NowNs();
  KVCOVE_ASSIGN(view.leader, master::FindLeader(client_, began_ns + kAskNs));
  view.store_latency_ns = clock_.NowNs() - began_ns;
  if (view.leader) {
    if (polls_++ % kTermEvery == 0) ReadTerm(view);
    return LeadershipPtr();
  }
  return EtcdLeadership::Campaign(client_, self_, {}, clock_, clock_.NowNs() + kAskNs, view.leader);
}

ElectedMaster::Impl::LeadershipPtr ElectedMaster::Impl::AwaitLeadership() {
  master::StandbyView view;
  std::string said;
  while (!stopping()) {
    Result<LeadershipPtr> won = TryToLead(view);
    view.store_error = won ? std::string() : won.error().detail;
    // The leader of before may not lead any more, so nobody is named while etcd does not answer.
    if (!won) view.leader.reset();
    standby_->Show(view);
    if (won && *won != nullptr) return *won;
    std::string now = view.leader ? view.leader->address : std::string();
    if (!won && said != "?") {
      const Error error = client_.Explain(won.error(), clock_.NowNs() + kAskNs);
      LogWarn("this standby does not reach etcd: {}", error.detail);
      now = "?";
    } else if (!won) {
      now = "?";
    } else if (now != said && !now.empty()) {
      LogInfo("the leader is {}; this master is a standby", now);
    }
    said = now;
    Pause(kPollNs);
  }
  return nullptr;
}

Status ElectedMaster::Impl::Lead(const LeadershipPtr& leadership) {
  LendListeners();
  master::MasterServerOptions options = options_.server;
  options.leadership = leadership;
  KVCOVE_ASSIGN(const std::unique_ptr<master::MasterServer> server,
                master::MasterServer::Open(options, clock_));
  // Declared after the server, so that the tasks end before it: they ask it.
  master::Tasks tasks(*server, options_.tasks, clock_);
  KVCOVE_TRY(tasks.Begin());
  // Both roles have listened at the same socket until now. The standby ends only when the leader
  // serves, so that a failed start leaves a standby. Its clients lose their connections, and reach
  // the leader with the next ones.
  standby_.reset();
  std::unique_ptr<master::Admin> admin;
  if (options_.admin || options_.metrics) {
    auto opened = master::Admin::Open(*server, tasks,
                                      {.listen = options_.admin,
                                       .metrics = options_.metrics,
                                       .credentials = options.credentials,
                                       .tls = options.tls},
                                      clock_);
    if (opened) admin = std::move(*opened);
    if (!opened) LogError("no admin endpoint: {}", opened.error().ToString());
    if (admin && options_.admin) server->SetAdmin(self_.admin);
  }
  (void)rpc::DropInherited();
  LogInfo("this master leads as {} (term {})", self_.address, server->master().term());
  while (!stopping() && !leadership->WaitLost(kPollNs)) {
  }
  if (leadership->lost()) {
    LogWarn("this master does not lead any more: {}", leadership->why_lost());
  }
  admin.reset();
  return {};
}

void ElectedMaster::Impl::Run() {
  while (true) {
    LeadershipPtr leadership = AwaitLeadership();
    if (leadership == nullptr) break;
    if (const Status led = Lead(leadership); !led) {
      LogError("this master won the leadership and cannot lead: {}", led.error().ToString());
      leadership.reset();  // resigns, so that another master may try
      Pause(kFailedNs);
    }
    leadership.reset();
    // Tried until it works, because the port would answer nobody without a standby.
    while (standby_ == nullptr && !stopping()) {
      if (const Status opened = OpenStandby(); !opened) {
        LogError("a standby cannot listen: {}", opened.error().ToString());
        Pause(kFailedNs);
      }
    }
  }
  standby_.reset();
}

ElectedMaster::ElectedMaster(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ElectedMaster::~ElectedMaster() = default;
const rpc::Address& ElectedMaster::address() const { return impl_->address(); }
const std::optional<rpc::Address>& ElectedMaster::admin() const { return impl_->admin(); }

Result<std::unique_ptr<ElectedMaster>> ElectedMaster::Open(const ElectedMasterOptions& options,
                                                           const Clock& clock) {
  auto impl = std::make_unique<Impl>(options, clock);
  KVCOVE_TRY(impl->Open());
  return std::unique_ptr<ElectedMaster>(new ElectedMaster(std::move(impl)));
}

}  // namespace kvcove::server
