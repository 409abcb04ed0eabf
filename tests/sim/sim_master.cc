// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_master.h"

#include <fmt/core.h>

#include "kvcove/master/server/owner_calls.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::sim {
namespace {

constexpr std::int64_t kTickNs = 10 * kMillisecond;
constexpr std::int64_t kRetryNs = 500 * kMillisecond;  // of what must arrive at last

std::span<const std::byte> Bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace

SimMaster::SimMaster(World& world, Place place, const master::MasterOptions& options,
                     std::function<void(const std::string&)> fail, Started started)
    : world_(world),
      place_(place),
      options_(options),
      fail_(std::move(fail)),
      started_(std::move(started)),
      disk_(std::make_unique<FakeDisk>(world.random().Next())) {}

SimMaster::~SimMaster() { Kill(); }

// ---- its process

void SimMaster::Start() {
  master::Opened opened;
  auto store = master::FileStore::Open(disk_->Attach(), {.clock = &world_.clock(place_)}, opened);
  if (!store) {
    // The disk fails; a supervisor starts the process again.
    return world_.After(kRetryNs, [this, life = world_.life(place_)] {
      if (world_.life(place_) == life && !alive()) Start();
    });
  }
  const auto plan =
      master::PlanStart(opened.facts, opened.revision, options_.lease_ns, world_.NowOf(place_));
  if (!plan) return fail_("the master cannot start: " + plan.error().ToString());
  store_ = std::move(*store);
  master_ = std::make_unique<master::Master>(options_, *plan, *store_, opened.revision,
                                             world_.clock(place_));
  world_.Born(place_);
  const std::uint64_t life = world_.life(place_);
  master_->Start([this, life, state = plan->state](const Result<void>& stored) {
    if (world_.life(place_) != life) return;
    ready_ = stored.has_value();
    // As a supervisor does with a process that could not start.
    if (!ready_)
      return world_.In(place_, kRetryNs, [this] {
        Kill();
        Start();
      });
    started_(state);
  });
  world_.In(place_, 0, [this] { Tick(); });
}

void SimMaster::Kill() {
  world_.Die(place_);
  ready_ = false;
  work_scheduled_ = false;
  // Whatever they still call goes nowhere: the process' life has ended.
  store_.reset();
  master_.reset();
  for (const auto& [client, connection] : connections_) connection->Broken();
}

void SimMaster::LoseDisk() { disk_ = std::make_unique<FakeDisk>(world_.random().Next()); }

void SimMaster::Tick() {
  Work();
  if (ready_) master_->Tick();
  world_.In(place_, kTickNs, [this] { Tick(); });
}

void SimMaster::Work() {
  while (store_->Work()) {
  }
}

void SimMaster::WorkSoon() {
  if (work_scheduled_ || store_->stat().queued == 0) return;
  work_scheduled_ = true;
  world_.In(place_, world_.Some(2 * kMillisecond), [this] {
    work_scheduled_ = false;
    Work();
  });
}

// ---- calls

void SimMaster::CheckFrame(const std::string& body, wire::Method method) {
  if (body.size() <= wire::kMaxFrameBytes) return;
  fail_(fmt::format("a frame of {} bytes, of method {}", body.size(), static_cast<int>(method)));
}

void SimMaster::LogList(const std::string& body, const std::string& answer) {
  const auto request = wire::DecodeList(Bytes(body));
  const auto reply = wire::DecodeListReply(Bytes(answer), request->items.size());
  for (std::size_t i = 0; i < request->items.size(); ++i) {
    const wire::ListItem& item = request->items[i];
    if (item.gone || reply->codes[i] == Code::kOk) continue;
    world_.Log(
        fmt::format("a listing of member {}, slot {}, generation {:x}, begun after {:x}{}: {}",
                    request->number, item.slot, item.generation, item.removals,
                    item.inventory ? ", inventory" : "", CodeName(reply->codes[i])));
  }
}

void SimMaster::Receive(std::uint64_t connection, const std::string& tenant, wire::Method method,
                        const std::string& body, const master::Reply<std::string>& reply) {
  CheckFrame(body, method);
  if (!ready_) return reply(Fail(Code::kUnavailable, "connection refused"));
  const auto checked = [this, method, body, reply](const Result<std::string>& answer) {
    if (answer) CheckFrame(*answer, method);
    if (method == wire::Method::kList && world_.logs() && answer) LogList(body, *answer);
    if (!answer && answer.error().code == Code::kCorrupt) {
      fail_(fmt::format("the master does not understand method {}", static_cast<int>(method)));
    }
    reply(answer);
  };
  if (method >= wire::Method::kOwnerHello && method <= wire::Method::kRemovals) {
    master::AnswerOwner(
        *master_, connection, method, Bytes(body), [](std::uint64_t) { return true; }, checked);
  } else {
    AnswerRequester(tenant, method, Bytes(body), checked);
  }
  WorkSoon();
}

void SimMaster::AnswerRequester(const std::string& tenant, wire::Method method,
                                std::span<const std::byte> body,
                                const master::Reply<std::string>& reply) {
  const std::int64_t now = world_.NowOf(place_);
  switch (method) {
    case wire::Method::kRegister: {
      auto call = wire::DecodeRegister(body);
      if (!call) return reply(std::unexpected(call.error()));
      call->request.name = QualifiedName(tenant, call->request.name);
      return master_->generations().Register(
          call->request, now + call->budget_ns, [reply](const Result<wire::Registration>& answer) {
            reply(answer ? Result<std::string>(wire::Encode(*answer))
                         : std::unexpected(answer.error()));
          });
    }
    case wire::Method::kReset: {
      auto call = wire::DecodeReset(body);
      if (!call) return reply(std::unexpected(call.error()));
      call->request.name = QualifiedName(tenant, call->request.name);
      return master_->generations().Reset(
          call->request, now + call->budget_ns, [reply](const Result<wire::ResetOutcome>& answer) {
            reply(answer ? Result<std::string>(wire::Encode(*answer))
                         : std::unexpected(answer.error()));
          });
    }
    case wire::Method::kPrune: {
      auto call = wire::DecodePrune(body);
      if (!call) return reply(std::unexpected(call.error()));
      call->request.name = QualifiedName(tenant, call->request.name);
      return master_->generations().Prune(
          call->request, now + call->budget_ns, [reply](const Result<wire::PruneOutcome>& answer) {
            reply(answer ? Result<std::string>(wire::Encode(*answer))
                         : std::unexpected(answer.error()));
          });
    }
    case wire::Method::kRemoveEverywhere: {
      const auto request = wire::DecodeRemove(body);
      if (!request) return reply(std::unexpected(request.error()));
      if (master_->standings().TenantOfSlot(request->token.slot) != TenantTag(tenant)) {
        return reply(Fail(Code::kStale, "register again"));
      }
      return master_->Remove(
          request->token, request->keys, request->pattern, now + request->budget_ns,
          [reply](const Result<master::Master::Removed>& removed) {
            reply(removed ? Result<std::string>(std::string()) : std::unexpected(removed.error()));
          });
    }
    default:
      return reply(AnswerNow(tenant, method, body));
  }
}

Result<std::string> SimMaster::AnswerNow(const std::string& tenant, wire::Method method,
                                         std::span<const std::byte> body) {
  switch (method) {
    case wire::Method::kLookup: {
      KVCOVE_ASSIGN(const wire::LookupRequest request, wire::DecodeLookup(body));
      if (master_->standings().TenantOfSlot(request.token.slot) != TenantTag(tenant)) {
        return Fail(Code::kStale, "register again");
      }
      KVCOVE_ASSIGN(const std::vector<wire::Place> places,
                    master_->Lookup(request.token, request.hashes));
      return wire::Encode(std::span<const wire::Place>(places));
    }
    case wire::Method::kOwners: {
      KVCOVE_ASSIGN(const wire::RequesterReport report, wire::DecodeReport(body));
      if (report.holder != Id128{}) master_->generations().Heard(report.holder);
      return wire::Encode(
          wire::OwnersReply{.owners = master_->control().Owners(), .term = master_->term()});
    }
    case wire::Method::kEndEngine:
    case wire::Method::kNameVersions: {
      KVCOVE_ASSIGN(const wire::EngineVersions engine, wire::DecodeEngineVersions(body));
      const std::string name = QualifiedName(tenant, engine.name);
      if (method == wire::Method::kEndEngine) {
        master_->generations().EndEngine(name, engine.engine, engine.holder);
      } else {
        KVCOVE_TRY(master_->generations().NameVersions(name, engine.engine, engine.versions));
      }
      return std::string();
    }
    default:
      return Fail(Code::kCorrupt, "not a call for the master");
  }
}

void SimMaster::Closed(std::uint64_t connection) {
  if (!ready_) return;
  master_->control().Disconnected(connection);
  WorkSoon();
}

// ---- connections

SimConnection::SimConnection(World& world, SimMaster& master, Place from, std::string tenant)
    : world_(world),
      master_(master),
      from_(from),
      tenant_(std::move(tenant)),
      client_(master.next_client_++) {
  master_.connections_[client_] = this;
}

SimConnection::~SimConnection() {
  *self_ = nullptr;
  master_.connections_.erase(client_);
  // The kernel closes what a dead process had open.
  if (number_ != 0) TellClosed(number_, master_life_);
}

void SimConnection::Call(wire::Method method, std::string body, std::int64_t timeout_ns,
                         SimMaster::Done done) {
  if (number_ == 0) {
    number_ = master_.next_connection_++;
    master_life_ = world_.life(master_.place_);
  }
  const std::uint64_t call = ++call_;
  if (std::getenv("KVCOVE_SIM_CALLS") != nullptr)
    world_.Log(fmt::format("place {} calls {}", from_, static_cast<int>(method)));
  done_ = std::move(done);
  const std::uint64_t number = number_;
  const std::uint64_t life = world_.life(from_);
  SimMaster& master = master_;
  World& world = world_;
  const Place from = from_;
  const auto answer = [self = self_, call](Result<std::string> reply) {
    if (*self != nullptr) (*self)->Finish(call, std::move(reply));
  };
  world.In(from, timeout_ns, [answer] { answer(Fail(Code::kTimeout, "no answer in time")); });
  if (!world.alive(master.place_)) {
    if (world.IsCut(from, master.place_)) return;
    return world.In(from, world.Some(2 * kMillisecond),
                    [answer] { answer(Fail(Code::kUnavailable, "connection refused")); });
  }
  world.Send(from, master.place_,
             [&world, &master, from, life, number, tenant = tenant_, method, body = std::move(body),
              answer] {
               const std::uint64_t master_life = world.life(master.place_);
               master.Receive(
                   number, tenant, method, body,
                   [&world, &master, from, life, master_life, answer](Result<std::string> reply) {
                     if (world.life(master.place_) != master_life) return;
                     if (world.life(from) != life) return;
                     world.Send(master.place_, from,
                                [answer, reply = std::move(reply)] { answer(reply); });
                   });
             });
}

void SimConnection::Finish(std::uint64_t call, Result<std::string> answer) {
  if (call != call_ || !done_) return;
  const bool over = !answer && (answer.error().code == Code::kTimeout ||
                                answer.error().code == Code::kUnavailable);
  if (over) Close();
  const SimMaster::Done done = std::exchange(done_, nullptr);
  done(std::move(answer));
}

void SimConnection::Close() {
  if (number_ == 0) return;
  TellClosed(std::exchange(number_, 0), master_life_);
}

// The master hears of it when the network works, unless its process ends first.
void SimConnection::TellClosed(std::uint64_t number, std::uint64_t master_life) {
  World& world = world_;
  SimMaster& master = master_;
  const Place from = from_;
  const auto tell = std::make_shared<std::function<void()>>();
  *tell = [&world, &master, from, number, master_life, tell = std::weak_ptr(tell)] {
    if (world.life(master.place_) != master_life) return;
    if (world.IsCut(from, master.place_)) {
      if (const auto again = tell.lock()) world.After(kRetryNs, [again] { (*again)(); });
      return;
    }
    master.Closed(number);
  };
  world.In(master.place_, world.Some(5 * kMillisecond), [tell] { (*tell)(); });
}

void SimConnection::Broken() {
  if (number_ == 0) return;
  number_ = 0;
  const std::uint64_t call = call_;
  // A host that is cut off hears nothing, and waits for its own deadline.
  world_.Send(master_.place_, from_, [self = self_, call] {
    if (*self != nullptr) (*self)->Finish(call, Fail(Code::kUnavailable, "connection reset"));
  });
}

}  // namespace kvcove::sim
