// SPDX-License-Identifier: Apache-2.0
// A transport of the simulation: payload moves between a requester's memory and an owner's in
// slices, late, and sometimes only in part. The owner's side drives the real `DataService`, the
// requester's side the exchanges that `RemoteRead` and `RemoteWrite` make.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kvcove/owner/data/data_service.h"
#include "kvcove/transport/endpoint.h"
#include "tests/sim/copy.h"
#include "tests/sim/sim_world.h"

namespace kvcove::sim {

// What travels from one process to the other.
struct SimMessage {
  wire::Method method = wire::Method::kDataGet;
  Code code = Code::kOk;  // of a reply
  std::string head;
  std::string payload;
};

// The exchanges that one owner's process serves. They end with it.
class SimServer {
 public:
  using Answer = std::function<void(Result<SimMessage>)>;

  SimServer(World& world, Place place, owner::DataStore& store);
  // `begun` runs when the service goes on with the request: what it reserves is reserved. `answer`
  // is called in this process.
  void Serve(const rpc::Caller& caller, const SimMessage& request, std::function<void()> begun,
             Answer answer);

 private:
  struct One {
    SimMessage request;
    std::function<void()> begun;  // null once it was called
    Answer answer;
    std::unique_ptr<owner::DataService::Session> session;
    std::unique_ptr<transport::Served> served;
    Copy copy;
    SimMessage reply;
    bool receiving = false;
    bool waiting = false;
  };
  void Next(std::uint64_t id);
  // Moves the payload of its step, slice by slice, then goes on.
  void Move(std::uint64_t id, int slices_left);
  void Wake(std::uint64_t id);
  // The connection ends: what is lent or reserved goes back.
  void Break(std::uint64_t id);

  World& world_;
  const Place place_;
  owner::DataStore& store_;
  owner::DataService service_;
  // Of connections that are open and silent.
  std::vector<std::unique_ptr<owner::DataService::Session>> idle_;
  std::map<std::uint64_t, One> running_;
  std::uint64_t next_id_ = 1;
};

// A requester's way to the owner at one place. Exchanges begin with Run(), because nothing may
// block in the simulation.
class SimEndpoint final : public transport::Endpoint {
 public:
  // The owner's process that runs there now; null: none.
  using ServerAt = std::function<SimServer*()>;

  SimEndpoint(World& world, Place from, Place to, ServerAt server_at)
      : world_(world), from_(from), to_(to), server_at_(std::move(server_at)) {}
  transport::Transport& transport() override { std::abort(); }
  Result<std::unique_ptr<transport::Transfer>> Start(transport::Exchange& exchange,
                                                     std::int64_t deadline_ns,
                                                     std::int64_t doubt_until_ns) override;

  // `done` runs in the requester's process when the exchange has ended, within `timeout_ns`. What
  // is captured there keeps the exchange alive.
  void Run(transport::Exchange& exchange, const rpc::Caller& caller, std::int64_t timeout_ns,
           const std::function<void()>& begun, const std::function<void()>& done);

 private:
  void Deliver(transport::Exchange& exchange, const Result<SimMessage>& reply);

  World& world_;
  const Place from_;
  const Place to_;
  const ServerAt server_at_;
};

}  // namespace kvcove::sim
