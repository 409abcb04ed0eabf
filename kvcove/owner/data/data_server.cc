// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/data/data_server.h"

#include <fmt/core.h>

#include <optional>

#include "kvcove/base/mutex.h"
#include "kvcove/owner/data/copier.h"
#include "kvcove/owner/data/data_service.h"
#include "kvcove/owner/data/probe_call.h"
#include "kvcove/rpc/gate.h"
#include "kvcove/rpc/load_report.h"
#include "kvcove/rpc/workers.h"
#include "kvcove/transport/peer.h"
#include "kvcove/wire/cluster.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::owner {
namespace {

using transport::Step;

// Longest time of a call on a worker, with the wait in the queue.
constexpr std::int64_t kTaskNs = 90 * kSecond;
constexpr std::size_t kProbeBytes = 1 << 20;  // of the memory that measurements read

// Serves pins, statistics and loads of one caller, who has no mapping of this owner's memory.
class ObjectService final : public wire::ObjectService {
 public:
  // `session`: the visit's, which holds the values that Load promotes; null: Load is not called.
  ObjectService(Owner& owner, const rpc::Caller& caller, DataService::Session* session = nullptr)
      : owner_(owner), caller_(caller), session_(session) {}
  Result<std::vector<Code>> Pin(const Token& token, std::span<const std::string_view> keys,
                                std::optional<PinKind> kind, std::int64_t duration_ns,
                                std::int64_t deadline_ns) override {
    // An owner pins the hard-pinned values that it has copied here (Copier::Send).
    if (!(caller_.Has(rpc::Scope::kWrite) || caller_.IsOwner()) ||
        !caller_.MayTouch(owner_.data_side().TenantOfSlot(token.slot))) {
      return Denied();
    }
    return owner_.Pin(token, keys, {.kind = kind, .duration_ns = duration_ns}, deadline_ns);
  }
  Result<std::vector<std::optional<ObjectStat>>> StatObjects(const Token& token,
                                                             std::span<const std::string_view> keys,
                                                             std::int64_t deadline_ns) override {
    if (!MayRead(token.slot)) return Denied();
    return owner_.StatObjects(token, keys, deadline_ns);
  }
  Result<wire::InventoryReply> Page(const wire::InventoryRequest& request,
                                    std::int64_t deadline_ns) override {
    if (!MayRead(*request.slot)) return Denied();
    return owner_.Page(request, deadline_ns);
  }
  // Returns statistics of all tenants, so a tenant's own scopes are not enough.
  Result<PoolStat> Stat(std::int64_t /*deadline_ns*/) override {
    if (!caller_.Has(rpc::Scope::kAdmin) && !caller_.Has(rpc::Scope::kOwner)) return Denied();
    return owner_.Stat();
  }
  // Starts a load ahead of the gets. An event loop waits for no disk, so `wait_ns` becomes 0, with
  // which Read() calls `done` before it returns (SmallCall needs that). Promoted values are held
  // for the visit's session.
  void Load(const wire::LoadRequest& request, std::int64_t /*deadline_ns*/,
            const Loaded& done) override {
    if (!MayRead(request.token.slot)) return done(Denied());
    const SessionNumber session = session_->Number();
    if (session == 0) return done(Fail(Code::kLimit, "there are too many sessions"));
    wire::LoadRequest ahead = request;
    ahead.wait_ns = 0;
    owner_.promotions().Read(session, ahead, done);
  }

