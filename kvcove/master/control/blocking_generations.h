// SPDX-License-Identifier: Apache-2.0
// Decides generations in this process, for a pool of one host. Each call waits for its answer.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "kvcove/master/control/generation_keeper.h"

namespace kvcove::master {

class FileStore;

// The only owner of such a pool. A publication counts as acknowledged when Publish returns.
class OwnerSink {
 public:
  virtual ~OwnerSink() = default;
  // Publishes the updates. Calls come in the order of the decisions, one at a time, under the
  // keeper's lock.
  virtual void Publish(const Id128& incarnation, const std::vector<SlotUpdate>& updates) = 0;
};

// Thread-safe.
class BlockingGenerations final : public wire::GenerationService {
 public:
  struct Options {
    std::string data_directory;  // empty: all facts end with the process
    std::int64_t lease_ns = 0;   // the longest lease that the owner gets
    bool log_resets = false;     // GenerationKeeper::Options
  };
  // Reads the store, plans the start and stores the new term, for at most 10 s. Errors: those of
  // the store.
  static Result<std::unique_ptr<BlockingGenerations>> Open(const Options& options, OwnerSink& sink,
                                                           const Clock& clock);
  ~BlockingGenerations() override;

  Result<Registration> Register(const RegisterRequest& request, std::int64_t deadline_ns) override;
  Result<ResetOutcome> Reset(const ResetRequest& request, std::int64_t deadline_ns) override;
  Status NameVersions(std::string_view name, std::string_view engine,
                      std::span<const std::string> versions, std::int64_t deadline_ns) override;
  Status EndEngine(std::string_view name, std::string_view engine,
                   std::int64_t deadline_ns) override;
  Result<PruneOutcome> Prune(const PruneRequest& request, std::int64_t deadline_ns) override;
  PoolFact pool() const;
  // Returns the namespaces and their weight versions. Takes the keeper's lock, which no reader and
  // no put of a known generation takes.
  std::vector<SlotDescription> Describe() const;
  std::vector<EngineDescription> Engines(std::size_t at_most) const;  // Generations::Engines
  std::vector<std::string> VersionedNames() const;  // GenerationKeeper::VersionedNames
  std::size_t registrations() const;
  // Stores that this process ended cleanly: the next start need not wait for leases. Call it only
  // when no lease is running. Errors: the store's; kTimeout after 1 s.
  Status Close();
  // Ends the calls that wait now with kUnavailable, within milliseconds. Their outcome is unknown.
  void EndWaits() { ++ended_; }

 private:
  class Sink;
  BlockingGenerations(const std::string& data_directory, OwnerSink& sink, const Clock& clock);
  template <typename T>
  Result<T> Wait(std::int64_t deadline_ns, const std::function<void(Reply<T>)>& call);

  const Clock& clock_;
  const std::string late_;                // the error text when the store does not answer in time
  std::atomic<std::uint64_t> ended_ = 0;  // number of EndWaits; a wait ends when this changes
  std::unique_ptr<Sink> sink_;
  std::unique_ptr<ControlStore> store_;
  std::unique_ptr<OrderedCommits> commits_;
  std::unique_ptr<GenerationKeeper> keeper_;
};

}  // namespace kvcove::master
