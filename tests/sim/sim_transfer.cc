// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_transfer.h"

namespace kvcove::sim {
namespace {

constexpr int kSlices = 2;

std::vector<transport::ConstPiece> PiecesOf(const std::string& bytes) {
  return {{.data = reinterpret_cast<const std::byte*>(bytes.data()), .size = bytes.size()}};
}

std::uint64_t BytesOf(std::span<const transport::ConstPiece> pieces) {
  std::uint64_t bytes = 0;
  for (const transport::ConstPiece& piece : pieces) bytes += piece.size;
  return bytes;
}

}  // namespace

// ---- the owner's side

SimServer::SimServer(World& world, Place place, owner::DataStore& store)
    : world_(world),
      place_(place),
      store_(store),
      service_(store, {.checksum = true}, world.clock(place)) {}

void SimServer::Serve(const rpc::Caller& caller, const SimMessage& request,
                      std::function<void()> begun, Answer answer) {
  const std::uint64_t id = next_id_++;
  One& one = running_[id];
  one.request = request;
  one.begun = std::move(begun);
  one.answer = std::move(answer);
  if (idle_.empty()) {
    one.session = std::make_unique<owner::DataService::Session>(store_);
  } else {
    one.session = std::move(idle_.back());
    idle_.pop_back();
  }
  one.served =
      service_.Begin(*one.session, caller, request.method, std::as_bytes(std::span(request.head)),
                     /*deadline_ns=*/0, [this, id] { Wake(id); });
  if (one.served == nullptr) return Break(id);
  Next(id);
}

void SimServer::Next(std::uint64_t id) {
  const auto at = running_.find(id);
  if (at == running_.end()) return;
  One& one = at->second;
  transport::Step step = one.served->Next();
  // A put may wait for its generation before it reserves.
  if (step.kind != transport::Step::Kind::kWait && one.begun) std::exchange(one.begun, {})();
  switch (step.kind) {
    case transport::Step::Kind::kReceive:
      one.copy = Copy(PiecesOf(one.request.payload), std::move(step.into));
      one.receiving = true;
      return Move(id, kSlices);
    case transport::Step::Kind::kAgain:
      return world_.In(place_, world_.Some(50 * kMicrosecond), [this, id] { Next(id); });
    case transport::Step::Kind::kWait:
      one.waiting = true;
      return world_.In(place_, step.until_ns - world_.NowOf(place_) + kMicrosecond,
                       [this, id] { Wake(id); });
    case transport::Step::Kind::kReply: {
      one.reply = {.method = one.request.method, .code = step.code, .head = std::move(step.head)};
      one.reply.payload.resize(BytesOf(step.out));
      std::vector<transport::Piece> to = {
          {.data = reinterpret_cast<std::byte*>(one.reply.payload.data()),
           .size = one.reply.payload.size()}};
      one.copy = Copy(std::move(step.out), std::move(to));
      one.receiving = false;
      return Move(id, one.reply.payload.empty() ? 0 : kSlices);
    }
    case transport::Step::Kind::kEnd:
      return Break(id);
  }
}

void SimServer::Move(std::uint64_t id, int slices_left) {
  if (slices_left > 0) {
    // The bytes move bit by bit, sometimes after everything else; a pause makes it longer.
    const bool slow = world_.faults() && world_.random().OneIn(60);
    return world_.In(
        place_, world_.Some(slow ? 2 * kSecond : 200 * kMicrosecond), [this, id, slices_left] {
          const auto at = running_.find(id);
          if (at == running_.end()) return;
          if (world_.faults() && world_.random().OneIn(300)) return Break(id);
          One& one = at->second;
          const std::uint64_t most = slices_left == 1 ? ~0ULL : 1 + world_.random().Below(1024);
          one.copy.Advance(most);
          if (one.receiving) one.served->Received(one.copy.copied());
          Move(id, slices_left - 1);
        });
  }
  const auto at = running_.find(id);
  One& one = at->second;
  if (std::exchange(one.receiving, false)) return Next(id);
  one.served.reset();
  idle_.push_back(std::move(one.session));
  const Answer answer = std::move(one.answer);
  const SimMessage reply = std::move(one.reply);
  running_.erase(at);
  answer(reply);
}

void SimServer::Wake(std::uint64_t id) {
  // Not within the call that wakes: the service may be in the middle of a step.
  world_.In(place_, 0, [this, id] {
    const auto at = running_.find(id);
    if (at != running_.end() && std::exchange(at->second.waiting, false)) Next(id);
  });
}

void SimServer::Break(std::uint64_t id) {
  const auto at = running_.find(id);
  const Answer answer = std::move(at->second.answer);
  at->second.served.reset();
  running_.erase(at);
  answer(Fail(Code::kUnavailable, "the connection has ended"));
}

// ---- the requester's side

Result<std::unique_ptr<transport::Transfer>> SimEndpoint::Start(transport::Exchange&, std::int64_t,
                                                                std::int64_t) {
  return Fail(Code::kInternal, "the simulation begins exchanges with Run()");
}

void SimEndpoint::Run(transport::Exchange& exchange, const rpc::Caller& caller,
                      std::int64_t timeout_ns, const std::function<void()>& begun,
                      const std::function<void()>& done) {
  SimMessage request{.method = exchange.method, .head = exchange.head, .payload = {}};
  for (const transport::ConstPiece& piece : exchange.out) {
    request.payload.append(reinterpret_cast<const char*>(piece.data), piece.size);
  }
  // The first of answer and deadline counts: nothing lands after it.
  const auto ended = std::make_shared<bool>(false);
  world_.In(from_, timeout_ns, [ended, done] {
    if (!std::exchange(*ended, true)) done();
  });
  world_.Send(
      from_, to_, [this, request = std::move(request), caller, begun, ended, done, &exchange] {
        SimServer* server = server_at_();
        if (server == nullptr) return;
        server->Serve(
            caller, request, begun, [this, ended, done, &exchange](Result<SimMessage> reply) {
              world_.Send(to_, from_, [this, ended, done, &exchange, reply = std::move(reply)] {
                if (std::exchange(*ended, true)) return;
                Deliver(exchange, reply);
                done();
              });
            });
      });
}

void SimEndpoint::Deliver(transport::Exchange& exchange, const Result<SimMessage>& reply) {
  if (!reply) {
    exchange.status = std::unexpected(reply.error());
    return;
  }
  if (reply->code != Code::kOk) {
    exchange.status = Fail(reply->code, reply->head);
    return;
  }
  auto into = exchange.on_reply(std::as_bytes(std::span(reply->head)));
  if (!into) {
    exchange.status = std::unexpected(into.error());
    return;
  }
  Copy copy(PiecesOf(reply->payload), std::move(*into));
  // Bytes arrive as they come; a connection may end in the middle.
  const bool cut = world_.faults() && world_.random().OneIn(200);
  for (int slice = 0; slice < kSlices && copy.copied() < reply->payload.size(); ++slice) {
    const bool last = slice == kSlices - 1;
    if (last && cut) break;
    copy.Advance(last ? ~0ULL : 1 + world_.random().Below(1024));
    if (exchange.on_bytes) exchange.on_bytes(copy.copied());
  }
  if (copy.copied() < reply->payload.size()) {
    exchange.status = Fail(Code::kUnavailable, "the owner closed the connection");
    return;
  }
  exchange.status = {};
}

}  // namespace kvcove::sim
