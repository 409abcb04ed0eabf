// SPDX-License-Identifier: Apache-2.0
// Master and owner of one host inside one process: what the embedded pool uses directly and what
// `serve` offers to others.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "kvcove/master/master.h"
#include "kvcove/owner/owner.h"
#include "kvcove/requester/attachment.h"

namespace kvcove::pool {

struct LocalHostOptions {
  owner::OwnerOptions owner;
  std::string data_directory;  // empty: generations are forgotten with the process
};

// Thread-safe.
class LocalHost final : private master::GenerationSink {
 public:
  static Result<std::unique_ptr<LocalHost>> Open(const LocalHostOptions& options,
                                                 const Clock& clock);
  ~LocalHost() override;

  owner::Owner& owner() { return *owner_; }
  master::Master& master() { return *master_; }

  Result<owner::Owner::Grant> AddSession(std::int32_t pid);
  // The session's process is proven gone, or it said goodbye.
  void EndSession(wire::SessionNumber number);
  // Calls bound to one session. Valid until the host ends.
  std::unique_ptr<wire::HostService> ServiceFor(wire::SessionNumber number);

 private:
  class Service;
  LocalHost() = default;
  void Publish(const Id128& incarnation, const std::vector<SlotUpdate>& updates) override;
  Status Await(std::int64_t /*deadline_ns*/) override { return {}; }  // published is acknowledged
  using EngineKey = std::pair<std::string, std::string>;  // namespace, engine
  void AddEngine(const EngineKey& engine, wire::SessionNumber number);
  void DropEngine(const EngineKey& engine, wire::SessionNumber number);

  std::unique_ptr<owner::Owner> owner_;
  std::unique_ptr<master::Master> master_;
  Mutex mutex_;
  std::map<EngineKey, std::set<wire::SessionNumber>> engines_ KVCOVE_GUARDED_BY(mutex_);
};

// The embedded form: this process is the only session.
class EmbeddedHost final : public requester::Host {
 public:
  static Result<std::unique_ptr<EmbeddedHost>> Open(const LocalHostOptions& options,
                                                    const Clock& clock);
  ~EmbeddedHost() override;
  std::shared_ptr<requester::Attachment> Current() override { return attachment_; }
  LocalHost& local() { return *local_; }

 private:
  class DirectAttachment;
  EmbeddedHost() = default;
  std::unique_ptr<LocalHost> local_;
  std::shared_ptr<requester::Attachment> attachment_;
  wire::SessionNumber number_ = 0;
};

}  // namespace kvcove::pool