 private:
  bool MayRead(SlotId slot) const {
    return caller_.Has(rpc::Scope::kRead) &&
           caller_.MayTouch(owner_.data_side().TenantOfSlot(slot));
  }
  static std::unexpected<Error> Denied() {
    return Fail(Code::kDenied, "this credential may not do that");
  }
  Owner& owner_;
  const rpc::Caller& caller_;
  DataService::Session* const session_;
};

Step ReplyOf(const Result<std::string>& answer) {
  if (answer) return transport::ReplyStep(Code::kOk, *answer);
  if (answer.error().code == Code::kCorrupt) return {.kind = Step::Kind::kEnd};
  return transport::ReplyStep(answer.error().code, answer.error().detail);
}

// A call whose answer is there already.
class SmallCall final : public transport::Served {
 public:
  explicit SmallCall(Result<std::string> answer) : answer_(std::move(answer)) {}
  Step Next() override { return ReplyOf(answer_); }
  void Received(std::uint64_t /*bytes*/) override {}

 private:
  const Result<std::string> answer_;
};

// A call that may wait: it runs on a worker. When this exchange ends first, the call runs on, and
// its answer is dropped with the shared state.
class LongCall final : public transport::Served {
 public:
  LongCall(rpc::Workers& workers, std::function<Result<std::string>()> call,
           std::int64_t deadline_ns, transport::Visit::Wake wake, const Clock& clock)
      : clock_(clock), until_ns_(clock.NowNs() + kTaskNs) {
    if (deadline_ns != 0) until_ns_ = std::min(until_ns_, deadline_ns);
    const bool posted =
        workers.Post([answer = answer_, call = std::move(call), wake = std::move(wake)] {
          Result<std::string> result = call();
          {
            const MutexLock lock(answer->mutex);
            answer->result = std::move(result);
          }
          wake();
        });
    if (!posted) until_ns_ = 0;  // Next() answers kLimit
  }
  Step Next() override {
    const MutexLock lock(answer_->mutex);
    if (answer_->result) return ReplyOf(*answer_->result);
    if (clock_.NowNs() < until_ns_) return {.kind = Step::Kind::kWait, .until_ns = until_ns_};
    if (until_ns_ == 0) return transport::ReplyStep(Code::kLimit, "too many tasks are waiting");
    return transport::ReplyStep(Code::kTimeout, "the owner's workers had no time for it");
  }
  void Received(std::uint64_t /*bytes*/) override {}

 private:
  struct Answer {
    Mutex mutex;
    std::optional<Result<std::string>> result KVCOVE_GUARDED_BY(mutex);
  };
  const Clock& clock_;
  std::int64_t until_ns_;
  const std::shared_ptr<Answer> answer_ = std::make_shared<Answer>();
};

}  // namespace

class DataServer::Impl final : public transport::Service {
 public:
  Impl(Owner& owner, const DataServerOptions& options, const Clock& clock)
      : owner_(owner),
        options_(options),
        clock_(clock),
        gate_(options.credentials),
        own_tag_(TenantTag(options.tenant)),
        copier_(owner,
                {.access = options.access,
                 .credentials = options.credentials,
                 .checksum = options.checksum,
                 .transport = options.transport},
                clock),
        data_(owner.data_side(),
              {.checksum = options.checksum,
               .own_tag = own_tag_,
               .max_batch_bytes = options.limits.connection.bytes != 0
                                      ? options.limits.connection.bytes
                                      : DataService::kMaxBatchBytes},
              clock),
        admission_(std::make_shared<rpc::CallLimits>(options.limits)) {}

  Status Start() {
    KVCOVE_TRY(workers_->Start());
    KVCOVE_ASSIGN(server_,
                  options_.transport->Serve(
                      {.listen = options_.listen,
                       .name = "the owner's data server",
                       .loops = options_.loops,
                       .max_connections = static_cast<std::uint32_t>(options_.max_connections),
                       // Those of the owner's Unix socket count, too.
                       .descriptors_each = options_.tls == nullptr ? 2U : 6U,
                       .hello_ns = options_.hello_ns,
                       .stall_ns = options_.stall_ns,
                       .tls = options_.tls,
                       .memory = {owner_.memory().payload_memory(), probe_bytes_},
                       .admission = admission_},
                      gate_, *this, clock_));
    return {};
  }
  // Stops the server first, because its visits use everything else. A task that still runs wakes a
  // visit that has ended, which does nothing. The copier is stopped before the workers are joined:
  // its copies would run on until their budget ends.
  ~Impl() override {
    if (server_ != nullptr) server_->Stop();
    copier_.Stop();
    workers_.reset();
  }

