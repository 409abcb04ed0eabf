// SPDX-License-Identifier: Apache-2.0
// The master's process of a simulated cluster: `master::Master` over `master::FileStore` over a
// disk that fails, and connections to it. A process that dies takes everything with it but its
// disk.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "kvcove/master/master.h"
#include "kvcove/master/store/file_store.h"
#include "kvcove/wire/frame.h"
#include "tests/sim/fake_disk.h"
#include "tests/sim/sim_world.h"

namespace kvcove::sim {

class SimConnection;

class SimMaster {
 public:
  using Done = std::function<void(Result<std::string>)>;
  // Is called for each master that starts to answer, with what the master found in its store.
  using Started = std::function<void(const master::StoredState&)>;
  // `fail`: hears of what must never happen.
  SimMaster(World& world, Place place, const master::MasterOptions& options,
            std::function<void(const std::string&)> fail, Started started);
  ~SimMaster();

  Place place() const { return place_; }
  const master::MasterOptions& options() const { return options_; }
  FakeDisk& disk() { return *disk_; }
  // Another disk, with nothing on it. Only while it is dead.
  void LoseDisk();
  // Over what the disk has. It answers once its start is stored.
  void Start();
  // Without warning: no callback of it goes anywhere.
  void Kill();
  bool alive() const { return master_ != nullptr; }
  // Null while it does not answer.
  master::Master* answering() { return ready_ ? master_.get() : nullptr; }

 private:
  friend class SimConnection;
  void Tick();
  void Work();
  void WorkSoon();
  void Receive(std::uint64_t connection, const std::string& tenant, wire::Method method,
               const std::string& body, const master::Reply<std::string>& reply);
  void AnswerRequester(const std::string& tenant, wire::Method method,
                       std::span<const std::byte> body, const master::Reply<std::string>& reply);
  Result<std::string> AnswerNow(const std::string& tenant, wire::Method method,
                                std::span<const std::byte> body);
  void Closed(std::uint64_t connection);
  void LogList(const std::string& body, const std::string& answer);
  void CheckFrame(const std::string& body, wire::Method method);

  World& world_;
  const Place place_;
  const master::MasterOptions options_;
  const std::function<void(const std::string&)> fail_;
  const Started started_;
  std::unique_ptr<FakeDisk> disk_;
  std::unique_ptr<master::Master> master_;
  std::unique_ptr<master::FileStore> store_;
  bool ready_ = false;
  bool work_scheduled_ = false;
  std::uint64_t next_connection_ = 1;
  std::map<std::uint64_t, SimConnection*> connections_;  // in the order of their making
  std::uint64_t next_client_ = 1;
};

// A client's connection to the master, which is made when it is needed. One call at a time.
class SimConnection {
 public:
  SimConnection(World& world, SimMaster& master, Place from, std::string tenant);
  ~SimConnection();
  // `done` is called once, unless the caller's process dies. After kTimeout and kUnavailable the
  // connection is closed.
  void Call(wire::Method method, std::string body, std::int64_t timeout_ns, SimMaster::Done done);
  bool open() const { return number_ != 0; }
  void Close();

 private:
  friend class SimMaster;
  void Finish(std::uint64_t call, Result<std::string> answer);
  void TellClosed(std::uint64_t number, std::uint64_t master_life);
  // The master's process ended.
  void Broken();

  World& world_;
  SimMaster& master_;
  const Place from_;
  const std::string tenant_;
  const std::uint64_t client_;
  // Shared with events: gone when this is.
  const std::shared_ptr<SimConnection*> self_ = std::make_shared<SimConnection*>(this);
  std::uint64_t number_ = 0;       // 0: closed
  std::uint64_t master_life_ = 0;  // that it is connected to
  std::uint64_t call_ = 0;         // the one under way, or the last one
  SimMaster::Done done_;
};

}  // namespace kvcove::sim