  std::unique_ptr<transport::Visit> Open() override { return std::make_unique<OneVisit>(*this); }
  // Returns kOwner for the calls of the master's tasks, which may draw from the reserve.
  rpc::Traffic TrafficOf(wire::Method method) const override {
    return method == wire::Method::kInventory || method == wire::Method::kCopy
               ? rpc::Traffic::kOwner
               : rpc::Traffic::kOther;
  }
  rpc::CallLimits::Stat Load() const { return admission_->Count(clock_.NowNs()); }

  Status MayEnd() const {
    const std::optional<transport::LaneCounts> lanes = server_->Lanes();
    if (!lanes || lanes->stuck == 0) return {};
    return Fail(Code::kInProgress,
                fmt::format("an RDMA device has not reported the end of {} queue pairs, and may "
                            "still write to the memory; try again, or restart",
                            lanes->stuck));
  }

  Status EndWithin(std::int64_t most_ns) {
    if (server_->StopWithin(most_ns)) return {};
    return Fail(Code::kInProgress,
                "an RDMA device has not reported the end of a transfer, and may still write to the "
                "memory; try again, or restart");
  }

  const rpc::Address& address() const { return server_->address(); }

  void Collect(Metrics& metrics) const {
    const DataCounters& counters = data_.counters();
    const auto number = [](const auto& value) { return static_cast<double>(value.load()); };
    const transport::ConnectionCounts connections = server_->Connections();
    metrics.Gauge("kvcove_owner_data_connections", "open connections to this owner's data port",
                  connections.open);
    metrics.Gauge("kvcove_owner_data_connections_max",
                  "connections of other hosts beyond which new ones are closed at once",
                  connections.max);
    metrics.Counter(
        "kvcove_owner_data_connections_refused_total",
        "connections to the data port that were closed at once or could not be accepted",
        static_cast<double>(connections.refused));
    metrics.Gauge("kvcove_owner_data_connections_unproven",
                  "connections to the data port that have not proven who they are yet",
                  connections.unproven);
    metrics.Counter(
        "kvcove_owner_data_connections_displaced_total",
        "connections to the data port that were closed for newer ones before they had proven who "
        "they are",
        static_cast<double>(connections.displaced));
    rpc::CollectLoad(metrics, "kvcove_owner", Load());
    CollectLanes(metrics);
    metrics.Counter("kvcove_owner_sent_bytes_total",
                    "bytes of values that were sent to other hosts", number(counters.sent_bytes));
    metrics.Counter("kvcove_owner_received_bytes_total",
                    "bytes of values that were received from other hosts",
                    number(counters.received_bytes));
    metrics.Counter("kvcove_owner_corrupt_values_total",
                    "values from other hosts that did not have their checksum when they arrived",
                    number(counters.corrupt));
    if (options_.tls != nullptr) {
      metrics.Counter(
          "kvcove_owner_tls_refused_total",
          "clients of the data port that TLS refused, or that refused this owner's certificate",
          static_cast<double>(options_.tls->refused()));
      if (const auto left_s = options_.tls->ExpiresInS()) {
        metrics.Gauge("kvcove_owner_tls_certificate_expiry_seconds",
                      "seconds until this owner's certificate expires",
                      static_cast<double>(*left_s));
      }
    }
    metrics.Counter("kvcove_owner_refused_connections_total",
                    "connections to the data port that were refused for want of a known credential",
                    static_cast<double>(gate_.refused()));
    metrics.Histogram("kvcove_owner_call_seconds",
                      "seconds that a batch of other hosts took, from request to answer",
                      counters.get_time, {{"call", "get"}});
    metrics.Histogram("kvcove_owner_call_seconds",
                      "seconds that a batch of other hosts took, from request to answer",
                      counters.put_time, {{"call", "put"}});
    for (std::size_t i = 1; i < kMissReasons; ++i) {
      metrics.Counter("kvcove_owner_remote_misses_total",
                      "keys that other hosts asked for and this owner did not return, by reason",
                      number(counters.misses[i]),
                      {{"reason", std::string(MissReasonName(static_cast<MissReason>(i)))}});
    }
  }

  // Adds the metrics of RDMA, where this owner has it.
  void CollectLanes(Metrics& metrics) const {
    const std::optional<transport::LaneCounts> lanes = server_->Lanes();
    if (!lanes) return;
    const auto number = [](auto value) { return static_cast<double>(value); };
    metrics.Gauge("kvcove_owner_rdma_lanes", "RDMA queue pairs to requesters",
                  number(lanes->lanes));
    metrics.Gauge("kvcove_owner_rdma_stuck_lanes",
                  "RDMA queue pairs of this process whose device does not confirm their end; the "
                  "memory that they were moving stays busy",
                  number(lanes->stuck));
    metrics.Gauge("kvcove_owner_rdma_pinned_bytes",
                  "bytes of this owner's memory that the RDMA device has registered",
                  number(lanes->pinned_bytes));
    metrics.Counter("kvcove_owner_rdma_bytes_total",
                    "bytes that moved to and from other hosts by RDMA", number(lanes->sent_bytes),
                    {{"direction", "sent"}});
    metrics.Counter("kvcove_owner_rdma_bytes_total",
                    "bytes that moved to and from other hosts by RDMA",
                    number(lanes->received_bytes), {{"direction", "received"}});
  }

 private:
  class OneVisit final : public transport::Visit {
   public:
    explicit OneVisit(Impl& impl) : impl_(impl), session_(impl.owner_.data_side()) {}
    std::unique_ptr<transport::Served> Begin(const rpc::Caller& caller, wire::Method method,
                                             std::span<const std::byte> head,
                                             std::int64_t deadline_ns, Wake wake) override {
      switch (method) {
        case wire::Method::kDataGet:
        case wire::Method::kDataPut:
          return impl_.data_.Begin(session_, caller, method, head, deadline_ns, std::move(wake));
        case wire::Method::kProbe:
          return ProbeCall::Begin(session_, head, impl_.probe_bytes_);
        case wire::Method::kPin:
        case wire::Method::kStatObjects:
          return impl_.Small(caller, method, head, deadline_ns);
        case wire::Method::kLoad: {
          // The answer is given within the call (ObjectService::Load), so the reference is valid.
          ObjectService objects(impl_.owner_, caller, &session_);
          Result<std::string> answer;
          wire::ServeLoad(objects, head, deadline_ns,
                          [&](Result<std::string> given) { answer = std::move(given); });
          return std::make_unique<SmallCall>(std::move(answer));
        }
        case wire::Method::kInventory:
        case wire::Method::kCopy:
          if (caller.MayOwn(impl_.own_tag_)) {
            return impl_.Task(method, head, deadline_ns, std::move(wake));
          }
          if (method == wire::Method::kCopy) return nullptr;
          // A tenant's caller may list its own slot: ObjectService checks which.
          [[fallthrough]];
        case wire::Method::kStat:
          // These take the owner's lock in many slices, or wait for a disk: a loop would stop
          // serving its other connections meanwhile.
          return impl_.Long(
              [&impl = impl_, caller, method, deadline_ns,
               body = std::vector<std::byte>(head.begin(), head.end())] {
                ObjectService objects(impl.owner_, caller);
                return wire::ServeObjects(objects, method, body, deadline_ns);
              },
              deadline_ns, std::move(wake));
        default:
          return nullptr;
      }
    }

    std::optional<std::uint64_t> PayloadOf(wire::Method method,
                                           std::span<const std::byte> head) const override {
      if (method == wire::Method::kDataPut) return DataService::PayloadOf(head);
      if (method != wire::Method::kProbe) return 0;
      const Result<wire::Probe> probe = wire::DecodeProbe(head);
      return probe ? std::optional(probe->payload_bytes) : std::nullopt;
    }
    void SetPermit(Permit permit) override { session_.SetPermit(std::move(permit)); }

   private:
    Impl& impl_;
    DataService::Session session_;
  };

  std::unique_ptr<transport::Served> Small(const rpc::Caller& caller, wire::Method method,
                                           std::span<const std::byte> head,
                                           std::int64_t deadline_ns) {
    ObjectService objects(owner_, caller);
    return std::make_unique<SmallCall>(wire::ServeObjects(objects, method, head, deadline_ns));
  }
  std::unique_ptr<transport::Served> Long(std::function<Result<std::string>()> call,
                                          std::int64_t deadline_ns, transport::Visit::Wake wake) {
    return std::make_unique<LongCall>(*workers_, std::move(call), deadline_ns, std::move(wake),
                                      clock_);
  }
  std::unique_ptr<transport::Served> Task(wire::Method method, std::span<const std::byte> head,
                                          std::int64_t deadline_ns, transport::Visit::Wake wake) {
    return Long(
        [this, method, deadline_ns, body = std::vector<std::byte>(head.begin(), head.end())] {
          return method == wire::Method::kCopy ? Copy(body) : Inventory(body, deadline_ns);
        },
        deadline_ns, std::move(wake));
  }

  Result<std::string> Copy(std::span<const std::byte> body) {
    KVCOVE_ASSIGN(const wire::CopyRequest request, wire::DecodeCopy(body));
    KVCOVE_ASSIGN(const std::vector<Code> codes, copier_.Copy(request));
    return wire::Encode(std::span<const Code>(codes));
  }

  Result<std::string> Inventory(std::span<const std::byte> body, std::int64_t deadline_ns) {
    KVCOVE_ASSIGN(wire::InventoryRequest request, wire::DecodeInventory(body));
    request.at_most = std::clamp<std::uint32_t>(request.at_most, 1, wire::kMaxPage);
    KVCOVE_ASSIGN(const wire::InventoryReply page, owner_.Page(request, deadline_ns));
    return wire::Encode(page);
  }

  Owner& owner_;
  const DataServerOptions options_;
  const Clock& clock_;
  rpc::Gate gate_;
  const std::uint64_t own_tag_;
  // What measurements read: a device knows it beside the owner's memory, which holds values that
  // the caller may not have.
  std::vector<std::byte> probe_bytes_ = std::vector<std::byte>(kProbeBytes);
  Copier copier_;
  DataService data_;
  const std::shared_ptr<rpc::CallLimits> admission_;
  std::unique_ptr<rpc::Workers> workers_ = std::make_unique<rpc::Workers>(2);
  std::unique_ptr<transport::Server> server_;
};

DataServer::DataServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DataServer::~DataServer() = default;
Status DataServer::MayEnd() const { return impl_->MayEnd(); }
Status DataServer::EndWithin(std::int64_t most_ns) { return impl_->EndWithin(most_ns); }
const rpc::Address& DataServer::address() const { return impl_->address(); }
void DataServer::Collect(Metrics& metrics) const { impl_->Collect(metrics); }
rpc::CallLimits::Stat DataServer::Load() const { return impl_->Load(); }

Result<std::unique_ptr<DataServer>> DataServer::Open(Owner& owner, const DataServerOptions& options,
                                                     const Clock& clock) {
  auto impl = std::make_unique<Impl>(owner, options, clock);
  KVCOVE_TRY(impl->Start());
  return std::unique_ptr<DataServer>(new DataServer(std::move(impl)));
}

}  // namespace kvcove::owner
